"""Every flow gives what its golden run holds: metrics and predictions, to the bit where it can."""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from agreeing import differences, shape_differences
from flows import FLOWS, Inputs, make
from freeze import HERE, MACHINE, load, this_machine

EXACT = True
"""Compare to the bit where torch and the CPU are those the golden runs were made with."""

AMPLIFYING = ("tune-", "predict-", "embed-layers", "lpaqa")
"""Many steps at high rates, a sum over layers, or a fit that ends once its loss is within 1e-3 of
the smallest (a step sooner or later) amplify the last bit: by more than 1e-4 from one kind of CPU
to another. There these flows are compared by what they give, not by how much."""


@pytest.fixture(scope="session")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Inputs:
    """The flows' inputs, each made once."""
    return Inputs(tmp_path_factory.mktemp("inputs"))


@pytest.mark.parametrize("name", FLOWS)
def test_a_flow_gives_what_it_gave(name: str, inputs: Inputs, tmp_path: Path) -> None:
    found = json.loads(json.dumps(make(FLOWS[name], inputs, tmp_path)))
    exact = EXACT and json.loads(MACHINE.read_text()) == this_machine()
    compare = shape_differences if name.startswith(AMPLIFYING) and not exact else differences
    lines = compare(load(name), found, exact=exact)
    assert not lines, f"{name}: {len(lines)} quantities differ\n" + "\n".join(lines[:20])


def test_golden_runs_are_those_of_the_flows_and_small() -> None:
    stored = {path.stem: path.stat().st_size for path in HERE.glob("*.json") if path != MACHINE}
    assert set(stored) == set(FLOWS)
    assert max(stored.values()) < 40_000
    assert sum(stored.values()) < 600_000


# ------------------------------------------------------------------------------ the comparison


def _changed(name: str, *steps: str | int, value: Any) -> tuple[Any, Any]:
    golden = load(name)
    found = copy.deepcopy(golden)
    place = found
    for step in steps[:-1]:
        place = place[step]
    place[steps[-1]] = value(place[steps[-1]])
    return golden, found


@pytest.mark.parametrize("exact", [True, False])
def test_the_same_agrees(exact: bool) -> None:
    for name in FLOWS:
        assert differences(load(name), load(name), exact=exact) == []


def test_a_last_bit_differs_only_where_bits_count() -> None:
    golden, found = _changed("spe", "items", 0, "object scores", 0, value=lambda own: own + 1e-6)
    (line,) = differences(golden, found, exact=True)
    assert "object scores/0" in line
    assert golden["items"][0]["subject"] in line
    assert differences(golden, found, exact=False) == []


@pytest.mark.parametrize("exact", [True, False])
def test_a_score_that_moved_is_told(exact: bool) -> None:
    golden, found = _changed("spe", "items", 3, "subject scores", 1, value=lambda own: own + 0.01)
    (line,) = differences(golden, found, exact=exact)
    assert "subject scores" in line
    golden, found = _changed("tune-sequence-pt2", "curve", 1, "loss", value=lambda own: own + 0.01)
    assert "curve/1/loss" in differences(golden, found, exact=exact)[0]


def test_ranks_may_differ_only_where_scores_tie() -> None:
    golden, found = _changed("manual", "items", 0, "ranks", "final", value=lambda own: own + 1)
    item, other = golden["items"][0], found["items"][0]
    own = item["candidates"].index(item["object"])
    assert any("ranks" in line for line in differences(golden, found, exact=False))
    for entry in (item, other):
        entry["object scores"][own - 1] = entry["object scores"][own]
    found["metrics"]["test"]["facts"] += 1
    assert differences(golden, found, exact=False) == []


def test_labels_may_differ_only_where_they_tie() -> None:
    golden, found = _changed("tune-sequence-pt2", "items", 0, "prediction", value=lambda _: "?")
    assert "prediction" in differences(golden, found, exact=False)[0]
    for entry in (golden, found):
        entry["items"][0]["probability"] = 0.50001
    assert differences(golden, found, exact=False) == []
