"""Sentences with tags: entities and semantic roles, of the CoNLL shared tasks and of your own.

One word to a line, as the CoNLL shared tasks write them, bracketed columns, or rows of a table.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from symprompt.errors import DataError
from symprompt.files.reading import (
    Row,
    Sentence,
    load_lines,
    load_rows,
    load_sentences,
    shorten,
    words_in,
)
from symprompt.runs.environment import derive_seed
from symprompt.tasks.data.examples import (
    OUTSIDE,
    Example,
    RolesExample,
    SpanExample,
    TaggedExample,
    is_tag,
    spans_of,
    to_iob2,
)
from symprompt.tasks.data.files import Columns, Read, find_files

# CoNLL-2004 repeats the type at the end, "*A1)"; entities of one word may have no star.
_CELL = re.compile(r"((?:\([^()*\s]+)*)(\*?)((?:[^()*\s]*\))*)")


def tags_of_brackets(
    cells: Sequence[str], path: Path, line: int, *, in_columns: bool = True
) -> tuple[str, ...]:
    """Return IOB2 tags of one bracketed column, or refuse it with the line of what is wrong.

    Of phrases inside each other the outer one is taken, as a word has one tag.

    Args:
        in_columns: whether every cell stands on a line of its own.
    """

    def wrong(place: int, what: str) -> DataError:
        return DataError(f"{path}, line {line + place * in_columns}: {what}; correct it.")

    tags: list[str] = []
    opened: list[str] = []
    for place, cell in enumerate(cells):
        match = _CELL.fullmatch(cell)
        if match is None or not cell:
            raise wrong(place, f"{cell!r} is no bracketed tag")
        names = match[1].split("(")[1:]
        outer = opened[0] if opened else None
        opened += names
        if outer is not None:
            tags.append(f"I-{outer}")
        else:
            tags.append(f"B-{opened[0]}" if opened else OUTSIDE)
        closed = match[3].count(")")
        if closed > len(opened):
            raise wrong(place, f"{cell!r} closes a bracket that was not opened")
        del opened[len(opened) - closed :]
    if opened:
        raise wrong(len(cells) - 1, f"the bracket of {opened[0]!r} is never closed")
    return tuple(tags)


# IOBES and BILOU say more about where phrases end than IOB2, which is all that is kept.
_MARKS = {"S": "B", "U": "B", "E": "I", "L": "I"}


def read_tagged(
    path: Path, split: str, *, word: int = 0, tag: int | None = -1
) -> tuple[Read, list[int]]:
    """Read tagged sentences in columns, and the document of each; IOB1 becomes IOB2.

    Args:
        word: the column of words, from 0 on; a negative one counts from the last.
        tag: the column of tags; None if there is none.
    """
    read = Read(in_columns=True)
    documents = []
    for number, sentence in enumerate(load_sentences(path)):
        words = tuple(_column(sentence, word, path, "words"))
        tags = None
        if tag is not None:
            cells = _column(sentence, tag, path, "tags")
            tags = check_tags(cells, path, sentence.line, in_columns=True)
        read.add(TaggedExample(f"{split}-{number}", words, tags), path, sentence.line)
        documents.append(sentence.document)
    return read, documents


def check_tags(tags: list[str], path: Path, line: int, *, in_columns: bool) -> tuple[str, ...]:
    """Return tags in IOB2, or refuse the first that is none with its line."""
    found = []
    for offset, tag in enumerate(tags):
        mark = _MARKS.get(tag[:1], tag[:1])
        entry = mark + tag[1:] if tag[1:2] == "-" else tag
        if not is_tag(entry):
            raise DataError(
                f"{path}, line {line + offset * in_columns}: {shorten(tag)} is no tag; allowed are "
                "O, and B- or I- before a type, such as B-PER."
            )
        found.append(entry)
    return to_iob2(found)


def _column(sentence: Sentence, column: int, path: Path, what: str) -> list[str]:
    width = len(sentence.rows[0])
    if not -width <= column < width:
        raise DataError(
            f"{path}, line {sentence.line}: there are {width} column(s), so the {what} cannot be "
            f"column {column}; give another column or correct the file."
        )
    cells = [row[column] for row in sentence.rows]
    if "" in cells:
        raise DataError(
            f"{path}, line {sentence.line + cells.index('')}: the column of {what} is empty, so "
            "words and tags are not aligned; fill it in."
        )
    return cells


def read_own_columns(path: Path, columns: Columns, split: str, labelled: bool | None) -> Read:
    """Read a user's file with a word to a line; one to predict may have words alone."""
    tag: int | None = columns.tag_column
    if not labelled:
        cells = next((line.split() for line in load_lines(path) if line.strip()), [])
        tag = tag if len(cells) > 1 else None
    return read_tagged(path, split, word=columns.word_column, tag=tag)[0]


MakeExample = Callable[[str, tuple[str, ...], tuple[str, ...] | None, Row, int], Example]


def _tagged(
    name: str, words: tuple[str, ...], tags: tuple[str, ...] | None, row: Row, line: int
) -> Example:
    return TaggedExample(name, words, tags)


def read_rows_of_words(
    path: Path,
    columns: Columns,
    split: str,
    labelled: bool | None,
    make: MakeExample = _tagged,
) -> Read:
    """Read a table with a sentence's words, and its tags, in each row.

    Args:
        labelled: whether every row must have its tags; None takes what is there.
        make: makes an example of a name, words, tags, the row and its line.
    """
    read = Read()
    for number, row in load_rows(path):
        words = words_in(row, (columns.words,), path, number)
        name = str(row.get(columns.id, f"{split}-{number}"))
        tags = None
        if labelled or columns.tags in row:
            given = words_in(row, (columns.tags,), path, number)
            if len(given) != len(words):
                raise DataError(
                    f"{path}, line {number}: got {len(given)} tag(s) for {len(words)} word(s), so "
                    "they are not aligned; every word needs one."
                )
            tags = check_tags(list(given), path, number, in_columns=False)
        read.add(make(name, words, tags, row, number), path, number)
    return read


_WORD, _ENTITY, _ROLES = 3, 10, 11
_SPLITS = {"train": ("train",), "dev": ("development", "dev"), "test": ("test",)}


def find_ontonotes(folder: Path) -> dict[str, list[Path]]:
    """Return the *gold_conll files of each split: those that have its folder in their path."""
    found: dict[str, list[Path]] = {}
    if folder.is_dir():
        for path in sorted(folder.rglob("*gold_conll")):
            names = path.relative_to(folder).parts
            for split, folders in _SPLITS.items():
                if any(name in names[:-1] or names[-1].startswith(name) for name in folders):
                    found.setdefault(split, []).append(path)
                    break
    return {split: found[split] for split in _SPLITS if split in found}


def read_entities(files: Sequence[Path], split: str) -> Read:
    """Read the named entities of every sentence."""
    read = Read(in_columns=True)
    for path in files:
        for sentence in load_sentences(path):
            words = _words(sentence, path)
            tags = tags_of_brackets([row[_ENTITY] for row in sentence.rows], path, sentence.line)
            name = f"{split}-{len(read.examples)}"
            read.add(TaggedExample(name, words, tags), path, sentence.line)
    return read


def read_roles(files: Sequence[Path], split: str) -> Read:
    """Read the roles of every predicate of every sentence."""
    read = Read(in_columns=True)
    number = 0
    for path in files:
        for sentence in load_sentences(path):
            words = _words(sentence, path)
            # The last column is coreference; one column for each predicate stands before it.
            for column in range(_ROLES, len(sentence.rows[0]) - 1):
                cells = [row[column] for row in sentence.rows]
                tags = tags_of_brackets(cells, path, sentence.line)
                if "B-V" not in tags:
                    raise DataError(
                        f"{path}, line {sentence.line}: column {column} has no predicate (V*), so "
                        "its roles belong to nothing; correct the file."
                    )
                name = f"{split}-{number}-{column - _ROLES}"
                example = RolesExample(name, words, tags.index("B-V"), tags)
                read.add(example, path, sentence.line)
            number += 1
    return read


def _words(sentence: Sentence, path: Path) -> tuple[str, ...]:
    if len(sentence.rows[0]) < _ROLES + 1:
        raise DataError(
            f"{path}, line {sentence.line}: got {len(sentence.rows[0])} column(s), but a "
            f"*gold_conll file has at least {_ROLES + 1}; give files made with skeleton2conll."
        )
    return tuple(row[_WORD] for row in sentence.rows)


@dataclass(frozen=True)
class _Set:
    files: Mapping[str, Sequence[str]]
    word: int = 0
    tag: int = -1


_ENDINGS = (".txt", ".conll", ".tsv", ".bio", ".ner")
ENTITY_SETS = {
    "conll2003": _Set(
        {
            "train": ("eng.train", "train.txt"),
            "dev": ("eng.testa", "valid.txt", "dev.txt"),
            "test": ("eng.testb", "test.txt"),
        }
    ),
    "conll2004": _Set(
        {"train": ("train.txt",), "dev": ("dev.txt",), "test": ("test.txt",)}, word=1, tag=2
    ),
    "wikigold": _Set({"train": ("wikigold.conll.txt",)}),
    "gum": _Set({"train": ("data/train/gum-train.conll",), "test": ("data/test/gum-test.conll",)}),
    "ontonotes": _Set(
        {
            "train": tuple(f"train{ending}" for ending in _ENDINGS),
            "dev": tuple(
                name + ending for name in ("dev", "development", "valid") for ending in _ENDINGS
            ),
            "test": tuple(f"test{ending}" for ending in _ENDINGS),
        }
    ),
}


def read_entity_set(name: str, folder: Path, seed: int) -> dict[str, Read]:
    """Read a set of named entities from its folder, in IOB2.

    OntoNotes is read from CoNLL-2012's *gold_conll files below folders train, development and
    test, or from files in columns (the word first, the tag last). Wikigold is one file, whose
    documents are parted 80/10/10 by the seed; GUM has no dev set.
    """
    if name == "ontonotes" and find_ontonotes(folder):
        return {
            split: read_entities(files, split) for split, files in find_ontonotes(folder).items()
        }
    chosen = ENTITY_SETS[name]
    parts = {}
    for split, files in find_files(folder, chosen.files, name).items():
        part, documents = read_tagged(files[0], split, word=chosen.word, tag=chosen.tag)
        parts[split] = part
        if name == "wikigold":
            parts = split_by_document(part, documents, seed=seed)
    return parts


def split_by_document(
    part: Read, documents: Sequence[int], *, seed: int, shares: Sequence[float] = (0.1, 0.1)
) -> dict[str, Read]:
    """Part examples into train, dev and test, whole documents at a time, drawn by the seed."""
    names = sorted(set(documents))
    if len(names) < 3:
        path, line = part.places[0]
        raise DataError(
            f"{path}, line {line}: {len(names)} document(s) cannot be parted into train, dev and "
            "test; give files for the splits."
        )
    order = np.random.default_rng(derive_seed(seed, "documents")).permutation(len(names))
    sizes = [max(1, round(share * len(names))) for share in shares]
    place = {names[index]: "train" for index in order}
    place |= {names[index]: "dev" for index in order[: sizes[0]]}
    place |= {names[index]: "test" for index in order[sizes[0] : sizes[0] + sizes[1]]}
    parts = {split: Read(in_columns=part.in_columns) for split in ("train", "dev", "test")}
    for example, where, document in zip(part.examples, part.places, documents, strict=True):
        parts[place[document]].add(example, *where)
    return parts


def with_spans(read: Read) -> Read:
    """Return what was read with spans in place of tags."""
    examples: list[Example] = []
    for entry in read.examples:
        if not isinstance(entry, TaggedExample):
            raise TypeError(f"a {type(entry).__name__} has no tags")
        spans = None if entry.tags is None else tuple(spans_of(entry.tags))
        examples.append(SpanExample(entry.id, entry.words, spans))
    return replace(read, examples=examples, in_columns=False)


def read_entity_spans(name: str, folder: Path, seed: int) -> dict[str, Read]:
    """Read a set of named entities as spans."""
    return {split: with_spans(own) for split, own in read_entity_set(name, folder, seed).items()}


_PROPBANK = {split: (f"{split}.jsonl",) for split in ("train", "dev", "test")}
_ROLE_ENDINGS = (".props", ".txt", ".conll", "-set")
_CONLL05 = {
    split: tuple(stem + ending for stem in stems for ending in _ROLE_ENDINGS)
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
            cells = [str(cell) for cell in frame["args"]]
            tags = tags_of_brackets(cells, path, number, in_columns=False)
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
        tags = tags_of_brackets(cells, path, roles.line)
        example = make_roles(f"{name}-{number}", words, place, tags, path, roles.line)
        read.add(example, path, roles.line)
