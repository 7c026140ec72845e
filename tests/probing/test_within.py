"""Candidates far below the first are not asked back: fewer queries, the same answers otherwise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import symprompt
from symprompt.cli import main
from symprompt.probing.rerank import rerank_run
from symprompt.probing.results import load_combination
from symprompt.probing.summary import run_summary
from tiny.runs import SEPARATE, Make

METHOD: dict[str, Any] = {**SEPARATE, "k": 6, "choose_weight": "fixed", "weight": 0.7}


@pytest.fixture
def runs(make: Make, tmp_path: Path) -> tuple[symprompt.Run, symprompt.Run, float]:
    """The same run twice, the second with a limit that leaves about half of the candidates."""
    whole = symprompt.train(make(tmp_path / "whole", method=METHOD))
    scores = whole.predictions("test")[0].object_score
    within = float(np.median(scores[:, :1] - scores[:, 1:]))
    near = symprompt.train(make(tmp_path / "near", method={**METHOD, "within": within}))
    return whole, near, within


def test_only_near_candidates_are_asked_back(
    runs: tuple[symprompt.Run, symprompt.Run, float],
) -> None:
    whole, near, within = runs
    every, found = whole.predictions("test")[0], near.predictions("test")[0]
    kept = every.object_score >= every.object_score[:, :1] - np.float32(within)
    assert 0.3 < kept.mean() < 0.7
    np.testing.assert_array_equal(found.candidates, np.where(kept, every.candidates, -1))
    np.testing.assert_allclose(found.subject_score[kept], every.subject_score[kept], atol=1e-5)
    assert not found.subject_score[~kept].any()
    notes = run_summary(near.metrics).notes
    assert sum(f"K = 6, those within {within:g} of the first;" in note for note in notes) == 1
    assert not any("within" in note for note in run_summary(whole.metrics).notes)


def test_ranks_are_those_of_re_ranking_so_many_of_each_fact(
    runs: tuple[symprompt.Run, symprompt.Run, float],
) -> None:
    """An oracle, fact by fact: near ones by joint score, then all others by object score."""
    whole, near, within = runs
    every, combination = whole.predictions("test")[0], load_combination(near.folder)
    assert combination is not None
    assert combination.subject is not None
    ranks = near.predictions("test")[0].final(combination).realistic
    for row, rank in enumerate(ranks):
        weight = combination.subject[every.relation[row]]
        first = every.object_score[row] >= every.object_score[row, 0] - np.float32(within)
        joint = every.object_score[row, first] + weight * every.subject_score[row, first]
        order = every.candidates[row, first][np.argsort(-joint, kind="stable")].tolist()
        if every.gold[row] in order:
            assert rank == order.index(every.gold[row]) + 1
        else:
            assert rank == every.better[row] + 1 + every.equal[row] / 2


def test_questions_are_answered_in_the_same_order(
    runs: tuple[symprompt.Run, symprompt.Run, float], tmp_path: Path
) -> None:
    _, near, _ = runs
    predictions, facts = near.predictions("test")
    combination = load_combination(near.folder)
    assert combination is not None
    joint = predictions.joint(combination)
    for row, fact in enumerate(facts):
        asked = int((predictions.candidates[row] >= 0).sum())
        answers = near.ask(fact.relation, subject=fact.subject, top=8)
        assert len(answers) == 8
        own = [answer.joint for answer in answers[:asked]]
        assert own == pytest.approx(sorted(joint[row, :asked].tolist(), reverse=True), abs=1e-5)
        for answer in answers[asked:]:
            assert (answer.joint, answer.subject_score, answer.terms) == (None, None, {})
        scores = [answer.object_score for answer in answers[asked:]]
        assert scores == sorted(scores, reverse=True)
    # A file of questions has the same answers.
    names = tmp_path / "names.csv"
    names.write_text("relation,subject\n" + "".join(f"{f.relation},{f.subject}\n" for f in facts))
    symprompt.ask_file(near, names, tmp_path / "answers.jsonl", top=8)
    lines = (tmp_path / "answers.jsonl").read_text().splitlines()
    assert "NaN" not in lines[0]
    for fact, line in zip(facts, lines, strict=True):
        answers = near.ask(fact.relation, subject=fact.subject, top=8)
        found = json.loads(line)["answers"]
        assert [own["text"] for own in found] == [answer.text for answer in answers]
        assert ["joint" in own for own in found] == [own.joint is not None for own in answers]


def test_another_runs_candidates_are_cut_alike(
    runs: tuple[symprompt.Run, symprompt.Run, float], make: Make, tmp_path: Path
) -> None:
    _, near, within = runs
    other = symprompt.train(make(tmp_path / "ptuning", method={"name": "ptuning", "k": 6}, seed=5))
    back = rerank_run(other.folder.path, near.folder.path, tmp_path / "back", device="cpu")
    every, found = other.predictions("test")[0], back.predictions("test")[0]
    kept = every.object_score >= every.object_score[:, :1] - np.float32(within)
    np.testing.assert_array_equal(found.candidates >= 0, kept)


def test_a_negative_limit_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["train", "lama-spe", "--within", "-1", "--out", "run"])
    assert "method.within" in capsys.readouterr().err
