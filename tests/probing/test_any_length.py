"""Whole runs with objects of any length: what they store, say and answer; resumed, re-ranked."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import symprompt
from symprompt import Run, cli
from symprompt.errors import ConfigError, DataError
from symprompt.facts import Fact
from symprompt.probing.config import RunConfig
from symprompt.probing.rerank import rerank_run
from symprompt.probing.results import load_asked
from symprompt.probing.results import run_config as stored_config
from symprompt.report.tables import load_scores
from tiny.models import PAIRS, names_facts
from tiny.runs import Killed, Make, kill_at, write_csv


@pytest.fixture(scope="module")
def make(make: Make, tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Configs of runs whose objects are names of one and two tokens."""
    data = write_csv(names_facts(), tmp_path_factory.mktemp("facts") / "facts.csv")
    plain = make

    def config(out: Path, **sections: Any) -> RunConfig:
        facts = {"objects": "any-length", "vocabulary": "objects", **sections.pop("facts", {})}
        method = {"name": "spe", "k": 3, "weight": 1.7, **sections.pop("method", {})}
        training = {"epochs": 1, **sections.pop("learning", {})}
        return plain(out, data=str(data), **sections, facts=facts, method=method, learning=training)

    return config


@pytest.fixture(scope="module")
def spe(make: Make, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A finished run; tests must not change its folder."""
    out = tmp_path_factory.mktemp("any") / "run"
    return symprompt.train(make(out, method={"vectors": "separate"}))


def test_a_run_says_that_ranks_are_among_candidates(spe: Run) -> None:
    metrics = spe.metrics
    assert metrics["objects"] == "any-length"
    assert metrics["candidates"] == {"near": 4}
    assert metrics["dropped"] == {"object not among the relation's training objects": 1}
    assert metrics["test"]["facts"] == 3
    assert "among 4 candidates" in load_scores(str(spe.folder.path)).note
    predictions, listed = spe.predictions()
    assert listed == [Fact("near", "Kenya", "San Marino"), *listed[1:]]
    shown = load_asked(spe.folder, "test").candidates()
    assert {name for row in shown for name in row} <= {name for _, name in PAIRS}
    assert any(" " in name for row in shown for name in row)
    assert int(predictions.better.max()) <= 3


def test_a_run_answers_as_it_did_when_it_was_made(spe: Run) -> None:
    predictions, listed = spe.predictions()
    shown = load_asked(spe.folder, "test").candidates()
    for row, fact in enumerate(listed):
        answers = {
            answer.text: answer
            for answer in spe.ask("near", subject=fact.subject, top=4, device="cpu")
        }
        assert set(answers) == {name for _, name in PAIRS}
        for place, name in enumerate(shown[row]):
            forward, backward = answers[name].object_score, answers[name].subject_score
            assert forward == pytest.approx(float(predictions.object_score[row, place]), abs=1e-5)
            assert backward == pytest.approx(float(predictions.weighed_score[row, place]), abs=1e-5)


def test_subjects_are_asked_for_a_long_object(spe: Run) -> None:
    answers = spe.ask("near", object="San Marino", top=20, device="cpu")
    assert {answer.text for answer in answers} == {
        *(subject for subject, _ in PAIRS),
        *("Kenya", "Peru", "Cuba"),
    }
    joints = [answer.joint for answer in answers]
    assert joints == sorted(joints, reverse=True)  # type: ignore[type-var]
    with pytest.raises(DataError, match="not among the candidates of the run"):
        spe.ask("near", object="Los Angeles", device="cpu")


def test_an_spe_run_reranked_by_itself_is_itself(spe: Run, tmp_path: Path) -> None:
    again = rerank_run(spe.folder.path, spe.folder.path, tmp_path / "again", device="cpu")
    for split in ("dev", "test"):
        name = f"predictions/{split}.safetensors"
        assert (again.folder.path / name).read_bytes() == (spe.folder.path / name).read_bytes()
    assert again.metrics["candidates"] == {"near": 4}


def test_other_methods_are_reranked_too(make: Make, spe: Run, tmp_path: Path) -> None:
    manual = symprompt.train(make(tmp_path / "manual", method={"name": "manual"}))
    run = rerank_run(manual.folder.path, spe.folder.path, tmp_path / "run", device="cpu")
    at_once = symprompt.train(
        make(tmp_path / "once", method={"name": "manual"}, rerank=str(spe.folder.path))
    )
    one, other = (entry.folder.path / "predictions/test.safetensors" for entry in (run, at_once))
    assert one.read_bytes() == other.read_bytes()


def test_a_run_with_further_candidates_can_be_asked_when_the_file_is_gone(
    make: Make, tmp_path: Path
) -> None:
    path = tmp_path / "names.txt"
    path.write_text("near\tUnheard of\nelsewhere\tLos Angeles\nold river\n")
    facts = {"vocabulary": str(path)}
    run = symprompt.train(make(tmp_path / "run", facts=facts, method={"name": "ptuning"}))
    assert run.metrics["candidates"] == {"near": 6}
    assert run.metrics["dropped"] == {}
    path.unlink()
    answers = run.ask("near", subject="Kenya", top=20, device="cpu")
    names = {answer.text for answer in answers}
    assert names == {name for _, name in PAIRS} | {"Unheard of", "old river"}


def test_a_killed_run_resumes_to_the_same_bytes(make: Make, spe: Run, tmp_path: Path) -> None:
    config = replace(stored_config(spe.folder), out=str(tmp_path / "run"))
    with pytest.raises(Killed):
        symprompt.train(config, tick=kill_at("asking dev"))
    resumed = symprompt.train(config, resume=True)
    for name in ("predictions/test.safetensors", "prompts.safetensors"):
        one, other = (run.folder.path / name for run in (spe, resumed))
        assert one.read_bytes() == other.read_bytes()


def test_too_many_candidates_asked_back_are_refused(make: Make, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"k is 5, but relation near has only 4"):
        symprompt.train(make(tmp_path / "run", method={"k": 5}))


def test_the_command_line_takes_the_switch(
    spe: Run, make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = stored_config(spe.folder)
    place = ["--model", config.model, "--data", config.data, "--device", "cpu"]
    switch = ["--objects", "any-length", "--vocabulary", "objects"]
    out = str(tmp_path / "run")
    cli.main(["train", "lama-manual", *place, *switch, "--out", out])
    assert "ranks are among 4 candidates" in capsys.readouterr().out
    cli.main(["table", str(spe.folder.path), out, "--draws", "10", "--json"])
    assert "among 4 candidates" in capsys.readouterr().out
    cli.main(["data", "check", config.data, *switch, "--model", config.model, "--json"])
    report = json.loads(capsys.readouterr().out)
    assert report["dropped_by_reason"] == {"object not among the relation's training objects": 1}
    with pytest.raises(SystemExit):
        cli.main(["train", "lama-manual", *place, "--objects", "any-length", "--out", out])
    assert "single tokens only" in capsys.readouterr().err
