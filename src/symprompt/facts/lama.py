"""Read the folder layouts in which the LAMA benchmark and its training sets are passed around.

Two layouts, told apart by content: a folder per relation with train.jsonl, dev.jsonl and
test.jsonl (soft-prompts, AutoPrompt), and a file per relation, P36.jsonl, whose facts are all
test facts (the original LAMA).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from symprompt.errors import DataError
from symprompt.facts.types import SPLITS, Fact, FactSet, Relation, Split, choose_names
from symprompt.files.reading import load_rows, parse_row, text_in

Files = Mapping[Split, Path]

# The label spellings come first: Google-RE lines hold machine identifiers under "sub" and "obj"
# and the text under "sub_label" and "obj_label".
SUBJECT_KEYS = ("sub_label", "subject", "sub")
OBJECT_KEYS = ("obj_label", "object", "obj")

_RELATION_FILE = re.compile(r"P[0-9]+\.jsonl")
_SEARCH_DEPTH = 3
_EXPECTED = "<relation>/train.jsonl, dev.jsonl, test.jsonl, or files such as P36.jsonl"


def load_lama(folder: Path, *, relations: Sequence[str] = ()) -> tuple[FactSet, Path]:
    """Return the facts in or below ``folder``, and the folder that holds them.

    Every fact is kept, repeats too: the published counts contain them.

    Args:
        folder: the folder of relations, one above it (if it holds just one such folder), or the
            folder of a single relation.
        relations: names to load; none means all.
    """
    if not os.path.isdir(folder):
        got = "is a file" if os.path.exists(folder) else "does not exist"
        raise DataError(f"{folder} {got}, but a folder is needed that holds {_EXPECTED}.")
    home, files = _find_relations(folder)
    names = choose_names(files, relations, str(folder))
    loaded = tuple(_load_relation(name, files[name]) for name in names)
    return FactSet(loaded, source=str(folder), layout="lama"), home


def _find_relations(folder: Path) -> tuple[Path, dict[str, Files]]:
    single = _split_files(folder)
    if single:
        home = folder.resolve()
        return home.parent, {home.name: single}
    homes = _homes(folder, _SEARCH_DEPTH)
    if not homes:
        raise DataError(
            f"{folder} holds no facts that are recognised; give a folder that holds {_EXPECTED}."
        )
    if len(homes) > 1:
        listed = ", ".join(str(home) for home in homes)
        raise DataError(
            f"{folder} holds {len(homes)} sets of facts and only one can be loaded; "
            f"give one of these folders: {listed}."
        )
    return homes[0], _relation_files(homes[0])


def _homes(folder: Path, depth: int) -> list[Path]:
    """Return every folder of relations at or below ``folder``."""
    if _relation_files(folder):
        return [folder]
    if depth == 0:
        return []
    return [home for below in _subfolders(folder) for home in _homes(below, depth - 1)]


def _relation_files(folder: Path) -> dict[str, Files]:
    folders = {below.name: _split_files(below) for below in _subfolders(folder)}
    folders = {name: files for name, files in folders.items() if files}
    flat: dict[str, Files] = {
        path.stem: {"test": path}
        for path in _entries(folder)
        if _RELATION_FILE.fullmatch(path.name) and path.is_file() and not _holds_template(path)
    }
    if folders and flat:
        raise DataError(
            f"{folder} holds both relation folders ({min(folders)}/) and relation files "
            f"({min(flat)}.jsonl); keep one kind in a folder."
        )
    return folders or flat


def _split_files(folder: Path) -> Files:
    paths = {split: folder / f"{split}.jsonl" for split in SPLITS}
    return {split: path for split, path in paths.items() if path.is_file()}


def _subfolders(folder: Path) -> list[Path]:
    return [path for path in _entries(folder) if path.is_dir() and not path.name.startswith(".")]


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise DataError(f"{folder} cannot be listed ({reason}); give a readable folder.") from None


def _holds_template(path: Path) -> bool:
    """Say whether P36.jsonl is a template file: prompt folders use the same names as LAMA."""
    try:
        with path.open(encoding="utf-8-sig") as stream:
            row = parse_row(path, 1, stream.readline(), any_case=True)
    except (OSError, UnicodeDecodeError, DataError):
        # Not a template file for sure; reading it as facts reports what is wrong with it.
        return False
    return "template" in row and not any(key in row for key in (*SUBJECT_KEYS, *OBJECT_KEYS))


def _load_relation(name: str, files: Files) -> Relation:
    facts = {split: _load_facts(name, path) for split, path in files.items()}
    return Relation(name, facts.get("train", ()), facts.get("dev", ()), facts.get("test", ()))


def _load_facts(name: str, path: Path) -> tuple[Fact, ...]:
    return tuple(
        Fact(
            name,
            text_in(row, SUBJECT_KEYS, path, number, one_line=True),
            text_in(row, OBJECT_KEYS, path, number, one_line=True),
        )
        for number, row in load_rows(path, any_case=True)
    )
