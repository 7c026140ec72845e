"""A tuned model and the heads of one task or several: losses to train on, predictions to store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from symprompt.engine.batches import few_widths, make_batches
from symprompt.errors import ConfigError, DataError, RunError
from symprompt.files.progress import Tick, silent
from symprompt.models import LanguageModel
from symprompt.runs.environment import make_generator
from symprompt.tasks.config import TuneConfig
from symprompt.tasks.data.examples import Example
from symprompt.tasks.features import Batch, Features
from symprompt.tasks.kinds import KINDS, Kind, Target
from symprompt.tasks.kinds.base import Head
from symprompt.tasks.prepare import PreparedTask
from symprompt.tasks.trainables import TunedModel, hidden_size


class TaskModel:
    """What is trained and queried: a tuned model, and a head for each task; final.

    Args:
        tuned: the language model with what is trained of it.
        heads: task -> its head, on the model's device.
        inputs: task -> all its training inputs, on that device; none if it is only queried.
    """

    def __init__(
        self,
        tuned: TunedModel,
        heads: Mapping[str, Head],
        inputs: Mapping[str, Batch] | None = None,
    ) -> None:
        self.tuned = tuned
        self.heads = dict(heads)
        self.inputs = dict(inputs or {})

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return self.tuned.backbone.device

    def tuned_parameters(self) -> dict[str, nn.Parameter]:
        """Return what is trained besides heads, by name; prompts' names begin with "prompt."."""
        return self.tuned.parameters()

    def head_parameters(self) -> dict[str, nn.Parameter]:
        """Return what is trained of the heads."""
        return {
            f"head.{task}.{name}": value
            for task, head in self.heads.items()
            for name, value in head.named_parameters()
        }

    @property
    def size(self) -> int:
        """How many parameters are trained."""
        values = [*self.tuned_parameters().values(), *self.head_parameters().values()]
        return sum(value.numel() for value in values)

    def loss(self, task: str, rows: Tensor, width: int) -> tuple[Tensor, Tensor]:
        """Return the losses [b] of training inputs of a task, and what each counts [b]."""
        batch = self.inputs[task].select(rows, width)
        states = self.tuned.states(batch)
        head = self.heads[task]
        return head.loss(states, batch), head.weights(batch)

    @contextmanager
    def training(self) -> Iterator[None]:
        """Have dropout on."""
        for head in self.heads.values():
            head.train()
        try:
            with self.tuned.training():
                yield
        finally:
            for head in self.heads.values():
                head.eval()

    @torch.no_grad()
    def scores(self, task: str, batch: Batch) -> Tensor:
        """Return the scores that a task's head gives inputs."""
        return self.heads[task].scores(self.tuned.states(batch), batch)

    def tensors(self, task: str) -> dict[str, Tensor]:
        """Return what is stored for a task: the parameters of the tuned model and of the head."""
        head = {f"head.{key}": value for key, value in self.heads[task].state_dict().items()}
        return {**self.tuned.tensors(), **head}

    def load(self, task: str, tensors: Mapping[str, Tensor]) -> None:
        """Put a stored prompt and, if there is one, its head in place.

        Raises:
            RunError: they do not fit.
        """
        self.tuned.load(tensors)
        head = {key[5:]: value for key, value in tensors.items() if key.startswith("head.")}
        if not head:
            return
        try:
            self.heads[task].load_state_dict(head)
        except RuntimeError as error:
            raise RunError(
                "the stored head does not fit the task: it has other labels or another kind."
            ) from error


def make_task_head(
    kind: Kind[Any, Any], target: Target, backbone: LanguageModel, *, seed: tuple[object, ...]
) -> Head:
    """Return a head at its start, on the model's device."""
    head = kind.head(
        hidden_size(backbone),
        target,
        causal=backbone.causal,
        generator=make_generator(*seed, "head"),
    )
    if backbone.dtype == torch.float64:
        head = head.double()
    return head.to(backbone.device).eval()


def check_backbone(name: str, fingerprint: str, backbone: LanguageModel, where: str) -> None:
    """Refuse a prompt that was learned for another model.

    Args:
        name: the model it was learned for, and its fingerprint.

    Raises:
        RunError: naming that model.
    """
    if fingerprint != backbone.fingerprint:
        raise RunError(
            f"the prompt in {where} was learned for another model ({name}, "
            f"{fingerprint}), not for {backbone.source} "
            f"({backbone.fingerprint}); a prompt serves only its own model: name it with --model."
        )


# ------------------------------------------------------------------------------ passes


class Gathered:
    """The scores of all rows of a split, put together pass by pass; final."""

    def __init__(self, kind: Kind[Any, Any], features: Features) -> None:
        self.kind = kind
        self.features = features
        self._found: Tensor | None = None

    def add(self, rows: Tensor, scores: Tensor) -> None:
        """Put the scores of some rows, perhaps narrower than the widest, in their places."""
        scores = self.kind.kept(scores)
        if self._found is None:
            shape = [len(self.features), *scores.shape[1:]]
            if self.kind.per_token:
                shape[1] = int(self.features.ids.shape[1])
            floor = -torch.inf if scores.is_floating_point() else 0
            self._found = scores.new_full(shape, floor)
        if scores.shape[1:] == self._found.shape[1:]:
            self._found[rows] = scores
        else:
            self._found[rows, : scores.shape[1]] = scores

    def scores(self) -> Tensor:
        """Return all scores, on the CPU."""
        if self._found is None:
            raise ValueError("no row has been queried")
        return self._found.cpu()


def ask(
    model: TaskModel,
    task: str,
    kind: Kind[Any, Any],
    features: Features,
    inputs: Batch,
    *,
    max_tokens: int,
    tick: Tick = silent,
    stage: str = "asking",
) -> Tensor:
    """Return a task's scores of all inputs of a split, on the CPU.

    Args:
        kind: the task's kind.
        features: the split.
        inputs: the same on the device.
        max_tokens: most tokens in one pass.

    Returns:
        What the kind decodes, one entry for each row [n, ...].
    """
    widest = int(features.ids.shape[1])
    widths = partial(few_widths, widest=widest)
    plan = list(make_batches(features.lengths, max_tokens, width=widths, order="longest"))
    gathered = Gathered(kind, features)
    for number, step in enumerate(plan):
        rows = torch.from_numpy(step.rows).to(model.device)
        gathered.add(rows, model.scores(task, inputs.select(rows, step.width)))
        tick(stage, number + 1, len(plan), "")
    return gathered.scores()


# ------------------------------------------------------------------------------ evaluation


@dataclass(frozen=True)
class Outcome:
    """What was found for a split: figures in percent, and one row for each example.

    Attributes:
        notes: what a reader should know, such as texts that were cut to fit.
    """

    metrics: dict[str, float]
    rows: list[dict[str, Any]]
    notes: tuple[str, ...] = ()


def figures(
    kind: Kind[Any, Any], examples: Sequence[Example], predictions: Sequence[Any]
) -> dict[str, float]:
    """Return the figures of predictions in percent, the one that chooses first.

    Raises:
        DataError: an example has no label, or there is another number of predictions.
    """
    if len(examples) != len(predictions):
        raise DataError(
            f"got {len(predictions)} prediction(s) for {len(examples)} example(s); every "
            "example needs one."
        )
    if not all(map(kind.is_labelled, examples)):
        raise DataError("some examples have no label, so nothing can be measured on them.")
    found = kind.measure(examples, predictions)
    ordered = {kind.metric: found[kind.metric], **found}
    return {
        name: value if name.endswith("threshold") else 100 * value
        for name, value in ordered.items()
    }


class Evaluator:
    """Queries a model about splits of tasks; final.

    Args:
        model: with its heads.
        config: how predictions are made.
    """

    def __init__(self, model: TaskModel, config: TuneConfig) -> None:
        self.model = model
        self.config = config
        self.max_tokens = config.max_tokens or model.tuned.backbone.token_budget()

    def measure(self, task: PreparedTask) -> tuple[float, dict[str, float]]:
        """Return the figure that chooses an epoch, and all figures of the split that chooses.

        Raises:
            ConfigError: the figure that should choose is none of the task's.
        """
        predictions = self._predictions(task, task.choice, self.threshold(task))
        found = figures(KINDS[task.data.kind], task.data.split(task.choice), predictions)
        name = self.config.learning.choose
        if name == "auto":
            return next(iter(found.values())), found
        if name not in found:
            raise ConfigError(
                f"learning.choose is {name!r}, and this task measures: {', '.join(found)}."
            )
        return found[name], found

    def ask(
        self, task: PreparedTask, split: str, *, threshold: float | None, tick: Tick = silent
    ) -> Outcome:
        """Return a split's figures and predictions.

        Args:
            threshold: of the predictions, where their kind has one.
        """
        kind, examples = KINDS[task.data.kind], task.data.split(split)
        predictions = self._predictions(task, split, threshold, tick)
        rows = list(map(kind.row, examples, predictions))
        return Outcome(figures(kind, examples, predictions), rows)

    def threshold(self, task: PreparedTask) -> float | None:
        """Return the threshold of predictions before any is chosen; None if there is none."""
        kind = KINDS[task.data.kind]
        return kind.threshold(task.data.split("train"), self.config.task.unanswerable)

    def choose_threshold(self, task: PreparedTask) -> float | None:
        """Return the threshold that is best on the split that chooses epochs."""
        if self.threshold(task) is None:
            return None
        kind = KINDS[task.data.kind]
        predictions = self._predictions(task, task.choice, kind.loosest)
        return kind.best_threshold(task.data.split(task.choice), predictions)

    def _predictions(
        self, task: PreparedTask, split: str, threshold: float | None, tick: Tick = silent
    ) -> list[Any]:
        data, own = task.data, task.splits[split]
        kind = KINDS[data.kind]
        scores = ask(
            self.model,
            task.name,
            kind,
            own.features,
            own.inputs,
            max_tokens=self.max_tokens,
            tick=tick,
            stage=f"asking {split}",
        )
        target = Target.of(self.config, data)
        return kind.decode(
            scores.numpy(), own.features, data.split(split), target, threshold=threshold
        )
