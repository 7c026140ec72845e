"""A body and the heads of one task or several: losses to train on, scores to decode."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from symprompt.runtime import Tick, make_generator, silent
from symprompt.tasks.batches import Batch
from symprompt.tasks.bodies import Body, hidden_size
from symprompt.tasks.examples import TaskKind
from symprompt.tasks.features import Features
from symprompt.tasks.heads import Head, make_head
from symprompt.tasks.passes import plan_asking
from symprompt.tasks.settings import HeadConfig


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
    kind: TaskKind, labels: int, body: Body, config: HeadConfig, *, seed: tuple[object, ...]
) -> Head:
    """Return a head at its start, on the body's device."""
    backbone = body.backbone
    head = make_head(
        kind,
        hidden_size(backbone),
        labels,
        causal=backbone.causal,
        kind=config.kind,
        dropout=config.dropout,
        generator=make_generator(*seed, "head"),
    )
    if backbone.dtype == torch.float64:
        head = head.double()
    return head.to(backbone.device).eval()


def ask(
    model: TaskModel,
    task: str,
    features: Features,
    inputs: Batch,
    *,
    max_tokens: int,
    tick: Tick = silent,
    stage: str = "asking",
) -> Tensor:
    """Return a task's scores of all inputs of a split, on the CPU, padded to the widest.

    Args:
        features: the split.
        inputs: the same on the device.
        max_tokens: most tokens in one pass.

    Returns:
        [n, classes], [n, t, tags] or [n, t, 2]; -inf where an input has no token.
    """
    widest = int(features.ids.shape[1])
    plan = plan_asking(features.lengths, max_tokens=max_tokens, widest=widest)
    found: Tensor | None = None
    for number, step in enumerate(plan):
        rows = torch.from_numpy(step.rows).to(model.device)
        scores = model.scores(task, inputs.select(rows, step.width))
        if found is None:
            shape = list(scores.shape)
            shape[0] = len(features)
            if len(shape) == 3:
                shape[1] = widest
            found = scores.new_full(shape, -torch.inf)
        if scores.dim() == 3:
            found[rows, : step.width] = scores
        else:
            found[rows] = scores
        tick(stage, number + 1, len(plan), "")
    if found is None:
        raise ValueError("no inputs")
    return found.cpu()
