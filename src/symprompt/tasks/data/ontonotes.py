"""CoNLL-2012's files of OntoNotes, *gold_conll: entities and roles in one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from symprompt.errors import DataError
from symprompt.files.reading import Sentence, load_sentences
from symprompt.tasks.data.build import Read
from symprompt.tasks.data.columns import tags_of_brackets
from symprompt.tasks.data.examples import RolesExample, TaggedExample

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
            tags = _tags(sentence, _ENTITY, path)
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
                tags = _tags(sentence, column, path)
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


def _tags(sentence: Sentence, column: int, path: Path) -> tuple[str, ...]:
    tags, place, wrong = tags_of_brackets([row[column] for row in sentence.rows])
    if tags is None:
        raise DataError(f"{path}, line {sentence.line + place}: {wrong}; correct the column.")
    return tags
