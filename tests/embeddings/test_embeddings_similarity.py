"""Cosines of words and texts: all of some, pairs and neighbours, against loops."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from symprompt.embeddings import Choice, Text, embed, write_embeddings
from symprompt.embeddings.isotropy import Standardiser
from symprompt.embeddings.similarity import Comparer, Neighbour, Pairs, read_pairs, spearman
from symprompt.errors import ConfigError, DataError, RunError
from symprompt.models import LanguageModel
from tiny.oracles import slow_cosine


def standardiser(
    backbone: LanguageModel, mean: float, deviation: float | np.ndarray, pool: str = "text-mean"
) -> Standardiser:
    """One as it is fitted on the last layer."""
    about = {"fingerprint": backbone.fingerprint, "layers": "last", "pool": pool}
    return Standardiser(np.full(32, mean), np.ones(32) * deviation, about)


TEXTS = ("The capital of Peru is Lima .", "the old river", "Rome", "the old river of Rome", "Rome")
WHOLE = Choice(pool="text-mean")


def test_two_occurrences_are_compared(bert: LanguageModel) -> None:
    marked = ["The [capital] of Peru .", "the old [capital]", "The [river] of Peru ."]
    texts = [Text.marked(text) for text in marked]
    found = Comparer(bert, Choice()).table(texts)
    one = embed(["The capital of Peru ."], model=bert).vectors[1]
    other = embed(["the old capital"], model=bert).vectors[2]
    assert found[0, 1] == pytest.approx(slow_cosine(one, other), abs=1e-6)
    np.testing.assert_allclose(np.diag(found), 1)
    scaled = standardiser(bert, 0.5, 2.0, "mean")
    changed = Comparer(bert, Choice(), scaled).table(texts)
    assert changed[0, 1] == pytest.approx(slow_cosine((one - 0.5) / 2, (other - 0.5) / 2), abs=1e-6)
    with pytest.raises(RunError, match="layers 'last', not 'sum-last-2'"):
        Comparer(bert, Choice("sum-last-2"), scaled)
    with pytest.raises(RunError, match="pool 'mean', not 'text-mean'"):
        Comparer(bert, WHOLE, scaled)
    with pytest.raises(RunError, match="shape"):
        Comparer(bert, Choice(), replace(scaled, mean=np.ones(7)))


@pytest.mark.parametrize("text", ["no mark", "[two] [marks]", "[two words]", "half[word]", "[ ]"])
def test_what_marks_no_word_is_refused(text: str) -> None:
    with pytest.raises(DataError, match="word"):
        Text.marked(text)


@pytest.mark.parametrize("fitted", [False, True])
def test_pairs_of_texts_have_the_cosines_of_a_loop(bert: LanguageModel, fitted: bool) -> None:
    pairs = Pairs(TEXTS[:4], TEXTS[1:])
    vectors = [embed([text], model=bert, pool="text-mean").vectors[0] for text in TEXTS]
    scaled = None
    if fitted:
        scaled = standardiser(bert, 0.1, np.linspace(1, 2, 32))
        vectors = [(vector - scaled.mean) / scaled.deviation for vector in vectors]
    expected = [slow_cosine(*vectors[place : place + 2]) for place in range(4)]
    found = Comparer(bert, WHOLE, scaled).pairs(pairs)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_what_has_no_token_is_like_nothing(bert: LanguageModel) -> None:
    found = Comparer(bert, WHOLE, standardiser(bert, 0.5, 1.0)).pairs(Pairs(("Rome",), ("\u200d",)))
    assert found.tolist() == [0]


@pytest.mark.parametrize("pool", ["text-mean", "mean"])
@pytest.mark.parametrize("stored", [False, True])
def test_the_nearest_are_those_of_a_sort(
    bert: LanguageModel, tmp_path: Path, pool: Any, stored: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("symprompt.embeddings.similarity._ROWS", 3)
    choice = Choice(pool=pool)
    texts = [Text.running(text, "en") for text in TEXTS]
    query = Text.marked("the river of [Rome]")
    asked = embed([query], model=bert, pool=pool).vectors[0]
    every = {}
    for text in TEXTS:
        found = embed([text], model=bert, pool=pool)
        for start, end, vector in zip(
            found.texts[0].starts, found.texts[0].ends, found.vectors, strict=True
        ):
            shown = (
                text if pool == "text-mean" else f"{text[:start]}[{text[start:end]}]{text[end:]}"
            )
            every[shown] = slow_cosine(asked, vector)
    expected = sorted(every.items(), key=lambda entry: -entry[1])
    among: Any = texts
    if stored:
        among = write_embeddings(bert, texts, tmp_path / "out", choice, dtype="float32")
    for top in (1, 3, 99):
        ((*nearest,),) = Comparer(bert, choice).nearest([query], among, top)
        assert len(nearest) == min(top, len(expected))
        assert all(own.label == "en" for own in nearest)
        np.testing.assert_allclose(
            [own.cosine for own in nearest], [value for _, value in expected[:top]], atol=1e-5
        )
        assert {own.text for own in nearest} <= set(every)
    assert isinstance(nearest[0], Neighbour)


def test_vectors_made_otherwise_are_not_searched(bert: LanguageModel, tmp_path: Path) -> None:
    store = write_embeddings(bert, [Text.running("Rome")], tmp_path / "out")
    with pytest.raises(RunError, match="made with pool 'mean', not 'text-mean'"):
        Comparer(bert, WHOLE).nearest([Text.running("Rome").whole()], store)


# ------------------------------------------------------------------------------- rank correlation


def slow_spearman(one: list[float], other: list[float]) -> float:
    """Mean ranks by counting, and their correlation."""

    def rank(values: list[float]) -> list[float]:
        return [
            sum(own < value for own in values) + (sum(own == value for own in values) + 1) / 2
            for value in values
        ]

    return float(np.corrcoef(rank(one), rank(other))[0, 1])


def test_ranks_are_correlated_ties_at_their_mean() -> None:
    generator = np.random.default_rng(0)
    for count in (2, 3, 10, 50):
        one = generator.normal(size=count).tolist()
        other = generator.integers(0, 6, size=count).astype(float).tolist()
        if len(set(other)) > 1:
            assert spearman(one, other) == pytest.approx(slow_spearman(one, other))
    assert spearman([1, 2, 3], [10, 20, 300]) == pytest.approx(1)
    assert spearman([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    assert spearman([1, 2, 3], [4, 4, 4]) is None


# --------------------------------------------------------------------------------- files of pairs


def test_pairs_are_read(tmp_path: Path) -> None:
    table = tmp_path / "pairs.tsv"
    table.write_text("Sentence1\tsentence2\tgold\na b\tc\t2.5\nd\te\t1\n")
    assert read_pairs(table) == Pairs(("a b", "d"), ("c", "e"))
    assert read_pairs(table, ["score=gold"]).scores == (2.5, 1.0)
    lines = tmp_path / "pairs.jsonl"
    lines.write_text('{"q1": "a", "second": "b", "score": 3}\n')
    assert read_pairs(lines, {"first": "q1"}) == Pairs(("a",), ("b",), (3.0,))


@pytest.mark.parametrize(
    ("content", "columns", "error", "message"),
    [
        ("first,second,score\na,b,high\n", (), DataError, "line 2: 'score' is 'high', but only"),
        ("first,second,score\na,b,nan\n", (), DataError, "finite number"),
        ("first,second,score\na,b,\n", (), DataError, "finite number"),
        ("first,other\na,b\n", (), DataError, "no column 'second' or"),
        ("first,second\na,\n", (), DataError, "'second' is empty"),
        ("first,second\n", (), DataError, "holds no pair"),
        ("first,second\na,b\n", ("third=x",), ConfigError, "roles are: first, second, score"),
        ("first,second\na,b\n", ("score=x",), DataError, "no column 'x'"),
    ],
)
def test_files_without_pairs_are_refused(
    tmp_path: Path, content: str, columns: Any, error: type[Exception], message: str
) -> None:
    path = tmp_path / "pairs.csv"
    path.write_text(content)
    with pytest.raises(error, match=message):
        read_pairs(path, columns)
