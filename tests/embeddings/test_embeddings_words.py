"""Word-aligned vectors: against one text at a time and loops, for every family, and on disk."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import symprompt
from symprompt.embeddings import Choice, EmbeddingStore, Text, embed, read_corpus, write_embeddings
from symprompt.embeddings import store as store_module
from symprompt.embeddings.vectors import Tokens, embed_chunks, make_windows, tokenise
from symprompt.errors import ConfigError, DataError, ModelError, RunError
from symprompt.models import LanguageModel
from symprompt.runs.folder import Folder
from tiny.models import CAUSAL_FAMILIES
from tiny.oracles import hidden_states
from tiny.runs import unfinish

TEXTS = (
    "The capital of France is Paris .",
    "Havana",
    "Oslo, it's old-river xyz  Tokyo!",
    "the capital of the city of the capital of the river is the old city of the capital Lima .",
)


def slow(backbone: LanguageModel, text: Text, layers: str, pool: str) -> list[torch.Tensor]:
    """One text, one word, one sub-token at a time, by the model's ordinary forward pass."""
    vocabulary = backbone.vocabulary
    found = vocabulary.tokenizer(text.text, add_special_tokens=False, return_offsets_mapping=True)
    states = hidden_states(backbone, found["input_ids"])
    vectors = []
    for start, end in zip(text.starts, text.ends, strict=True):
        own = [
            number + len(vocabulary.prefix)
            for number, (begin, stop) in enumerate(found["offset_mapping"])
            if stop > start and begin < end
        ]
        own = own[:1] if pool == "first" else own
        chosen = {"last": states[-1:], "1": states[1:2]}.get(layers, states[-2:])
        total = torch.stack([sum(state[at] for state in chosen) for at in own]).mean(dim=0)
        vectors.append(total / (2 if layers.startswith("mean") else 1))
    return vectors


def check_family(backbone: LanguageModel, layers: str, pool: str) -> None:
    """Compare every word of every text with the slow way."""
    texts = [Text.running(text) for text in TEXTS]
    found = embed(texts, model=backbone, layers=layers, pool=pool)  # type: ignore[arg-type]
    expected = torch.stack([row for text in texts for row in slow(backbone, text, layers, pool)])
    assert found.words()[:3] == ["The", "capital", "of"]
    np.testing.assert_allclose(found.vectors, expected.numpy(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("layers", "pool"), [("sum-last-2", "mean"), ("last", "first")])
def test_vectors_are_those_of_each_text_alone(
    backbone: LanguageModel, layers: str, pool: str
) -> None:
    check_family(backbone, layers, pool)


@pytest.mark.parametrize("name", list(CAUSAL_FAMILIES))
def test_causal_vectors_are_those_of_each_text_alone(
    load_family: Callable[..., LanguageModel], name: str
) -> None:
    check_family(load_family(name), "mean-last-2", "mean")


def test_layers_can_be_named_one_by_one(bert: LanguageModel) -> None:
    check_family(bert, "1", "mean")
    every = embed(TEXTS, model=bert, layers="all").vectors
    assert every.shape[1:] == (3, 32)
    last = embed(TEXTS, model=bert, layers="last").vectors
    np.testing.assert_allclose(every[:, 2], last, rtol=1e-5)
    both = embed(TEXTS, model=bert, layers="sum-last-2").vectors
    np.testing.assert_allclose(every[:, 1] + every[:, 2], both, rtol=1e-4, atol=1e-5)


def test_batches_make_no_difference(bert: LanguageModel) -> None:
    texts = [Text.running(text) for text in TEXTS * 3]
    whole = embed(texts, model=bert).vectors
    parts = [found.vectors for found in embed_chunks(bert, texts, Choice(max_tokens=20), chunk=60)]
    assert len(parts) > 3
    np.testing.assert_allclose(np.concatenate(parts), whole, rtol=1e-4, atol=1e-5)


def test_lists_of_words_give_the_same_and_words_left_out_are_zero(bert: LanguageModel) -> None:
    running = embed(["The capital of Peru is Lima ."], model=bert)
    listed = embed([["The", "capital", "of", "Peru", "is", "Lima", "."]], model=bert)
    np.testing.assert_array_equal(running.vectors, listed.vectors)
    assert symprompt.embed is embed
    found = embed([["Paris", "\u200d", "Rome"]], model=bert)
    assert found.tokens.tolist()[1] == 0
    assert not found.vectors[1].any()
    assert found.vectors[2].any()


def test_words_of_running_text() -> None:
    text = Text.running("Don't split well-known 3.5 % (U.S.)")
    assert text.words() == ["Don't", "split", "well-known", "3.5", "%", "(", "U.S", ".", ")"]
    assert Text.running("  ").words() == []


@given(
    sizes=st.lists(st.integers(0, 9), min_size=1, max_size=40),
    size=st.integers(1, 24),
    causal=st.booleans(),
)
def test_windows_cover_all_and_leave_most_context(
    sizes: list[int], size: int, causal: bool
) -> None:
    last = np.cumsum(sizes)
    first = last - np.array(sizes)
    tokens = Tokens(np.arange(last[-1]), first, last)
    starts, ends, of_word = make_windows(tokens, size, causal=causal)
    count = int(last[-1])
    assert starts[0] == 0
    assert ends[-1] == count
    assert (ends - starts <= size).all()
    assert (starts[1:] <= ends[:-1]).all()
    for begin, end, own in zip(first, last, of_word, strict=True):
        if end == begin:
            continue
        rooms = []
        for start, stop in zip(starts, ends, strict=True):
            left = 999 if start == 0 else begin - start
            right = 999 if stop == count or causal else stop - end
            whole = start <= begin and end <= stop
            rooms.append(min(left, right) if whole else -1)
        if max(rooms) >= 0:
            assert rooms[own] == max(rooms)
        assert max(begin, starts[own]) < min(end, ends[own])


@pytest.mark.parametrize("name", ["bert", "gpt2", "roberta"])
def test_a_long_text_is_read_in_windows(
    load_family: Callable[..., LanguageModel], name: str
) -> None:
    backbone = load_family(name)
    text = " ".join(f"the river of {city}" for city in ("Rome", "Lima", "Tokyo", "Oslo") * 9)
    found = embed([text], model=backbone)
    (tokens,) = tokenise(backbone.vocabulary, found.texts)
    size = backbone.max_length - len(backbone.vocabulary.prefix) - len(backbone.vocabulary.suffix)
    starts, ends, of_word = make_windows(tokens, size, causal=backbone.causal)
    assert len(starts) > 3
    word = len(found.words()) // 2 + 1
    start, end = (int(side[of_word[word]]) for side in (starts, ends))
    states = hidden_states(backbone, tokens.ids[start:end])[-1]
    own = states[len(backbone.vocabulary.prefix) :][
        tokens.first[word] - start : tokens.last[word] - start
    ]
    np.testing.assert_allclose(found.vectors[word], own.mean(dim=0).numpy(), rtol=1e-4, atol=1e-4)
    assert np.isfinite(found.vectors).all()
    assert (np.abs(found.vectors).sum(axis=1) > 0).all()


# ---------------------------------------------------------------------------------- on disk


def corpus(count: int = 30) -> list[Text]:
    return [Text.running(TEXTS[number % 4] + f" {number}", "en") for number in range(count)]


def test_a_store_holds_what_embed_gives(bert: LanguageModel, tmp_path: Path) -> None:
    ticks: list[tuple[str, int, int, str]] = []
    store = write_embeddings(
        bert,
        iter(corpus()),
        tmp_path / "out",
        Choice("sum-last-2"),
        dtype="float32",
        total=30,
        tick=lambda *values: ticks.append(values),
    )
    found = embed(corpus(), model=bert, layers="sum-last-2")
    np.testing.assert_allclose(store.vectors, found.vectors, rtol=1e-6)
    assert isinstance(store.vectors, np.memmap)
    assert store.spelled().tolist() == found.words()
    assert store.texts[3]["text"] == corpus()[3].text
    assert store.texts[3]["label"] == "en"
    havana = store.find("havana", ignore_case=True)
    assert [entry.word for entry in havana] == ["Havana"] * 8
    assert store.find("havana") == []
    assert ticks[-1][:3] == ("embed", 30, 30)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        *("symprompt.json", "texts.jsonl", "vectors.npy", "words.npy")
    ]
    # Made again it is only opened.
    before = (tmp_path / "out" / "vectors.npy").stat().st_mtime_ns
    write_embeddings(bert, iter(()), tmp_path / "out", Choice("sum-last-2"), dtype="float32")
    assert (tmp_path / "out" / "vectors.npy").stat().st_mtime_ns == before


def test_what_was_killed_goes_on_with_the_same_bytes(
    bert: LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("symprompt.embeddings.store._CHUNK", 200)
    whole = write_embeddings(bert, corpus(), tmp_path / "whole")

    def stops(number: int) -> Iterator[Text]:
        yield from corpus()[:number]
        raise KeyboardInterrupt

    for number in (7, 8, 15, 29):
        with pytest.raises(KeyboardInterrupt):
            write_embeddings(bert, stops(number), tmp_path / "broken")
        with pytest.raises(RunError, match="not finished"):
            EmbeddingStore.load(tmp_path / "broken")
    # What a kill in the middle of a write leaves behind is cut off.
    with (tmp_path / "broken" / "vectors.npy.part").open("ab") as stream:
        stream.write(b"half a row")
    write_embeddings(bert, corpus(), tmp_path / "broken")
    for name in ("vectors.npy", "words.npy", "texts.jsonl"):
        assert (tmp_path / "broken" / name).read_bytes() == (whole.folder / name).read_bytes()


def test_a_kill_at_the_very_end_is_mended(bert: LanguageModel, tmp_path: Path) -> None:
    store = write_embeddings(bert, corpus(), tmp_path / "out")
    rows = store.about["words"]
    state = {"rows": rows, "texts": store.about["texts"]}
    state["size"] = (tmp_path / "out" / "texts.jsonl").stat().st_size
    (tmp_path / "out" / "parts").mkdir()
    (tmp_path / "out" / "parts" / "state.json").write_text(json.dumps(state))
    unfinish(tmp_path / "out")
    (tmp_path / "out" / "words.npy").rename(tmp_path / "out" / "words.npy.part")
    again = write_embeddings(bert, corpus(), tmp_path / "out")
    assert len(again) == rows


def test_a_killed_process_goes_on(family_folder: Callable[[str], Path], tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(TEXTS * 60))
    model = str(family_folder("bert"))
    code = (
        "import os, signal, symprompt.embeddings.store as store\n"
        "store._CHUNK = 2000\n"
        "add = store._Writer.add\n"
        "def twice(self, found):\n"
        "    add(self, found)\n"
        "    if self.texts > 60: os.kill(os.getpid(), signal.SIGKILL)\n"
        "store._Writer.add = twice\n"
        "from symprompt.embeddings import *\n"
        "from symprompt.models import LanguageModel\n"
        f"bert = LanguageModel.load({model!r}, device='cpu')\n"
        f"write_embeddings(bert, read_corpus([{str(text)!r}]), {str(tmp_path / 'out')!r})\n"
    )
    first = subprocess.run([sys.executable, "-c", code], check=False)
    assert first.returncode == -signal.SIGKILL
    assert not Folder(tmp_path / "out").finished
    backbone = LanguageModel.load(model, device="cpu")
    store = write_embeddings(backbone, read_corpus([text]), tmp_path / "out")
    assert store.about["texts"] == 240
    np.testing.assert_array_equal(store.vectors[-3:], store.vectors[len(store) // 2 - 3 :][:3])


# --------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("texts", "settings", "error", "message"),
    [
        (TEXTS, {"layers": "first"}, ConfigError, "mean-last-4"),
        (TEXTS, {"pool": "max"}, ConfigError, "first or mean"),
        (TEXTS, {"layers": "sum-last-4"}, ConfigError, "has 2 layers"),
        (TEXTS, {"window": 47}, DataError, "1 to 46"),
        ("text", {}, DataError, "one string"),
        ([], {}, DataError, "at least one"),
        ([3], {}, DataError, "a text is a int"),
        ([["a", ""]], {}, DataError, "a word is empty"),
    ],
)
def test_what_cannot_be_embedded_is_refused(
    bert: LanguageModel, texts: Any, settings: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        embed(texts, model=bert, **settings)


def test_what_cannot_be_stored_is_refused(bert: LanguageModel, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="float16 or float32"):
        write_embeddings(bert, corpus(), tmp_path / "out", dtype="int8")
    with pytest.raises(RunError, match="no text"):
        write_embeddings(bert, [], tmp_path / "empty")
    write_embeddings(bert, corpus(), tmp_path / "out")
    with pytest.raises(RunError, match="was made with pool 'mean', not 'first'"):
        write_embeddings(bert, corpus(), tmp_path / "out", Choice(pool="first"))
    (tmp_path / "out" / "words.npy").write_bytes(b"")
    with pytest.raises(RunError, match=r"cannot read .*words\.npy"):
        EmbeddingStore.load(tmp_path / "out")


def test_a_full_disk_leaves_nothing_or_what_can_be_gone_on_with(
    bert: LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("symprompt.embeddings.store._CHUNK", 200)
    whole = write_embeddings(bert, corpus(), tmp_path / "whole")
    settle, out = store_module._settle, tmp_path / "out"
    for sure, left in ((0, 0), (1, 5)):
        times = iter(range(3 * sure + 2))

        def fills(stream: BinaryIO, times: Iterator[int] = times) -> None:
            if next(times, None) is None:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            settle(stream)

        monkeypatch.setattr(store_module, "_settle", fills)
        said = rf"No space left on device; make room .* it goes on after {left} texts\.$"
        with pytest.raises(RunError, match=said):
            write_embeddings(bert, corpus(), out)
        assert out.exists() == bool(sure)
    monkeypatch.setattr(store_module, "_settle", settle)
    (out / "texts.jsonl.part").rename(tmp_path / "elsewhere")
    (out / "texts.jsonl.part").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RunError, match="shorter than"):
        write_embeddings(bert, corpus(), out)
    (tmp_path / "elsewhere").rename(out / "texts.jsonl.part")
    write_embeddings(bert, corpus(), out)
    assert (out / "vectors.npy").read_bytes() == (whole.folder / "vectors.npy").read_bytes()


def test_vectors_that_are_not_finite_are_refused(
    family_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    backbone = LanguageModel.load(str(family_folder("bert")), device="cpu")
    with torch.no_grad():
        backbone.model.bert.encoder.layer[-1].output.LayerNorm.bias[0] = 1e5
    with pytest.raises(ModelError, match="'the' a vector that is not finite in float16"):
        write_embeddings(backbone, [Text.running("the capital")], tmp_path / "out")
    assert not (tmp_path / "out").exists()
    write_embeddings(backbone, [Text.running("the capital")], tmp_path / "out", dtype="float32")


def test_a_tokenizer_without_places_is_refused(bert: LanguageModel) -> None:
    class Slow:
        is_fast = False

    vocabulary = type("Vocabulary", (), {"tokenizer": Slow()})()
    with pytest.raises(ModelError, match=r"tokenizer\.json"):
        list(tokenise(vocabulary, [Text.running("a")]))
