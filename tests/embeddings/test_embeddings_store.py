"""Vectors of words and of texts on disk: what is kept, gone on with after a kill, and refused."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pytest
import torch

from symprompt.embeddings import Choice, EmbeddingStore, Text, embed, read_corpus, write_embeddings
from symprompt.embeddings import store as store_module
from symprompt.errors import ConfigError, ModelError, RunError
from symprompt.models import LanguageModel
from symprompt.runs.folder import Folder
from tiny.runs import unfinish

TEXTS = (
    "The capital of France is Paris .",
    "Havana",
    "Oslo, it's old-river xyz  Tokyo!",
    "the capital of the city of the capital of the river is the old city of the capital Lima .",
)


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


def test_a_store_holds_one_row_for_each_text(bert: LanguageModel, tmp_path: Path) -> None:
    texts = [Text.running(text, "en") for text in TEXTS]
    choice = Choice("mean-last-2", "text-mean")
    made = write_embeddings(bert, texts, tmp_path / "out", choice, dtype="float32")
    store = EmbeddingStore.load(tmp_path / "out")
    found = embed(texts, model=bert, layers="mean-last-2", pool="text-mean")
    np.testing.assert_allclose(store.vectors, found.vectors, rtol=1e-6)
    assert store.spelled().tolist() == list(TEXTS)
    assert store.words[:, 0].tolist() == [0, 1, 2, 3]
    assert (store.about["pool"], made.about["texts"], len(made)) == ("text-mean", 4, 4)
    with pytest.raises(RunError, match="was made with pool 'text-mean', not 'text-cls'"):
        write_embeddings(bert, texts, tmp_path / "out", Choice("mean-last-2", "text-cls"))


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
