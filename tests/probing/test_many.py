"""Asking a run the questions of a file."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import symprompt
from symprompt import Answers, Run, SympromptError, ask_file, cli
from symprompt.files import stream as streaming
from symprompt.files.atomic import part_of
from symprompt.probing import queries
from symprompt.probing.queries import top_k
from symprompt.probing.results import load_facts
from tiny.runs import Make

KEYS = ("object_score", "subject_score", "joint", "probability")


def write(path: Path, rows: Sequence[tuple[str, str, str]]) -> Path:
    with path.open("w", newline="") as opened:
        csv.writer(opened).writerows([("relation", "subject", "object"), *rows])
    return path


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def same(found: dict[str, Any], asked: Answers) -> None:
    """Compare answers; those whose scores differ by rounding alone may change places."""
    scores = {answer.text: answer for answer in asked}
    assert len(found["answers"]) == len(asked)
    for own, at_its_rank in zip(found["answers"], asked, strict=True):
        other = scores[own["text"]]
        for key in KEYS:
            assert own.get(key) == pytest.approx(getattr(other, key), abs=2e-5)
        for name, value in other.terms.items():
            assert own[name] == pytest.approx(value, abs=2e-5)
        if own["text"] != at_its_rank.text:
            assert own["joint"] == pytest.approx(at_its_rank.joint, abs=2e-5)


@pytest.fixture(scope="module")
def questions(finished: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both relations, both ways, in turn."""
    facts = [fact for relation in load_facts(finished.folder).relations for fact in relation.all()]
    single = {fact.object for fact in facts}
    rows = []
    for fact in facts[::2]:
        rows += [(fact.relation, fact.subject, ""), (fact.relation, "", fact.object)]
    assert single
    return write(tmp_path_factory.mktemp("many") / "questions.csv", rows)


@pytest.mark.parametrize("top", [1, 12])
def test_a_file_gives_the_answers_that_questions_one_by_one_give(
    finished: Run, questions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, top: int
) -> None:
    monkeypatch.setitem(streaming.Reader.__init__.__kwdefaults__, "block", 16)
    done = ask_file(finished, questions, tmp_path / "answers.jsonl", top=top)
    found = read(tmp_path / "answers.jsonl")
    with questions.open(newline="") as opened:
        rows = list(csv.DictReader(opened))
    assert (done.rows, done.bad) == (len(rows), 0)
    assert [row["line"] for row in found] == list(range(2, len(rows) + 2))
    lines = (tmp_path / "answers.jsonl").read_text().splitlines()
    assert lines == [json.dumps(row, ensure_ascii=False) for row in found]
    for number, (own, row) in enumerate(zip(found, rows, strict=True)):
        if number % 5 == 0 or number < 4:
            side = "subject" if row["subject"] else "object"
            asked: dict[str, Any] = {side: row[side]}
            same(own, finished.ask(row["relation"], **asked, top=top))
            assert own[side] == row[side]


@pytest.mark.parametrize(
    "sections",
    [
        {"method": {"name": "spe", "choose_weight": "dev-fit"}, "facts": {"copies": "off"}},
        {
            "method": {"name": "finetune"},
            "prompt": {"template": "[X] is [Y] ."},
            "tuning": {"save_weights": True},
        },
        {"method": {"name": "majority"}},
        {"facts": {"objects": "any-length", "vocabulary": "objects"}},
    ],
    ids=["fitted", "finetune", "majority", "names"],
)
def test_runs_of_other_methods_are_asked_too(
    make: Make, data: Path, tmp_path: Path, sections: dict[str, Any]
) -> None:
    run = symprompt.train(make(tmp_path / "run", **sections))
    facts = [fact for relation in load_facts(run.folder).relations for fact in relation.test]
    path = write(tmp_path / "q.csv", [(fact.relation, fact.subject, "") for fact in facts])
    ask_file(run, path, tmp_path / "a.jsonl", top=5)
    for own, fact in zip(read(tmp_path / "a.jsonl"), facts, strict=True):
        same(own, run.ask(fact.relation, subject=fact.subject, top=5))


def test_rows_that_cannot_be_asked_are_listed_by_line(finished: Run, tmp_path: Path) -> None:
    path = write(
        tmp_path / "q.csv",
        [
            ("capital", "France", ""),
            ("capitol", "France", ""),
            ("", "France", ""),
            ("in", "", ""),
            ("in", "[MASK]", ""),
            ("in", "\u200b", ""),
            ("in", "New " * 60, ""),
            ("in", "", "Oslo"),
            ("in", "a\tb", ""),
            ("in", "Lyon", "Cuba"),
        ],
    )
    with path.open("a") as opened:
        opened.write("in,Lyon\n")
    done = ask_file(finished, path, tmp_path / "a.csv", top=2)
    assert (done.rows, done.bad) == (2, 9)
    bad = {row["line"]: row["why"] for row in read(Path(done.bad_file))}
    assert list(bad) == [3, 4, 5, 6, 7, 8, 9, 10, 12]
    for line, why in {
        3: "relation 'capitol' is not in the run",
        4: "'relation' is empty",
        5: "neither a subject nor an object",
        6: "holds the model's mask",
        7: "has no token",
        8: "the model takes 48",
        9: "'Oslo' is not one token",
        10: "control characters",
        12: "got 2 cell(s)",
    }.items():
        assert f"line {line}: " in bad[line]
        assert why in bad[line]
    with (tmp_path / "a.csv").open(newline="") as opened:
        rows = list(csv.DictReader(opened))
    assert [(row["line"], row["subject"], row["rank"]) for row in rows] == [
        ("2", "France", "1"),
        ("2", "France", "2"),
        ("11", "Lyon", "1"),
        ("11", "Lyon", "2"),
    ]
    ask_file(finished, path, tmp_path / "b.jsonl", top=2, want="subjects")
    assert [row["object"] for row in read(tmp_path / "b.jsonl")] == ["Cuba"]


def test_a_run_without_a_subject_prompt_is_not_asked_for_subjects(
    make: Make, tmp_path: Path
) -> None:
    run = symprompt.train(make(tmp_path / "run", method={"name": "ptuning"}))
    path = write(tmp_path / "q.csv", [("capital", "France", ""), ("in", "", "France")])
    done = ask_file(run, path, tmp_path / "a.jsonl")
    assert (done.rows, done.bad) == (1, 1)
    assert "learned no subject prompt" in read(Path(done.bad_file))[0]["why"]
    with pytest.raises(SympromptError, match="learned no subject prompt"):
        ask_file(run, path, tmp_path / "b.jsonl", want="subjects")
    with pytest.raises(SympromptError, match="'x' is not in"):
        ask_file(run, path, tmp_path / "b.jsonl", relation="x")


KILLED = """
import sys, time
from symprompt.files import stream as streaming
from symprompt.probing import many
streaming.EVERY = 0.0
many.Reader.__init__.__kwdefaults__["block"] = 8
add = streaming._Writer.add
def slow(self, *given):
    add(self, *given)
    time.sleep(0.2)
streaming._Writer.add = slow
from symprompt.cli import main
main(sys.argv[1:])
"""


def test_a_killed_run_goes_on_and_writes_the_same_bytes(
    finished: Run, questions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(streaming.Reader.__init__.__kwdefaults__, "block", 8)
    ask_file(finished, questions, tmp_path / "whole.jsonl", top=3, device="cpu")
    out = tmp_path / "out.jsonl"
    words = ["ask", finished.folder.path, "--file", questions, "--out", out, "--top", "3"]
    command = [sys.executable, "-c", KILLED, *map(str, words), "--device", "cpu"]
    environment = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}
    process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    until = time.monotonic() + 100
    state = out.with_name(out.name + ".state.json")
    while not state.exists() and process.poll() is None and time.monotonic() < until:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert part_of(out).exists()
    done = ask_file(finished, questions, out, top=3, device="cpu")
    assert 0 < done.resumed < done.rows
    assert out.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()


def test_the_command_says_how_many_and_how_fast(
    finished: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "q.csv", [("capital", "France", ""), ("in", "Lyon", ""), ("x", "", "")])
    words = ["ask", str(finished.folder.path), "--file", str(path)]
    cli.main([*words, "--out", str(tmp_path / "a.jsonl")])
    said = capsys.readouterr().out
    assert said.startswith("2 questions in ")
    assert "/s): " in said
    assert f"1 row could not be used; lines and reasons: {tmp_path}/a.jsonl.bad.jsonl" in said
    for flags, message in (
        (["--out", str(tmp_path / "a.jsonl")], "a.jsonl exists"),
        (["--out", str(tmp_path / "a.txt")], "ends in '.txt'"),
        (["--want", "objects"], "go with --out"),
    ):
        with pytest.raises(SystemExit) as stopped:
            cli.main([*words, *flags])
        assert stopped.value.code == 2
        assert message in capsys.readouterr().err
    assert "the same command goes on" in cli.how_to_go_on([*words, "--out", "a.csv"])
    assert "does not go on" in cli.how_to_go_on(words)


def test_the_best_by_keys_are_the_best_whatever_ties() -> None:
    draw = torch.Generator().manual_seed(0)
    for width, k in ((1, 1), (7, 7), (50, 6)):
        scores = torch.randint(-3, 3, (200, width), generator=draw).float() / 2
        scores[torch.rand(scores.shape, generator=draw) < 0.2] = -torch.inf
        scores[torch.rand(scores.shape, generator=draw) < 0.1] = -0.0
        scores[torch.rand(scores.shape, generator=draw) < 0.1] *= 1e30
        for own, other in zip(queries._best_by_keys(scores, k), top_k(scores, k), strict=True):
            assert torch.equal(own, other)
    scores[0, 3] = torch.nan
    assert torch.isnan(queries._best_by_keys(scores, 1)[0][0, 0])
