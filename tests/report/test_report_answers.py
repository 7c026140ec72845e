"""What ask, train and data check show."""

from __future__ import annotations

import io
from dataclasses import asdict, replace
from typing import Any

import pytest
from rich.console import Console, RenderableType

from symprompt.facts import FactSet, check
from symprompt.probing.answer_tables import answer_table, question_table
from symprompt.probing.ask import Answer, Answers
from symprompt.probing.summary import run_summary
from symprompt.report.answers import check_table


def render(table: RenderableType, width: int = 160) -> list[str]:
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    console.print(table)
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


ANSWERS = [
    asdict(Answer("Paris", -1.23456, -2.0, -2.83456, {"frequency": 0.5}, 0.29)),
    asdict(Answer("Rome", -0.5, -7.25, -6.3, {"frequency": -0.25}, 0.61)),
    asdict(Answer("Oslo", -9.0, probability=0.000123)),
]


def test_answers_stand_in_their_order_with_their_scores() -> None:
    grid = answer_table(ANSWERS, "capital: France ?")
    assert grid.title == "capital: France ?"
    scores = ("object score", "subject score", "frequency", "joint")
    assert grid.header == ("rank", "answer", "probability", *scores)
    assert grid.sections[0] == (
        ("1", "Paris", "29.00 %", "-1.235", "-2.000", "0.500", "-2.835"),
        ("2", "Rome", "61.00 %", "-0.500", "-7.250", "-0.250", "-6.300"),
        ("3", "Oslo", "0.01 %", "-9.000", "", "", ""),
    )
    assert answer_table(ANSWERS[2:], "").sections[0] == (("1", "Oslo", "0.01 %", "-9.000"),)


def test_questions_state_their_weights_and_the_names_that_are_not_known() -> None:
    def asked(subject: str, **more: Any) -> dict[str, Any]:
        answers = [Answer(**own) for own in ANSWERS]
        names = ["France", "Siemens"]
        return Answers(answers, relation="in", subject=subject, names=names, **more).to_dict()

    one = render(question_table([asked("siemens", weights={"subject": 1.5, "frequency": -0.25})]))
    assert one[0] == "in: siemens ?"
    assert one[-3:] == [
        "probability: of the object given the subject; object score: its logarithm.",
        "joint = object score + 1.5 x subject score - 0.25 x frequency (log of the object's "
        "share of the training facts).",
        "not among the subjects that the run has facts about: siemens (did you mean Siemens?); "
        "asked as written.",
    ]
    many = render(
        question_table([asked("France", weights={"subject": 2.0}), asked("Xyz"), asked("FRANCE")])
    )
    assert [line.split()[:4] for line in many[4:7]] == [
        [subject, "Paris", "29.00", "%"] for subject in ("France", "Xyz", "FRANCE")
    ]
    assert many[4].endswith("-2.835  Rome, Oslo")
    assert "joint = object score + 2 x subject score." in many
    assert many[-1].endswith("about: Xyz, FRANCE (did you mean France?); asked as written.")


@pytest.mark.parametrize("text", ["[unused1]", "[/b]", "[red]", ":smile:", "[UNK]", "\\[x]"])
def test_answers_and_titles_are_shown_literally(text: str) -> None:
    answers = [asdict(Answer(text, -1.0))]
    lines = render(answer_table(answers, f"in: {text} ?"))
    assert lines[0] == f"in: {text} ?"
    assert any(line.split() == ["1", text, "-1.000"] for line in lines)


def kind(start: float) -> dict[str, Any]:
    return {
        "realistic": {
            "mean over relations": {"p1": start, "p10": start + 1, "mrr": start + 2},
            "mean over facts": {"p1": start + 3, "p10": start + 4, "mrr": start + 5},
        }
    }


def metrics(**changed: Any) -> dict[str, Any]:
    return {
        "model": "tiny[/b]",
        "method": "spe",
        "seed": 34,
        "k": 15,
        "weights": {"subject": {"a": 0.8, "b": 0.8}, "copy": {"a": -1.0, "b": -2.5}},
        "dropped": {"duplicate": 3},
        "candidates": None,
        "unfilled": [],
        "seconds": {"training": 12.34},
        "test": {
            "facts": 7,
            "relations": {"a": {}, "b": {}},
            "raw": kind(20.125),
            "filtered": kind(30.5),
            "forward": kind(10.25),
        },
    } | changed


def test_a_run_is_summed_up_with_both_means_and_what_was_left_out() -> None:
    lines = render(run_summary(metrics()))
    assert lines[0] == "spe on tiny[/b]"
    text = "\n".join(" ".join(line.split()) for line in lines)
    assert "forward only, mean over relations 10.25 11.25 12.25" in text
    assert "raw, mean over facts 23.12 24.12 25.12" in text
    assert "filtered, mean over facts 33.50 34.50 35.50" in text
    assert "7 facts, 2 relations, seed 34" in text
    assert "left out: 3 facts, duplicate" in text
    assert "asked back: K = 15; weights: subject 0.8, copy -2.5 to -1" in text
    assert "leakage" not in text
    leaks = {"test_pairs_in_train_or_dev": 2, "test_subjects_in_train": 3}
    lost = {"object is not one token of the model": 9}
    lines = render(run_summary(metrics(leakage=leaks, dropped=lost)), 300)
    assert any(line.startswith("leakage: of the test facts 2 are also in train") for line in lines)
    leaks |= {"test_inverses_in_train": 4}
    lines = render(run_summary(metrics(leakage=leaks)), 300)
    assert any("a subject that train has, and 4 are in train turned around" in own for own in lines)
    lines = render(run_summary(metrics(leakage=leaks, dropped=lost)), 300)
    assert any("(--objects any-length --vocabulary objects keeps" in line for line in lines)
    assert "training: 12.3 s" in text

    text = "\n".join(render(run_summary(metrics(weights={"subject": {"a": 2.0, "b": 0.05}}))))
    assert "weights: subject 0.05 to 2" in text
    # Without subject scores there are no rows of object scores.
    text = "\n".join(render(run_summary(metrics(weights=None, k=None))))
    assert "forward" not in text
    assert "asked back" not in text
    assert "raw, mean over facts" in text


def test_a_check_has_a_row_for_each_relation_and_the_sums(facts: FactSet) -> None:
    report = check(facts).to_dict()
    lines = render(check_table(report))
    assert lines[0] == "made up (table)"
    rows = {line.split()[0]: line.split()[1:] for line in lines if line.split()[1:]}
    for relation in report["relations"]:
        wanted = [str(relation["facts"][split]) for split in ("train", "dev", "test")]
        assert rows[relation["name"]][:3] == wanted
        assert rows[relation["name"]][3:5] == [
            str(relation["distinct_objects"]),
            relation["majority_object"],
        ]
    sums = [str(report["facts"][split]) for split in ("train", "dev", "test")]
    assert rows["all"][:3] == sums
    text = "\n".join(lines)
    share = report["majority_mean_over_relations"]
    assert f"majority baseline, mean over relations: {100 * share:.2f} P@1" in text
    assert "left out: none" in text
    assert "decomposed" not in text
    lines = render(check_table(check(replace(facts, composed=2)).to_dict()))
    assert any(line.startswith("2 facts with names in decomposed Unicode") for line in lines)


def test_a_check_tells_what_was_left_out_and_shows_names_literally(facts: FactSet) -> None:
    fewer = facts.drop([x for x in facts.facts() if x.subject == "Oslo"], "too cold [/b]")
    report = check(fewer).to_dict()
    report["source"] = "facts [/b].csv"
    report["relations"][0]["name"] = "[red]capital"
    lines = render(check_table(report))
    assert lines[0] == "facts [/b].csv (table)"
    assert any(line.split()[:1] == ["[red]capital"] for line in lines)
    assert "left out: 1 fact, too cold [/b]" in lines
    bare = facts.drop(facts.facts("train"), "train taken away")
    text = "\n".join(render(check_table(check(bare).to_dict())))
    assert "majority baseline" not in text
