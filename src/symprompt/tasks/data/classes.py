"""Texts and pairs with one class: SST-2, RTE, BoolQ, CB, MNLI, and tables of your own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from symprompt.files.reading import label_in, load_lines, load_rows, text_in
from symprompt.tasks.data.examples import PairExample, TextExample
from symprompt.tasks.data.files import Read, find_files

_NO_GOLD = "-"  # MNLI's annotators did not agree


@dataclass(frozen=True)
class ClassTable:
    """Where the texts and the label stand in a table; several spellings of each are allowed.

    Attributes:
        texts: the columns of one text or two, in the order in which the model reads them.
        label: the column of the label.
        id: the column of a name for each row; without one rows are counted.
    """

    texts: tuple[tuple[str, ...], ...]
    label: tuple[str, ...] = ("label",)
    id: tuple[str, ...] = ("idx", "index", "id")


def read_classes(
    path: Path, table: ClassTable, split: str, *, labelled: bool | None = None
) -> Read:
    """Read a table of texts or pairs.

    Args:
        labelled: whether every row must have a label; None takes labels if the first row has one.
    """
    read = Read()
    for number, row in load_rows(path):
        if labelled is None:
            labelled = any(name in row for name in table.label)
        label = label_in(row, table.label, path, number) if labelled else None
        if label == _NO_GOLD:
            read.drop("no gold label")
            continue
        texts = [text_in(row, names, path, number) for names in table.texts]
        given = next((row[name] for name in table.id if name in row), None)
        name = f"{split}-{number}" if given is None else str(given)
        if len(texts) == 1:
            read.add(TextExample(name, texts[0], label), path, number)
        else:
            read.add(PairExample(name, texts[0], texts[1], label), path, number)
    return read


def read_lines(path: Path, split: str) -> Read:
    """Read one text per line, without labels."""
    read = Read()
    for number, line in enumerate(load_lines(path), start=1):
        if line.strip():
            read.add(TextExample(f"{split}-{number}", line.strip()), path, number)
    return read


@dataclass(frozen=True)
class _Set:
    table: ClassTable
    files: Mapping[str, Sequence[str]]


_SUPERGLUE = {
    "train": ("train.jsonl",),
    "dev": ("val.jsonl", "dev.jsonl"),
    "dev32": ("dev32.jsonl",),
    "test": ("test.jsonl",),
}
_PREMISE = (("premise", "sentence1"), ("hypothesis", "sentence2"))
CLASS_SETS = {
    "sst2": _Set(
        ClassTable((("sentence",),)),
        {"train": ("train.tsv",), "dev": ("dev.tsv",), "test": ("test.tsv",)},
    ),
    "rte": _Set(
        ClassTable(_PREMISE),
        {split: (*names, f"{split}.tsv") for split, names in _SUPERGLUE.items()},
    ),
    "boolq": _Set(ClassTable((("question",), ("passage",))), _SUPERGLUE),
    "cb": _Set(ClassTable(_PREMISE), _SUPERGLUE),
    "mnli": _Set(
        ClassTable((("sentence1",), ("sentence2",)), ("gold_label", "label"), ("pairID", "index")),
        {
            "train": ("train.tsv", "*train.jsonl"),
            "dev": ("dev_matched.tsv", "*dev_matched.jsonl"),
            "dev-mismatched": ("dev_mismatched.tsv", "*dev_mismatched.jsonl"),
            "test": ("test_matched.tsv", "*test_matched*.jsonl"),
            "test-mismatched": ("test_mismatched.tsv", "*test_mismatched*.jsonl"),
        },
    ),
}


def own_table(name: str, texts: Sequence[str]) -> ClassTable:
    """Return the columns of a set, each of whose texts may be called as in files of one's own."""
    table = CLASS_SETS[name].table
    pairs = zip(table.texts, texts, strict=True)
    named = tuple((*names, own) for names, own in pairs)
    return replace(table, texts=named, label=tuple(dict.fromkeys((*table.label, "label"))))


def read_class_set(name: str, folder: Path, seed: int) -> dict[str, Read]:
    """Read SST-2, RTE, BoolQ, CB or MNLI from its folder (GLUE's or SuperGLUE's files).

    Test sets without labels are read as such. BoolQ's question comes before its passage.
    """
    chosen = CLASS_SETS[name]
    parts = {}
    for split, files in find_files(folder, chosen.files, name).items():
        labelled = None if split.startswith("test") else True
        parts[split] = read_classes(files[0], chosen.table, split, labelled=labelled)
    return parts
