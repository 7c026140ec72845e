"""Texts and pairs with one class: SST-2, RTE, BoolQ, CB, MNLI, and tables of your own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from symprompt.errors import ConfigError
from symprompt.files.reading import Source, ends_in, label_in, load_lines, load_rows, text_in
from symprompt.tasks.data.examples import Columns, Read, StandardSet, TextExample

_NO_GOLD = "-"  # MNLI's annotators did not agree


@dataclass(frozen=True)
class ClassTable:
    """Where the texts and the label stand in a table; several spellings of each are allowed.

    Attributes:
        texts: the columns of one text or two, in the order in which the model reads them.
        label: the column of the label.
        id: the column of a name for each row; without one rows are counted.
        header: whether the first line of the table names its columns.
    """

    texts: tuple[tuple[str, ...], ...]
    label: tuple[str, ...] = ("label",)
    id: tuple[str, ...] = ("idx", "index", "id")
    header: bool = True


def read_classes(path: Source, table: ClassTable, split: str, labelled: bool | None) -> Read:
    """Read a table of texts or pairs.

    Args:
        labelled: whether every row must have a label; None takes those that are there.
    """
    read = Read()
    for number, row in load_rows(path, header=table.header):
        known = labelled or any(row.get(name) not in (None, "") for name in table.label)
        label = label_in(row, table.label, path, number) if known else None
        if label == _NO_GOLD:
            read.dropped["no gold label"] += 1
            continue
        texts = tuple(text_in(row, names, path, number) for names in table.texts)
        given = next((row[name] for name in table.id if name in row), f"{split}-{number}")
        read.add(TextExample(str(given), texts, label), path, number)
    return read


def read_texts(
    path: Source, columns: Columns, split: str, labelled: bool | None, *, pair: bool
) -> Read:
    """Read a user's table with a text or a pair in each row, or lines of texts without labels."""
    if ends_in(path, ".txt") and not labelled and not pair:
        read = Read()
        for number, line in enumerate(load_lines(path), start=1):
            if line.strip():
                read.add(TextExample(f"{split}-{number}", (line.strip(),)), path, number)
        return read
    own = (columns.first, columns.second) if pair else (columns.text,)
    if len(set(own)) < len(own):
        raise ConfigError(
            f"both texts of a pair are column {columns.first!r}; name two columns, as in --columns "
            "first=premise second=hypothesis."
        )
    texts, header = tuple((text,) for text in own), not columns.numbered
    table = ClassTable(texts, (columns.label,), (columns.id,), header)
    return read_classes(path, table, split, labelled)


def _class_set(name: str, files: Mapping[str, Sequence[str]]) -> StandardSet:
    """Return a set of GLUE or SuperGLUE; its test set is read without labels if it has none."""
    table = _TABLES[name]

    def read(paths: Sequence[Path], split: str) -> Read:
        return read_classes(paths[0], table, split, None if split.startswith("test") else True)

    columns = {} if table.label[0] == "label" else {"label": table.label[0]}
    kind = "sequence" if len(table.texts) == 1 else "pair"
    return StandardSet(files, {kind: read}, columns=columns)


_PREMISE = (("premise", "sentence1"), ("hypothesis", "sentence2"))
_TABLES = {
    "sst2": ClassTable((("sentence",),)),
    "rte": ClassTable(_PREMISE),
    "boolq": ClassTable((("question",), ("passage",))),
    "cb": ClassTable(_PREMISE),
    "mnli": ClassTable(
        (("sentence1",), ("sentence2",)), ("gold_label", "label"), ("pairID", "index")
    ),
}
_SUPERGLUE = {
    "train": ("train.jsonl",),
    "dev": ("val.jsonl", "dev.jsonl"),
    "dev32": ("dev32.jsonl",),
    "test": ("test.jsonl",),
}
_FILES: dict[str, Mapping[str, Sequence[str]]] = {
    "sst2": {"train": ("train.tsv",), "dev": ("dev.tsv",), "test": ("test.tsv",)},
    "rte": {split: (*names, f"{split}.tsv") for split, names in _SUPERGLUE.items()},
    "boolq": _SUPERGLUE,
    "cb": _SUPERGLUE,
    "mnli": {
        "train": ("train.tsv", "*train.jsonl"),
        "dev": ("dev_matched.tsv", "*dev_matched.jsonl"),
        "dev-mismatched": ("dev_mismatched.tsv", "*dev_mismatched.jsonl"),
        "test": ("test_matched.tsv", "*test_matched*.jsonl"),
        "test-mismatched": ("test_mismatched.tsv", "*test_mismatched*.jsonl"),
    },
}
CLASS_SETS = {name: _class_set(name, files) for name, files in _FILES.items()}
