"""From a config to a task as tensors on a model's device: examples read, held out, limited."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from symprompt.errors import ConfigError, DataError
from symprompt.models import LanguageModel
from symprompt.tasks.config import TaskConfig
from symprompt.tasks.data.examples import USUAL, Columns, TaskData, draw_limited, hold_out
from symprompt.tasks.data.load import load_task
from symprompt.tasks.data.sentences import identified
from symprompt.tasks.features import Batch, Features, Sheet, takes_types
from symprompt.tasks.kinds import KINDS, Kind, Target

HELD_OUT = "held-out"


@dataclass(frozen=True, eq=False)
class PreparedTask:
    """A task ready for training and queries; final.

    Attributes:
        name: what to call it.
        kind: what it asks for.
        data: its examples, with what was held out.
        splits: the splits as arrays, train among them.
        inputs: the same as tensors on the model's device.
        choice: the split that chooses the epoch.
        reported: the split whose figures count.
        max_length: most tokens of an input.
        segments: whether second texts stand in the second segment.
    """

    name: str
    kind: Kind[Any, Any]
    data: TaskData
    splits: dict[str, Features]
    inputs: dict[str, Batch]
    choice: str
    reported: str
    max_length: int
    segments: bool


def read_task(task: TaskConfig, source: str) -> TaskData:
    """Read a task's examples, hold some out where it has none to choose by, and limit them.

    Raises:
        DataError: the data cannot be read, or has no training examples.
    """
    if not source:
        whose = f"the folder of {task.name}'s files" if task.name else "a folder or file of yours"
        raise DataError(f"--data is missing; name {whose}.")
    kind = None if task.kind == "auto" else task.kind
    columns = columns_of(task.columns)
    inside = Path(source, task.name)
    where = inside if inside.is_dir() else source
    data = load_task(where, task.name, kind=kind, columns=columns, seed=task.split_seed)
    if task.identify:
        data = identified(data)
    known = KINDS[data.kind].is_labelled
    bare = [name for name, own in data.splits.items() if not all(map(known, own))]
    if bare:
        # Nothing can be measured there; predict is for such files.
        dropped = {f"{name}: no labels": len(data.splits[name]) for name in bare}
        kept = {name: own for name, own in data.splits.items() if name not in bare}
        data = replace(data, splits=kept, dropped={**data.dropped, **dropped})
    if not data.splits.get("train"):
        raise DataError(
            f"{data.name} has no training examples, only {_listed(data)}; put its training file "
            f"into {source}."
        )
    if task.held_out > 0 and not (data.splits.get("dev") and data.splits.get("test")):
        # Nothing would be left to choose the epoch by once results are reported.
        data = hold_out(data, task.held_out, seed=task.split_seed, split=HELD_OUT)
    limits = {"train": task.train_limit, HELD_OUT: task.dev_limit, "test": task.test_limit}
    limits["dev"] = task.test_limit if HELD_OUT in data.splits else task.dev_limit
    splits = {
        name: draw_limited(examples, limits.get(name, 0), (task.split_seed, name))
        for name, examples in data.splits.items()
    }
    return replace(data, splits=splits)


def tensorise_task(
    data: TaskData, task: TaskConfig, backbone: LanguageModel, length: int
) -> PreparedTask:
    """Return every split as tensors on the model's device.

    Raises:
        ConfigError: segments are wanted of a model that has none.
    """
    segments = takes_types(backbone, task.segments)
    if task.segments == "on" and not segments:
        raise ConfigError(
            f'task.segments is "on" and {backbone.source or "the model"} has one segment for all '
            'texts; use "auto" or "off".'
        )
    sheet = Sheet.make(
        backbone.vocabulary,
        max_length=length,
        stride=min(task.stride, length // 4),
        types=segments,
    )
    pooled = task.windows == "pooled"
    target = Target(data.labels, data.relations, every_token=task.label_all_tokens, pooled=pooled)
    kind = KINDS[data.kind]
    splits = {
        name: kind.tensorise(examples, sheet, target)
        for name, examples in data.splits.items()
        if examples
    }
    inputs = {name: own.batch(backbone.device) for name, own in splits.items()}
    choice = HELD_OUT if HELD_OUT in splits else "dev"
    reported = "test" if "test" in splits else "dev"
    if choice not in splits or reported not in splits:
        raise DataError(
            f"{data.name} has {_listed(data)}; a dev or test split and a share of task.held_out "
            "above 0 are needed to choose and to report."
        )
    return PreparedTask(
        task.name or data.name, kind, data, splits, inputs, choice, reported, length, segments
    )


def columns_of(pairs: Sequence[str]) -> Columns:
    """Return the columns of a user's own files from role=column pairs.

    Raises:
        ConfigError: a pair is no pair, or names no role.
    """
    found: dict[str, str | int] = {}
    known = {entry.name: entry for entry in fields(Columns)}
    for pair in pairs:
        role, equals, column = pair.partition("=")
        if not equals or role not in known or not column:
            raise ConfigError(
                f"columns has {pair!r}; give role=column, as in text=review; roles are: "
                f"{', '.join(known)}."
            )
        numbered = isinstance(known[role].default, int)
        if numbered and not column.lstrip("-").isdigit():
            raise ConfigError(f"columns has {pair!r}; {role} is the number of a column.")
        found[role] = int(column) if numbered else column
    return replace(USUAL, **found)  # type: ignore[arg-type]


def _listed(data: TaskData) -> str:
    return ", ".join(f"{count} of {name}" for name, count in data.counts().items()) or "nothing"
