"""A task, a pattern and a model, put together: layouts of the splits, and how they are answered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from torch.nn import functional

from symprompt.errors import ConfigError
from symprompt.files.progress import Tick, silent
from symprompt.models import LanguageModel
from symprompt.tasks.data.examples import draw_limited
from symprompt.tasks.metrics import accuracy
from symprompt.tasks.patterns.config import PatternConfig
from symprompt.tasks.patterns.layout import VerbalLayout, Writer, tensorise, tensorise_for_head
from symprompt.tasks.patterns.methods import METHODS
from symprompt.tasks.patterns.model import (
    VerbalModel,
    judge_spans,
    score_split,
    write_spans,
)
from symprompt.tasks.patterns.pattern import (
    MANUAL,
    PAIRS,
    PTUNING,
    Pattern,
    Worded,
    reference_pattern,
)
from symprompt.tasks.patterns.superglue import VerbalData, VerbalExample, VerbalTask, measure

SPLITS = ("train", "dev", "val")


def choose_pattern(config: PatternConfig, task: VerbalTask) -> Worded:
    """Return the pattern that a config means, and its verbalizer.

    Raises:
        ConfigError: a name that is no published pattern's, vectors where none are learned or none
            where they are, or not one word for each label.
    """
    published = {one.name: one for one in MANUAL[task.name]}
    method = METHODS[config.method]
    if not method.verbal:
        return Worded(config.method, PAIRS[task.name][0])
    learns = method.vectors
    default = PTUNING[task.name] if learns else reference_pattern(task)
    if not config.template or (learns and config.template == default.name):
        found = default
    elif "[MASK" in config.template:
        found = Worded("own", config.template, default.words)
    elif config.template in published:
        found = published[config.template]
    else:
        raise ConfigError(
            f"pattern.template is {config.template!r}, which is neither a pattern with [MASK] nor "
            f"one of {task.name}'s published ones: {', '.join(published)}."
        )
    found = replace(found, words=config.words or found.words)
    found.pattern.check(task)
    vectors = found.pattern.vectors
    if learns != bool(vectors):
        raise ConfigError(
            f'pattern.method = "{config.method}" goes with a pattern '
            f"{'with' if learns else 'without'} vectors <n>, got {found.text!r}; change it, or "
            'leave it empty (--template "") for the published one.'
        )
    wanted = len(task.labels) if task.kind == "labels" else 0
    if len(found.words) != wanted:
        raise ConfigError(
            f"pattern.words are {len(found.words)}; {task.name} takes {wanted}"
            f"{', for ' + ', '.join(task.labels) if wanted else ': examples bring their answers'}; "
            "give as many, or none for the published ones."
        )
    return found


@dataclass(frozen=True, eq=False)
class Answers:
    """What was answered to a split; final.

    Attributes:
        predicted: [n] labels.
        loss: mean loss of the examples that have one.
        probabilities: [n] of the labels predicted, among all answers of an example; None where the
            model writes and nothing is chosen (WSC).
        written: for WSC, what the model wrote.
    """

    predicted: npt.NDArray[np.int64]
    loss: float
    written: tuple[str, ...] = ()
    probabilities: npt.NDArray[np.float64] | None = None


class VerbalProblem:
    """A task asked through a pattern on one model, as tensors on its device; final.

    Args:
        backbone: the model.
        data: the examples.
        config: pattern, method, lengths.
        max_tokens: most tokens in one pass while asking; 0 chooses by device.
        splits: which of the data are tensorised.
    """

    def __init__(
        self,
        backbone: LanguageModel,
        data: VerbalData,
        config: PatternConfig,
        *,
        max_tokens: int = 0,
        splits: Sequence[str] = SPLITS,
    ) -> None:
        self.backbone = backbone
        self.data = data
        self.task = data.task
        self.config = config
        self.method = METHODS[config.method]
        self.worded = choose_pattern(config, data.task)
        self.max_tokens = max_tokens or backbone.token_budget()
        self.max_length = min(config.max_length, backbone.max_length)
        self.examples: dict[str, Sequence[VerbalExample]] = {
            split: self._choose_examples(split) for split in splits
        }
        self.layouts = {split: self._tensorise(own) for split, own in self.examples.items()}

    def _choose_examples(self, split: str) -> Sequence[VerbalExample]:
        config = self.config
        limits = {"train": config.train_limit, "dev": config.dev_limit, "val": config.test_limit}
        seed = (config.split_seed, split)
        examples = draw_limited(self.data.splits[split], limits.get(split, 0), seed)
        if split != "train":
            return examples
        if self.task.kind == "span" and self.method.verbal:
            # A reference that is wrong is nothing to make likely; PET leaves them out too.
            examples = [example for example in examples if example.label == 1]
        if self.task.kind == "choices" and self.config.mirror:
            examples = [*examples, *map(_mirrored, examples)]
        return examples

    def _tensorise(self, examples: Sequence[VerbalExample]) -> VerbalLayout:
        device = self.backbone.device
        if not self.method.verbal:
            writers = [
                Writer(
                    Pattern.parse(text), self.backbone.vocabulary, None, max_length=self.max_length
                )
                for text in PAIRS[self.task.name]
            ]
            return tensorise_for_head(
                examples, writers, answers=len(self.task.labels), device=device
            )
        writer = Writer(
            self.worded.pattern,
            self.backbone.vocabulary,
            self.worded.words,
            max_length=self.max_length,
        )
        span = self.task.kind == "span"
        return tensorise(
            examples,
            writer,
            # A span is written place by place, all of it masked at first.
            spans="together" if span else self.config.spans,
            average="mean" if span else self.config.average,
            device=device,
        )

    def make_model(self, seed: int) -> VerbalModel:
        """Make the model with what stands beside it: an encoder, a head or nothing.

        Raises:
            ModelError: a prefix would not be read by every layer of this kind of model.
        """
        return VerbalModel(self.backbone, self.method.make(self, self.config, seed))

    def answer(self, model: VerbalModel, split: str, *, tick: Tick = silent) -> Answers:
        """Return what the model answers to a split, as it is now."""
        layout, examples = self.layouts[split], self.examples[split]
        scores = score_split(model, layout, max_tokens=self.max_tokens, tick=tick)
        if layout.answers == 1:
            tokens = write_spans(model, layout, max_tokens=self.max_tokens)
            texts = [self.backbone.vocabulary.tokenizer.decode(one) for one in tokens]
            wanted = [example.choices[0] for example in examples]
            true = [row for row, example in enumerate(examples) if example.label == 1]
            loss = -float(scores[true].mean()) if true else 0.0
            return Answers(judge_spans(texts, wanted), loss, tuple(text.strip() for text in texts))
        labels = layout.labels.cpu()
        loss = float(functional.cross_entropy(scores, labels)) if bool((labels >= 0).all()) else 0.0
        highest, predicted = scores.softmax(1).max(1)
        return Answers(
            predicted.numpy().astype(np.int64), loss, probabilities=highest.double().numpy()
        )

    def look(self, model: VerbalModel) -> tuple[float, float]:
        """Return accuracy in percent and loss on dev, which chooses."""
        found = self.answer(model, "dev")
        gold = self.layouts["dev"].labels.tolist()
        return 100 * accuracy(gold, found.predicted.tolist()), found.loss

    def rows(self, split: str, answers: Answers) -> list[dict[str, Any]]:
        """Return what was answered to a split as plain values, with the label where it is known."""
        rows = []
        for place, example in enumerate(self.examples[split]):
            label = self.task.labels[int(answers.predicted[place])]
            row: dict[str, Any] = {"id": example.id, "prediction": label}
            if answers.probabilities is not None:
                row["probability"] = round(float(answers.probabilities[place]), 6)
            if answers.written:
                row["written"] = answers.written[place]
            if example.label is not None:
                row["gold"] = self.task.labels[example.label]
            rows.append(row)
        return rows

    def measure(self, split: str, answers: Answers) -> dict[str, float]:
        """Return the task's metrics of what was answered to a split."""
        return measure(self.task, self.examples[split], answers.predicted.tolist())

    def cuts(self) -> dict[str, dict[str, int]]:
        """Return split -> how many examples lost tokens to fit, and how many tokens."""
        return {
            split: {"examples": layout.cut[0], "tokens": layout.cut[1]}
            for split, layout in self.layouts.items()
        }


def _mirrored(example: VerbalExample) -> VerbalExample:
    """Return an example of COPA with its choices exchanged."""
    first, second = example.choices
    fields = {**example.fields, "choice1": second, "choice2": first}
    label = None if example.label is None else 1 - example.label
    return VerbalExample(f"{example.id}-mirrored", fields, label, (second, first), example.group)
