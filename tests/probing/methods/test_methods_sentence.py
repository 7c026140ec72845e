"""Whole sentences scored: against a loop over answers and tokens; what is refused; runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import symprompt
from symprompt.errors import ConfigError, DataError
from symprompt.facts import Fact, FactSet, Relation
from symprompt.models import LanguageModel
from symprompt.probing.config import RunConfig, load_config
from symprompt.probing.evaluate import predict
from symprompt.probing.inspect import describe_prompts
from symprompt.probing.methods.base import Method
from symprompt.probing.prepare import make_method, prepare
from symprompt.probing.problem import Problem
from tiny.loops import slow_score
from tiny.models import CAUSAL_FAMILIES, FAMILIES, facts_of, run_config
from tiny.runs import Make, write_csv

WHOLE = {"name": "sentence", "object_masking": "word", "object_average": "sum"}
ANY = {"objects": "any-length", "vocabulary": "objects"}


def statements() -> FactSet:
    """Answers of one to five tokens, before and after the subject, none of them in training."""
    return FactSet(
        (
            Relation(
                "near",
                test=facts_of("near", [("old river", "New York"), ("Kenya", "Oslo river")]),
                template="[X] lies in [Y].",
                answers=("New York", "Oslo river", "Rome", "San Marino"),
            ),
            Relation(
                "of",
                test=facts_of("of", [("Saint Lucia", "Rome"), ("[Y]", "Japan")]),
                template="[Y] is the capital of [X] .",
                answers=("Rome", "Los Angeles", "Japan"),
            ),
        ),
        source="made up",
        layout="bear",
    )


def build(backbone: LanguageModel, **method: Any) -> tuple[Problem, Method]:
    config = run_config(method=WHOLE | method, facts=ANY, dtype="float64")
    problem = prepare(config, backbone, statements())
    return problem, make_method(config, problem)


def scores_of(problem: Problem, method: Method) -> dict[tuple[Fact, str], float]:
    """The score of every fact with every answer, allowed or not."""
    assert problem.spelling is not None
    listed = problem.facts.facts("test")
    found = method.scores(problem.sentences["test"], np.arange(len(listed)), {})
    assert found.dtype == torch.float32
    return {
        (fact, name): float(found[row, place])
        for row, fact in enumerate(listed)
        for place, name in enumerate(problem.spelling.names.texts)
    }


@pytest.mark.parametrize("family", [*FAMILIES, *CAUSAL_FAMILIES])
def test_scores_are_those_of_a_loop_over_answers_and_tokens(
    family: str, load_family: Callable[..., LanguageModel]
) -> None:
    backbone = load_family(family)
    problem, method = build(backbone)
    for (fact, name), score in scores_of(problem, method).items():
        relation = problem.facts[fact.relation]
        if name not in relation.answers:
            assert score == -np.inf
            continue
        first, last = relation.template.split("[X]")
        text = first.replace("[Y]", name) + fact.subject + last.replace("[Y]", name)
        wanted = slow_score(backbone, text[0].upper() + text[1:], words=True)
        assert score == pytest.approx(wanted, abs=1e-4), text


def test_one_token_alone_and_means(bert: LanguageModel) -> None:
    problem, alone = build(bert, object_masking="one")
    _, mean = build(bert, object_masking="one", object_average="mean")
    fact = problem.facts["near"].test[0]
    text = "Old river lies in San Marino."
    wanted = slow_score(bert, text, words=False)
    assert scores_of(problem, alone)[fact, "San Marino"] == pytest.approx(wanted, abs=1e-4)
    count = len(bert.vocabulary.encode([text])[0])
    found = scores_of(problem, mean)[fact, "San Marino"]
    assert found == pytest.approx(wanted / count, abs=1e-5)
    assert scores_of(problem, build(bert)[1])[fact, "San Marino"] != pytest.approx(wanted, abs=1e-3)


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_small_passes_change_nothing(
    family: str, load_family: Callable[..., LanguageModel]
) -> None:
    problem, method = build(load_family(family))
    before = scores_of(problem, method)
    method.max_tokens = 20  # type: ignore[attr-defined]
    assert scores_of(problem, method) == pytest.approx(before, abs=1e-5)


def test_packed_rows_score_the_same(bert: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    problem, method = build(bert)
    before = scores_of(problem, method)
    monkeypatch.setitem(bert.__dict__, "longest_packed", 64)
    assert scores_of(problem, method) == pytest.approx(before, abs=1e-5)


def test_ranks_are_among_the_answer_space(bert: LanguageModel) -> None:
    problem, method = build(bert)
    found = predict(
        method, problem.sentences["test"], {}, allowed=problem.allowed, k=3, max_tokens=100
    )
    scores = scores_of(problem, method)
    for row, fact in enumerate(problem.facts.facts("test")):
        own = {name: score for (key, name), score in scores.items() if key == fact}
        better = sum(score > own[fact.object] for score in own.values())
        assert found.ranks().optimistic[row] == better + 1
    assert (method.loss(problem.sentences["test"], np.arange(4), {}) > 0).all()


def test_what_is_refused(bert: LanguageModel) -> None:
    facts = statements()
    tokens = run_config(method=WHOLE, facts={}, dtype="float64")
    with pytest.raises(ConfigError, match=r"--objects any-length --vocabulary objects, or the"):
        prepare(tokens, bert, facts)
    named = run_config(method=WHOLE | {"object_masking": "name"}, facts=ANY, dtype="float64")
    with pytest.raises(ConfigError, match=r'scores every word of a sentence; use "word" or "one"'):
        prepare(named, bert, facts)
    bare = replace(facts, relations=(replace(facts["near"], template=""),))
    whole = run_config(method=WHOLE, facts=ANY, dtype="float64")
    with pytest.raises(DataError, match="relation near has no manual template"):
        prepare(whole, bert, bare)


def test_a_run_is_asked_and_shows_its_sentences(make: Make, tmp_path: Path) -> None:
    rows = FactSet(
        (
            Relation(
                "near",
                facts_of("near", [("Peru", "Rome"), ("Cuba", "New York")]),
                test=facts_of("near", [("Chile", "Rome")]),
                template="[X] lies in [Y] .",
            ),
        ),
        source="made up",
        layout="table",
    )
    data = write_csv(rows, tmp_path / "facts.csv")
    run = symprompt.train(make(tmp_path / "run", data=str(data), method=WHOLE, facts=ANY))
    assert run.metrics["test"]["facts"] == 1
    answers = run.ask("near", subject="Chile")
    assert {answer.text for answer in answers} == {"Rome", "New York"}
    (view,) = describe_prompts(run)
    assert "[X] lies in [Y] ." in str(view)


def test_the_shipped_config_asks_all_facts_by_all_templates() -> None:
    config: RunConfig = load_config("bear-sentence")
    assert (config.facts.wording, config.facts.shares) == (0, (0, 0, 100))
    assert (config.method.object_masking, config.method.object_average) == ("word", "sum")
