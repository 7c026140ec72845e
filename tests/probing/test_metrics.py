"""The numbers of a run, checked by hand."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch

from symprompt.probing.results import Predictions, measure
from tiny.models import as_predictions

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
    found = measure(make_predictions(), NAMES, np.array([1.0, 1.0, 1.0]))["forward"]
    # Ranks 2, 1, 20 and a tie of two at the top, which is 1, 1.5 or 2.
    mean_a = (1 / 2 + 1 + 1 / 20) / 3
    assert found["realistic"]["mean over facts"] == values(25, 75, 100 * (3 * mean_a + 1 / 1.5) / 4)
    assert found["realistic"]["mean over relations"] == values(
        50 / 3, (200 / 3 + 100) / 2, 50 * (mean_a + 1 / 1.5)
    )
    assert found["optimistic"]["mean over facts"] == values(50, 75, 25 * (3 * mean_a + 1))
    assert found["pessimistic"]["mean over facts"] == values(25, 75, 25 * (3 * mean_a + 1 / 2))


def test_raw_numbers_are_those_after_asking_back_with_each_relations_weight() -> None:
    found = measure(make_predictions(), NAMES, np.array([1.0, 0.0, 0.0]))["raw"]
    # Fact 0: -1 - 9 falls behind -2 - 1, so its gold comes first.
    assert found["realistic"]["mean over facts"] == values(50, 75, 25 * (1 + 1 + 1 / 20 + 1 / 1.5))
    before = measure(make_predictions(), NAMES, np.array([0.0, 1.0, 0.0]))
    assert before["raw"] == before["forward"]


def test_filtered_numbers_leave_other_true_objects_out() -> None:
    found = measure(make_predictions(), NAMES, np.array([0.0, 0.0, 0.0]))["filtered"]
    assert found["realistic"]["mean over facts"] == values(50, 100, 25 * (1 + 1 + 1 / 4 + 1 / 1.5))


def test_relations_without_facts_are_left_out_and_the_others_counted() -> None:
    found = measure(make_predictions(), NAMES, np.array([0.0, 0.0, 0.0]))
    assert found["facts"] == 4
    assert list(found["relations"]) == ["a", "b"]
    assert found["relations"]["a"]["facts"] == 3
    assert found["relations"]["b"] == pytest.approx(
        {"facts": 1, "p1": 0.0, "p10": 100.0, "mrr": 100 / 1.5}
    )


@pytest.mark.parametrize("weights", [None, np.array([1.0, 1.0, 1.0])])
def test_without_asking_back_raw_is_forward_whatever_the_weights(
    weights: np.ndarray | None,
) -> None:
    found = measure(make_predictions(asked_back=False), NAMES, weights)
    assert found["raw"] == found["forward"]


def test_the_numbers_survive_json_exactly() -> None:
    found = measure(make_predictions(), NAMES, np.array([0.8, 0.8, 0.8]))
    assert json.loads(json.dumps(found)) == found
