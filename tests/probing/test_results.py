"""What a run stores and reads: predictions and their ranks, figures, facts, the card."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from symprompt.errors import RunError, SympromptError
from symprompt.facts import FactSet
from symprompt.files.atomic import read_arrays
from symprompt.probing.evaluate import WEIGHTS, choose_weights
from symprompt.probing.queries import ranks, top_k
from symprompt.probing.results import (
    CARD,
    FACTS,
    PROMPTS,
    Combination,
    Predictions,
    joint_scores,
    load_asked,
    load_card,
    load_combination,
    load_facts,
    load_prompts,
    measure,
    run_config,
    write_facts,
    write_predictions,
)
from symprompt.runs.folder import CONFIG, MANIFEST, Folder, Manifest
from symprompt.runs.statistics import hits
from tiny.models import as_predictions
from tiny.oracles import reranked_ranks

ROWS, WORDS, STORED = 12, 14, 10


def store(scores: Tensor, gold: Tensor, known: Tensor, backward: Tensor) -> Predictions:
    """What a run would keep of full scores [n, v] and backward scores [n, v]."""
    raw, filtered = ranks(scores, gold), ranks(scores, gold, known)
    forward, candidates = top_k(scores, STORED)
    return as_predictions(
        relation=torch.arange(len(gold)) % 3,
        gold=gold,
        gold_score=scores.gather(1, gold[:, None])[:, 0],
        better=raw.better,
        equal=raw.equal,
        better_filtered=filtered.better,
        equal_filtered=filtered.equal,
        candidates=candidates,
        object_score=forward,
        subject_score=backward.gather(1, candidates),
        known=(candidates[:, :, None] == known[:, None, :]).any(2) & (candidates != gold[:, None]),
    )


def draw(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Scores of few distinct values, so that nearly every row has ties, also at the border of K."""
    generator = torch.Generator().manual_seed(seed)

    def few(high: int) -> Tensor:
        return torch.randint(0, high, (ROWS, WORDS), generator=generator).float() / 2 - 4

    scores, backward = few(4), few(3)
    gold = torch.randint(0, WORDS, (ROWS,), generator=generator)
    known = torch.randint(-1, WORDS, (ROWS, 3), generator=generator)
    return scores, gold, known, backward


@given(
    st.integers(0, 10_000),
    st.integers(1, STORED),
    st.sampled_from([0.0, 0.5, 0.8, 1.0, 3.0]),
    st.booleans(),
)
def test_stored_predictions_give_the_ranks_of_full_scores(
    seed: int, k: int, weight: float, filtered: bool
) -> None:
    scores, gold, known, backward = draw(seed)
    found = store(scores, gold, known, backward).reranked(weight, k=k, filtered=filtered)
    forward, candidates = top_k(scores, k)
    given = [own.numpy() for own in (forward, backward.gather(1, candidates))]
    joint = torch.from_numpy(joint_scores(*given, weight=weight))
    wanted = reranked_ranks(scores, gold, candidates, joint, known if filtered else None)
    assert found.better.tolist() == wanted.better.tolist()
    assert found.equal.tolist() == wanted.equal.tolist()


def distinct(seed: int) -> Predictions:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.rand((ROWS, WORDS), generator=generator)
    gold = torch.randint(0, WORDS, (ROWS,), generator=generator)
    known = torch.full((ROWS, 1), -1)
    return store(scores, gold, known, torch.rand((ROWS, WORDS), generator=generator))


@given(st.integers(0, 1000), st.floats(0, 50))
def test_one_candidate_keeps_the_forward_order(seed: int, weight: float) -> None:
    predictions = distinct(seed)
    found = predictions.reranked(weight, k=1)
    assert np.array_equal(found.realistic, predictions.ranks().realistic)


@given(st.integers(0, 1000), st.integers(1, 10), st.floats(0, 50))
def test_precision_at_ten_is_the_same_for_every_k_up_to_ten(
    seed: int, k: int, weight: float
) -> None:
    predictions = distinct(seed)
    found = predictions.reranked(weight, k=k)
    before = hits(predictions.ranks().realistic, 10)
    assert np.array_equal(hits(found.realistic, 10), before)


def test_weight_zero_is_the_forward_order_for_any_k() -> None:
    predictions = distinct(3)
    for k in range(1, STORED + 1):
        found = predictions.reranked(0.0, k=k)
        assert np.array_equal(found.realistic, predictions.ranks().realistic)


def test_weights_per_fact_and_final_ranks_per_relation() -> None:
    predictions = distinct(5)
    weights = np.array([0.0, 0.8, 5.0])
    found = predictions.final(Combination({"subject": weights})).realistic
    for relation, weight in enumerate(weights.tolist()):
        mine = predictions.relation == relation
        assert np.array_equal(found[mine], predictions.reranked(weight).realistic[mine])
    assert np.array_equal(predictions.final(None).realistic, predictions.ranks().realistic)


def test_terms_count_as_they_are_weighed() -> None:
    predictions = distinct(6)
    silent = replace(predictions, subject_score=predictions.subject_score * np.nan)
    assert not silent.asked_back
    assert predictions.asked_back
    term = predictions.subject_score * 2
    silent = replace(silent, terms={"frequency": term})
    # A run that never asked back may have other terms.
    found = silent.final(Combination({"frequency": np.full(3, 0.4)}))
    assert np.array_equal(found.realistic, predictions.reranked(0.8).realistic)
    both = replace(predictions, terms={"frequency": term})
    joint = both.joint(Combination({"subject": np.full(3, 0.5), "frequency": np.full(3, 0.25)}))
    np.testing.assert_allclose(joint, both.object_score + both.subject_score, rtol=1e-6)


def test_take_and_concatenate_are_inverse() -> None:
    predictions = distinct(7)
    terms = {"frequency": predictions.object_score / 2}
    predictions = replace(predictions, terms=terms)
    order = np.random.default_rng(0).permutation(ROWS)
    parts = [predictions.take(order[:5]), predictions.take(order[5:])]
    back = Predictions.concatenate(parts).take(np.argsort(order))
    for name, value in predictions.columns().items():
        assert np.array_equal(back.columns()[name], value), name


def planted(best: list[float]) -> Predictions:
    """Facts of each relation that only a weight near the planted one ranks first.

    Against the gold (forward 0, backward 0) stand a candidate that wins below the planted weight
    (it leads forward) and one that wins above it (it leads backward).
    """
    rows = len(best)
    forward = torch.tensor([[0.0, 1.0, -1.0]]).repeat(rows, 1)
    backward = torch.zeros(rows, 3)
    for row, weight in enumerate(best):
        backward[row, 1] = -1 / (weight - 0.02)
        backward[row, 2] = 1 / (weight + 0.02)
    order = forward.argsort(1, descending=True)
    return as_predictions(
        relation=torch.arange(rows),
        gold=torch.zeros(rows, dtype=torch.long),
        gold_score=torch.zeros(rows),
        better=torch.ones(rows, dtype=torch.long),
        equal=torch.zeros(rows, dtype=torch.long),
        better_filtered=torch.ones(rows, dtype=torch.long),
        equal_filtered=torch.zeros(rows, dtype=torch.long),
        candidates=order,
        object_score=forward.gather(1, order),
        subject_score=backward.gather(1, order),
        known=torch.zeros(rows, 3, dtype=torch.bool),
    )


def test_choosing_weights_finds_the_planted_ones() -> None:
    best = [0.3, 1.5, 4.0]
    assert set(best) <= set(WEIGHTS)
    predictions = planted(best)
    assert choose_weights(predictions, 3, per_relation=True).tolist() == best
    one = planted([1.2, 1.2, 1.2])
    assert choose_weights(one, 3, per_relation=False).tolist() == [1.2] * 3


def test_choosing_one_weight_weighs_relations_alike() -> None:
    predictions = planted([0.3, 4.0])
    # Nine facts of one relation want 0.3, three facts of two relations want 4.0: by facts the
    # small weight would win, by relations the large one does.
    many = Predictions.concatenate([predictions.take(np.zeros(9, dtype=int)), planted([4.0] * 3)])
    many.relation[9:] = [1, 2, 2]
    assert choose_weights(many, 3, per_relation=False).tolist() == [4.0] * 3


def test_ties_and_relations_without_facts_take_the_smallest_weight() -> None:
    predictions = distinct(8)
    flat = replace(predictions, subject_score=np.zeros_like(predictions.subject_score))
    assert choose_weights(flat, 3, per_relation=False).tolist() == [0.0] * 3
    assert choose_weights(flat, 5, per_relation=True).tolist() == [0.0] * 5


@pytest.mark.parametrize("value", [0.0, 0.8, 1.0])
def test_offered_weights_hold_the_papers_and_none(value: float) -> None:
    assert value in WEIGHTS
    assert list(WEIGHTS) == sorted(set(WEIGHTS))


def test_joint_scores_are_equation_ten() -> None:
    one = np.array([[-1.0, -2.0], [-3.0, -4.0]], dtype=np.float32)
    other = np.array([[-5.0, -1.0], [-2.0, -1.0]], dtype=np.float32)
    assert joint_scores(one, other, weight=0.5).tolist() == [[-3.5, -2.5], [-4.0, -4.5]]
    other[0, 0] = -np.inf
    per_fact = np.array([0.0, 2.0])
    for weight in (per_fact, per_fact[:, None]):
        joint = joint_scores(one, other, weight=weight)
        assert joint.dtype == np.float32
        assert joint.tolist() == [[-1.0, -2.0], [-7.0, -6.0]]
    with pytest.raises(SympromptError, match="weight is"):
        joint_scores(one, other, weight=np.ones((1, 2)))
    with pytest.raises(SympromptError, match="both must be"):
        joint_scores(one, other[:, :1], weight=1.0)
    with pytest.raises(SympromptError, match="float16"):
        joint_scores(one.astype(np.float16), other, weight=1.0)


NAMES = ("a", "b", "empty")


def make_predictions(*, asked_back: bool = True) -> Predictions:
    """Three facts of "a" and one of "b"; two candidates each.

    Facts 0 to 2: the gold is candidate 2, candidate 1, and outside. Fact 3: a tie at the top.
    """
    nan = torch.full((4, 2), torch.nan)
    backward = torch.tensor([[-9.0, -1.0], [-1.0, -2.0], [-1.0, -1.0], [-1.0, -1.0]])
    return as_predictions(
        relation=torch.tensor([0, 0, 0, 1]),
        gold=torch.tensor([11, 10, 12, 10]),
        gold_score=torch.tensor([-2.0, -1.0, -20.0, -1.0]),
        better=torch.tensor([1, 0, 19, 0]),
        equal=torch.tensor([0, 0, 0, 1]),
        better_filtered=torch.tensor([0, 0, 3, 0]),
        equal_filtered=torch.tensor([0, 0, 0, 1]),
        candidates=torch.tensor([[10, 11]] * 4),
        object_score=torch.tensor([[-1.0, -2.0], [-1.0, -2.0], [-1.0, -2.0], [-1.0, -1.0]]),
        subject_score=backward if asked_back else nan,
        known=torch.tensor([[True, False], [False, False], [False, False], [False, False]]),
    )


def values(p1: float, p10: float, mrr: float) -> Any:
    return pytest.approx({"p1": p1, "p10": p10, "mrr": mrr})


def test_forward_numbers_are_those_of_the_forward_ranks() -> None:
    found = measure(make_predictions(), NAMES, Combination({"subject": np.array([1.0, 1.0, 1.0])}))[
        "forward"
    ]
    # Ranks 2, 1, 20 and a tie of two at the top, which is 1, 1.5 or 2.
    mean_a = (1 / 2 + 1 + 1 / 20) / 3
    assert found["realistic"]["mean over facts"] == values(25, 75, 100 * (3 * mean_a + 1 / 1.5) / 4)
    assert found["realistic"]["mean over relations"] == values(
        50 / 3, (200 / 3 + 100) / 2, 50 * (mean_a + 1 / 1.5)
    )
    assert found["optimistic"]["mean over facts"] == values(50, 75, 25 * (3 * mean_a + 1))
    assert found["pessimistic"]["mean over facts"] == values(25, 75, 25 * (3 * mean_a + 1 / 2))


def test_raw_numbers_are_those_after_asking_back_with_each_relations_weight() -> None:
    found = measure(make_predictions(), NAMES, Combination({"subject": np.array([1.0, 0.0, 0.0])}))[
        "raw"
    ]
    # Fact 0: -1 - 9 falls behind -2 - 1, so its gold comes first.
    assert found["realistic"]["mean over facts"] == values(50, 75, 25 * (1 + 1 + 1 / 20 + 1 / 1.5))
    before = measure(make_predictions(), NAMES, Combination({"subject": np.array([0.0, 1.0, 0.0])}))
    assert before["raw"] == before["forward"]


def test_filtered_numbers_leave_other_true_objects_out() -> None:
    found = measure(make_predictions(), NAMES, Combination({"subject": np.array([0.0, 0.0, 0.0])}))[
        "filtered"
    ]
    assert found["realistic"]["mean over facts"] == values(50, 100, 25 * (1 + 1 + 1 / 4 + 1 / 1.5))


def test_relations_without_facts_are_left_out_and_the_others_counted() -> None:
    found = measure(make_predictions(), NAMES, Combination({"subject": np.array([0.0, 0.0, 0.0])}))
    assert found["facts"] == 4
    assert list(found["relations"]) == ["a", "b"]
    assert found["relations"]["a"]["facts"] == 3
    assert found["relations"]["b"] == pytest.approx(
        {"facts": 1, "p1": 0.0, "p10": 100.0, "mrr": 100 / 1.5}
    )


def test_without_asking_back_raw_is_forward() -> None:
    found = measure(make_predictions(asked_back=False), NAMES, None)
    assert found["raw"] == found["forward"]


RELATIONS = ("capital", "in")


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "run")


# ------------------------------------------------------------------------------- predictions


def make_predictions_folder(*, asked_back: bool, facts: int = 7, k: int = 5) -> Predictions:
    """Random numbers of every size, among them awkward ones."""
    draw = np.random.default_rng(0)

    def scores(*shape: int) -> np.ndarray:
        size = 10.0 ** draw.uniform(-44, 38, shape)
        return (-draw.random(shape) * size).astype(np.float32)

    def counts(*shape: int) -> np.ndarray:
        return draw.integers(0, 30000, shape)

    forward = scores(facts, k)
    forward[0] = np.array([-0.0, -1 / 3, -1e-45, -3.4e38, -16777217.0], dtype=np.float32)
    backward = scores(facts, k) if asked_back else np.full((facts, k), np.nan, dtype=np.float32)
    return Predictions(
        relation=np.arange(facts) % 2,
        gold=counts(facts),
        gold_score=scores(facts),
        better=counts(facts),
        equal=counts(facts),
        better_filtered=counts(facts),
        equal_filtered=counts(facts),
        candidates=counts(facts, k),
        object_score=forward,
        subject_score=backward,
        known=counts(facts, k) % 2 == 0,
        terms={"frequency": scores(facts, k)} if asked_back else {},
    )


def write_card(folder: Folder, facts: FactSet) -> None:
    about = {
        relation.name: {
            "label": relation.label,
            "template": "[X] [Y]",
            "manual_template": relation.template,
        }
        for relation in facts.relations
    }
    card = {"base_model": "m", "base_model_fingerprint": "f", "method": "spe", "parts": ["forth"]}
    folder.write_json(CARD, card | {"relations": about})


def write_some(folder: Folder, facts: FactSet, *, asked_back: bool) -> Predictions:
    chosen = facts.select(RELATIONS)
    write_card(folder, chosen)
    predictions = make_predictions_folder(asked_back=asked_back)
    pairs = {name: iter(chosen[name].all()) for name in RELATIONS}
    listed = [next(pairs[RELATIONS[row % 2]]) for row in range(len(predictions))]
    text = {token: f"wörd{token}" for token in np.unique(predictions.candidates).tolist()}
    write_predictions(folder, "test", predictions, listed, RELATIONS, text)
    return predictions


def test_prompts_that_the_card_does_not_name_are_refused(folder: Folder, facts: FactSet) -> None:
    write_card(folder, facts)
    folder.write_tensors(PROMPTS, {"forth": torch.ones(len(facts.relations), 2, 4)}, {})
    assert load_prompts(folder, ["forth"])["forth"].shape == (len(facts.relations), 2, 4)
    for parts in ([], ["forth", "back"]):
        with pytest.raises(RunError, match=r"it holds \['forth'\], and prompts\.json names"):
            load_prompts(folder, parts)


@pytest.mark.parametrize("asked_back", [True, False])
def test_predictions_read_back_bit_for_bit(
    folder: Folder, facts: FactSet, asked_back: bool
) -> None:
    written = write_some(folder, facts, asked_back=asked_back)
    asked = load_asked(Folder(folder.path), "test")
    found = asked.predictions
    assert found.asked_back is asked_back
    assert list(found.columns()) == list(written.columns())
    for name, one in written.columns().items():
        other = found.columns()[name]
        assert one.dtype == other.dtype, name
        assert one.tobytes() == other.tobytes(), name
    assert [fact.relation for fact in asked.facts()] == [RELATIONS[row % 2] for row in range(7)]
    assert asked.keys()[1] == ("in", "New York", "France")
    assert asked.candidates()[1] == [f"wörd{token}" for token in written.candidates[1]]


@pytest.mark.parametrize(
    ("damage", "wrong"),
    [
        (lambda arrays: arrays.pop("better"), "'better' is missing"),
        (lambda arrays: arrays.pop("text_ends"), "'text_ends' is missing"),
        (lambda arrays: arrays.update(known=arrays["known"][:, :2]), "known has the shape"),
        (lambda arrays: arrays.update(relation=arrays["relation"][1:]), "relation has the shape"),
        (lambda arrays: arrays.update({"terms/x": arrays["gold"]}), "x has the shape"),
        (lambda arrays: arrays.update({k: v[:0] for k, v in arrays.items()}), "no predictions"),
    ],
)
def test_damaged_predictions_are_one_sentence(
    folder: Folder, facts: FactSet, damage: Any, wrong: str
) -> None:
    write_some(folder, facts, asked_back=True)
    arrays, about = read_arrays(folder.path / "predictions/test.safetensors")
    damage(arrays)
    folder.write_arrays("predictions/test.safetensors", arrays, about)
    with pytest.raises(RunError, match=rf"test\.safetensors is damaged: {wrong}"):
        load_asked(folder, "test")


def test_missing_predictions_are_one_sentence(folder: Folder, facts: FactSet) -> None:
    write_some(folder, facts, asked_back=True)
    with pytest.raises(RunError, match=r"cannot read .*dev\.safetensors"):
        load_asked(folder, "dev")


# ------------------------------------------------------------------------------------- facts


def test_facts_read_back_equal_with_labels_and_templates(folder: Folder, facts: FactSet) -> None:
    odd = replace(facts.relations[0].test[0], subject='Sao "T" \\ \u2028 \x85 é 京')
    first = replace(facts.relations[0], label="capital of", test=(odd, *facts.relations[0].test))
    bare = replace(facts.relations[2], train=(), dev=(), template="")
    wanted = replace(facts, relations=(first, facts.relations[1], bare))
    write_facts(folder, wanted)
    write_card(folder, wanted)
    found = load_facts(folder)
    assert found.relations == wanted.relations
    assert found.fingerprint() == wanted.fingerprint()


@pytest.mark.parametrize("line", ["{", '{"split": "test", "relation": "in"}', "7"])
def test_damaged_facts_are_one_sentence(folder: Folder, facts: FactSet, line: str) -> None:
    write_facts(folder, facts)
    write_card(folder, facts)
    with (folder.path / FACTS).open("a") as stream:
        stream.write(line + "\n")
    with pytest.raises(RunError, match=r"facts\.jsonl"):
        load_facts(folder)


# ------------------------------------------------------------------------------------ the card


@pytest.mark.parametrize(
    ("content", "wrong"),
    [
        ({}, "base_model is missing"),
        ([], "it is "),
        (None, "it is None"),
        ({"relations": {}}, "no relations"),
        ({"relations": []}, r"relations is \[\]"),
        ({"relations": {"in": {"label": ""}}}, r"relations\.in\.template is missing"),
        ({"relations": {"in": 7}}, r"relations\.in is 7"),
    ],
)
def test_a_damaged_card_is_named_with_what_is_wrong(
    folder: Folder, facts: FactSet, content: Any, wrong: str
) -> None:
    write_card(folder, facts)
    folder.write_json(CARD, {**load_card(folder), **content} if content else content)
    for read in (load_card, load_facts):
        with pytest.raises(RunError, match=rf"prompts\.json is damaged: {wrong}"):
            read(folder)


def test_a_weight_that_is_missing_is_one_sentence(folder: Folder, facts: FactSet) -> None:
    write_card(folder, facts)
    folder.write(
        MANIFEST, Manifest(command="train", details={"weights": {"subject": {"in": 1}}}).to_json()
    )
    with pytest.raises(RunError, match=r"symprompt\.json is damaged: 'capital' is missing"):
        load_combination(folder)


def test_weights_of_an_earlier_version_are_one_sentence(folder: Folder, facts: FactSet) -> None:
    write_card(folder, facts)
    weights = {"capital": 0.8, "in": 0.8}
    folder.write(MANIFEST, Manifest(command="train", details={"weights": weights}).to_json())
    with pytest.raises(RunError, match="made by an earlier version of symprompt"):
        load_combination(folder)


def test_a_config_of_another_kind_is_one_sentence(folder: Folder) -> None:
    folder.write(CONFIG, b"sed = 1")
    with pytest.raises(RunError, match=r"holds no readable run: .*unknown key sed"):
        run_config(folder)
