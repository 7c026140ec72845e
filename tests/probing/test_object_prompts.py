"""Several object prompts of each relation, learned apart, whose log-probabilities are averaged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import symprompt
from symprompt.errors import ConfigError, SympromptError
from symprompt.facts import FactSet
from symprompt.models import LanguageModel
from symprompt.probing.evaluate import dev_scores
from symprompt.probing.inspect import describe_prompts
from symprompt.probing.rerank import rerank_run
from tiny.models import run_config, train
from tiny.runs import SEPARATE, Make

THREE = ["forth", "forth2", "forth3"]


def learn(bert: LanguageModel, facts: FactSet, count: int, **method: Any) -> Any:
    config = run_config(
        method={"name": "ptuning", "object_prompts": count, **method},
        learning={"epochs": 4, "rate": 0.02},
        dtype="float64",
    )
    return train(config, bert, facts)


def test_each_learns_by_itself(bert: LanguageModel, facts: FactSet) -> None:
    alone, three = learn(bert, facts, 1), learn(bert, facts, 3)
    assert list(three.vectors()) == THREE
    first = three.vectors()["forth"]
    torch.testing.assert_close(first, alone.vectors()["forth"], rtol=0, atol=1e-9)
    for history in zip(alone.dev_history, three.dev_history, strict=True):
        np.testing.assert_allclose(*(scores["forth"] for scores in history), atol=1e-9)
    # The others start elsewhere, learn, and choose their own best epoch.
    for part in THREE[1:]:
        assert float((three.vectors()[part] - first).abs().max()) > 0.1
        assert (three.dev_history[-1][part] != three.dev_history[0][part]).any()
    assert set(three.trainer.best_epochs) == set(THREE)


@pytest.mark.parametrize("select", ["loss", "p@1", "mrr"])
def test_scores_are_the_mean_and_each_is_chosen_by_its_own(
    select: str, bert: LanguageModel, facts: FactSet
) -> None:
    alone, three = learn(bert, facts, 1), learn(bert, facts, 3)
    sentences, rows = three.problem.sentences["test"], np.arange(5)
    each = [
        alone.method.scores(sentences, rows, {"forth": three.vectors()[part]}) for part in THREE
    ]
    found = three.method.scores(sentences, rows, three.vectors())
    torch.testing.assert_close(found, sum(each) / 3, rtol=0, atol=1e-6)
    assert float((found - each[0]).abs().max()) > 1e-3
    chosen = dev_scores(three.method, three.problem, select)
    for part, encoder in three.method.encoders.items():
        alone.method.encoders["forth"] = encoder
        own = dev_scores(alone.method, alone.problem, select)["forth"]
        np.testing.assert_allclose(chosen[part], own, atol=1e-9)


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"facts": {"objects": "any-length", "vocabulary": "objects"}},
        {"method": {"name": "spe", **SEPARATE, "object_prompts": 2}},
        {"method": {"name": "spe", "object_prompts": 2}},
    ],
    ids=["ptuning", "any length", "spe", "spe, shared vectors"],
)
def test_a_run_stores_all_and_answers_as_it_was_scored(
    more: dict[str, Any], make: Make, tmp_path: Path
) -> None:
    method = {"name": "ptuning", "object_prompts": 2}
    run = symprompt.train(make(tmp_path / "run", **{"method": method, **more}))
    parts = ["forth", "forth2"]
    predictions, facts = run.predictions("test")
    for row, fact in enumerate(facts):
        answers = run.ask(fact.relation, subject=fact.subject, top=3)
        stored = dict(
            zip(predictions.candidates[row].tolist(), predictions.object_score[row], strict=True)
        )
        for answer in answers:
            assert min(abs(answer.object_score - score) for score in stored.values()) < 1e-4
    for view in describe_prompts(run):
        assert [part for part in view.prompts if part in parts] == parts
    # Training goes on from all of them.
    again = symprompt.train(
        make(tmp_path / "more", **{"method": method, **more}, start_from=str(tmp_path / "run"))
    )
    assert set(again.folder.read_json("history.json")["best_epoch"]) >= set(parts)


def test_its_candidates_are_asked_back_by_another_run(make: Make, tmp_path: Path) -> None:
    method = {"name": "ptuning", "object_prompts": 2}
    two = symprompt.train(make(tmp_path / "two", method=method, seed=5))
    spe = symprompt.train(make(tmp_path / "spe", method=SEPARATE))
    where = str(spe.folder.path)
    back = rerank_run(two.folder.path, where, tmp_path / "back", device="cpu")
    at_once = symprompt.train(make(tmp_path / "once", method=method, seed=5, rerank=where))
    wanted = two.predictions("test")[0]
    for run in (back, at_once):
        found = run.predictions("test")[0]
        assert found.asked_back
        np.testing.assert_array_equal(found.candidates, wanted.candidates)
        np.testing.assert_allclose(found.object_score, wanted.object_score, atol=1e-6)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"method": {"name": "manual"}}, 'method.name = "manual" learns no prompts to be averaged'),
        ({"prompt": {"start": "manual", "encoder": "free"}}, "would make all of them the same"),
    ],
)
def test_what_it_does_not_go_with_is_refused(
    changed: dict[str, Any], message: str, make: Make, tmp_path: Path
) -> None:
    method = {"name": "ptuning", **changed.pop("method", {}), "object_prompts": 2}
    with pytest.raises(ConfigError, match=message):
        symprompt.train(make(tmp_path / "run", method=method, **changed))
    assert not (tmp_path / "run").exists()


def test_an_adapter_cannot_hold_them(make: Make, tmp_path: Path) -> None:
    symprompt.train(make(tmp_path / "run", method={"name": "ptuning", "object_prompts": 2}))
    with pytest.raises(SympromptError, match="averages the scores of 2 object prompts"):
        symprompt.export_run(tmp_path / "run", tmp_path / "out")
    assert not (tmp_path / "out").exists()
