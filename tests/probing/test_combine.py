"""The combination of scores: simulated relations whose truth is known, and the search for it."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from symprompt.probing import combine
from symprompt.probing.combine import fit_combination
from symprompt.probing.results import Combination, Predictions
from tiny.models import as_predictions

K, ANSWERS = 8, 40
TERMS = ("subject", "frequency", "copy")


def simulate(
    facts: int,
    theta: tuple[float, ...],
    *,
    relations: int = 2,
    seed: int = 0,
    noise: float = 0.0,
) -> Predictions:
    """Draw facts whose true object follows equation 1 with theta: object, subject, frequency, copy.

    Args:
        noise: spread of what is added to the subject scores after the draw; they say less then.
    """
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    relation = torch.arange(facts) % relations
    candidates = torch.rand(facts, ANSWERS, generator=generator).argsort(1)[:, :K]
    object_score = 2 * normal(facts, K).sort(1, descending=True).values
    subject = 3 * normal(facts, K)
    frequency = normal(relations, ANSWERS)[relation[:, None], candidates]
    copy = torch.zeros(facts, K, dtype=torch.float64)
    has_copy = torch.rand(facts, generator=generator) < 0.4
    place = torch.randint(0, K, (facts,), generator=generator)
    copy[has_copy, place[has_copy]] = 1.0
    terms = torch.stack([object_score, subject, frequency, copy], dim=-1)
    weights = torch.tensor(theta, dtype=torch.float64)
    gold_place = torch.multinomial((terms @ weights).softmax(1), 1, generator=generator)
    gold = candidates.gather(1, gold_place)[:, 0]
    gold_score = object_score.gather(1, gold_place)
    better = (object_score > gold_score).sum(1)
    zeros = torch.zeros(facts, dtype=torch.long)
    found = as_predictions(
        relation=relation,
        gold=gold,
        gold_score=gold_score[:, 0],
        better=better,
        equal=zeros,
        better_filtered=better,
        equal_filtered=zeros,
        candidates=candidates,
        object_score=object_score,
        subject_score=subject + noise * normal(facts, K),
        known=torch.zeros(facts, K, dtype=torch.bool),
    )
    extra = {"frequency": frequency.float().numpy(), "copy": copy.float().numpy()}
    return replace(found, terms=extra)


def mrr(predictions: Predictions, combination: Combination | None) -> float:
    return float((1 / predictions.final(combination).realistic).mean())


def test_the_weights_that_made_the_facts_are_found() -> None:
    found = fit_combination(simulate(4000, (1.0, 0.4, 0.5, -3.0)), TERMS, 2)
    for name, wanted in {"subject": 0.4, "frequency": 0.5, "copy": -3.0}.items():
        assert found.weights[name].tolist() == pytest.approx([wanted] * 2, rel=0.2)


def test_relations_that_gain_keep_what_others_lose() -> None:
    one = simulate(300, (1.0, 0.5, 0.0, 0.0), relations=1)
    # In the other relation the subject score is noise, as where many subjects share an object.
    other = simulate(300, (1.0, 0.0, 0.0, 0.0), relations=1, seed=1)
    other = replace(other, relation=other.relation + 1)
    found = fit_combination(Predictions.concatenate([one, other]), TERMS, 2)
    assert found.weights["subject"][0] > 0.3
    assert found.weights["subject"][1] < 0.1
    test = simulate(2000, (1.0, 0.5, 0.0, 0.0), relations=1, seed=2)
    assert mrr(test, found) > mrr(test, None) + 0.05
    test = simulate(2000, (1.0, 0.0, 0.0, 0.0), relations=1, seed=3)
    test = replace(test, relation=test.relation + 1)
    assert mrr(test, found) > mrr(test, None) - 0.01


@pytest.mark.parametrize("facts", [1, 2, 4, 8, 16])
def test_few_facts_of_noise_cost_next_to_nothing(facts: int) -> None:
    test = simulate(2000, (1.0, 0.0, 0.0, 0.0), relations=1, seed=99)
    costs = []
    for seed in range(20):
        evidence = simulate(facts, (1.0, 0.0, 0.0, 0.0), relations=1, seed=seed)
        found = fit_combination(evidence, TERMS, 1)
        costs.append(mrr(test, None) - mrr(test, found))
    assert np.mean(costs) < 0.02
    assert max(costs) < 0.12


def test_thin_evidence_of_one_relation_borrows_from_the_others() -> None:
    many = simulate(800, (1.0, 0.5, 0.0, 0.0), relations=4)
    few = simulate(6, (1.0, 0.5, 0.0, 0.0), relations=1, seed=5)
    few = replace(few, relation=few.relation + 4)
    together = fit_combination(Predictions.concatenate([many, few]), TERMS, 5)
    alone = fit_combination(replace(few, relation=few.relation * 0), TERMS, 1)
    assert abs(together.weights["subject"][4] - 0.5) < abs(alone.weights["subject"][0] - 0.5)
    assert together.weights["subject"][4] > 0.2


def test_a_subject_score_that_misleads_gets_no_weight() -> None:
    found = fit_combination(simulate(600, (1.0, -0.5, 0.0, 0.0)), TERMS, 2)
    assert found.weights["subject"].tolist() == [0.0, 0.0]


def test_copies_that_are_never_true_are_weighed_down() -> None:
    found = fit_combination(simulate(600, (1.0, 0.3, 0.0, -6.0)), TERMS, 2)
    assert (found.weights["copy"] < -2).all()


def test_nothing_to_learn_from_changes_nothing() -> None:
    predictions = simulate(20, (1.0, 0.5, 0.5, 0.0))
    lost = replace(predictions, gold=np.full(20, ANSWERS + 1))
    found = fit_combination(lost, TERMS, 2)
    assert all(own.tolist() == [0.0, 0.0] for own in found.weights.values())
    assert fit_combination(predictions, (), 2).weights == {}


def test_candidates_that_are_not_allowed_do_no_harm() -> None:
    predictions = simulate(200, (1.0, 0.5, 0.5, 0.0))
    predictions.object_score[0, -1] = -np.inf
    found = fit_combination(predictions, TERMS, 2)
    assert all(np.isfinite(own).all() for own in found.weights.values())


def test_many_facts_of_weaker_prompts_tell_more_than_a_few_of_the_runs_own() -> None:
    """What cross-fitting adds: training facts, asked by prompts that learned from fewer facts.

    Their subject scores are noisier than those of dev and test, so that what they teach is not
    quite right, but dev's few facts mislead.
    """
    one_to_one, shared = (1.0, 0.5, 0.0, 0.0), (1.0, 0.0, 0.0, 0.0)
    for truth in (one_to_one, shared):
        test = simulate(2000, truth, relations=1, seed=99)
        gains = []
        for seed in range(12):
            dev = simulate(10, truth, relations=1, seed=seed)
            held_out = simulate(150, truth, relations=1, seed=100 + seed, noise=1.5)
            both = Predictions.concatenate([dev, held_out])
            fits = [fit_combination(own, TERMS, 1) for own in (dev, both)]
            gains.append([mrr(test, found) - mrr(test, None) for found in fits])
        few, many = np.array(gains).T
        assert many.mean() > few.mean()
        # The unluckiest dev facts cost the most.
        assert many.min() > few.min()
        assert many.min() > -0.01


def without_some(predictions: Predictions) -> Predictions:
    """Predictions in which some facts of the first relation have fewer candidates."""
    candidates, scores = predictions.candidates.copy(), predictions.object_score.copy()
    gone = (predictions.relation == 0)[:, None] & (np.arange(K) > 3)
    gone &= candidates != predictions.gold[:, None]
    candidates[gone], scores[gone] = -1, -np.inf
    zero = {name: np.where(gone, 0, own) for name, own in predictions.terms.items()}
    back = np.where(gone, 0, predictions.subject_score)
    return replace(
        predictions, candidates=candidates, object_score=scores, subject_score=back, terms=zero
    )


def test_candidates_that_are_none_change_nothing() -> None:
    predictions = without_some(simulate(200, (1.0, 0.5, 0.5, 0.0)))
    columns = predictions.columns()
    fillers = {"candidates": -1, "object_score": -np.inf}
    wide = {
        name: np.pad(own, ((0, 0), (0, 3)), constant_values=fillers.get(name, 0))
        if own.ndim == 2
        else own
        for name, own in columns.items()
    }
    one, other = (
        fit_combination(own, TERMS, 2).weights
        for own in (predictions, Predictions.from_columns(wide))
    )
    for name, weights in one.items():
        np.testing.assert_allclose(other[name], weights, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("fewer", [False, True])
@pytest.mark.parametrize("tau", combine.TAUS)
def test_newtons_steps_end_at_the_mode(tau: float, fewer: bool) -> None:
    predictions = simulate(120, (1.0, 0.4, 0.3, -1.0), relations=3)
    predictions = without_some(predictions) if fewer else predictions
    evidence, _ = combine._gather(predictions, TERMS, 3)
    assert bool(evidence.real.all()) != fewer
    shared, own = (value.requires_grad_() for value in combine._fit(evidence, tau))
    # The negative logarithm of (1) times (2), fact by fact.
    total = (shared - evidence.start).square().sum() / 2 + (own / tau).square().sum() / 2
    for row in range(len(evidence.gold)):
        theta = shared + own[int(evidence.relation[row])]
        scores = evidence.terms[row] @ theta
        chances = scores[evidence.real[row]].logsumexp(0)
        total = total + chances - scores[int(evidence.gold[row])]
    slopes = torch.autograd.grad(total, [shared, own])
    assert max(float(slope.abs().max()) for slope in slopes) < 1e-3


def test_held_out_facts_decide_whether_terms_count() -> None:
    evidence, _ = combine._gather(simulate(60, (1.0, 0.3, 0.0, 0.0)), TERMS, 2)
    folds = combine._folds(evidence.relation, 0)
    for index in range(2):
        counts = torch.bincount(folds[evidence.relation == index], minlength=combine.FOLDS)
        assert int(counts.max()) - int(counts.min()) <= 1
    theta, gain = combine._choose(evidence, folds)
    gains = []
    for tau in combine.TAUS:
        losses = {}
        for name, own in (("with", evidence), ("without", evidence.first())):
            total = torch.zeros(2, dtype=torch.float64)
            for fold in range(combine.FOLDS):
                there = (folds != fold).nonzero()[:, 0]
                shared, apart = combine._fit(own.take(there), tau)
                rows = (folds == fold).nonzero()[:, 0]
                held = own.take(rows)
                total.index_add_(0, held.relation, held.losses(shared + apart))
            losses[name] = total
        gains.append(losses)
    best = min(gains, key=lambda found: float(found["with"].sum()))
    least = min(gains, key=lambda found: float(found["without"].sum()))
    torch.testing.assert_close(gain, least["without"] - best["with"], rtol=1e-4, atol=1e-4)
    assert theta.shape == (2, 4)
    assert math.isfinite(float(gain.sum()))
