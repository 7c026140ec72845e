"""One door to labelled data: the standard sets by name, and files of your own."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from symprompt.errors import ConfigError, DataError
from symprompt.tasks.data import SETS
from symprompt.tasks.data.examples import Example, LabelSet, TaskData
from symprompt.tasks.data.files import Columns, Read, find_unseen, read_own, show_labels
from symprompt.tasks.kinds import KINDS

UnseenLabels = Literal["refuse", "keep"]


def load_task(
    name_or_path: str,
    path: str | Path | None = None,
    *,
    kind: str | None = None,
    columns: Columns | None = None,
    seed: int = 0,
    unseen: UnseenLabels = "refuse",
) -> TaskData:
    """Load a labelled data set: a standard one by name, or your own by path.

    Args:
        name_or_path: one of ``SETS``, or the path of your own file or folder.
        path: where a standard set lies; with your own data, nothing.
        kind: what your own examples are; a standard set knows it. Sets of entities can be read as
            "spans" too, CoNLL-2004 as "relations".
        columns: what the columns of your own files are called.
        seed: parts one file into splits where nothing else does.
        unseen: what happens to labels of your own that training does not have: "refuse" or "keep".

    Raises:
        DataError: files are missing or garbled; the message names file and line.
        ConfigError: the arguments do not go together.

    Example:
        >>> data = load_task("rte", "glue/RTE")                    # doctest: +SKIP
        >>> data = load_task("reviews.csv", kind="sequence")       # doctest: +SKIP
    """
    if kind is not None:
        check_kind(kind)
    if name_or_path in SETS:
        if path is None:
            raise ConfigError(
                f"{name_or_path} needs the path of the folder that holds its files; give one."
            )
        return _load_set(name_or_path, Path(path), kind, seed)
    own = Path(name_or_path if path is None else path)
    if not own.exists():
        close = difflib.get_close_matches(name_or_path, SETS, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"known sets are {', '.join(SETS)}."
        raise DataError(f"{str(own)!r} is no file or folder and no known set; {hint}")
    if kind is None:
        raise ConfigError(
            f"{own} is your own data, so say what its examples are: kind is one of "
            f"{', '.join(KINDS)}."
        )
    chosen = columns or Columns()

    def read(file: Path, split: str, labelled: bool | None) -> Read:
        return KINDS[kind].read(file, chosen, split, labelled=labelled)

    parts = read_own(own, read, chosen.split, seed)
    return make_task(kind, own.stem if path is None else name_or_path, parts, unseen=unseen)


def load_examples(
    path: str | Path,
    kind: str,
    *,
    columns: Columns | None = None,
    labels: LabelSet | None = None,
    name: str = "",
) -> Sequence[Example]:
    """Load a file of examples to predict; labels are taken if they are there.

    A .txt file holds one text per line (kind sequence) or one word per line (kind tagging).

    Args:
        labels: those that can be predicted. A class of a text that is none of them is refused; of
            tags and spans some are rare, so these are only counted as missed.
        name: the task; of texts and pairs of a standard set its own columns are known too.
    """
    check_kind(kind)
    path, columns = Path(path), columns or Columns()
    read = KINDS[kind].read(path, columns, "row", labelled=None, name=name)
    if not read.examples:
        raise DataError(f"{path} holds no examples; add at least one.")
    if labels is not None and KINDS[kind].closed:
        for found in find_unseen("row", read, labels):
            raise DataError(
                f"{found.path}, line {found.line}: the label {found.label!r} does not occur in "
                f"training, which has {show_labels(labels)}; correct it, or leave labels out to "
                "predict them."
            )
    return read.examples


def check_kind(kind: str) -> None:
    """Refuse a kind of task that there is not."""
    if kind not in KINDS:
        raise ConfigError(f"the kind of task is {kind!r}, but only {', '.join(KINDS)} are allowed.")


def make_task(kind: str, name: str, parts: Mapping[str, Read], *, unseen: UnseenLabels) -> TaskData:
    """Make a data set of its splits; the labels are those of train.

    Args:
        unseen: what happens to labels that training does not have: "refuse" names the first one's
            file and line, "keep" records them all, as the standard sets have some.
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
    found = tuple(
        entry for split, part in parts.items() for entry in find_unseen(split, part, both)
    )
    if found and unseen == "refuse":
        first = found[0]
        more = f" and {len(found) - 1} other(s)" if len(found) > 1 else ""
        raise DataError(
            f"{first.path}, line {first.line}: the label {first.label!r} of {first.split}{more} "
            f"does not occur in training, which has {show_labels(labels)}; correct it or add "
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
    readers = SETS[name]
    chosen = kind or next(iter(readers))
    if chosen not in readers:
        others = [other for other, own in SETS.items() if chosen in own]
        raise ConfigError(
            f"{name} is read as {' or '.join(readers)}, not as {chosen}; sets that can be are "
            f"{', '.join(others)}, or bring files of your own."
        )
    parts = readers[chosen](name, folder, seed)
    return make_task(chosen, name, parts, unseen="refuse" if KINDS[chosen].closed else "keep")
