"""Ranks from stored predictions against ranks from full scores."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from symprompt.errors import SympromptError
from symprompt.probing.evaluate import WEIGHTS, choose_weights
from symprompt.probing.queries import ranks, top_k
from symprompt.probing.results import Predictions, joint_scores
from symprompt.runs.statistics import hits
from tiny.models import as_predictions
from tiny.oracles import reranked_ranks

FACTS, WORDS, STORED = 12, 14, 10


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
        return torch.randint(0, high, (FACTS, WORDS), generator=generator).float() / 2 - 4

    scores, backward = few(4), few(3)
    gold = torch.randint(0, WORDS, (FACTS,), generator=generator)
    known = torch.randint(-1, WORDS, (FACTS, 3), generator=generator)
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
    scores = torch.rand((FACTS, WORDS), generator=generator)
    gold = torch.randint(0, WORDS, (FACTS,), generator=generator)
    known = torch.full((FACTS, 1), -1)
    return store(scores, gold, known, torch.rand((FACTS, WORDS), generator=generator))


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


def test_k_is_all_that_is_stored_by_default() -> None:
    predictions = distinct(4)
    found, wanted = predictions.reranked(2.0), predictions.reranked(2.0, k=STORED)
    assert np.array_equal(found.better, wanted.better)


def test_weights_per_fact_and_final_ranks_per_relation() -> None:
    predictions = distinct(5)
    weights = np.array([0.0, 0.8, 5.0])
    found = predictions.final(weights).realistic
    for relation, weight in enumerate(weights.tolist()):
        mine = predictions.relation == relation
        assert np.array_equal(found[mine], predictions.reranked(weight).realistic[mine])
    assert np.array_equal(predictions.final(None).realistic, predictions.ranks().realistic)


def test_final_ranks_of_a_run_that_never_asked_back_are_forward() -> None:
    predictions = distinct(6)
    silent = replace(predictions, subject_score=predictions.subject_score * np.nan)
    assert not silent.asked_back
    assert predictions.asked_back
    found = silent.final(np.full(3, 0.8))
    assert np.array_equal(found.realistic, predictions.ranks().realistic)


def test_take_and_concatenate_are_inverse() -> None:
    predictions = distinct(7)
    terms = {"frequency": predictions.object_score / 2}
    predictions = replace(predictions, terms=terms)
    order = np.random.default_rng(0).permutation(FACTS)
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
