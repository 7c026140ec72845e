"""The fit of forward, backward and frequency: against a plain solver, and where it must help."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from symprompt.probing.evaluate import add_frequencies, fit_combination
from symprompt.probing.problem import log_frequencies
from symprompt.probing.results import Predictions
from tiny.models import as_predictions

FACTS, CANDIDATES, ANSWERS = 300, 6, 20


def make_predictions(
    true: tuple[float, float, float], *, relations: int = 2
) -> tuple[Predictions, Tensor]:
    """Facts whose gold object is drawn from the softmax of a known combination of scores."""
    generator = torch.Generator().manual_seed(0)
    counts = torch.randint(0, 30, (relations, ANSWERS), generator=generator).double()
    frequencies = log_frequencies(counts)
    relation = torch.arange(FACTS) % relations
    order = torch.rand(FACTS, ANSWERS, generator=generator).argsort(1)
    candidates = order[:, :CANDIDATES]
    forward = -3 * torch.rand(FACTS, CANDIDATES, generator=generator).sort(1).values
    backward = -9 * torch.rand(FACTS, CANDIDATES, generator=generator)
    joint = true[0] * forward + true[1] * backward
    joint = joint + true[2] * frequencies[relation[:, None], candidates]
    place = torch.multinomial(joint.softmax(1), 1, generator=generator)[:, 0]
    gold = candidates.gather(1, place[:, None])[:, 0]
    zeros = torch.zeros(FACTS, dtype=torch.long)
    found = as_predictions(
        relation=relation,
        gold=gold,
        gold_score=forward.gather(1, place[:, None])[:, 0],
        better=place,
        equal=zeros,
        better_filtered=place,
        equal_filtered=zeros,
        candidates=candidates,
        object_score=forward,
        subject_score=backward,
        known=torch.zeros_like(candidates, dtype=torch.bool),
    )
    return found, frequencies


def test_log_frequencies_are_smoothed_probabilities() -> None:
    found = log_frequencies(torch.tensor([[3.0, 0.0, 1.0]]))
    assert found.exp().sum() == pytest.approx(1.0)
    assert found[0, 0].item() == pytest.approx(math.log(3.5 / 5.5))
    assert found[0, 1].item() == pytest.approx(math.log(0.5 / 5.5))


def test_the_fit_finds_the_numbers_that_made_the_facts() -> None:
    found, frequencies = make_predictions((1.5, 0.6, 0.9), relations=1)
    weights, shares = fit_combination(found, frequencies, 1)
    assert weights.item() == pytest.approx(0.6 / 1.5, rel=0.25)
    assert shares.item() == pytest.approx(0.9 / 0.6, rel=0.4)


def test_the_fit_is_where_the_penalised_likelihood_is_greatest() -> None:
    found, frequencies = make_predictions((1.0, 0.4, 0.5), relations=2)
    weights, shares = fit_combination(found, frequencies, 2)

    def loss(weights: np.ndarray, shares: np.ndarray) -> float:
        """The likelihood alone, over plain loops, at the scale that suits it best."""
        best = math.inf
        for scale in torch.linspace(0.2, 2.0, 37).tolist():
            total = 0.0
            for row in range(FACTS):
                r = int(found.relation[row])
                scores = []
                for k in range(CANDIDATES):
                    answer = int(found.candidates[row, k])
                    back = float(found.subject_score[row, k]) + float(shares[r]) * float(
                        frequencies[r, answer]
                    )
                    scores.append(
                        scale * (float(found.object_score[row, k]) + float(weights[r]) * back)
                    )
                place = found.candidates[row].tolist().index(int(found.gold[row]))
                total += math.log(sum(math.exp(score) for score in scores)) - scores[place]
            best = min(best, total / FACTS)
        return best

    here = loss(weights, shares)
    assert here < loss(weights * 1.5, shares)
    assert here < loss(weights * 0.5, shares)
    assert here < loss(weights, shares + 0.7)
    assert here < loss(weights, shares - 0.7)


def test_a_way_back_that_misleads_gets_no_weight() -> None:
    found, frequencies = make_predictions((1.5, -0.8, 0.0), relations=1)
    weights, shares = fit_combination(found, frequencies, 1)
    assert weights.tolist() == [0.0]
    assert shares.tolist() == [0.0]


def test_no_gold_among_the_candidates_gives_no_weight() -> None:
    found, frequencies = make_predictions((1.0, 0.5, 0.5))
    found = found.take(np.arange(4))
    found.gold[:] = ANSWERS + 1
    assert fit_combination(found, frequencies, 2)[0].tolist() == [0.0, 0.0]


def test_frequencies_are_added_to_the_backward_score() -> None:
    found, frequencies = make_predictions((1.0, 0.5, 0.5))
    shares = np.array([0.3, 2.0])
    added = add_frequencies(found, frequencies, shares)
    row, k = 7, 3
    relation = int(found.relation[row])
    expected = float(found.subject_score[row, k]) + float(shares[relation]) * float(
        frequencies[relation, int(found.candidates[row, k])]
    )
    assert added.weighed_score[row, k] == pytest.approx(expected, abs=1e-5)
    assert np.array_equal(added.subject_score, found.subject_score)
    joint = added.object_score[row, k] + 0.5 * expected
    assert added.joint(np.array([0.5, 0.5]))[row, k] == pytest.approx(joint, abs=1e-5)


def test_candidates_that_are_not_allowed_do_no_harm() -> None:
    found, frequencies = make_predictions((1.0, 0.5, 0.5))
    found.object_score[0, -1] = -np.inf
    weights, _ = fit_combination(found, frequencies, 2)
    assert np.isfinite(weights).all()


@pytest.mark.parametrize("facts", [1, 2, 4, 8])
def test_few_facts_give_no_large_weights(facts: int) -> None:
    found, frequencies = make_predictions((1.0, 0.0, 0.0))
    for start in range(0, 240, facts):
        few = found.take(np.arange(start, start + facts))
        weights, shares = fit_combination(few, frequencies, 2)
        assert float(weights.max()) < 1.0
        assert np.abs(weights * shares).max() < 1.5
