"""Read your own facts from a CSV, TSV or JSONL file with subject, relation and object."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from symprompt.errors import DataError
from symprompt.facts.filters import split_by_subject
from symprompt.facts.lama import OBJECT_KEYS, SUBJECT_KEYS
from symprompt.facts.templates import template_in
from symprompt.facts.types import SPLITS, Dropped, Fact, FactSet, Relation, Split, choose_names
from symprompt.files.reading import Row, load_rows, shorten, text_in

DUPLICATE = "duplicate"

_SPLIT_NAMES: dict[str, Split] = {
    "train": "train",
    "dev": "dev",
    "val": "dev",
    "valid": "dev",
    "validation": "dev",
    "test": "test",
}


@dataclass(frozen=True)
class _Entry:
    """One line of a table."""

    fact: Fact
    split: Split | None
    template: str


def load_table(path: Path, *, relations: Sequence[str] = (), seed: int = 0) -> FactSet:
    """Return the facts of a table file, split by its split column or else by the seed.

    Repeats of a fact inside a split are dropped and counted as "duplicate".

    Args:
        path: a .csv or .tsv file with a header, or a .jsonl file.
        relations: names to load; none means all.
        seed: makes the split where the file has no split column.
    """
    entries = _load_entries(path)
    names = choose_names((entry.fact.relation for entry in entries), relations, str(path))
    grouped: dict[str, list[_Entry]] = {name: [] for name in names}
    for entry in entries:
        if entry.fact.relation in grouped:
            grouped[entry.fact.relation].append(entry)
    loaded: list[Relation] = []
    dropped: list[Dropped] = []
    for name, group in grouped.items():
        relation = _make_relation(name, group, seed=seed, path=path)
        loaded.append(relation)
        dropped.extend(_count_repeats(relation, group))
    return FactSet(tuple(loaded), source=str(path), layout="table", dropped=tuple(dropped))


def _load_entries(path: Path) -> list[_Entry]:
    rows = list(load_rows(path, any_case=True))
    if not rows:
        raise DataError(f"{path} has a header but no facts; add at least one line.")
    splits_given = "split" in rows[0][1]
    templates: dict[str, str] = {}
    return [_read_entry(row, path, number, splits_given, templates) for number, row in rows]


def _read_entry(
    row: Row, path: Path, number: int, splits_given: bool, templates: dict[str, str]
) -> _Entry:
    """Return one line as an entry; ``templates`` collects each relation's template on the way."""
    name = _text(row, ("relation",), path, number)
    subject = _text(row, SUBJECT_KEYS, path, number)
    fact = Fact(name, subject, _text(row, OBJECT_KEYS, path, number))
    template = _read_template(row, path, number)
    if template and templates.setdefault(name, template) != template:
        raise DataError(
            f"{path}, line {number}: relation {name!r} has a second template "
            f"{shorten(template)}; keep one template per relation."
        )
    return _Entry(fact, _read_split(row, path, number, splits_given), template)


def _text(row: Row, names: Sequence[str], path: Path, number: int) -> str:
    return text_in(row, names, path, number, one_line=True)


def _read_split(row: Row, path: Path, number: int, splits_given: bool) -> Split | None:
    if not splits_given:
        if "split" in row:
            raise DataError(
                f"{path}, line {number}: this line says its split but the first one does not; "
                "give every line a split or none."
            )
        return None
    text = _text(row, ("split",), path, number)
    if text.lower() not in _SPLIT_NAMES:
        raise DataError(
            f"{path}, line {number}: split is {shorten(text)}, but only train, dev "
            "(or valid, validation, val) and test are allowed; correct it."
        )
    return _SPLIT_NAMES[text.lower()]


def _read_template(row: Row, path: Path, number: int) -> str:
    # An empty cell is how a table says that a line has no template of its own.
    value = row.get("template", "")
    if isinstance(value, str) and not value.strip():
        return ""
    return template_in(row, path, number)


def _make_relation(name: str, entries: list[_Entry], *, seed: int, path: Path) -> Relation:
    template = next((entry.template for entry in entries if entry.template), "")
    if entries[0].split is None:
        facts = [entry.fact for entry in entries]
        try:
            return split_by_subject(name, facts, seed=seed, template=template)
        except DataError as error:
            raise DataError(f"{path}: {error}") from None
    # dict.fromkeys keeps the first of each repeat, in the file's order.
    given = {
        split: tuple(dict.fromkeys(entry.fact for entry in entries if entry.split == split))
        for split in SPLITS
    }
    return Relation(name, given["train"], given["dev"], given["test"], template=template)


def _count_repeats(relation: Relation, entries: list[_Entry]) -> list[Dropped]:
    place = {fact: split for split in SPLITS for fact in relation.split(split)}
    lines = Counter((entry.split or place[entry.fact]) for entry in entries)
    lost = {split: lines[split] - len(relation.split(split)) for split in SPLITS}
    return [
        Dropped(relation.name, split, DUPLICATE, count) for split, count in lost.items() if count
    ]
