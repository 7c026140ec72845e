"""SuperGLUE's files as examples: FewGLUE_32dev, full SuperGLUE folders, and RTE as GLUE has it.

A folder holds ``train``, ``val`` and perhaps ``test`` and ``dev32``, as .jsonl or (RTE) as .tsv,
where GLUE calls ``val`` dev. ``dev32`` is the split that chooses; where there is none, part of the
training examples is held out for that, so that nothing is ever chosen on ``val``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from symprompt.errors import ConfigError, DataError
from symprompt.files.reading import Source, load_rows, shorten
from symprompt.runs.environment import derive_seed
from symprompt.tasks.patterns.pattern import VerbalTask, find_task

_FILES = {
    "train": ("train.jsonl", "train.tsv"),
    "dev": ("dev32.jsonl",),
    "val": ("val.jsonl", "dev.tsv"),
    "test": ("test.jsonl", "test.tsv"),
}
_GLUE = {"sentence1": "premise", "sentence2": "hypothesis", "index": "idx"}
# What rows of a task's file have, where it is not what its patterns name.
_COLUMNS = {
    "multirc": ("passage",),
    "wsc": ("text", "target"),
    "copa": ("premise", "choice1", "choice2", "question"),
}
_MARKS = " \t.,;:!?'\"()[]`"
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class VerbalExample:
    """One example; final.

    Attributes:
        id: unique in its split.
        fields: name -> text, the task's fields.
        label: the number of the right answer; None where the file has none.
        choices: the answers' texts where they are the example's own: both of COPA, the span of WSC.
        group: the question that an answer of MultiRC belongs to.
    """

    id: str
    fields: Mapping[str, str]
    label: int | None
    choices: tuple[str, ...] = ()
    group: str = ""

    @property
    def text(self) -> str:
        """What is asked about, for a reader."""
        return " | ".join(self.fields.values())


@dataclass(frozen=True, eq=False)
class VerbalData:
    """A task's examples by split: train, dev (chooses), val (is reported), test (unlabelled).

    Attributes:
        notes: what a reader should know of the files, such as repaired places.
    """

    task: VerbalTask
    splits: Mapping[str, Sequence[VerbalExample]]
    notes: tuple[str, ...] = ()

    def counts(self) -> dict[str, dict[str, int]]:
        """Return split -> how many examples there are and how many of each label."""
        found = {}
        for split, examples in self.splits.items():
            row = {"examples": len(examples)}
            if any(example.group for example in examples):
                row["questions"] = len({example.group for example in examples})
            for number, label in enumerate(self.task.labels):
                count = sum(example.label == number for example in examples)
                if count:
                    row[label] = count
            found[split] = row
        return found


def load_verbal(
    name: str, path: str | Path, *, held_out: float = 0.1, split_seed: int = 0
) -> VerbalData:
    """Load a task from its own folder, or from a folder of tasks named as SuperGLUE names them.

    Args:
        name: boolq, cb, wic, rte, multirc, wsc or copa.
        path: for example FewGLUE_32dev, or FewGLUE_32dev/RTE.
        held_out: share of the training examples that chooses where there is no dev32 file.
        split_seed: what draws them.

    Raises:
        DataError: no such task or folder, a line that is no example of the task, a label that is
            none of the task's, or a training example without one.
    """
    task, path = find_task(name), Path(path)
    for folder in (path / task.folder, path / task.name, path):
        if any((folder / name).is_file() for name in _FILES["train"]):
            break
    else:
        raise DataError(
            f"{path} holds no files of {task.name} (looked for {task.folder}/train.jsonl and "
            "train.jsonl); give the folder of the task or the one above it."
        )
    notes: list[str] = []
    splits: dict[str, Sequence[VerbalExample]] = {}
    for split, names in _FILES.items():
        found = next((folder / entry for entry in names if (folder / entry).is_file()), None)
        if found is not None:
            splits[split] = _load_examples(task, found, notes, labelled=split != "test")
    if "val" not in splits:
        raise DataError(
            f"{folder} has no {' or '.join(_FILES['val'])}; give a folder of {task.folder} in "
            "SuperGLUE's format."
        )
    if "dev" not in splits:
        splits |= _hold_out(splits["train"], held_out, split_seed)
        notes.append(f"{len(splits['dev'])} training examples are held out to choose on")
    order = [split for split in _FILES if split in splits]
    return VerbalData(task, {split: splits[split] for split in order}, tuple(notes))


def columns_of(task: VerbalTask) -> tuple[str, ...]:
    """Return the columns of a task's files that hold what is asked about."""
    return _COLUMNS.get(task.name, task.fields)


def load_verbal_file(task: VerbalTask, path: Source, columns: Sequence[str]) -> list[VerbalExample]:
    """Load examples to answer, of a table or at hand; labels are taken if there are any.

    Args:
        columns: name=column pairs: the task's name of a column, and the file's.

    Raises:
        DataError: it cannot be read, or a line is no example of the task.
        ConfigError: no pair, or a column that the task has not.
    """
    renamed: dict[str, str] = {}
    known = (*columns_of(task), "label", "idx")
    for pair in columns:
        name, _, column = pair.partition("=")
        if not (name and column):
            raise ConfigError(f"--columns has {pair!r}; give name=column, as in premise=text.")
        if name not in known:
            raise ConfigError(
                f"--columns names {name!r}, which {task.name} has not; its columns are: "
                f"{', '.join(known)}."
            )
        renamed[name] = column
    return _load_examples(task, path, [], labelled=False, renamed=renamed)


def _hold_out(
    train: Sequence[VerbalExample], share: float, seed: int
) -> dict[str, Sequence[VerbalExample]]:
    """Part the training examples; answers to one question stay together."""
    groups = list(dict.fromkeys(example.group or example.id for example in train))
    count = max(1, round(len(groups) * share))
    if not 0 < share < 1 or count >= len(groups):
        raise DataError(
            f"{len(groups)} training examples and held_out = {share} leave nothing to learn from "
            "or nothing to choose on; held_out is a share between 0 and 1."
        )
    order = np.random.default_rng(derive_seed(seed, "held out")).permutation(len(groups))
    taken = {groups[place] for place in order[:count]}
    return {
        "train": [one for one in train if (one.group or one.id) not in taken],
        "dev": [one for one in train if (one.group or one.id) in taken],
    }


def _load_examples(
    task: VerbalTask,
    path: Source,
    notes: list[str],
    *,
    labelled: bool,
    renamed: Mapping[str, str] | None = None,
) -> list[VerbalExample]:
    found: list[VerbalExample] = []
    seen = {""}
    for line, given in load_rows(path):
        row = _named(task, given, renamed or {})
        try:
            examples = _READ.get(task.name, _read_fields)(task, row, notes)
        except (KeyError, TypeError, ValueError) as error:
            what = str(error)
            if isinstance(error, KeyError):
                what = f"it has no {error}, only {shorten(list(row), 200)}"
            todo = "write it in SuperGLUE's format"
            todo += "" if renamed is None else ", or say with --columns what it calls its columns"
            raise DataError(
                f"{path}, line {line}: this is no example of {task.name}: {what}; {todo}."
            ) from error
        if labelled and any(example.label is None for example in examples):
            raise DataError(
                f"{path}, line {line}: there is no label; allowed are: {', '.join(task.labels)}."
            )
        for example in examples:
            # One without an id, or with another's, has its place in the file for one.
            name = f"line-{len(found)}" if example.id in seen else example.id
            seen.add(name)
            found.append(replace(example, id=name))
    if not found:
        raise DataError(f"{path} holds no examples; give a file in SuperGLUE's format.")
    return found


def _named(task: VerbalTask, row: Row, renamed: Mapping[str, str]) -> Row:
    """Return a row under the task's names of its columns: GLUE's RTE has others, users too."""
    own = dict(row)
    if "premise" in task.fields and "premise" not in row:
        own |= {_GLUE[key]: value for key, value in row.items() if key in _GLUE}
    for name in renamed:
        own.pop(name, None)
    return own | {name: row[column] for name, column in renamed.items() if column in row}


def _text(row: Row, key: str) -> str:
    value = row[key]
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{key} is {value!r}, which is no text")
    return " ".join(value.split())


def _label(task: VerbalTask, row: Row) -> int | None:
    value = row.get("label")
    if value is None or value == "":
        return None
    shown = str(value).lower() if isinstance(value, bool) else str(value)
    if shown not in task.labels:
        raise ValueError(f"its label is {value!r}, allowed are: {', '.join(task.labels)}")
    return task.labels.index(shown)


def _read_fields(task: VerbalTask, row: Row, notes: list[str]) -> list[VerbalExample]:
    fields = {name: _text(row, name) for name in task.fields}
    return [VerbalExample(str(row.get("idx", "")), fields, _label(task, row))]


def _read_copa(task: VerbalTask, row: Row, notes: list[str]) -> list[VerbalExample]:
    links = {"cause": "because", "effect": "so"}
    if row["question"] not in links:
        raise ValueError(f"question is {row['question']!r}, allowed are: cause, effect")
    fields = {name: _text(row, name) for name in ("premise", "choice1", "choice2")}
    fields["link"] = links[row["question"]]
    choices = fields["choice1"], fields["choice2"]
    return [VerbalExample(str(row.get("idx", "")), fields, _label(task, row), choices)]


def _read_wsc(task: VerbalTask, row: Row, notes: list[str]) -> list[VerbalExample]:
    target = row["target"]
    words = _text(row, "text").split()
    pronoun, span = _text(target, "span2_text"), _text(target, "span1_text")
    stated = target["span2_index"]
    at = _find_word(words, pronoun, stated)
    if at != stated:
        notes.append(
            f"WSC {row.get('idx', '')}: the pronoun {pronoun!r} stands at word {at}, not {stated}"
        )
    # The pronoun is marked with stars, as T5 and PET mark it.
    end = at + len(pronoun.split())
    word = " ".join(words[at:end])
    head = len(word) - len(word.lstrip(_MARKS))
    tail = len(word.rstrip(_MARKS))
    marked = f"{word[:head]}*{word[head:tail]}*{word[tail:]}"
    fields = {
        "text": " ".join([*words[:at], marked, *words[end:]]),
        "pronoun": pronoun,
        "span": span,
    }
    return [VerbalExample(str(row.get("idx", "")), fields, _label(task, row), (span,))]


def _find_word(words: Sequence[str], wanted: str, stated: Any) -> int:
    if not isinstance(stated, int) or isinstance(stated, bool):
        raise ValueError(f"span2_index is {stated!r}, which is no number")
    parts = [part.strip(_MARKS).lower() for part in wanted.split()]
    bare = [word.strip(_MARKS).lower() for word in words]
    places = [at for at in range(len(words)) if bare[at : at + len(parts)] == parts]
    if not places:
        raise ValueError(f"its text has no word {wanted!r}")
    return min(places, key=lambda at: abs(at - stated))


def _read_multirc(task: VerbalTask, row: Row, notes: list[str]) -> list[VerbalExample]:
    passage = row["passage"]
    text = _text(passage, "text")
    found = []
    for place, question in enumerate(passage["questions"]):
        group = f"{row.get('idx', '')}/{question.get('idx', place)}"
        for number, answer in enumerate(question["answers"]):
            fields = {"passage": text, "question": _text(question, "question")}
            # A few answers of the real data are empty; they are answers all the same.
            fields["answer"] = " ".join(str(answer["text"]).split())
            name = f"{group}/{answer.get('idx', number)}"
            found.append(VerbalExample(name, fields, _label(task, answer), group=group))
    if not found:
        raise ValueError("its passage has no answers")
    return found


_READ: dict[str, Callable[[VerbalTask, Row, list[str]], list[VerbalExample]]] = {
    "multirc": _read_multirc,
    "wsc": _read_wsc,
    "copa": _read_copa,
}
