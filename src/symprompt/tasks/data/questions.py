"""Questions about contexts: SQuAD 1.1 and 2.0, as their authors write them and as JSON lines."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from symprompt.errors import DataError
from symprompt.files.reading import Row, Source, ends_in, load_rows, load_text, shorten, text_in
from symprompt.tasks.data.examples import (
    Answer,
    Columns,
    QuestionExample,
    Read,
    StandardSet,
    has_column,
)

_FILES: dict[str, dict[str, tuple[str, ...]]] = {
    "squad": {
        "train": ("train-v1.1.json", "train-v1.1.jsonl", "train.jsonl"),
        "dev": ("dev-v1.1.json", "dev-v1.1.jsonl", "dev.jsonl"),
    },
    "squad2": {
        "train": ("train-v2.0.json", "train-v2.0.jsonl"),
        "dev": ("dev-v2.0.json", "dev-v2.0.jsonl"),
    },
}


def read_own_questions(path: Source, columns: Columns, split: str, labelled: bool | None) -> Read:
    """Read a user's file: SQuAD's JSON, paragraphs in JSON lines, or a question in each row."""
    if ends_in(path, ".json") or has_column(path, "qas", but_not=columns.question):
        read = read_paragraphs(path, split)
    else:
        read = read_flat(path, columns, split)
    for example, (where, line) in zip(read.examples, read.places, strict=True):
        if labelled and example.answers is None:
            raise DataError(
                f"{where}, line {line}: there is no column {columns.answers!r} for the answers of "
                "this question; name the column that holds them, with an empty list for no answer."
            )
    return read


def read_paragraphs(path: Source, split: str) -> Read:
    """Read paragraphs with their questions: a .json file as SQuAD's, or a .jsonl file of them."""
    read = Read()
    paragraphs = _official(path) if ends_in(path, ".json") else load_rows(path)
    for number, paragraph in paragraphs:
        context = paragraph.get("context")
        if not isinstance(context, str) or not context.strip():
            raise DataError(f"{_at(path, number)}: a paragraph has no 'context'; add it.")
        questions = paragraph.get("qas")
        if not isinstance(questions, list):
            raise DataError(f"{_at(path, number)}: a paragraph has no list of 'qas'; add it.")
        for place, entry in enumerate(questions):
            if not isinstance(entry, dict):
                raise DataError(
                    f"{_at(path, number)}: {shorten(entry)} is no question; write an object."
                )
            name = str(entry.get("id", f"{split}-{number}-{place}"))
            read.add(make_question(entry, context, name, path, number), path, number)
    return read


def read_flat(path: Source, columns: Columns, split: str) -> Read:
    """Read one question per row, with its context and its answers."""
    read = Read()
    for number, row in load_rows(path):
        name = str(row.get(columns.id, f"{split}-{number}"))
        # Checked, but taken as it stands: answers are counted from its first character on.
        text_in(row, (columns.context,), path, number)
        context = str(row[columns.context])
        fields = {**row, "question": text_in(row, (columns.question,), path, number)}
        if columns.answers in row:
            fields["answers"] = _parsed(row[columns.answers])
        read.add(make_question(fields, context, name, path, number), path, number)
    return read


def make_question(row: Row, context: str, name: str, path: Source, line: int) -> QuestionExample:
    """Make an example of a question's fields; an answer that is not in its place is refused."""
    question, given = text_in(row, ("question",), path, line), row.get("answers")
    if row.get("is_impossible", False):
        return QuestionExample(name, question, context, ())
    found = None if given is None else tuple(_answers(given, context, name, path, line))
    return QuestionExample(name, question, context, found)


def _answers(given: object, context: str, name: str, path: Source, line: int) -> Iterator[Answer]:
    if isinstance(given, str):
        given = [{"text": given}]
    if isinstance(given, Mapping):
        texts, starts = given.get("text"), given.get("answer_start")
        if not isinstance(texts, list) or not isinstance(starts, list) or len(texts) != len(starts):
            raise DataError(
                f"{_at(path, line)}: the answers of {name!r} need as many starts as texts; "
                "correct them."
            )
        given = [
            {"text": text, "answer_start": start} for text, start in zip(texts, starts, strict=True)
        ]
    if not isinstance(given, list):
        raise DataError(
            f"{_at(path, line)}: the answers of {name!r} are {shorten(given)}, but only a list "
            "is allowed; correct them."
        )
    for entry in given:
        yield _answer(
            entry if isinstance(entry, Mapping) else {"text": entry}, context, name, path, line
        )


def _answer(
    entry: Mapping[str, object], context: str, name: str, path: Source, line: int
) -> Answer:
    """Return an answer at its place; without a place it is the first match that is whole words."""
    text = entry.get("text")
    if not isinstance(text, str) or not text.strip():
        raise DataError(
            f"{_at(path, line)}: an answer of {name!r} is {shorten(text)}, but only text is "
            "allowed; for no answer give an empty list."
        )
    start = next((entry[key] for key in ("answer_start", "start") if key in entry), None)
    if start is None:
        found = first_match(context, text)
        if found is None:
            raise DataError(
                f"{_at(path, line)}: the answer {shorten(text)} of {name!r} does not occur in "
                "its context; an answer must be a part of it."
            )
        return Answer(found, text)
    if isinstance(start, str) and start.strip().lstrip("-").isdigit():
        start = int(start)
    if isinstance(start, bool) or not isinstance(start, int):
        raise DataError(
            f"{_at(path, line)}: the answer {shorten(text)} of {name!r} starts at "
            f"{shorten(start)}, but only a whole number is allowed; correct it."
        )
    if not 0 <= start <= len(context) - len(text):
        raise DataError(
            f"{_at(path, line)}: the answer {shorten(text)} of {name!r} at {start} lies outside "
            f"its context of {len(context)} characters; correct its start."
        )
    if context[start : start + len(text)] != text:
        raise DataError(
            f"{_at(path, line)}: the answer of {name!r} is {shorten(text)}, but its context has "
            f"{shorten(context[start : start + len(text)])} at {start}; correct its start."
        )
    return Answer(start, text)


def first_match(context: str, text: str) -> int | None:
    """Return where a text first stands as whole words, else where it first stands, else None."""
    first = at = context.find(text)
    while at >= 0:
        before, after = context[max(0, at - 1) : at], context[at + len(text) : at + len(text) + 1]
        inside = (before.isalnum() and text[0].isalnum()) or (
            after.isalnum() and text[-1].isalnum()
        )
        if not inside:
            return at
        at = context.find(text, at + 1)
    return first if first >= 0 else None


def _at(path: Source, number: int) -> str:
    """Return where something stands; a JSON file has no lines that mean anything."""
    kind = "paragraph" if ends_in(path, ".json") else "line"
    return f"{path}, {kind} {number}"


def _official(path: Path) -> Iterator[tuple[int, Row]]:
    """Yield the paragraphs of a SQuAD file, counted from 1 on, as it has no lines."""
    try:
        value = json.loads(load_text(path))
        articles = value["data"]
        paragraphs = [paragraph for article in articles for paragraph in article["paragraphs"]]
    except (ValueError, RecursionError, KeyError, TypeError):
        raise DataError(
            f"{path} is no SQuAD file: it needs 'data', a list of articles with 'paragraphs'; give "
            "the official JSON file."
        ) from None
    for number, paragraph in enumerate(paragraphs, start=1):
        if not isinstance(paragraph, dict):
            raise DataError(f"{path}: paragraph {number} is {shorten(paragraph)}, not an object.")
        yield number, paragraph


def _parsed(value: object) -> object:
    """Return answers written as JSON in a cell of a table as what they say."""
    if isinstance(value, str) and value.strip()[:1] in ("[", "{"):
        try:
            return json.loads(value)
        except ValueError:
            return value
    if isinstance(value, str) and not value.strip():
        return []
    return value


QUESTION_SETS = {
    name: StandardSet(files, {"question": lambda paths, split: read_paragraphs(paths[0], split)})
    for name, files in _FILES.items()
}
