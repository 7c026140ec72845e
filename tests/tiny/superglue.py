"""Hand-made files in SuperGLUE's format, small enough to count by eye."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

NLI = [
    {"premise": "Paris is old .", "hypothesis": "Paris is in France.", "label": "entailment"},
    {"premise": "Rome is the capital of Italy .", "hypothesis": "Rome is a river."},
    {"premise": "Lima lies in Peru", "hypothesis": "the city lies in Peru!"},
]


def rows_of(task: str) -> list[dict[str, Any]]:
    """Four labelled examples of a task (MultiRC: two passages of two questions each)."""
    if task in ("rte", "cb"):
        labels = {
            "rte": ("entailment", "not_entailment"),
            "cb": ("entailment", "contradiction", "neutral"),
        }[task]
        return [
            {**NLI[number % 3], "label": labels[number % len(labels)], "idx": number}
            for number in range(4)
        ]
    if task == "boolq":
        return [
            {"passage": "Paris -- Paris is old .", "question": "is paris old", "idx": number}
            | {"label": number % 2 == 0}
            for number in range(4)
        ]
    if task == "wic":
        return [
            {"word": "old", "sentence1": "The old river .", "sentence2": "An old city", "idx": n}
            | {"label": n % 2 == 0, "start1": 4, "end1": 7, "start2": 3, "end2": 6}
            for n in range(4)
        ]
    if task == "copa":
        return [
            {"premise": "The river is old.", "choice1": "The city lies in it.", "idx": number}
            | {"choice2": "It is new.", "question": ("cause", "effect")[number % 2]}
            | {"label": number % 2}
            for number in range(4)
        ]
    if task == "wsc":
        target = {"span1_index": 0, "span1_text": "Rome", "span2_index": 5, "span2_text": "it"}
        return [
            {"text": "Rome is old , and it, is the capital .", "target": target, "idx": number}
            | {"label": number % 2 == 0}
            for number in range(4)
        ]
    answers = [{"text": "Rome", "idx": 0, "label": 1}, {"text": "Lima.", "idx": 1, "label": 0}]
    questions = [
        {"question": "Which city is old?", "idx": number, "answers": answers} for number in range(2)
    ]
    return [
        {"idx": number, "passage": {"text": "Rome is old .", "questions": questions}}
        for number in range(2)
    ]


def write_lines(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Write JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def write_task(folder: Path, task: str, *, few: bool = True) -> Path:
    """Write a task's folder: with dev32 (FewGLUE_32dev), or as full SuperGLUE with a test file."""
    rows = rows_of(task)
    write_lines(folder / "train.jsonl", rows)
    write_lines(folder / "val.jsonl", rows)
    if few:
        write_lines(folder / "dev32.jsonl", rows)
    else:
        bare = [{key: value for key, value in row.items() if key != "label"} for row in rows]
        write_lines(folder / "test.jsonl", bare)
    return folder
