"""Sentences with spans and relations between them: from tags, CoNLL-2004, files of your own."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from symprompt.errors import ConfigError, DataError
from symprompt.files.reading import Row, Sentence, load_rows, load_sentences, shorten, words_in
from symprompt.tasks.data.examples import (
    NULL,
    Columns,
    Example,
    LabelSet,
    Read,
    Relation,
    Span,
    SpanExample,
    TaskData,
    spans_of,
)
from symprompt.tasks.data.tags import check_tags

ANY = "SPAN"
"""The one type of spans that are only to be found."""
_COLUMNS = 5


def identified(data: TaskData) -> TaskData:
    """Return the data with one type for all spans: where they are is asked, not what they are.

    Raises:
        ConfigError: the examples have no spans, or relations between them.
    """
    if data.relations.names or not all(
        isinstance(x, SpanExample) for own in data.splits.values() for x in own
    ):
        raise ConfigError(
            f"task.identify finds spans, and {data.name} is read as {data.kind}; set task.kind to "
            '"spans".'
        )
    splits: dict[str, list[Example]] = {}
    for split, examples in data.splits.items():
        splits[split] = [
            replace(x, spans=None if x.spans is None else tuple((ANY, *own[1:]) for own in x.spans))
            for x in examples
            if isinstance(x, SpanExample)
        ]
    return replace(data, splits=splits, labels=LabelSet.of_spans([ANY]), unseen=())


def read_conll04(paths: Sequence[Path], split: str) -> Read:
    """Read CoNLL-2004: entities, and relations between them.

    A line is a word's number, the word, its tag, and lists of relations that the entity which ends
    here has and of the last words of the entities it has them to; the list of a word without
    relations is ['N'] and its own number.
    """
    read = Read()
    for number, sentence in enumerate(load_sentences(paths[0])):
        example = _related(f"{split}-{number}", sentence, paths[0])
        read.add(example, paths[0], sentence.line)
    return read


def read_spans(
    path: Path, columns: Columns, split: str, *, labelled: bool | None, related: bool
) -> Read:
    """Read a table with a sentence's words, its spans and their relations in each row.

    A span is [type, first word, word after the last]; a relation is [name, place of the one span
    in the list of spans, place of the other], both counted from 0.

    Args:
        labelled: whether every row must have its spans; None takes what is there.
        related: whether relations are asked for.
    """
    read = Read()
    for number, row in load_rows(path):
        own = words_in(row, (columns.words,), path, number)
        spans: tuple[Span, ...] | None = None
        relations: tuple[Relation, ...] | None = None
        if labelled or columns.spans in row:
            what = "a span [type, first word, word after the last]"
            spans = _triples(row, columns.spans, what, path, number)
            _check_spans(spans, len(own), columns.spans, path, number)
        if related and spans is not None and (labelled or columns.relations in row):
            what = "a relation [name, one span, other span]"
            triples = _triples(row, columns.relations, what, path, number)
            for triple in triples:
                if triple[1] == triple[2] or not {*triple[1:]} <= {*range(len(spans))}:
                    raise DataError(
                        f"{path}, line {number}: the relation {shorten(list(triple))} is not "
                        f"between two of the {len(spans)} span(s), which are counted from 0; "
                        "correct it."
                    )
            relations = tuple(Relation(*triple) for triple in triples)
        name = str(row.get(columns.id, f"{split}-{number}"))
        read.add(SpanExample(name, own, spans, relations), path, number)
    return read


def _check_spans(spans: Sequence[Span], words: int, column: str, path: Path, number: int) -> None:
    for span in spans:
        if not 0 <= span[1] < span[2] <= words:
            raise DataError(
                f"{path}, line {number}: the span {shorten(list(span))} is not within the {words} "
                "word(s); words are counted from 0, and the end is the word after the last."
            )
    if len({span[1:] for span in spans}) < len(spans):
        raise DataError(
            f"{path}, line {number}: two spans of {column!r} are the same words; a span has one "
            "type."
        )


def _triples(
    row: Row, column: str, what: str, path: Path, number: int
) -> tuple[tuple[str, int, int], ...]:
    """Return a list of a name and two whole numbers each."""
    value = row.get(column)
    if not isinstance(value, list):
        raise DataError(
            f"{path}, line {number}: {column!r} is {shorten(value)}, but only a list is allowed; "
            "an empty one says that there is nothing."
        )
    for entry in value:
        types = [type(part) for part in entry] if isinstance(entry, list) else []
        if types != [str, int, int] or not entry[0].strip() or entry[0] == NULL:
            raise DataError(
                f"{path}, line {number}: {shorten(entry)} is not {what}; correct it (the name "
                f"{NULL} is taken)."
            )
    return tuple(tuple(entry) for entry in value)


def _related(name: str, sentence: Sentence, path: Path) -> SpanExample:
    """Return a sentence of CoNLL-2004 with its entities and relations."""
    rows = sentence.rows
    if len(rows[0]) != _COLUMNS:
        raise DataError(
            f"{path}, line {sentence.line}: got {len(rows[0])} column(s), but entities with "
            "relations have five: number, word, tag, relations, their last words."
        )
    tags = check_tags([row[2] for row in rows], path, sentence.line, in_columns=True)
    spans = tuple(spans_of(tags))
    ends = {end - 1: place for place, (_, _, end) in enumerate(spans)}
    relations = []
    for word, row in enumerate(rows):
        names = _cell(row[3], str, path, sentence.line + word)
        heads = _cell(row[4], int, path, sentence.line + word)
        if len(names) != len(heads):
            raise DataError(
                f"{path}, line {sentence.line + word}: {len(names)} relation(s) but {len(heads)} "
                "place(s); every relation needs one."
            )
        for relation, other in zip(names, heads, strict=True):
            if relation == "N":
                continue
            if word not in ends or other not in ends:
                raise DataError(
                    f"{path}, line {sentence.line + word}: the relation {shorten(relation)} is "
                    f"between words {word} and {other}, and not both end an entity; correct it."
                )
            relations.append(Relation(str(relation), ends[word], ends[int(other)]))
    return SpanExample(name, tuple(row[1] for row in rows), spans, tuple(dict.fromkeys(relations)))


def _cell(text: str, kind: type, path: Path, line: int) -> list[str] | list[int]:
    """Read a list written as Python writes it, of words or of numbers."""
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        value = None
    if not isinstance(value, list) or not all(type(entry) is kind for entry in value):
        raise DataError(
            f"{path}, line {line}: {shorten(text)} is no list of "
            f"{'words' if kind is str else 'whole numbers'}, such as "
            f"{'[' + repr('Live_In') + ']' if kind is str else '[4]'}; correct it."
        )
    return value
