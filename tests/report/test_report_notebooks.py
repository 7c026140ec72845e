"""Runs, tables and answers show themselves in notebooks, and become pandas frames."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

import symprompt
from symprompt import Answer, Answers, Run
from symprompt.errors import ConfigError
from symprompt.tasks.tables import run_summary
from symprompt.tasks.trainables import Outcome

HOSTILE = "<img src=x onerror=alert(1)>\x1b[31m"


def html(shown: Any) -> str:
    text: str = shown._repr_html_()
    assert HOSTILE[:4] not in text
    assert "\x1b" not in text
    assert "<table>" in text
    return text


def test_answers_are_a_table_whose_names_are_no_markup() -> None:
    answers = Answers(
        [Answer(HOSTILE, -1.0, -2.0, -3.0, probability=0.3679)],
        relation=HOSTILE,
        subject=HOSTILE,
        names=["Peru"],
        weights={"subject": 1.0},
    )
    text = html(answers)
    assert "<td>36.79 %</td>" in text
    assert "<li>joint = object score + 1 x subject score.</li>" in text
    assert "not among the subjects" in text


def test_a_run_shows_what_train_prints(runs: dict[str, Run]) -> None:
    text = html(runs["spe"])
    means = runs["spe"].metrics["test"]["raw"]["realistic"]["mean over facts"]
    assert f"<td>raw, mean over facts</td><td>{means['p1']:.2f}</td>" in text
    assert "1 fact left out" in text or "left out: 1 fact" in text


def test_runs_are_compared_as_the_table_does(runs: dict[str, Run]) -> None:
    paths = [runs[name].folder.path for name in ("ptuning", "spe")]
    found = symprompt.compare_runs(*paths, by_relation=True, draws=20)
    assert [grid.title.split(",")[0] for grid in found.grids] == [
        "Mean over relations",
        "Mean over facts",
        "By relation",
    ]
    assert html(found) == found.to_html()
    assert html(symprompt.diff_runs(*map(str, paths)))
    with pytest.raises(ConfigError, match="no run was named"):
        symprompt.compare_runs()


@pytest.mark.parametrize("name", ["spe", "ptuning"])
@pytest.mark.parametrize("split", ["dev", "test"])
def test_a_frame_holds_the_runs_facts_and_figures(
    runs: dict[str, Run], name: str, split: Any
) -> None:
    run = runs[name]
    frame = run.to_frame(split)
    predictions, facts = run.predictions(split)
    assert [tuple(row) for row in frame[["relation", "subject", "object"]].to_numpy()] == [
        (fact.relation, fact.subject, fact.object) for fact in facts
    ]
    figures = run.metrics[split]
    for column, order in (("rank", "raw"), ("filtered_rank", "filtered")):
        means = figures[order]["realistic"]["mean over facts"]
        assert 100 * (frame[column] <= 1).mean() == pytest.approx(means["p1"])
        assert 100 * (1 / frame[column]).mean() == pytest.approx(means["mrr"])
    forward = figures["forward"]["realistic"]["mean over facts"]
    assert 100 * (1 / frame["object_prompt_rank"]).mean() == pytest.approx(forward["mrr"])
    # The first answer is the object where its rank is 1.
    first = frame[frame["rank"] == 1]
    assert (first["answer"] == first["object"]).all()
    assert np.isfinite(frame["object_score"]).all()
    assert len(predictions) == len(frame)


def test_without_pandas_one_sentence_says_what_to_install(
    runs: dict[str, Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ConfigError, match="pip install pandas"):
        runs["spe"].to_frame()


def test_predictions_and_runs_of_tasks_show_themselves() -> None:
    rows = [{"id": str(at), "text": HOSTILE, "prediction": "yes"} for at in range(25)]
    text = html(Outcome({"accuracy": 50.0}, rows, ("a text was cut",)))
    assert text.count("<td>yes</td>") == 20
    assert "<li>and 5 more.</li><li>accuracy: 50.00</li><li>note: a text was cut.</li>" in text
    about: dict[str, Any] = {"task": HOSTILE, "method": "pt2", "model": "m"}
    one = about | {"splits": {"dev": {"accuracy": 50.0}, "test": {"accuracy": 25.0, "f1": 10.0}}}
    seeds = about | {"pattern": "p", "split": "val"}
    seeds |= {"dev": {"accuracy": {"value": 70.0}}, "metrics": {"accuracy": {"value": 60.0}}}
    for metrics in (one, about | {"splits": {}, "tasks": {"a": one, "b": seeds}}):
        text = html(run_summary(metrics))
        assert "<tr><td>accuracy</td><td>50.00</td><td>25.00</td></tr>" in text
        assert "<tr><td>f1</td><td>–</td><td>10.00</td></tr>" in text
    assert "<th>dev</th><th>val</th>" in text
    assert "<tr><td>accuracy</td><td>70.00</td><td>60.00</td></tr>" in text
