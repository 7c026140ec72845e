"""Semantic roles: PropBank on EWT, CoNLL-2005 (WSJ and Brown) and CoNLL-2012."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from symprompt.errors import DataError
from symprompt.files.reading import (
    Sentence,
    load_lines,
    load_rows,
    load_sentences,
    shorten,
    words_in,
)
from symprompt.tasks.data.build import Read, find_files
from symprompt.tasks.data.columns import check_tags, tags_of_brackets
from symprompt.tasks.data.examples import RolesExample
from symprompt.tasks.data.ontonotes import find_ontonotes, read_roles

_PROPBANK = {split: (f"{split}.jsonl",) for split in ("train", "dev", "test")}
_ENDINGS = (".props", ".txt", ".conll", "-set")
_CONLL05 = {
    split: tuple(stem + ending for stem in stems for ending in _ENDINGS)
    for split, stems in {
        "train": ("*train*",),
        "dev": ("*devel*", "*dev*"),
        "test": ("*test*wsj*",),
        "test-brown": ("*test*brown*",),
    }.items()
}
_CONLL05["test"] += ("*test*wsj",)
_CONLL05["test-brown"] += ("*test*brown",)


def read_conll12(name: str, folder: Path, seed: int) -> dict[str, Read]:
    """Read CoNLL-2012; one example for each predicate."""
    documents = find_ontonotes(folder)
    if not documents:
        raise DataError(
            f"{folder} holds no files of {name}; it needs *gold_conll files below folders train, "
            "development and test."
        )
    return {split: read_roles(files, split) for split, files in documents.items()}


def read_conll05(name: str, folder: Path, seed: int) -> dict[str, Read]:
    """Read CoNLL-2005; one example for each predicate.

    It is read from pairs of files with words and roles (x.words and x.props), from files in
    columns with the word first and the roles last, or from lines such as
    "1 We saw him ||| B-A0 B-V B-A1", where the number is the predicate's place from 0 on. Its test
    set is WSJ; Brown is the split test-brown.
    """
    parts = {}
    for split, paths in find_files(folder, _CONLL05, name).items():
        parts[split] = Read()
        for path in paths:
            parts[split].extend(_read_conll05(path, f"{split}-{path.name}"))
    return parts


def read_propbank_set(name: str, folder: Path, seed: int) -> dict[str, Read]:
    """Read PropBank on EWT from JSON lines; one example for each predicate."""
    found = find_files(folder, _PROPBANK, name)
    return {split: read_propbank(paths[0], split) for split, paths in found.items()}


def make_roles(
    name: str, words: Sequence[str], predicate: object, tags: Sequence[str], path: Path, line: int
) -> RolesExample:
    """Make an example, or refuse tags that do not fit the words or a predicate that is none."""
    if len(tags) != len(words):
        raise DataError(
            f"{path}, line {line}: got {len(tags)} tag(s) for {len(words)} word(s), so they are "
            "not aligned; every word needs one."
        )
    place = predicate_in(predicate, len(words), path, line)
    return RolesExample(name, tuple(words), place, tuple(tags))


def predicate_in(value: object, words: int, path: Path, line: int) -> int:
    """Return the place of a predicate, or refuse it."""
    if isinstance(value, str) and value.strip().isdigit():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < words:
        raise DataError(
            f"{path}, line {line}: the predicate is {shorten(value)}, but only the place of one of "
            f"the {words} word(s) is allowed, from 0 on; correct it."
        )
    return value


def read_propbank(path: Path, split: str) -> Read:
    """Read sentences with a list of frames, one example for each of them."""
    read = Read()
    for number, row in load_rows(path):
        words = words_in(row, ("words",), path, number)
        frames = row.get("frames")
        if not isinstance(frames, list):
            raise DataError(f"{path}, line {number}: there is no list of 'frames'; add one.")
        for place, frame in enumerate(frames):
            if not isinstance(frame, dict) or not isinstance(frame.get("args"), list):
                raise DataError(
                    f"{path}, line {number}: frame {place} is {shorten(frame)}, but it needs 'i' "
                    "and a list of 'args'; correct it."
                )
            tags, _, wrong = tags_of_brackets([str(cell) for cell in frame["args"]])
            if tags is None:
                raise DataError(f"{path}, line {number}: frame {place}: {wrong}; correct it.")
            name = f"{split}-{number}-{place}"
            example = make_roles(name, words, frame.get("i"), tags, path, number)
            read.add(example, path, number)
    return read


def _read_conll05(path: Path, name: str) -> Read:
    if path.suffix == ".props":
        return _read_props(path, name)
    first = next(line for line in load_lines(path) if line.strip())
    return _read_lines(path, name) if "|||" in first else _read_columns(path, name)


def _read_lines(path: Path, name: str) -> Read:
    """Read lines "predicate words ||| tags"."""
    read = Read()
    for number, line in enumerate(load_lines(path), start=1):
        if not line.strip():
            continue
        left, bar, right = line.partition("|||")
        predicate, *words = left.split() or [""]
        if not bar or not words:
            raise DataError(
                f"{path}, line {number}: {shorten(line)} is not of the form 'place words ||| "
                "tags'; correct it."
            )
        tags = check_tags(right.split(), path, number, in_columns=False)
        read.add(make_roles(f"{name}-{number}", words, predicate, tags, path, number), path, number)
    return read


def _read_props(path: Path, name: str) -> Read:
    """Read a file of roles and the file of words beside it."""
    beside = path.with_suffix(".words")
    words = list(load_sentences(beside))
    props = list(load_sentences(path))
    if len(words) != len(props):
        raise DataError(
            f"{beside} has {len(words)} sentence(s) and {path.name} {len(props)}, so words and "
            "roles are not aligned; give files of the same text."
        )
    read = Read(in_columns=True)
    for number, (text, roles) in enumerate(zip(words, props, strict=True)):
        listed = [row[0] for row in text.rows]
        if len(listed) != len(roles.rows):
            raise DataError(
                f"{path}, line {roles.line}: got roles for {len(roles.rows)} word(s), but the "
                f"sentence has {len(listed)} ({beside.name}, line {text.line}); align them."
            )
        _add_columns(read, f"{name}-{number}", listed, roles, 0, path)
    return read


def _read_columns(path: Path, name: str) -> Read:
    """Read the word first, then anything, then a column of predicates and one for each of them."""
    read = Read(in_columns=True)
    for number, sentence in enumerate(load_sentences(path)):
        words = [row[0] for row in sentence.rows]
        column = _predicate_column(sentence)
        if column is None:
            raise DataError(
                f"{path}, line {sentence.line}: no column names as many predicates as there are "
                "columns of roles after it; give the word first and the roles last."
            )
        _add_columns(read, f"{name}-{number}", words, sentence, column, path)
    return read


def _predicate_column(sentence: Sentence) -> int | None:
    """Return the column of predicates: as many words have one as there are columns after it."""
    width = len(sentence.rows[0])
    for column in range(width - 1, 0, -1):
        named = sum(row[column] != "-" for row in sentence.rows)
        roles = range(column + 1, width)
        if named == len(roles) and all(
            any("(V*" in row[role] for row in sentence.rows) for role in roles
        ):
            return column
    return None


def _add_columns(
    read: Read, name: str, words: Sequence[str], roles: Sentence, column: int, path: Path
) -> None:
    """Take the predicates named in a column, each with the roles of its own column after it."""
    places = [place for place, row in enumerate(roles.rows) if row[column] != "-"]
    width = len(roles.rows[0])
    if len(places) != width - column - 1:
        raise DataError(
            f"{path}, line {roles.line}: got {len(places)} predicate(s) and {width - column - 1} "
            "column(s) of roles; every predicate needs one."
        )
    for number, place in enumerate(places):
        cells = [row[column + 1 + number] for row in roles.rows]
        tags, at, wrong = tags_of_brackets(cells)
        if tags is None:
            raise DataError(f"{path}, line {roles.line + at}: {wrong}; correct the column.")
        example = make_roles(f"{name}-{number}", words, place, tags, path, roles.line)
        read.add(example, path, roles.line)
