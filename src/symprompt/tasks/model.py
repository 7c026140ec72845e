"""A body and the heads of one task or several: losses to train on, scores to decode."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from symprompt.engine.batches import few_widths, make_batches
from symprompt.files.progress import Tick, silent
from symprompt.runs.environment import make_generator
from symprompt.tasks.features import Batch, Features
from symprompt.tasks.heads import Head
from symprompt.tasks.kinds import Kind, Target
from symprompt.tasks.trainables import Body, hidden_size


class TaskModel:
    """What is trained and asked: a body, and a head for each task; final.

    Args:
        body: the language model with what is trained of it.
        heads: task -> its head, on the body's device.
        inputs: task -> all its training inputs, on the body's device; none if it is only asked.
    """

    def __init__(
        self, body: Body, heads: Mapping[str, Head], inputs: Mapping[str, Batch] | None = None
    ) -> None:
        self.body = body
        self.heads = dict(heads)
        self.inputs = dict(inputs or {})

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return self.body.backbone.device

    def body_parameters(self) -> dict[str, nn.Parameter]:
        """Return what is trained of the body."""
        return self.body.parameters()

    def head_parameters(self) -> dict[str, nn.Parameter]:
        """Return what is trained of the heads."""
        return {
            f"head.{task}.{name}": value
            for task, head in self.heads.items()
            for name, value in head.named_parameters()
        }

    @property
    def size(self) -> int:
        """How many numbers are trained."""
        values = [*self.body_parameters().values(), *self.head_parameters().values()]
        return sum(value.numel() for value in values)

    def loss(self, task: str, rows: Tensor, width: int) -> tuple[Tensor, Tensor]:
        """Return the losses [b] of training inputs of a task, and what each counts [b]."""
        batch = self.inputs[task].select(rows, width)
        states = self.body.states(batch)
        head = self.heads[task]
        return head.loss(states, batch), head.weights(batch)

    @contextmanager
    def training(self) -> Iterator[None]:
        """Have dropout on."""
        for head in self.heads.values():
            head.train()
        try:
            with self.body.training():
                yield
        finally:
            for head in self.heads.values():
                head.eval()

    @torch.no_grad()
    def scores(self, task: str, batch: Batch) -> Tensor:
        """Return what a task's head says of inputs."""
        return self.heads[task].scores(self.body.states(batch), batch)

    def tensors(self, task: str) -> dict[str, Tensor]:
        """Return what is stored for a task: the body's numbers and the head's."""
        head = {f"head.{key}": value for key, value in self.heads[task].state_dict().items()}
        return {**self.body.tensors(), **head}


def make_task_head(
    kind: Kind[Any, Any], target: Target, body: Body, *, seed: tuple[object, ...]
) -> Head:
    """Return a head at its start, on the body's device."""
    backbone = body.backbone
    head = kind.head(
        hidden_size(backbone),
        target,
        causal=backbone.causal,
        generator=make_generator(*seed, "head"),
    )
    if backbone.dtype == torch.float64:
        head = head.double()
    return head.to(backbone.device).eval()


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
    plan = make_batches(
        features.lengths,
        max_tokens,
        width=partial(few_widths, widest=widest),
        order="longest",
    )
    gathered = Gathered(kind, features)
    for number, step in enumerate(plan):
        rows = torch.from_numpy(step.rows).to(model.device)
        gathered.add(rows, model.scores(task, inputs.select(rows, step.width)))
        tick(stage, number + 1, len(plan), "")
    return gathered.scores()


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
            raise ValueError("no row has been asked")
        return self._found.cpu()
