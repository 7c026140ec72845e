"""The seven SuperGLUE tasks that are asked through patterns, and what an example of them holds.

ReCoRD is left out, as in the P-tuning paper (section 4.2): it has no prompts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from symprompt.errors import DataError
from symprompt.tasks.metrics import accuracy, macro_f1, multirc_scores

Kind = Literal["labels", "choices", "span"]


@dataclass(frozen=True)
class VerbalTask:
    """One task; final.

    Attributes:
        name: as in configs, small letters.
        folder: as SuperGLUE names its folder.
        kind: "labels": every example has the same answers, said by a verbalizer; "choices": each
            example brings its own answers; "span": the answer is a part of the text that the model
            has to write (WSC), and the label says whether a given part is the right one.
        labels: the answers as the data files write them, in the order of their numbers.
        fields: what a pattern may name.
        metrics: what is measured, the main one first.
    """

    name: str
    folder: str
    kind: Kind
    labels: tuple[str, ...]
    fields: tuple[str, ...]
    metrics: tuple[str, ...] = ("accuracy",)


_TRUTH = ("false", "true")
TASKS: dict[str, VerbalTask] = {
    task.name: task
    for task in (
        VerbalTask("boolq", "BoolQ", "labels", _TRUTH, ("passage", "question")),
        VerbalTask(
            "cb",
            "CB",
            "labels",
            ("entailment", "contradiction", "neutral"),
            ("premise", "hypothesis"),
            ("accuracy", "macro_f1"),
        ),
        VerbalTask("wic", "WiC", "labels", _TRUTH, ("word", "sentence1", "sentence2")),
        VerbalTask(
            "rte", "RTE", "labels", ("not_entailment", "entailment"), ("premise", "hypothesis")
        ),
        VerbalTask(
            "multirc",
            "MultiRC",
            "labels",
            ("0", "1"),
            ("passage", "question", "answer"),
            ("em", "f1a", "accuracy"),
        ),
        VerbalTask("wsc", "WSC", "span", _TRUTH, ("text", "pronoun", "span")),
        VerbalTask(
            "copa", "COPA", "choices", ("0", "1"), ("premise", "choice1", "choice2", "link")
        ),
    )
}


def find_task(name: str) -> VerbalTask:
    """Return a task by its name, however its letters are.

    Raises:
        DataError: there is no such task.
    """
    task = TASKS.get(name.lower())
    if task is None:
        raise DataError(
            f"task {name!r} has no patterns; tasks with patterns are: {', '.join(TASKS)}."
        )
    return task


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


@dataclass(frozen=True, eq=False)
class VerbalData:
    """A task's examples by split: train, dev (chooses), val (is reported), test (unlabelled).

    Attributes:
        notes: what a reader should know of the files, such as repaired places.
    """

    task: VerbalTask
    splits: Mapping[str, Sequence[VerbalExample]]
    source: str = ""
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


def measure(
    task: VerbalTask, examples: Sequence[VerbalExample], predicted: Sequence[int]
) -> dict[str, float]:
    """Return a task's metrics in percent, the main one first.

    Raises:
        DataError: an example has no label, or there are not as many predictions as examples.
    """
    gold = [example.label for example in examples if example.label is not None]
    if len(gold) < len(examples) or len(examples) != len(predicted):
        raise DataError(
            f"{len(predicted)} predictions cannot be measured on {len(examples)} examples of "
            f"{task.name}; every example needs a label and a prediction."
        )
    found = {"accuracy": accuracy(gold, predicted), "macro_f1": macro_f1(gold, predicted)}
    groups = [example.group for example in examples]
    found |= multirc_scores(groups, [own == 1 for own in gold], [own == 1 for own in predicted])
    return {name: 100 * found[name] for name in task.metrics}
