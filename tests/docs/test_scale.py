"""The figures of docs/scale.md and howto/many.md are those that the scripts compute."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that imports a benchmark."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    yield import_module
    for name in ("scale", "lost_nodes"):
        sys.modules.pop(name, None)


def test_the_page_has_what_the_scripts_compute(script: Any) -> None:
    scale, lost = script("scale"), script("lost_nodes")
    page = (ROOT / "docs/scale.md").read_text(encoding="utf-8")
    for table in (scale.check, scale.rates, scale.billion, scale.memory):
        assert table() in page, table.__name__
    assert lost.report(lost.parse([])) in page
    many = (ROOT / "docs/howto/many.md").read_text(encoding="utf-8")
    assert scale.many() in many


def test_jobs_end_once_whatever_fails(script: Any) -> None:
    lost = script("lost_nodes")
    jobs = [100.0] * 300
    cluster = lost.Cluster(nodes=7, fail=0.1, hang=0.02, node_hours=1.0, retries=50)
    found = lost.simulate(jobs, cluster, 3)
    assert (found.done, found.given_up) == (300, 0)
    assert found.tries > 300
    assert found.nodes_lost > 0
    assert found.seconds > 300 * 120 / 7
    again = lost.simulate(jobs, cluster, 3)
    assert again == found
    few = lost.simulate(jobs, lost.Cluster(nodes=7, fail=0.1, retries=0), 3)
    assert few.done + few.given_up == 300 == few.tries
    assert few.given_up > 0
    plain = lost.Cluster(nodes=3, fail=0.0, hang=0.0, node_hours=1e9, start=0.0)
    assert lost.simulate([2.0] * 9, plain, 0).seconds == 6.0
