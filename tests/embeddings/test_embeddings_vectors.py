"""Vectors of words and of whole texts: against one text at a time and loops, for every family."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import symprompt
from symprompt.embeddings import Choice, Text, embed
from symprompt.embeddings.vectors import Tokens, embed_chunks, make_windows, tokenise
from symprompt.errors import ConfigError, DataError, ModelError
from symprompt.models import LanguageModel
from tiny.oracles import hidden_states

TEXTS = (
    "The capital of France is Paris .",
    "Havana",
    "Oslo, it's old-river xyz  Tokyo!",
    "the capital of the city of the capital of the river is the old city of the capital Lima .",
)
LONG = " ".join(f"the old river of {city}" for city in ("Rome", "Lima", "Tokyo", "Oslo") * 9)


def states_of(backbone: LanguageModel, tokens: Sequence[int], layers: str) -> Tensor:
    """The states [t, h] by the model's ordinary forward pass, of one layer or of the last two."""
    *below, last = hidden_states(backbone, tokens)
    chosen = {"last": [last], "1": below[1:2]}.get(layers, [below[-1], last])
    return sum(chosen[1:], chosen[0]) / (2 if layers.startswith("mean") else 1)


def slow_words(backbone: LanguageModel, text: Text, layers: str, pool: str) -> list[Tensor]:
    """One word, one sub-token at a time."""
    vocabulary = backbone.vocabulary
    found = vocabulary.tokenizer(text.text, add_special_tokens=False, return_offsets_mapping=True)
    states = states_of(backbone, found["input_ids"], layers)
    vectors = []
    for start, end in zip(text.starts, text.ends, strict=True):
        own = [
            number + len(vocabulary.prefix)
            for number, (begin, stop) in enumerate(found["offset_mapping"])
            if stop > start and begin < end
        ]
        own = own[:1] if pool == "first" else own
        vectors.append(torch.stack([states[at] for at in own]).mean(dim=0))
    return vectors


def slow_text(
    backbone: LanguageModel, text: Text, layers: str, pool: str, size: int = 0
) -> list[Tensor]:
    """One window at a time, and their mean."""
    vocabulary = backbone.vocabulary
    tokens = vocabulary.tokenizer(text.text, add_special_tokens=False)["input_ids"]
    size = size or backbone.max_length - len(vocabulary.prefix) - len(vocabulary.suffix)
    count = -(-len(tokens) // size)
    windows = []
    for start, end in pairwise(place * len(tokens) // count for place in range(count + 1)):
        assert end - start <= size
        states = states_of(backbone, tokens[start:end], layers)
        if pool == "text-mean":
            states = states[len(vocabulary.prefix) if backbone.causal else 0 :]
        else:
            states = states[:1] if pool == "text-cls" else states[-1:]
        windows.append(states.mean(dim=0))
    return [torch.stack(windows).mean(dim=0)]


def check(backbone: LanguageModel, texts: Sequence[str], layers: str, pool: Any) -> None:
    """Compare every vector with the slow way."""
    read = [Text.running(text) for text in texts]
    found = embed(read, model=backbone, layers=layers, pool=pool)
    whole = pool.startswith("text-")
    slow = slow_text if whole else slow_words
    expected = torch.stack([row for text in read for row in slow(backbone, text, layers, pool)])
    words = list(texts) if whole else [word for text in read for word in text.words()]
    assert found.words() == words
    np.testing.assert_allclose(found.vectors, expected.numpy(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("layers", "pool"),
    [
        ("sum-last-2", "mean"),
        ("last", "first"),
        ("last", "text-mean"),
        ("mean-last-2", "text-cls"),
    ],
)
def test_vectors_are_those_of_each_text_alone(
    backbone: LanguageModel, layers: str, pool: str
) -> None:
    check(backbone, TEXTS, layers, pool)


@pytest.mark.parametrize("pool", ["mean", "text-mean", "text-last"])
def test_causal_vectors_are_those_of_each_text_alone(causal: LanguageModel, pool: str) -> None:
    check(causal, TEXTS, "mean-last-2", pool)


@pytest.mark.parametrize("pool", ["mean", "text-cls"])
def test_layers_can_be_named_one_by_one(bert: LanguageModel, pool: Any) -> None:
    check(bert, TEXTS, "1", pool)
    every = embed(TEXTS, model=bert, layers="all", pool=pool).vectors
    assert every.shape[1:] == (3, 32)
    last = embed(TEXTS, model=bert, layers="last", pool=pool).vectors
    np.testing.assert_allclose(every[:, 2], last, rtol=1e-5)
    both = embed(TEXTS, model=bert, layers="sum-last-2", pool=pool).vectors
    np.testing.assert_allclose(every[:, 1] + every[:, 2], both, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("pool", ["mean", "text-mean"])
def test_batches_and_padding_make_no_difference(bert: LanguageModel, pool: Any) -> None:
    texts = [Text.running(text) for text in (*TEXTS, LONG) * 3]
    whole = embed(texts, model=bert, pool=pool).vectors
    choice = Choice(pool=pool, max_tokens=20)
    parts = [found.vectors for found in embed_chunks(bert, texts, choice, chunk=60)]
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


@pytest.mark.parametrize(
    ("name", "pool"),
    [("bert", "text-mean"), ("bert", "text-cls"), ("gpt2", "text-mean"), ("gpt2", "text-last")],
)
def test_a_long_text_is_the_mean_of_its_windows(
    load_family: Callable[..., LanguageModel], name: str, pool: str
) -> None:
    backbone = load_family(name)
    check(backbone, (LONG, *TEXTS), "last", pool)
    cut = embed([LONG], model=backbone, pool=pool, window=7)  # type: ignore[arg-type]
    (expected,) = slow_text(backbone, Text.running(LONG), "last", pool, size=7)
    np.testing.assert_allclose(cut.vectors[0], expected.numpy(), rtol=1e-4, atol=1e-4)
    tokens = len(backbone.vocabulary.encode([LONG])[0])
    assert cut.tokens.tolist() == [tokens]


@pytest.mark.parametrize("pool", ["text-mean", "text-cls"])
def test_a_text_without_tokens_has_a_vector_of_zeros(bert: LanguageModel, pool: str) -> None:
    found = embed(["Paris", "\u200d", "Rome"], model=bert, pool=pool)  # type: ignore[arg-type]
    assert found.tokens.tolist()[1] == 0
    assert [bool(row.any()) for row in found.vectors] == [True, False, True]


@pytest.mark.parametrize("name", ["bert", "mpnet"])
def test_an_encoder_without_a_head_has_vectors_too(
    load_family: Callable[..., LanguageModel], name: str, tmp_path: Path
) -> None:
    backbone = load_family(name)
    backbone.model.base_model.save_pretrained(tmp_path)
    backbone.vocabulary.tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="masked-LM head"):
        LanguageModel.load(str(tmp_path), device="cpu")
    found = embed(TEXTS, model=str(tmp_path), pool="text-mean", device="cpu")
    expected = embed(TEXTS, model=backbone, pool="text-mean")
    np.testing.assert_allclose(found.vectors, expected.vectors, rtol=1e-5, atol=1e-6)


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


@pytest.mark.parametrize(
    ("name", "pool", "message"),
    [
        ("gpt2", "text-cls", r"no \[CLS\] token .*; use text-last or text-mean\."),
        ("llama", "text-cls", r"no \[CLS\] token"),
        ("bert", "text-last", r"is a masked model, .*; use text-mean or text-cls\."),
        ("bert", "text", "use first or mean for words, text-mean"),
    ],
)
def test_a_token_that_says_nothing_is_refused(
    load_family: Callable[..., LanguageModel], name: str, pool: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        embed(TEXTS, model=load_family(name), pool=pool)  # type: ignore[arg-type]


def test_a_tokenizer_without_places_is_refused(bert: LanguageModel) -> None:
    class Slow:
        is_fast = False

    vocabulary = type("Vocabulary", (), {"tokenizer": Slow()})()
    with pytest.raises(ModelError, match=r"tokenizer\.json"):
        list(tokenise(vocabulary, [Text.running("a")]))
