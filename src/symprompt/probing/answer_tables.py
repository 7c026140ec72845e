"""Answers as tables: of one question with all scores, of several a line each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from symprompt.files.grid import Grid, Grids

_TERMS = {
    "subject": "subject score",
    "second": "second (subject score of the second subject prompt)",
    "third": "third (subject score of the third subject prompt)",
    "frequency": "frequency (log of the object's share of the training facts)",
    "copy": "copy (1 where the answer is the subject itself)",
    "prior": "prior (object score where the subject is masked)",
}
_UNKNOWN = 20
"""So many names that are not known are listed."""


def answer_table(answers: Sequence[Mapping[str, Any]], title: str) -> Grid:
    """Return ranked answers with their scores, each apart, blank where there is none."""
    rows = [(str(rank), own["text"], _scores(own)) for rank, own in enumerate(answers, start=1)]
    every = dict.fromkeys(name for _, _, scores in rows for name in scores)
    # The joint score last, after what it is made of.
    names = sorted(every, key=lambda name: name == "joint")
    cells = tuple((*row[:2], *(row[2].get(name, "") for name in names)) for row in rows)
    return Grid(title, ("rank", "answer", *names), (cells,), folded=(1,))


def _scores(answer: Mapping[str, Any]) -> dict[str, str]:
    """Return an answer's scores as cells, by what they are called."""
    share = answer["probability"]
    found = {} if share is None else {"probability": f"{100 * share:.2f} %"}
    scores = {
        "object score": answer["object_score"],
        "subject score": answer["subject_score"],
        **answer["terms"],
        "joint": answer["joint"],
    }
    return found | {name: f"{own:z.3f}" for name, own in scores.items() if own is not None}


def question_table(asked: Sequence[Mapping[str, Any]]) -> Grids:
    """Return the answers to one question, or a line for each of several, with what they are.

    Args:
        asked: questions as plain values, as ``Answers.to_dict`` returns them.
    """
    first = asked[0]
    if len(asked) == 1:
        name = f"? {first['object']}" if first["subject"] is None else f"{first['subject']} ?"
        grid = answer_table(first["answers"], f"{first['relation']}: {name}")
    else:
        best = [_scores(own["answers"][0]) for own in asked]
        names = [name for name in ("probability", "object score", "joint") if name in best[0]]
        rows = tuple(
            (
                own["subject"],
                own["answers"][0]["text"],
                *(scores[name] for name in names),
                ", ".join(answer["text"] for answer in own["answers"][1:]),
            )
            for own, scores in zip(asked, best, strict=True)
        )
        header = ("subject", "answer", *names, "next answers")
        grid = Grid(first["relation"], header, (rows,), folded=(1, len(header) - 1))
    return Grids({"questions": list(asked)}, [grid], _answer_notes(asked))


def _answer_notes(asked: Sequence[Mapping[str, Any]]) -> list[str]:
    first = asked[0]
    notes = []
    if any(answer["probability"] is not None for answer in first["answers"]):
        notes.append("probability: of the object given the subject; object score: its logarithm.")
    if first["weights"]:
        added = (f" + {weight:.3g} x {_TERMS[name]}" for name, weight in first["weights"].items())
        notes.append(f"joint = object score{''.join(added)}.".replace("+ -", "- "))
    unknown = [own for own in asked if own["known"] is False]
    if unknown:
        kind = "subjects" if first["object"] is None else "objects"
        named = (
            f"{own[kind[:-1]]}" + (f" (did you mean {own['nearest']}?)" if own["nearest"] else "")
            for own in unknown[:_UNKNOWN]
        )
        more = len(unknown) - _UNKNOWN
        notes.append(
            f"not among the {kind} that the run has facts about: {', '.join(named)}"
            f"{f' and {more} more' if more > 0 else ''}; asked as written."
        )
    return notes
