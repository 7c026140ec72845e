"""Sense vectors, the tagger and its scores: against loops, on a tiny WordNet and tagged text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from symprompt.embeddings import Choice, embed
from symprompt.embeddings.sense_corpora import load_sense_corpus
from symprompt.embeddings.sense_evaluation import (
    evaluate_senses,
    learn_senses,
    most_frequent_sense,
    tag_texts,
)
from symprompt.embeddings.senses import (
    Relations,
    Scoring,
    SenseTagger,
    SenseVectors,
    fit_scoring,
)
from symprompt.embeddings.wordnet import WordNet
from symprompt.errors import DataError, RunError
from symprompt.models import LanguageModel
from symprompt.report.answers import senses_notes
from tiny.wordnet import (
    MONEY,
    RIVER,
    bank_sentences,
    write_semcor,
    write_test_set,
    write_wordnet,
)

CHOICE = Choice("sum-last-2")


@pytest.fixture(scope="module")
def wordnet(tmp_path_factory: pytest.TempPathFactory) -> WordNet:
    return WordNet.load(write_wordnet(tmp_path_factory.mktemp("wordnet")))


@pytest.fixture(scope="module")
def semcor(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_semcor(tmp_path_factory.mktemp("data") / "semcor")


@pytest.fixture(scope="module")
def learned(
    bert: LanguageModel, wordnet: WordNet, semcor: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    folder = tmp_path_factory.mktemp("senses")
    learn_senses(semcor, folder, bert, wordnet, CHOICE)
    return folder


@pytest.fixture(scope="module")
def senses(learned: Path) -> SenseVectors:
    return SenseVectors.load(learned)


def test_a_sense_is_the_mean_of_its_occurrences(
    senses: SenseVectors, bert: LanguageModel, wordnet: WordNet, semcor: Path
) -> None:
    own: dict[str, list[np.ndarray]] = {}
    for sentence in load_sense_corpus(semcor, wordnet.senses).sentences:
        found = embed([sentence.words], model=bert, layers="sum-last-2")
        for entry in sentence.instances:
            assert entry.last == entry.first + 1
            for key in entry.keys:
                own.setdefault(key, []).append(found.vectors[entry.first])
    assert set(senses.keys) == set(own)
    for key, vectors in own.items():
        row = senses.index[key]
        assert senses.counts[row] == len(vectors)
        expected = np.mean(vectors, axis=0)
        np.testing.assert_allclose(senses.vectors[row], expected, rtol=0.01, atol=0.01)


def test_the_nearest_sense_is_taken(senses: SenseVectors, wordnet: WordNet) -> None:
    tagger = SenseTagger(senses, wordnet, rule="nearest")
    points = np.random.default_rng(0).normal(size=(30, 32))
    tags = tagger.tag([[("bank", "n")]] * 30, points)
    for point, tag in zip(points, tags, strict=True):
        cosines = {}
        for key in (MONEY, RIVER):
            vector = senses.vectors[senses.index[key]].astype(np.float64)
            cosines[key] = float(point @ vector) / float(
                np.linalg.norm(point) * np.linalg.norm(vector)
            )
        assert tag.sense is not None
        assert tag.sense.key == max(cosines, key=lambda key: cosines[key])
        powers = {key: np.exp(senses.scoring.cosine * value) for key, value in cosines.items()}
        expected = powers[tag.sense.key] / sum(powers.values())
        assert tag.confidence == pytest.approx(expected, rel=1e-4)
        assert tag.how == "vector"
    assert len({tag.sense.key for tag in tags if tag.sense}) == 2
    # Fitted, frequency counts: enough of it decides everything.
    frequent = SenseTagger(replace(senses, scoring=Scoring(1.0, 5.0)), wordnet)
    tags = frequent.tag([[("bank", "n")]] * 30, points)
    assert {tag.sense.key for tag in tags if tag.sense} == {MONEY}


def test_without_a_vector_the_first_sense_is_taken(senses: SenseVectors, wordnet: WordNet) -> None:
    tagger = SenseTagger(senses, wordnet)
    (tag,) = tagger.tag([[("slope", "n")]], np.ones((1, 32)))
    assert tag.sense is not None
    assert (tag.sense.key, tag.confidence, tag.how) == ("slope%1:17:00::", None, "first")
    (tag,) = tagger.tag([[("unknown", "n")]], np.ones((1, 32)))
    assert tag.sense is None
    # Of several readings WordNet's most counted one.
    (tag,) = tagger.tag([[("shore", "n"), ("old", "a"), ("now", "r")]], np.ones((1, 32)))
    assert tag.sense is not None
    assert tag.sense.key == "now%4:02:00::"


def test_relations_reach_every_sense(senses: SenseVectors, wordnet: WordNet) -> None:
    units = senses.vectors / np.linalg.norm(senses.vectors, axis=1, keepdims=True)
    relations = Relations(wordnet, senses.index, units)

    def vector(key: str) -> np.ndarray | None:
        return relations.vector(wordnet.senses[key])

    money, river = (units[senses.index[key]] for key in (MONEY, RIVER))
    np.testing.assert_allclose(vector("depository%1:14:00::"), money, rtol=1e-5)  # same synset
    np.testing.assert_allclose(vector("shore%1:17:00::"), river, rtol=1e-5)  # same hypernym
    np.testing.assert_allclose(vector("slope%1:17:00::"), river, rtol=1e-5)  # its hyponym
    np.testing.assert_allclose(vector("club%1:14:00::"), money, rtol=1e-5)
    assert vector("tool%1:06:00::") is None  # nothing of its class occurs
    happen = units[senses.index["happen%2:30:00::"]]
    np.testing.assert_allclose(vector("take_place%2:30:00::"), happen, rtol=1e-5)
    tagger = SenseTagger(senses, wordnet, coverage="relations")
    shore, bank = tagger.tag([[("shore", "n")], [("bank", "n")]], np.ones((2, 32)))
    assert shore.how == bank.how == "vector"
    # The class is the last resort.
    relations = Relations(wordnet, {"bank%1:06:00::": 0}, np.array([[0.6, 0.8]]))
    np.testing.assert_allclose(vector("tool%1:06:00::"), [0.6, 0.8])


def test_one_sense_per_discourse(senses: SenseVectors, wordnet: WordNet) -> None:
    tagger = SenseTagger(senses, wordnet, rule="nearest")
    money, river = (senses.vectors[senses.index[key]] for key in (MONEY, RIVER))
    vectors = np.stack([money, money, 0.55 * river + 0.45 * money, river])
    names = [[("bank", "n")]] * 4
    alone = [tag.sense.key for tag in tagger.tag(names, vectors) if tag.sense]
    assert alone == [MONEY, MONEY, RIVER, RIVER]
    together = tagger.tag(names, vectors, ["a", "a", "a", "b"])
    assert [tag.sense.key for tag in together if tag.sense] == [MONEY, MONEY, MONEY, RIVER]


def test_weights_are_those_that_serve_held_out_words() -> None:
    generator = np.random.default_rng(3)
    cosines, counts, right, owner = [], [], [], []
    for place in range(6000):
        size = int(generator.integers(2, 6))
        own, frequency = generator.normal(size=size), generator.normal(size=size)
        logits = 3 * (own + 0.2 * frequency)
        chance = np.exp(logits) / np.exp(logits).sum()
        cosines += own.tolist()
        counts += frequency.tolist()
        right += (np.arange(size) == generator.choice(size, p=chance)).tolist()
        owner += [place] * size
    whole = (np.array(cosines), np.array(counts), np.array(right), np.array(owner))
    found = fit_scoring([whole])
    assert found.cosine == pytest.approx(3, abs=0.3)
    assert found.frequency / found.cosine == pytest.approx(0.2, abs=0.08)
    # No other scale makes the right senses likelier: by loops over the words.
    ratio = found.frequency / found.cosine

    def likelihood(scale: float) -> float:
        total = 0.0
        for place in range(500):
            chosen = np.array(owner) == place
            logits = scale * (whole[0][chosen] + ratio * whole[1][chosen])
            total += float(logits[whole[2][chosen]][0]) - float(np.log(np.exp(logits).sum()))
        return total

    few = fit_scoring([tuple(part[np.array(owner) < 500] for part in whole)])  # type: ignore[list-item]
    ratio = few.frequency / few.cosine
    best = likelihood(few.cosine)
    assert best > likelihood(0.9 * few.cosine)
    assert best > likelihood(1.1 * few.cosine)
    middle = int(np.searchsorted(owner, 2000))
    halves = [tuple(part[:middle] for part in whole), tuple(part[middle:] for part in whole)]
    apart = fit_scoring(halves)  # type: ignore[arg-type]
    assert apart.cosine == pytest.approx(found.cosine, rel=1e-6)
    assert fit_scoring([]) == Scoring()


def test_context_beats_the_most_frequent_sense(
    senses: SenseVectors, bert: LanguageModel, wordnet: WordNet, tmp_path: Path
) -> None:
    """The learning test: other sentences than those learned from, told apart by their words."""
    rows = bank_sentences(shift=3)
    data = write_test_set(tmp_path, "semeval2007", rows[:13])
    write_test_set(tmp_path, "senseval3", rows[13:])
    found = evaluate_senses(senses, data, bert, wordnet, draws=500)
    assert [score.name for score in found.sets] == ["senseval3", "semeval2007"]
    gold = Counter(w[2] for row in rows for w in row if not isinstance(w, str))
    expected = 100 * (gold[MONEY] + gold["happen%2:30:00::"]) / 25
    assert found.all.baseline == pytest.approx(expected)
    assert found.all.f1 > found.all.baseline + 10
    assert found.all.difference.p < 0.05
    assert found.all.difference.difference == pytest.approx(found.all.f1 - expected)
    assert found.seen.instances == found.all.instances == 25
    assert {score.name: score.instances for score in found.parts} == {"n": 24, "v": 1}
    assert found.about["rule"] == "fitted"
    one = evaluate_senses(senses, data, bert, wordnet, sets=["senseval3"], discourse=True, draws=9)
    assert len(one.sets) == 1
    # A set that is not there is refused, also beside one that is.
    with pytest.raises(
        DataError, match=r"no test set semeval2013, .* among senseval3, semeval2007"
    ):
        evaluate_senses(senses, data, bert, wordnet, sets=["senseval3", "semeval2013"])


def test_what_is_left_out_of_the_scores_is_told(
    senses: SenseVectors, bert: LanguageModel, wordnet: WordNet, tmp_path: Path
) -> None:
    rows = [*bank_sentences(shift=3)[:8], [("bank", "bank", "bank%1:99:00::"), "in", "Lima"]]
    data = write_test_set(tmp_path, "semeval2007", rows)
    found = asdict(evaluate_senses(senses, data, bert, wordnet, draws=9))
    assert found["about"]["wordnet"] == "WordNet's files"
    about_p, first, second = senses_notes(found)
    assert "two-sided" in about_p
    assert first == "not there, so not in all: senseval2, senseval3, semeval2013, semeval2015"
    assert second == "words of semeval2007 left out: 1 (sense not in WordNet)"


def test_the_baseline_counts_in_the_same_text(senses: SenseVectors, wordnet: WordNet) -> None:
    assert most_frequent_sense(senses, wordnet, "bank", "n") == MONEY
    more = replace(senses, counts=np.where(np.array(senses.keys) == RIVER, 99, senses.counts))
    assert most_frequent_sense(more, wordnet, "bank", "n") == RIVER
    assert most_frequent_sense(senses, wordnet, "shore", "n") == "shore%1:17:00::"
    assert most_frequent_sense(senses, wordnet, "unknown", "n") == ""


def test_running_text_is_tagged(
    senses: SenseVectors, bert: LanguageModel, wordnet: WordNet
) -> None:
    texts = ["The old river bank lies located .", "The Paris bank in France .", "of the Now"]
    first, second, third = tag_texts(senses, texts, bert, wordnet)
    assert [word["word"] for word in first] == ["old", "bank", "lies"]
    assert (first[1]["sense"], second[0]["sense"]) == (RIVER, MONEY)
    assert first[1]["gloss"] == "land beside a river"
    assert 0 < (first[1]["confidence"] or 0) <= 1
    assert (third[0]["lemma"], third[0]["pos"], third[0]["how"]) == ("now", "adv", "first")
    assert first[1]["start"] == texts[0].index("bank")
    assert tag_texts(senses, ["of"], bert, wordnet) == [[]]


def test_standardised_vectors_serve_too(
    bert: LanguageModel, wordnet: WordNet, semcor: Path, tmp_path: Path
) -> None:
    made = learn_senses(semcor, tmp_path, bert, wordnet, CHOICE, standardise=True)
    again = SenseVectors.load(tmp_path)
    assert again.standardiser is not None
    assert again.scoring == made.scoring
    found = tag_texts(again, ["The old river bank lies located ."], bert, wordnet)
    assert found[0][1]["sense"] == RIVER


def test_an_interrupted_training_goes_on(
    bert: LanguageModel,
    wordnet: WordNet,
    semcor: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("symprompt.embeddings.store._CHUNK", 100)

    def stop(stage: str, done: int, total: int, note: str) -> None:
        if done > 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        learn_senses(semcor, tmp_path / "a", bert, wordnet, CHOICE, tick=stop)
    seen: list[int] = []
    tick = lambda stage, done, total, note: seen.append(done)  # noqa: E731
    learn_senses(semcor, tmp_path / "a", bert, wordnet, CHOICE, tick=tick)
    learn_senses(semcor, tmp_path / "b", bert, wordnet, CHOICE)
    assert seen[0] > 8
    one, other = (tmp_path / name / "senses.safetensors" for name in "ab")
    assert one.read_bytes() == other.read_bytes()


def test_what_cannot_be_done_is_told(
    senses: SenseVectors,
    bert: LanguageModel,
    wordnet: WordNet,
    tmp_path: Path,
    load_family: Callable[..., LanguageModel],
) -> None:
    with pytest.raises(RunError, match="symprompt senses train"):
        SenseVectors.load(tmp_path)
    broken = np.full_like(senses.vectors, np.nan)
    for change, message in (
        ({"vectors": broken}, "not finite .* in vectors"),
        ({"keys": senses.keys[1:]}, "differ in number"),
    ):
        replace(senses, **change).save(tmp_path)
        with pytest.raises(RunError, match=message):
            SenseVectors.load(tmp_path)
    with pytest.raises(RunError, match="were made with"):
        tag_texts(senses, ["bank"], load_family("roberta"), wordnet)
