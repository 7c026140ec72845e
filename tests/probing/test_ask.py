"""Asking a finished run, and looking at its prompts."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import symprompt
from symprompt import LanguageModel, Run, SympromptError, Template, cli
from symprompt.errors import RunError
from symprompt.probing import ask as answering
from symprompt.probing import prepare as problem
from symprompt.probing.inspect import describe_prompts, write_template
from symprompt.probing.rerank import rerank_run
from symprompt.probing.results import Combination, load_card, load_facts, load_prompts
from symprompt.probing.summary import candidate_notes
from tiny.runs import SEPARATE, Make, other_model


def test_a_subject_gives_the_stored_answers_in_joint_order(finished: Run) -> None:
    predictions, facts = finished.predictions("test")
    weights = finished.metrics["weights"]["subject"]
    for row, fact in enumerate(facts):
        answers = finished.ask(fact.relation, subject=fact.subject, top=5)
        assert len(answers) == predictions.candidates.shape[1]
        joints = [answer.joint for answer in answers]
        assert joints == sorted(joints, reverse=True)
        assert sorted(answer.object_score for answer in answers) == pytest.approx(
            sorted(predictions.object_score[row].tolist()), abs=1e-5
        )
        weight = weights[fact.relation]
        stored = predictions.object_score[row] + weight * predictions.subject_score[row]
        assert joints == pytest.approx(sorted(stored.tolist(), reverse=True), abs=1e-5)
        by_forward = sorted(answers, key=lambda answer: -answer.object_score)
        assert [answer.subject_score for answer in by_forward] == pytest.approx(
            predictions.subject_score[row].tolist(), abs=1e-5
        )


def test_top_bounds_the_answers_and_spaces_around_a_subject_do_not_matter(finished: Run) -> None:
    all_answers = finished.ask("capital", subject="France")
    assert finished.ask("capital", subject=" France ", top=2) == all_answers[:2]


def test_an_object_gives_the_known_subjects_in_joint_order(finished: Run) -> None:
    answers = finished.ask("in", object="France", top=100)
    known = {fact.subject for fact in load_facts(finished.folder)["in"].all()}
    assert {answer.text for answer in answers} == known
    assert len(answers) == len(known)
    joints = [answer.joint for answer in answers]
    assert joints == sorted(joints, reverse=True)
    weight = finished.metrics["weights"]["subject"]["in"]
    for answer in answers:
        assert answer.subject_score is not None
        assert answer.joint == pytest.approx(
            answer.object_score + weight * answer.subject_score, abs=1e-5
        )


def test_both_ways_of_asking_give_a_pair_the_same_scores(finished: Run) -> None:
    by_object = {answer.text: answer for answer in finished.ask("in", object="Cuba", top=100)}
    found = 0
    for subject, there in by_object.items():
        back = {answer.text: answer for answer in finished.ask("in", subject=subject, top=5)}
        if "Cuba" in back:
            found += 1
            here = back["Cuba"]
            assert here.object_score == pytest.approx(there.object_score, abs=1e-5)
            assert here.subject_score == pytest.approx(there.subject_score, abs=1e-5)
    predictions, facts = finished.predictions("test")
    for row, fact in enumerate(facts):
        if fact.relation == "in" and fact.object == "Cuba":
            stored = predictions.gold_score[row].item()
            assert by_object[fact.subject].object_score == pytest.approx(stored, abs=1e-5)
            found += 1
    assert found


@pytest.mark.parametrize(
    ("question", "message", "early"),
    [
        ({"relation": "capitol", "subject": "a"}, r"'capitol' is not in .* has: capital, in", True),
        ({"relation": "in", "subject": "  "}, "subject is empty", True),
        ({"relation": "in", "subject": "Oslo", "top": 0}, "top is 0", True),
        ({"relation": "in"}, "either a subject or an object", True),
        ({"relation": "in", "subject": "a", "object": "b"}, "either a subject or an object", True),
        ({"relation": "in", "subject": "[MASK]"}, "holds the model's mask", False),
        ({"relation": "in", "subject": "\u200b"}, "has no token", False),
        ({"relation": "in", "subject": "New " * 60}, "the model takes 48", False),
        ({"relation": "in", "object": "Oslo"}, "'Oslo' is not one token", False),
        ({"relation": "in", "object": ""}, "'' is not one token", False),
    ],
)
def test_a_question_that_cannot_be_asked_is_refused_without_a_model_where_none_is_needed(
    finished: Run,
    monkeypatch: pytest.MonkeyPatch,
    question: dict[str, Any],
    message: str,
    early: bool,
) -> None:
    loaded: list[Any] = []
    load = symprompt.LanguageModel.load
    monkeypatch.setattr(
        symprompt.LanguageModel, "load", lambda *a, **k: loaded.append(a) or load(*a, **k)
    )
    with pytest.raises(SympromptError, match=message):
        Run.load(finished.folder.path).ask(**question)
    assert bool(loaded) == (not early)


def test_the_model_may_move_but_not_change(finished: Run, model: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(finished.folder.path, tmp_path / "run")
    text = (folder / "config.toml").read_text()
    (folder / "config.toml").write_text(text.replace(str(model), str(tmp_path / "gone")))
    run = Run.load(folder)
    with pytest.raises(SympromptError, match="gone"):
        run.ask("capital", subject="France")
    moved = run.ask("capital", subject="France", model=str(model))
    assert moved == finished.ask("capital", subject="France")
    other = other_model(model, tmp_path / "other")
    # Also after the right model was loaded.
    with pytest.raises(RunError, match="made by another model"):
        run.ask("capital", subject="France", model=str(other))


def test_answers_beyond_the_candidates_follow_in_forward_order(finished: Run) -> None:
    few, many = (finished.ask("capital", subject="France", top=top) for top in (3, 50))
    assert len(many) == 50
    assert many[:3] == few
    joints = [answer.joint for answer in many[:5]]
    assert None not in joints
    assert joints == sorted(joints, reverse=True)  # type: ignore[type-var]
    assert all(answer.subject_score is None and answer.joint is None for answer in many[5:])
    forward = [answer.object_score for answer in many[5:]]
    assert forward == sorted(forward, reverse=True)
    assert forward[0] <= min(answer.object_score for answer in many[:5])
    assert len({answer.text for answer in many}) == 50


def test_a_run_can_be_asked_for_all_that_is_allowed_without_its_data(
    make: Make, data: Path, tmp_path: Path
) -> None:
    facts = shutil.copy(data, tmp_path / "facts.csv")
    sections = {"facts": {"vocabulary": "objects"}, "learning": {"epochs": 0}}
    symprompt.train(make(tmp_path / "run", data=str(facts), **sections))
    facts.unlink()
    answers = Run.load(tmp_path / "run").ask("capital", subject="France", top=1000)
    assert {answer.text for answer in answers} == {"Paris", "Rome", "Madrid", "Tokyo", "Santiago"}


def test_subjects_are_ranked_by_a_mean_over_their_tokens_even_if_the_run_sums(
    make: Make, finished: Run, tmp_path: Path
) -> None:
    config = make(
        tmp_path / "run",
        start_from=str(finished.folder.path),
        method={**SEPARATE, "average": "sum"},
        learning={"epochs": 0},
    )
    summed = symprompt.train(config)
    # The finished run has the same vectors and takes means.
    mine, theirs = (run.ask("in", object="France", top=100) for run in (summed, finished))
    assert [answer.text for answer in mine] == [answer.text for answer in theirs]
    for one, other in zip(mine, theirs, strict=True):
        assert one.subject_score == pytest.approx(other.subject_score, abs=1e-5)
        assert one.joint == pytest.approx(other.joint, abs=1e-5)
    # Objects of one subject are compared by the run's own score.
    one, other = (run.ask("in", subject="New York", top=5)[0] for run in (summed, finished))
    assert one.subject_score == pytest.approx(2 * other.subject_score, rel=0.5)  # type: ignore[operator]
    assert one.subject_score != pytest.approx(other.subject_score, abs=1e-3)


def test_a_run_with_a_word_list_can_be_asked_when_the_list_is_gone(
    make: Make, tmp_path: Path
) -> None:
    words = tmp_path / "words.txt"
    words.write_text(
        "Lima\nHavana\nNairobi\nFrance\nItaly\nSpain\nParis\nRome\nJapan\nCuba\nPeru\n"
    )
    config = make(tmp_path / "run", facts={"vocabulary": str(words)}, method={"k": 3})
    run = symprompt.train(config)
    assert (tmp_path / "run/vocabulary.txt").read_text() == words.read_text()
    before = run.ask("capital", subject="France", top=100)
    words.unlink()
    assert Run.load(tmp_path / "run").ask("capital", subject="France", top=100) == before
    assert {answer.text for answer in before} <= set(
        (tmp_path / "run/vocabulary.txt").read_text().split()
    )


def test_a_question_lays_out_no_more_than_it_asks(
    finished: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensorised: list[int] = []
    lay_out = answering.make_layout

    def count(vocabulary: Any, templates: Any, facts: Any, **options: Any) -> Any:
        tensorised.append(len(facts))
        return lay_out(vocabulary, templates, facts, **options)

    monkeypatch.setattr(answering, "make_layout", count)
    monkeypatch.setattr(problem, "tensorise", None)
    Run.load(finished.folder.path).ask("capital", subject="France")
    assert set(tensorised) == {1}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("prompts.json", "{}"),
        ("prompts.json", '{"relations": {"in": {}}}'),
        ("prompts.json", "[]"),
        ("symprompt.json", "{}"),
        ("symprompt.json", "[]"),
        ("facts.jsonl", ""),
    ],
)
@pytest.mark.parametrize("asked", [{"subject": "Oslo"}, {"object": "France"}])
def test_a_damaged_run_is_one_sentence_that_names_the_file(
    finished: Run, tmp_path: Path, name: str, content: str, asked: dict[str, str]
) -> None:
    shutil.copytree(finished.folder.path, tmp_path / "run")
    (tmp_path / "run" / name).write_text(content)
    with pytest.raises(RunError, match=rf"{name} is damaged: .*\.$"):
        Run.load(tmp_path / "run").ask("in", **asked)


def test_prompts_that_lack_a_part_are_one_sentence(finished: Run, tmp_path: Path) -> None:
    shutil.copytree(finished.folder.path, tmp_path / "run")
    run = Run.load(tmp_path / "run")
    tensors, note = run.folder.read_tensors("prompts.safetensors")
    for broken in ({"forth": tensors["forth"]}, tensors | {"back": tensors["back"][:1]}):
        run.folder.write_tensors("prompts.safetensors", broken, note)
        with pytest.raises(RunError, match=r"prompts\.safetensors is damaged"):
            run.ask("in", subject="Oslo")


def test_fitted_frequencies_are_part_of_the_answers_too(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On facts as few as these a fit finds nothing to weigh, so one is put in its place.
    weights = {"subject": [0.5, 2.0], "frequency": [0.75, 1.25], "copy": [-1.0, -2.0]}
    fitted = Combination({name: np.array(own) for name, own in weights.items()})
    monkeypatch.setattr("symprompt.probing.evaluate.fit_combination", lambda *_, **__: fitted)
    method = {**SEPARATE, "choose_weight": "dev-fit"}
    run = symprompt.train(make(tmp_path / "run", method=method))
    assert run.metrics["weights"]["frequency"] == {"capital": 0.75, "in": 1.25}
    predictions, facts = run.predictions("test")
    width = predictions.candidates.shape[1]
    for row, fact in enumerate(facts):
        answers = run.ask(fact.relation, subject=fact.subject, top=width)
        by_forward = sorted(answers, key=lambda answer: -answer.object_score)
        joint = predictions.joint(fitted)
        for name, wanted in {"subject_score": predictions.subject_score, "joint": joint}.items():
            scores = [getattr(answer, name) for answer in by_forward]
            assert scores == pytest.approx(wanted[row].tolist(), abs=1e-5)
        for name, term in predictions.terms.items():
            terms = [answer.terms[name] for answer in by_forward]
            assert terms == pytest.approx(term[row].tolist(), abs=1e-5)
        place = ["capital", "in"].index(fact.relation)
        assert answers.weights == {name: own[place] for name, own in weights.items()}


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_a_template_asks_as_a_run_of_manual_prompts_does(
    make: Make, family_folder: Callable[[str], Path], tmp_path: Path, name: str
) -> None:
    model = str(family_folder(name))
    run = symprompt.train(make(tmp_path / "run", model=model, method={"name": "manual"}))
    template = load_facts(run.folder)["capital"].template
    subjects = ["France", "New York"]
    found = symprompt.ask_template(model, template, subjects, device="cpu")
    assert found == run.ask_all(subjects, "capital", device="cpu")
    assert [own.known for own in found] == [None, None]
    (every,) = symprompt.ask_template(model, template, subjects[:1], device="cpu", top=10**6)
    assert sum(answer.probability or 0 for answer in every) == pytest.approx(1, abs=0.01)


def test_a_run_answers_by_its_own_rule_of_what_cannot_be(make: Make, tmp_path: Path) -> None:
    data = tmp_path / "facts.csv"
    rows = [("Paris", "Rome"), ("Rome", "Madrid"), ("Madrid", "Lima"), ("Lima", "Paris")]
    lines = [f"{a},near,{b},{split}" for split in ("train", "dev", "test") for a, b in rows]
    data.write_text("\n".join(["subject,relation,object,split", *lines]) + "\n")
    settings = {"vocabulary": "objects", "copies": "auto"}
    config = make(tmp_path / "run", data=str(data), facts=settings, method={"k": 4})
    run = symprompt.train(config)
    assert run.metrics["excluded"] == {"copies": ["near"], "words": {}}
    # Facts whose subject is an answer have one fewer.
    assert run.metrics["k"] == 4
    assert (run.predictions("test")[0].candidates[:, 3] == -1).all()
    assert {own.text for own in run.ask(subject="Rome")} == {"Paris", "Madrid", "Lima"}
    assert {own.text for own in run.ask(subject="Peru")} == {"Paris", "Rome", "Madrid", "Lima"}
    assert {own.text for own in run.ask(object="Rome")} == {"Paris", "Madrid", "Lima"}
    # Whoever else is asked.
    names = ["Rome", "Peru", "Paris", "Cuba"]
    together, alone = run.ask_all(names), [run.ask(subject=name) for name in names]
    assert [own.subject for own in together] == names
    for many, one in zip(together, alone, strict=True):
        assert [own.text for own in many] == [own.text for own in one]
        assert [own.joint for own in many] == pytest.approx([own.joint for own in one], abs=1e-4)
    (note,) = candidate_notes(run.metrics)
    assert note == "never an answer: the subject itself in 1 relation"
    again = rerank_run(run.folder.path, run.folder.path, tmp_path / "again")
    assert again.metrics["excluded"] == run.metrics["excluded"]


def test_a_template_may_ask_for_words_other_than_the_subject(model: Path) -> None:
    template, every = "[X] lies in [Y] .", 10**6
    options: dict[str, Any] = {"device": "cpu", "top": every}
    for plain, words in zip(
        symprompt.ask_template(str(model), template, ["Rome", "New York"], **options),
        symprompt.ask_template(str(model), template, ["Rome", "New York"], words=True, **options),
        strict=True,
    ):
        shown = [answer.text for answer in words]
        assert "Rome" not in shown if words.subject == "Rome" else "Rome" in shown
        assert not {".", "[MASK]"} & set(shown)
        kept = [answer for answer in plain if answer.text in shown]
        assert [answer.text for answer in kept] == shown


def test_a_subject_that_is_not_known_is_asked_and_the_known_spelling_offered(
    finished: Run,
) -> None:
    for asked, nearest in (("france", "France"), ("Frnce", "France"), ("Quux", "")):
        answers = finished.ask("capital", subject=asked, top=5)
        assert (answers.known, answers.nearest, len(answers)) == (False, nearest, 5)
    assert finished.ask("capital", subject="France").known is True
    with pytest.raises(SympromptError, match=r"cannot be asked \(did you mean France\?\)"):
        finished.ask("in", object="Framce")


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
