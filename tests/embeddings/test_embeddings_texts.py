"""Vectors of whole texts: against loops over transformers' own passes, in windows, and on disk."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from symprompt.embeddings import Choice, EmbeddingStore, Text, embed, write_embeddings
from symprompt.embeddings.vectors import embed_chunks
from symprompt.errors import ConfigError, ModelError, RunError
from symprompt.models import LanguageModel
from tiny.models import CAUSAL_FAMILIES
from tiny.oracles import hidden_states

TEXTS = (
    "The capital of France is Paris .",
    "Havana",
    "Oslo, it's old-river xyz  Tokyo!",
    "the capital of the city of the capital of the river is the old city of the capital Lima .",
)
LONG = " ".join(f"the old river of {city}" for city in ("Rome", "Lima", "Tokyo", "Oslo") * 9)


def slow(backbone: LanguageModel, text: str, layers: int, pool: str, size: int = 0) -> np.ndarray:
    """One text, one window, one token at a time, by the model's ordinary forward pass."""
    vocabulary = backbone.vocabulary
    tokens = vocabulary.tokenizer(text, add_special_tokens=False)["input_ids"]
    before = len(vocabulary.prefix)
    size = size or backbone.max_length - before - len(vocabulary.suffix)
    count = -(-len(tokens) // size)
    cuts = [place * len(tokens) // count for place in range(count + 1)]
    windows = []
    for start, end in pairwise(cuts):
        assert end - start <= size
        states = hidden_states(backbone, tokens[start:end])[-layers:]
        rows = [
            sum(own) / layers for own in zip(*(state.double() for state in states), strict=True)
        ]
        chosen = {"text-cls": rows[:1], "text-last": rows[-1:]}.get(pool, rows)
        if pool == "text-mean" and backbone.causal:
            chosen = rows[before:]
        windows.append(sum(chosen) / len(chosen))
    return np.asarray(sum(windows) / len(windows))


def check(backbone: LanguageModel, texts: tuple[str, ...], layers: int, pool: str) -> None:
    """Compare every text with the slow way."""
    name = "last" if layers == 1 else f"mean-last-{layers}"
    found = embed(texts, model=backbone, layers=name, pool=pool)  # type: ignore[arg-type]
    expected = np.stack([slow(backbone, text, layers, pool) for text in texts])
    assert found.words() == list(texts)
    np.testing.assert_allclose(found.vectors, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("layers", "pool"), [(1, "text-mean"), (2, "text-cls")])
def test_vectors_are_those_of_each_text_alone(
    backbone: LanguageModel, layers: int, pool: str
) -> None:
    check(backbone, TEXTS, layers, pool)


@pytest.mark.parametrize("pool", ["text-mean", "text-last"])
@pytest.mark.parametrize("name", list(CAUSAL_FAMILIES))
def test_causal_vectors_are_those_of_each_text_alone(
    load_family: Callable[..., LanguageModel], name: str, pool: str
) -> None:
    check(load_family(name), TEXTS, 2, pool)


@pytest.mark.parametrize(
    ("name", "pool"),
    [("bert", "text-mean"), ("bert", "text-cls"), ("gpt2", "text-mean"), ("gpt2", "text-last")],
)
def test_a_long_text_is_the_mean_of_its_windows(
    load_family: Callable[..., LanguageModel], name: str, pool: str
) -> None:
    backbone = load_family(name)
    check(backbone, (LONG, *TEXTS), 1, pool)
    cut = embed([LONG], model=backbone, pool=pool, window=7)  # type: ignore[arg-type]
    expected = slow(backbone, LONG, 1, pool, size=7)
    np.testing.assert_allclose(cut.vectors[0], expected, rtol=1e-4, atol=1e-4)
    tokens = len(backbone.vocabulary.encode([LONG])[0])
    assert cut.tokens.tolist() == [tokens]


def test_batches_and_padding_make_no_difference(bert: LanguageModel) -> None:
    texts = [Text.running(text) for text in (*TEXTS, LONG) * 3]
    whole = embed(texts, model=bert, pool="text-mean").vectors
    choice = Choice(pool="text-mean", max_tokens=20)
    parts = [found.vectors for found in embed_chunks(bert, texts, choice, chunk=60)]
    assert len(parts) > 3
    np.testing.assert_allclose(np.concatenate(parts), whole, rtol=1e-4, atol=1e-5)
    every = embed(texts, model=bert, pool="text-cls", layers="all").vectors
    assert every.shape == (15, 3, 32)
    last = embed(texts, model=bert, pool="text-cls").vectors
    np.testing.assert_allclose(every[:, -1], last, rtol=1e-4, atol=1e-5)


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


def test_a_store_holds_one_row_for_each_text(bert: LanguageModel, tmp_path: Path) -> None:
    texts = [Text.running(text, "en") for text in (*TEXTS, LONG)]
    choice = Choice("mean-last-2", "text-mean")
    made = write_embeddings(bert, texts, tmp_path / "out", choice, dtype="float32")
    store = EmbeddingStore.load(tmp_path / "out")
    found = embed(texts, model=bert, layers="mean-last-2", pool="text-mean")
    np.testing.assert_allclose(store.vectors, found.vectors, rtol=1e-6)
    assert store.spelled().tolist() == [*TEXTS, LONG]
    assert store.words[:, 0].tolist() == [0, 1, 2, 3, 4]
    assert (store.about["pool"], made.about["texts"], len(made)) == ("text-mean", 5, 5)
    with pytest.raises(RunError, match="was made with pool 'text-mean', not 'text-cls'"):
        write_embeddings(bert, texts, tmp_path / "out", Choice("mean-last-2", "text-cls"))


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
