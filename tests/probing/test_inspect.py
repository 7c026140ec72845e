"""prompts show: nearest words by loops, norms, every kind of run, and what is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

import symprompt
from symprompt import LanguageModel, Run, SympromptError, Template, cli
from symprompt.probing.inspect import describe_prompts, write_template
from symprompt.probing.results import load_card, load_prompts
from tiny.runs import Make


@pytest.mark.parametrize("by", ["cosine", "euclidean"])
def test_nearest_words_are_those_of_a_loop_over_the_vocabulary(
    by: str, finished: Run, model: Path
) -> None:
    views = describe_prompts(finished, top=3, by=by, device="cpu")  # type: ignore[arg-type]
    assert [view.relation for view in views] == ["capital", "in"]
    backbone = LanguageModel.load(str(model), device="cpu", dtype="float32")
    table = backbone.model.get_input_embeddings().weight.detach().double().tolist()
    norms = [math.hypot(*row) for row in table]
    stored = load_prompts(finished.folder, ["forth", "back"])
    for relation, view in enumerate(views):
        assert [(entry.part, entry.slot) for entry in view.vectors] == [
            (part, slot) for part in ("forth", "back") for slot in range(1, 6)
        ]
        for entry in view.vectors:
            vector = stored[entry.part][relation, entry.slot - 1].double().tolist()
            norm = math.hypot(*vector)
            assert entry.norm == pytest.approx(norm, rel=1e-5)
            assert entry.relative_norm == pytest.approx(norm / (sum(norms) / len(norms)), rel=1e-5)
            if by == "cosine":
                values = [
                    sum(a * b for a, b in zip(vector, row, strict=True)) / norm / other
                    for row, other in zip(table, norms, strict=True)
                ]
                order = sorted(range(len(table)), key=lambda token: -values[token])
            else:
                values = [math.dist(vector, row) for row in table]
                order = sorted(range(len(table)), key=values.__getitem__)
            texts = backbone.vocabulary.tokenizer.convert_ids_to_tokens(order[:3])
            assert [near.text for near in entry.nearest] == texts
            wanted = [values[token] for token in order[:3]]
            assert [near.value for near in entry.nearest] == pytest.approx(wanted, abs=1e-5)


def test_vectors_that_start_from_words_are_nearest_to_them(make: Make, tmp_path: Path) -> None:
    run = symprompt.train(
        make(
            tmp_path / "run",
            method={"name": "optiprompt"},
            prompt={"encoder": "free", "start": "manual"},
            learning={"epochs": 0},
        )
    )
    views = describe_prompts(run, top=1, device="cpu")
    words = [[entry.nearest[0].text for entry in view.vectors] for view in views]
    # The shorter template shows no more vectors than it has.
    assert words == [["The", "capital", "of", "is", "."], ["lies", "in", "."]]
    assert all(
        entry.nearest[0].value == pytest.approx(1) for view in views for entry in view.vectors
    )
    assert views[0].prompts == {"forth": "v1 v2 v3 [X] v4 [Y] v5"}


def test_templates_are_written_with_numbered_vectors() -> None:
    template = Template.parse("<2> [X] , <1> capital [Y] .")
    assert write_template(template) == "v1 v2 [X] , v3 capital [Y] ."


def test_the_way_back_has_its_own_sentence(finished: Run) -> None:
    (view,) = describe_prompts(finished, relations=["in"], top=1, device="cpu")
    assert view.prompts == {"forth": "v1 v2 [X] v3 [Y] v4 v5", "back": "v1 v2 [Y] v3 [X] v4 v5"}
    assert view.about == ""


@pytest.mark.parametrize("name", ["manual", "majority"])
def test_methods_that_learn_nothing_say_what_they_ask(
    name: str, make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = symprompt.train(make(tmp_path / "run", method={"name": name}))

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("no model is needed")

    monkeypatch.setattr(LanguageModel, "load", refuse)
    capital, inside = describe_prompts(Run.load(run.folder.path))
    assert capital.vectors == ()
    if name == "manual":
        assert "nothing learned: The capital of [X] is [Y] ." in capital.about
    else:
        assert "most frequent of 7 training objects: France (1)" in inside.about


@pytest.mark.parametrize("name", ["autoprompt", "finetune"])
def test_words_that_were_found_and_tuned_models_are_told(
    name: str, make: Make, tmp_path: Path
) -> None:
    prompt = {"template": "manual"} if name == "finetune" else {"encoder": "free"}
    run = symprompt.train(
        make(tmp_path / "run", method={"name": name}, prompt=prompt, learning={"epochs": 1})
    )
    for view in describe_prompts(run, top=1, device="cpu"):
        if name == "autoprompt":
            words = [entry.nearest[0].text for entry in view.vectors]
            assert view.about == "words that were searched for: " + str(
                load_card(run.folder)["relations"][view.relation]["prompt"]
            )
            # The vectors of words are those words.
            assert all(entry.nearest[0].value == pytest.approx(1) for entry in view.vectors)
            assert len(words) == 5
        else:
            assert view.vectors == ()
            assert view.about.startswith("a manual template, the model's weights learned: ")


@pytest.mark.parametrize(
    ("question", "message"),
    [
        ({"relations": ["inn"]}, "relation 'inn' is not in"),
        ({"top": 0}, "top is 0"),
        ({"by": "angle"}, "by is 'angle'"),
    ],
)
def test_bad_questions_are_refused(finished: Run, question: dict[str, Any], message: str) -> None:
    with pytest.raises(SympromptError, match=message):
        describe_prompts(finished, **question)


def test_more_words_than_there_are_gives_all(finished: Run) -> None:
    (view,) = describe_prompts(finished, relations=["in"], top=100_000, device="cpu")
    assert {len(entry.nearest) for entry in view.vectors} == {
        len(finished.load_backbone("", "cpu").vocabulary)
    }


def test_the_command_line_shows_prompts(
    finished: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    path = str(finished.folder.path)
    cli.main(["prompts", "show", path, "--relations", "in", "--top", "2"])
    shown = capsys.readouterr().out
    assert "forth: v1 v2 [X] v3 [Y] v4 v5" in shown
    assert "back v5" in shown
    assert "capital" not in shown.splitlines()[0]
    cli.main(["prompts", "show", path, "--json", "--by", "euclidean"])
    views = json.loads(capsys.readouterr().out)
    assert [view["relation"] for view in views] == ["capital", "in"]
    assert len(views[0]["vectors"][0]["nearest"]) == 5
    cli.main(["prompts", "--help"])
    assert "prompts show" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        cli.main(["prompts", "list", path])
    assert "prompts takes one of the commands show, got list" in capsys.readouterr().err
