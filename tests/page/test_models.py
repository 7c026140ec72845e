"""Questions of the page to real, tiny models: the answers are those of the commands."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import symprompt
from symprompt.errors import ConfigError, SympromptError
from symprompt.page.data import Library
from symprompt.page.models import (
    Models,
    RunQuestion,
    TaskQuestion,
    TemplateQuestion,
    WordQuestion,
    model_choices,
)
from symprompt.probing.ask import Run
from symprompt.tasks.predict import TaskRun
from tiny.labelled import write_toy
from tiny.tasks import run_toy
from tiny.text import write_text


def test_a_run_answers_as_it_does_to_ask(spe: Path) -> None:
    models = Models(Library([str(spe)]), device="cpu")
    relation = Run.load(spe).predictions()[1][0].relation
    for changes in ({"subject": "Old York"}, {"object": "Paris"}):
        found = models.ask(RunQuestion(run=0, relation=relation, top=8, **changes))
        wanted = Run.load(spe).ask(relation, top=8, device="cpu", **changes).to_dict()
        assert found == wanted
    with pytest.raises(SympromptError, match="nowhere"):
        models.ask(RunQuestion(run=0, relation="nowhere", subject="a"))


def test_runs_of_one_model_share_it(spe: Path) -> None:
    models = Models(Library([str(spe), str(spe)]), device="cpu")
    relation = Run.load(spe).predictions()[1][0].relation
    for number in (0, 1):
        models.ask(RunQuestion(run=number, relation=relation, subject="Oslo"))
    assert len(models._backbones) == 1
    first = next(iter(models._backbones.values()))
    models.ask(RunQuestion(run=0, relation=relation, subject="Rome"))
    assert next(iter(models._backbones.values())) is first


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_a_model_is_asked_by_a_template(family_folder: Callable[[str], Path], family: str) -> None:
    model = str(family_folder(family))
    models = Models(Library([model]), device="cpu")
    assert [own["id"] for own in model_choices(models.library)] == [0]
    question = TemplateQuestion(run=0, template="[X] is the old [Y] .", subject="Oslo", top=5)
    found = models.ask_template(question)
    (wanted,) = symprompt.ask_template(
        model, question.template, ["Oslo"], top=5, words=True, device="cpu"
    )
    assert found["answers"] == wanted.to_dict()["answers"]
    assert found["causal"] == (family == "gpt2")
    assert models.ask_template(question) == found


def test_tasks_answer_in_one_batch_as_each_does_alone(
    family_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    kinds = {"sequence": "pt2", "tagging": "pt2", "question": "pt2", "pair": "ft", "roles": "pt2"}
    for kind, method in kinds.items():
        data = write_toy(tmp_path / "data" / kind, kind)
        changes = {"learning__epochs": 1, "method": method, "prefix__shift_positions": False}
        run_toy(data, family_folder("bert"), tmp_path / kind, kind, **changes)
    paths = [str(tmp_path / kind) for kind in kinds]
    models = Models(Library(paths), device="cpu")
    about = models.library.about()
    assert [own["kind"] for own in about] == ["task"] * 5
    assert [own["task_kind"] for own in about] == list(kinds)
    parts = ["Paris is the old city", "old"]
    found = models.predict(TaskQuestion(runs=list(range(5)), parts=parts))
    assert (found["batches"], found["together"]) == (1, 4)
    inputs = [parts[0], parts[0].split(), tuple(parts), tuple(parts)]
    inputs.append({"words": parts[0].split(), "predicate": 3})  # type: ignore[arg-type]
    for number, (path, given) in enumerate(zip(paths, inputs, strict=True)):
        own = found["answers"][str(number)]
        (wanted,) = TaskRun.load(path).predict([given], device="cpu").rows
        assert own["prediction"] == wanted["prediction"]
        assert own["text"] == wanted["text"]
        if about[number]["task_kind"] in ("sequence", "pair"):
            assert sum(own["probabilities"].values()) == pytest.approx(1, abs=1e-4)
    few = models.predict(TaskQuestion(runs=[0, 2, 4], parts=["Paris is old"]))["answers"]
    assert "prediction" in few["0"]
    assert "fill in 2 texts" in few["2"]["error"]
    odd = models.predict(TaskQuestion(runs=[4], parts=["Paris is old", "new"]))["answers"]
    assert "no word of the text" in odd["4"]["error"]


def test_a_word_is_drawn_with_its_nearest(
    family_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    text = write_text(tmp_path / "text.txt")
    word = max((own for own in text.read_text().split() if own.isalpha()), key=len)
    models = Models(Library([str(family_folder("bert"))]), device="cpu", corpus=(str(text),))
    found = models.words(WordQuestion(word=word, run=0, clusters=2, most=12))
    count = len(found["points"])
    assert count == len(found["text"]) == len(found["label"]) == len(found["near"]) >= 3
    assert all(at not in near for at, near in enumerate(found["near"]))
    assert all(own[1].casefold() == word.casefold() for own in found["text"])
    with pytest.raises(ConfigError, match="start with --corpus"):
        Models(models.library).words(WordQuestion(word=word, run=0))
