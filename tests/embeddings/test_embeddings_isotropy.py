"""Expected cosines, shares of dimensions and standardising, against loops over all pairs."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from symprompt.embeddings import Choice, Text, embed, write_embeddings
from symprompt.embeddings.isotropy import (
    Directions,
    Moments,
    Standardiser,
    cosine_by_frequency,
    draw_lines,
    layer_vectors,
    measure_isotropy,
)
from symprompt.embeddings.vectors import embed_chunks
from symprompt.errors import DataError, RunError
from symprompt.models import LanguageModel
from tiny.oracles import slow_cosine


def rogue(count: int, seed: int = 0) -> np.ndarray:
    """Vectors of two layers; dimension 5 of the second is far from zero and varies widely."""
    vectors = np.random.default_rng(seed).normal(size=(count, 2, 8))
    vectors[:, 1, 5] = vectors[:, 1, 5] * 6 + 40
    return vectors


def test_the_expected_cosine_is_the_mean_over_all_pairs() -> None:
    vectors = rogue(40)
    directions = Directions()
    directions.add(vectors[:7])
    directions.add(vectors[7:])
    for layer in (0, 1):
        pairs = [slow_cosine(a, b) for a, b in combinations(vectors[:, layer], 2)]
        assert directions.contributions().sum(axis=-1)[layer] == pytest.approx(np.mean(pairs))
    shares = directions.contributions()[1] / directions.contributions().sum(axis=-1)[1]
    assert shares.argmax() == 5
    assert shares[5] > 0.95
    assert shares.sum() == pytest.approx(1)


def test_moments_are_those_of_all_at_once() -> None:
    vectors = rogue(20_000)
    vectors[:, 0, 3] = 7  # never changes
    moments = Moments()
    for part in np.array_split(vectors, 7):
        moments.add(part)
    found = moments.standardiser()
    np.testing.assert_allclose(found.mean, vectors.mean(axis=0), atol=1e-10)
    np.testing.assert_allclose(found.deviation, vectors.std(axis=0), atol=1e-10)
    assert np.isfinite(found.apply(vectors)).all()
    standard = found.apply(vectors)[:, 1]
    np.testing.assert_allclose(standard.mean(axis=0), 0, atol=1e-9)
    np.testing.assert_allclose(standard.std(axis=0), 1, atol=1e-9)


def test_standardising_on_one_corpus_makes_another_isotropic(tmp_path: Path) -> None:
    moments = Moments()
    moments.add(rogue(5000, seed=1))
    fitted = moments.standardiser()
    fitted.save(tmp_path / "fitted.safetensors")
    again = Standardiser.load(tmp_path / "fitted.safetensors")
    assert again.about == {"words": 5000}
    plain, scaled = Directions(), Directions()
    for vectors in (rogue(500, 2), rogue(500, 3)):
        plain.add(vectors)
        scaled.add(again.apply(vectors))
    rows = measure_isotropy(plain, scaled, ["0", "1"])
    assert rows[1].before > 0.9
    assert abs(rows[1].after) < 0.02
    assert rows[1].shares[0][0] == 5
    assert abs(rows[0].before) < 0.02


def test_all_layers_and_the_sum_of_the_last(bert: LanguageModel) -> None:
    texts = [Text.running(f"The capital of {name} is old .") for name in ("Peru", "Cuba", "Chile")]
    ((words, every),) = layer_vectors(embed_chunks(bert, texts, Choice("all")), 2)
    assert words == [word for text in texts for word in text.words()]
    assert every.shape == (21, 4, 32)
    expected = embed(texts, model=bert, layers="sum-last-2").vectors
    np.testing.assert_allclose(every[:, -1], expected, rtol=1e-4, atol=1e-5)
    ((few, vectors),) = layer_vectors(embed_chunks(bert, texts, Choice("all")), 2, limit=5)
    assert few == words[:5]
    np.testing.assert_array_equal(vectors, every[:5])


def test_cosines_by_frequency_are_means_over_pairs(bert: LanguageModel, tmp_path: Path) -> None:
    texts = ["The capital of Peru .", "the capital city", "the river of Peru", "Lima", "The river"]
    store = write_embeddings(
        bert, [Text.running(text) for text in texts], tmp_path / "out", dtype="float32"
    )
    words = [word.lower() for word in store.spelled()]
    rows = {word: [r for r, other in enumerate(words) if other == word] for word in words}
    bands = cosine_by_frequency(store.spelled(), store.vectors, base=2)
    assert [(band.low, band.high, band.types) for band in bands] == [(2, 3, 4), (4, 7, 1)]
    twice = [word for word, own in rows.items() if len(own) in (2, 3) and word.isalpha()]
    assert len(twice) == 4
    same = [
        np.mean([slow_cosine(store.vectors[a], store.vectors[b]) for a, b in combinations(own, 2)])
        for own in (rows[word] for word in twice)
    ]
    assert bands[0].same == pytest.approx(np.mean(same), abs=1e-5)
    other = [
        slow_cosine(store.vectors[a], store.vectors[b])
        for one, two in combinations(twice, 2)
        for a in rows[one]
        for b in rows[two]
    ]
    assert bands[0].other == pytest.approx(np.mean(other), abs=1e-5)
    scaled = Standardiser(np.ones(32), np.full(32, 3.0), {})
    assert (
        cosine_by_frequency(store.spelled(), store.vectors, scaled, base=2)[0].same != bands[0].same
    )


def test_lines_are_drawn_from_all_over(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("\n".join(f"line number {number} ." for number in range(500)) + "\n")
    found = draw_lines([str(path)], 80)
    numbers = [int(text.words()[2]) for text in found]
    assert len(numbers) == 20
    assert numbers == sorted(numbers)
    assert numbers[0] < 150 < 350 < numbers[-1]
    assert len(draw_lines([str(path)], 0)) == 500
    assert [text.text for text in draw_lines([str(path)], 80)] == [text.text for text in found]
    assert [text.text for text in draw_lines([str(path)], 80, 1)] != [text.text for text in found]


def test_too_few_words_are_told(tmp_path: Path) -> None:
    moments, directions = Moments(), Directions()
    moments.add(np.ones((1, 4)))
    directions.add(np.ones((1, 4)))
    with pytest.raises(DataError, match="too few"):
        moments.standardiser()
    with pytest.raises(DataError, match="no pair"):
        directions.contributions().sum(axis=-1)
    from symprompt.files.atomic import write_tensors

    write_tensors(tmp_path / "other.safetensors", {}, {})
    Standardiser(np.zeros(2), np.array([1, np.nan]), {}).save(tmp_path / "nan.safetensors")
    for name in ("other", "nan"):
        with pytest.raises(RunError, match="no finite mean and deviation"):
            Standardiser.load(tmp_path / f"{name}.safetensors")
