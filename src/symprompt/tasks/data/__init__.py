"""One door to labelled data: the standard sets by name, and files of your own."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path

from symprompt.errors import ConfigError, DataError
from symprompt.files.reading import TABLES
from symprompt.tasks.data.build import UnseenLabels, find_unseen, show_labels
from symprompt.tasks.data.classes import CLASS_SETS, load_class_set, own_table, read_classes
from symprompt.tasks.data.entities import ENTITY_SETS, load_entity_set
from symprompt.tasks.data.examples import Example, LabelSet, TaskData, TaskKind
from symprompt.tasks.data.own import Columns, check_kind, load_own, read_own
from symprompt.tasks.data.questions import QUESTION_SETS, join_questions, load_question_set
from symprompt.tasks.data.roles import ROLE_SETS, load_role_set
from symprompt.tasks.data.spans import load_relation_set, to_spans

__all__ = ["NAMES", "Columns", "join_questions", "load_examples", "load_task"]

NAMES: tuple[str, ...] = (*CLASS_SETS, *ENTITY_SETS, *QUESTION_SETS, *ROLE_SETS)


def load_task(
    name_or_path: str,
    path: str | Path | None = None,
    *,
    kind: TaskKind | None = None,
    columns: Columns | None = None,
    seed: int = 0,
    unseen: UnseenLabels = "refuse",
) -> TaskData:
    """Load a labelled data set: a standard one by name, or your own by path.

    Args:
        name_or_path: one of ``NAMES``, or the path of your own file or folder.
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
    if name_or_path in NAMES:
        if path is None:
            raise ConfigError(
                f"{name_or_path} needs the path of the folder that holds its files; give one."
            )
        return _load_known(name_or_path, Path(path), kind, seed)
    own = Path(name_or_path if path is None else path)
    if not own.exists():
        close = difflib.get_close_matches(name_or_path, NAMES, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"known sets are {', '.join(NAMES)}."
        raise DataError(f"{str(own)!r} is no file or folder and no known set; {hint}")
    if kind is None:
        raise ConfigError(
            f"{own} is your own data, so say what its examples are: kind is one of sequence, "
            "pair, tagging, roles, question, spans, relations."
        )
    name = "" if path is None else name_or_path
    return load_own(own, kind, columns or Columns(), name=name, seed=seed, unseen=unseen)


def load_examples(
    path: str | Path,
    kind: TaskKind,
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
    if name in CLASS_SETS and columns == Columns() and path.suffix.lower() in TABLES:
        own = (columns.text,) if kind == "sequence" else (columns.first, columns.second)
        read = read_classes(path, own_table(name, own), "row")
    else:
        read = read_own(path, kind, columns, "row", labelled=None)
    if not read.examples:
        raise DataError(f"{path} holds no examples; add at least one.")
    if labels is not None and kind in ("sequence", "pair"):
        for found in find_unseen("row", read, labels):
            raise DataError(
                f"{found.path}, line {found.line}: the label {found.label!r} does not occur in "
                f"training, which has {show_labels(labels)}; correct it, or leave labels out to "
                "predict them."
            )
    return read.examples


def _load_known(name: str, folder: Path, kind: TaskKind | None, seed: int) -> TaskData:
    if kind == "relations":
        if name != "conll2004":
            raise ConfigError(
                f"{name} has no relations between spans; conll2004 has, or bring files of your own."
            )
        return load_relation_set(name, folder)
    if kind == "spans":
        if name not in ENTITY_SETS:
            raise ConfigError(
                f"{name} has no spans; sets that have are {', '.join(ENTITY_SETS)}, or bring files "
                "of your own."
            )
        return to_spans(load_entity_set(name, folder, seed=seed))
    if name in CLASS_SETS:
        return load_class_set(name, folder)
    if name in ENTITY_SETS:
        return load_entity_set(name, folder, seed=seed)
    if name in QUESTION_SETS:
        return load_question_set(name, folder)
    return load_role_set(name, folder)
