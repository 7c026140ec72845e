"""The demo, small: a toy model, three runs, the table and the questions."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from symprompt import Run, cli
from symprompt.demo import DemoSize, demo_questions, demo_runs
from symprompt.models.toy import ToySize

SMALL = DemoSize(
    relations=("continent", "language"),
    toy=ToySize(hidden=64, layers=1, steps=500, batch=64, rate=4e-3),
    epochs=3,
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Run]]:
    folder = tmp_path_factory.mktemp("demo")
    return folder, demo_runs(folder, size=SMALL)


def test_the_demo_makes_a_model_and_three_runs(made: tuple[Path, list[Run]]) -> None:
    folder, runs = made
    names = {path.name for path in folder.iterdir()}
    assert names == {"toy-model", "manual", "ptuning", "spe"}
    assert [run.metrics["method"] for run in runs] == ["manual", "ptuning", "spe"]
    for run in runs:
        assert set(run.metrics["test"]["relations"]) == set(SMALL.relations)
        assert run.folder.load_config().training.epochs == SMALL.epochs


def test_what_is_made_is_not_made_again(made: tuple[Path, list[Run]]) -> None:
    folder, _ = made
    stages: list[str] = []
    demo_runs(folder, size=SMALL, tick=lambda stage, *_: stages.append(stage))
    assert stages == []


def test_questions_are_about_facts_that_rose_to_the_top(made: tuple[Path, list[Run]]) -> None:
    run = made[1][-1]
    predictions, facts = run.predictions()
    before = predictions.ranks().realistic
    after = predictions.final(run.folder.load_weights()).realistic
    rose = {
        fact.relation: max(
            float(before[row] - 1)
            for row, other in enumerate(facts)
            if other.relation == fact.relation and after[row] == 1
        )
        for row, fact in enumerate(facts)
        if after[row] == 1 and before[row] > 1
    }
    questions = demo_questions(run)
    assert questions
    assert {question.fact.relation for question in questions} == set(rose)
    for question in questions:
        assert question.rank == 1
        assert question.forward_rank - 1 == rose[question.fact.relation]
        assert question.answers[0].text == question.fact.object
        assert len(question.answers) == 5
    assert len(demo_questions(run, count=1)) == 1


def test_the_command_shows_it_all(
    made: tuple[Path, list[Run]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder, _ = made
    monkeypatch.setattr(cli, "demo_runs", partial(demo_runs, size=SMALL))
    monkeypatch.setenv("COLUMNS", "160")
    cli.main(["demo", "--out", str(folder)])
    said = capsys.readouterr()
    assert said.err == ""
    for words in ("Mean over relations", "say nothing about real language models", "-> 1"):
        assert words in said.out
    assert f"symprompt ask {folder / 'spe'} --relation capital" in said.out


def test_help_tells_what_the_demo_does(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(["demo", "--help"])
    assert end.value.code == 0
    assert "toy model" in capsys.readouterr().out
