"""One door to labelled data: the standard sets by name, and files of your own."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from symprompt.errors import ConfigError, DataError
from symprompt.files.parquet import is_dataset
from symprompt.files.reading import (
    SPLIT_NAMES,
    TABLES,
    Source,
    ends_in,
    first_row,
    likely_cause,
    load_rows,
    shorten,
    split_in,
)
from symprompt.runs.environment import derive_seed
from symprompt.tasks.data.classes import CLASS_SETS
from symprompt.tasks.data.examples import (
    USUAL,
    Columns,
    Example,
    LabelSet,
    Read,
    StandardSet,
    TaskData,
)
from symprompt.tasks.data.questions import QUESTION_SETS
from symprompt.tasks.data.sentences import IN_COLUMNS, SENTENCE_SETS, tags_spans
from symprompt.tasks.kinds import KINDS

SETS: dict[str, StandardSet] = {**CLASS_SETS, **SENTENCE_SETS, **QUESTION_SETS}
_ENDINGS = (*TABLES, *IN_COLUMNS, ".json")
_SPLITS = ("train", "dev", "test")


def load_task(
    path: str | Path,
    name: str = "",
    *,
    kind: str | None = None,
    columns: Columns = USUAL,
    seed: int = 0,
) -> TaskData:
    """Load a labelled data set: a standard one by name, or your own.

    Args:
        path: your own file or folder, or the folder that holds a standard set.
        name: one of ``SETS``, or what to call your own.
        kind: what your own examples are; without it their columns say it, and a standard set knows
            it. Sets of entities can be read as "spans" too, CoNLL-2004 as "relations".
        columns: what the columns of your own files are called, if not as usual or by a well-known
            name, see ``SPELLINGS``.
        seed: parts one file into splits where nothing else does.

    Raises:
        DataError: files are missing or garbled; the message names file and line.
        ConfigError: the arguments do not go together.

    Example:
        >>> data = load_task("glue/RTE", "rte")                    # doctest: +SKIP
        >>> data = load_task("reviews.csv", kind="sequence")       # doctest: +SKIP
    """
    own = Path(path)
    if name in SETS:
        return _load_set(name, own, kind, seed)
    if not own.exists():
        close = difflib.get_close_matches(name or str(own), SETS, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"known sets are {', '.join(SETS)}."
        raise DataError(f"{str(own)!r} is no file or folder and no known set; {hint}")
    first = _split_files(own)["train"] if _has_split_files(own) else own
    known = _known_columns(first, columns, labels=True)
    if kind is None or (KINDS[kind].closed and ends_in(first, *TABLES)):
        kind = _find_kind(first, known, kind)
    # Labels are in the same column everywhere; in other columns there may be anything.
    named = replace(columns, label=known.label, tags=known.tags)
    parts = _read_own(own, kind, named, seed)
    data = make_task(kind, name or own.stem, parts, refuse=not KINDS[kind].rare)
    roles = (*KINDS[kind].inputs, KINDS[kind].predicted)
    names = {role: getattr(known, role) for role in roles}
    return replace(
        data, columns={role: x for role, x in names.items() if x != getattr(columns, role)}
    )


def load_examples(
    path: Source,
    kind: str,
    *,
    columns: Columns = USUAL,
    labels: LabelSet | None = None,
) -> Sequence[Example]:
    """Load examples to predict, of a file or at hand; labels are taken if they are there.

    A .txt file holds one text per line (kind sequence) or one word per line (kinds tagging and
    words).

    Args:
        labels: those that can be predicted. A class of a text that is none of them is refused; of
            tags and spans some are rare, so these are only counted as missed.
    """
    read = KINDS[kind].read(path, _known_columns(path, columns), "row", None)
    if not read.examples:
        raise DataError(f"{path} holds no examples; add at least one.")
    if labels is not None and KINDS[kind].closed:
        for found in read.unseen("row", labels):
            raise DataError(
                f"{found.path}, line {found.line}: the label {found.label!r} does not occur in "
                f"training, which has {_listed(labels)}; correct it, or leave labels out to "
                "predict them."
            )
    return read.examples


def _known_columns(path: Source, columns: Columns, *, labels: bool = False) -> Columns:
    """Return a table's columns, with well-known names for those that it does not have.

    Args:
        labels: whether labels and tags may be called otherwise too.

    Raises:
        ConfigError: columns are numbers, and the table's first line names them.
    """
    if isinstance(path, Path) and not ends_in(path, *TABLES):
        return columns
    row = first_row(path, header=not columns.numbered)
    if not (columns.numbered and ends_in(path, ".csv", ".tsv")):
        return columns.known_in(row, labels=labels)
    given = [name for name in vars(columns).values() if name in row]
    heads = [str(row[name]).strip() for name in given]
    named = vars(USUAL.known_in(heads)).values()
    if heads and all(head in named for head in heads):
        raise ConfigError(
            f"{path} begins with names of columns ({', '.join(heads)}); give these with --columns, "
            "not their numbers."
        )
    return columns


def _find_kind(path: Path, columns: Columns, wished: str | None = None) -> str:
    """Return what a user's examples are, by the columns of a file: the kind that needs most.

    Args:
        wished: the kind that it is to be.

    Raises:
        ConfigError: no kind, or not that one, has all its columns.
    """
    if ends_in(path, *IN_COLUMNS):
        return "tagging" if tags_spans(path, columns) else "words"
    if ends_in(path, ".json"):
        return "question"
    there = first_row(path, header=not columns.numbered)
    if not there:
        raise DataError(f"{path} holds no examples; add at least one.")
    wanted = {
        kind: [str(getattr(columns, role)) for role in (*own.inputs, own.predicted)]
        for kind, own in KINDS.items()
        if wished in (None, kind)
    }
    found = [kind for kind, names in wanted.items() if all(name in there for name in names)]
    if not found:
        listed = "; ".join(f"{kind}: {', '.join(names)}" for kind, names in wanted.items())
        advice = likely_cause(list(there)) or (
            "; name yours, as in --columns text=review label=stars, or by numbers from 0 on if the "
            "file has no line of names"
        )
        all_of = f"not all that kind {wished} needs" if wished else "but no kind of task's"
        raise ConfigError(
            f"{path} has the columns {shorten(list(there), 200)}, {all_of} ({listed}){advice}."
        )
    # Of two kinds that need as many the later one says more: relations are between spans.
    most = max(found, key=lambda kind: (len(wanted[kind]), found.index(kind)))
    return "tagging" if most == "words" and tags_spans(path, columns) else most


def check_kind(kind: str) -> None:
    """Refuse a kind of task that there is not."""
    if kind not in KINDS:
        raise ConfigError(f"the kind of task is {kind!r}, but only {', '.join(KINDS)} are allowed.")


def _listed(labels: LabelSet) -> str:
    return ", ".join(labels.names[:12]) + (" ..." if len(labels) > 12 else "")


def make_task(kind: str, name: str, parts: Mapping[str, Read], *, refuse: bool) -> TaskData:
    """Make a data set of its splits; the labels are those of train.

    Args:
        refuse: whether labels that training does not have are refused, by the first one's file and
            line; if not they are all recorded, as the standard sets have some.
    """
    for split, part in parts.items():
        if not part.examples:
            raise DataError(f"the split {split!r} of {name} has no examples; add some.")
    train, own = parts.get("train"), KINDS[kind]
    if train is None and own.has_labels:
        raise DataError(
            f"{name} has no training examples, only {', '.join(parts) or 'nothing'}, so its labels "
            "are not known; add a file for train."
        )
    labels = LabelSet(()) if train is None else own.label_set(train)
    relations = LabelSet(()) if train is None else own.relation_set(train)
    both = LabelSet((*labels.names, *relations.names))
    found = tuple(entry for split, part in parts.items() for entry in part.unseen(split, both))
    if found and refuse:
        first = found[0]
        more = f" and {len(found) - 1} other(s)" if len(found) > 1 else ""
        raise DataError(
            f"{first.path}, line {first.line}: the label {first.label!r} of {first.split}{more} "
            f"does not occur in training, which has {_listed(labels)}; correct it or add "
            "training examples."
        )
    return TaskData(
        kind=kind,
        name=name,
        splits={split: part.examples for split, part in parts.items()},
        labels=labels,
        unseen=found,
        dropped={
            f"{split}: {reason}": count
            for split, part in parts.items()
            for reason, count in part.dropped.items()
        },
        relations=relations,
    )


def _load_set(name: str, folder: Path, kind: str | None, seed: int) -> TaskData:
    source = SETS[name]
    readers = source.readers
    chosen = kind or next(iter(readers))
    if chosen not in readers:
        others = [other for other, own in SETS.items() if chosen in own.readers]
        raise ConfigError(
            f"{name} is read as {' or '.join(readers)}, not as {chosen}; sets that can be are "
            f"{', '.join(others)}, or bring files of your own."
        )
    found = source.find(folder) if source.find else {}
    found = found or find_files(folder, source.files, name)
    parts = {split: readers[chosen](paths, split) for split, paths in found.items()}
    if source.by_document:
        whole = parts["train"]
        drawn = _draw_splits(whole, whole.documents, (seed, "documents"), "document")
        parts = _part(whole, whole.documents, drawn)
    data = make_task(chosen, name, parts, refuse=KINDS[chosen].closed)
    return replace(data, columns=source.columns)


def find_files(
    folder: Path, patterns: Mapping[str, Sequence[str]], name: str
) -> dict[str, list[Path]]:
    """Return the files of each split that is there.

    Args:
        folder: the folder that holds them, directly or deeper down, but all of one set.
        patterns: glob patterns of each split's files, the preferred one first; the first pattern
            that matches anything gives that split's files.
        name: of the data set, for messages.
    """
    if not folder.is_dir():
        got = "is a file" if folder.exists() else "does not exist"
        raise DataError(f"{folder} {got}, but {name} needs the folder that holds its files.")
    homes = [folder, *sorted(path for path in folder.rglob("*") if path.is_dir())]
    found = [(home, _matches(home, patterns)) for home in homes]
    found = [(home, files) for home, files in found if files]
    if not found:
        wanted = "; ".join(f"{split}: {' or '.join(each)}" for split, each in patterns.items())
        raise DataError(f"{folder} holds no files of {name}; it needs {wanted}.")
    if len(found) > 1:
        listed = ", ".join(str(home) for home, _ in found[:4])
        raise DataError(
            f"{folder} holds {len(found)} folders with files of {name} ({listed}), and only one "
            "can be read; give that one."
        )
    return found[0][1]


def _matches(home: Path, patterns: Mapping[str, Sequence[str]]) -> dict[str, list[Path]]:
    files: dict[str, list[Path]] = {}
    for split, each in patterns.items():
        found = (sorted(filter(Path.is_file, home.glob(pattern))) for pattern in each)
        files[split] = next(filter(None, found), [])
    return {split: paths for split, paths in files.items() if paths}


def _read_own(path: Path, kind: str, columns: Columns, seed: int) -> dict[str, Read]:
    """Read a user's data: a folder with train, dev and test files, or one file.

    One file is parted by its split column, or else 80/10/10 by the seed. The test split may have
    no labels.
    """
    read = KINDS[kind].read
    if _has_split_files(path):
        return {
            split: read(file, _known_columns(file, columns), split, split != "test" or None)
            for split, file in _split_files(path).items()
        }
    # Test examples of a data set may have no labels; a file's must.
    labelled = None if path.is_dir() else True
    whole = read(path, _known_columns(path, columns), "row", labelled)
    lines = [line for _, line in whole.places]
    chosen = _split_column(path, columns)
    return _part(whole, lines, chosen or _draw_splits(whole, lines, (seed, "splits"), "line"))


def _has_split_files(path: Path) -> bool:
    """Return whether a path is a folder with a file for each split, and no data set of its own."""
    return path.is_dir() and (bool(list(path.glob("train.*"))) or not is_dataset(path))


def _split_files(folder: Path) -> dict[str, Path]:
    """Return the file of each split in a folder, by its name or else by the end of its name."""
    listed = [
        path
        for path in sorted(folder.iterdir())
        if path.suffix.lower() in _ENDINGS and path.is_file()
    ]
    whole = any(path.stem.lower() in SPLIT_NAMES for path in listed)
    files: dict[str, Path] = {}
    for path in listed:
        name = path.stem.lower()
        # As in en_ewt-ud-train.conllu.
        split = SPLIT_NAMES.get(name if whole else re.split("[-_.]", name)[-1])
        if split is None:
            continue
        if split in files:
            raise DataError(
                f"{folder} has two files for {split}, {files[split].name} and {path.name}; keep "
                "one of them."
            )
        files[split] = path
    if "train" not in files:
        raise DataError(
            f"{folder} has no file for train; it needs train.jsonl (or .csv, .tsv, .conll), and "
            "dev and test beside it."
        )
    return {split: files[split] for split in _SPLITS if split in files}


def _split_column(path: Path, columns: Columns) -> dict[int, str]:
    """Return the split of each line of a table with a split column, or nothing."""
    if not ends_in(path, *TABLES):
        return {}
    found: dict[int, str] = {}
    for number, row in load_rows(path, header=not columns.numbered):
        if columns.split not in row and not found:
            return {}
        found[number] = split_in(row, columns.split, path, number)
    return found


def _draw_splits(
    whole: Read, keys: Sequence[int], seed: tuple[object, ...], what: str
) -> dict[int, str]:
    """Return the split of each key, drawn by the seed: a tenth is dev and a tenth is test."""
    names = list(dict.fromkeys(keys))
    if len(names) < 3:
        raise whole.wrong(
            f"{len(names)} {what}(s) cannot be parted into train, dev and test; add examples or "
            "give files for the splits."
        )
    order = np.random.default_rng(derive_seed(*seed)).permutation(len(names))
    tenth = max(1, len(names) // 10)
    split = dict.fromkeys(names, "train")
    split |= {names[index]: "dev" for index in order[:tenth]}
    return split | {names[index]: "test" for index in order[tenth : 2 * tenth]}


def _part(whole: Read, keys: Sequence[int], splits: Mapping[int, str]) -> dict[str, Read]:
    """Return the examples of each split, by a key of each example; train keeps the counts."""
    parts = {split: Read(in_columns=whole.in_columns) for split in _SPLITS}
    for example, where, key in zip(whole.examples, whole.places, keys, strict=True):
        parts[splits[key]].add(example, *where)
    parts["train"].dropped = whole.dropped
    return {split: part for split, part in parts.items() if part.examples}
