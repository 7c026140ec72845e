"""The training of labelled tasks: AdamW, an epoch chosen on dev, steps recorded as CUDA graphs.

A step reads inputs of one task that lie on the device, padded to one of few shapes (width, batch).
On a GPU the whole step, forward pass, backward pass and update, is recorded once per shape as a
CUDA graph and replayed with other rows: small models are bound by launches otherwise. Rows that
fill a batch up count zero.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from symprompt.accel.compiling import Recorder, Replay
from symprompt.engine.batches import few_widths
from symprompt.engine.flat_adamw import FlatAdamW, make_groups
from symprompt.engine.loop import EarlyStopping, State, fill, rate_share
from symprompt.runs.environment import derive_seed
from symprompt.tasks.config import LearningConfig
from symprompt.tasks.model import TaskModel

_NEAR = 32
"""Batches among whose inputs those of similar length are put together."""
Score = Callable[[], tuple[float, dict[str, float]]]
"""Evaluates dev: the metric that chooses (larger is better), and all of dev's metrics."""


@dataclass(frozen=True)
class Step:
    """One step: inputs of one task, padded to a width.

    Attributes:
        task: whose inputs.
        width: tokens; one of few, see ``few_widths``.
        rows: [up to the batch's size] which inputs.
    """

    task: str
    width: int
    rows: np.ndarray


@dataclass(frozen=True, eq=False)
class _Epoch:
    """The batches of an epoch: every step's rows, and 1 for each, 0 where a batch is filled up.

    Both are [step, batch].
    """

    number: int
    steps: list[Step]
    rows: Tensor
    real: Tensor


def plan_epoch(
    lengths: Mapping[str, np.ndarray], *, batch: int, widest: Mapping[str, int], seed: int
) -> list[Step]:
    """Return an epoch's steps: every input of every task once, each step inputs of one task.

    They are shuffled, of similar length, in few widths. A step's task is drawn by size, without
    replacement.

    Args:
        lengths: task -> [n] tokens of each input.
        batch: inputs per step.
        widest: task -> the widest input there is.
        seed: of the order; another one for every epoch.
    """
    steps = []
    for task, length in lengths.items():
        random = np.random.default_rng(derive_seed(seed, "order", task))
        order = random.permutation(len(length))
        for start in range(0, len(order), _NEAR * batch):
            near = order[start : start + _NEAR * batch]
            near = near[np.argsort(length[near], kind="stable")]
            for first in range(0, len(near), batch):
                rows = near[first : first + batch]
                width = few_widths(length[rows].max(), widest[task])
                steps.append(Step(task, int(width), rows))
    shuffle = np.random.default_rng(derive_seed(seed, "steps"))
    return [steps[place] for place in shuffle.permutation(len(steps))]


class FlatTraining:
    """What trainings with one flat optimiser share: the best weights and a checkpoint; abstract.

    Attributes:
        losses: since the last evaluation; what is not finite in them is found there.
    """

    optimizer: FlatAdamW
    stopping: EarlyStopping
    losses: Tensor

    @property
    def _weights(self) -> dict[str, Tensor]:
        return {"weights": self.optimizer.values[None]}

    @property
    def stopped(self) -> bool:
        """Whether dev got no better for long enough."""
        return bool(self.stopping.stopped.all())

    def state_dict(self) -> State:
        """Return weights, moments, the best weights and the losses since the last evaluation."""
        best = {f"best/{name}": value for name, value in self.stopping.state_dict().items()}
        return {**self.optimizer.state_dict(), **best, "losses": self.losses}, {}

    def load_state_dict(self, tensors: Mapping[str, Tensor], note: Mapping[str, Any]) -> None:
        """Go on from a stored state."""
        self.optimizer.load_state_dict(tensors)
        self.stopping.load_state_dict(
            {name[5:]: own for name, own in tensors.items() if name.startswith("best/")}
        )
        fill(self.losses, tensors["losses"])

    def load_best(self) -> None:
        """Put the weights of the best evaluation in place."""
        self.stopping.load_best(self._weights)
        self.optimizer.refresh()


class TaskTraining(FlatTraining):
    """Trains a model on the training inputs of one task or several; final, an engine's Trainable.

    Args:
        model: what is trained.
        lengths: task -> [n] tokens of each training input.
        widest: task -> tokens of the widest.
        config: how it is learned.
        score: evaluates dev.
        seed: of order and dropout.
        record: record steps as CUDA graphs where there is a GPU.
    """

    stage = "training"

    def __init__(
        self,
        model: TaskModel,
        lengths: Mapping[str, np.ndarray],
        widest: Mapping[str, int],
        config: LearningConfig,
        score: Score,
        *,
        seed: int,
        record: bool = True,
    ) -> None:
        self.model = model
        self.lengths = dict(lengths)
        self.widest = dict(widest)
        self.config = config
        self.score = score
        self.seed = seed
        self.device = model.device
        self.epoch_steps = sum(-(-len(own) // config.batch) for own in self.lengths.values())
        self.steps = config.epochs * self.epoch_steps
        groups = make_groups(
            model.tuned_parameters(),
            model.head_parameters(),
            rate=config.rate,
            head_rate=config.head_rate,
            weight_decay=config.weight_decay,
        )
        self.optimizer = FlatAdamW(groups, clip=config.clip)
        self.recorder = Recorder(self.device, wanted=record)
        self.stopping = EarlyStopping(self._weights, patience=config.patience)
        self._epoch: _Epoch | None = None
        self.losses = torch.zeros(self.epoch_steps, device=self.device)
        self._loss = torch.zeros((), device=self.device)
        self._rows = torch.zeros(config.batch, dtype=torch.long, device=self.device)
        self._real = torch.zeros(config.batch, device=self.device)
        self._replays: dict[tuple[str, int], Replay] = {}

    @property
    def note(self) -> str:
        """The epoch."""
        return f"epoch {self._epoch.number + 1}" if self._epoch else ""

    @property
    def best_epoch(self) -> int:
        """The epoch that dev chose, counted from 1."""
        return int(self.stopping.best[0])

    def training(self) -> AbstractContextManager[Any]:
        """Return a context in which dropout is on."""
        return self.model.training()

    def step(self, number: int) -> None:
        """Learn from one batch of one task."""
        place = number % self.epoch_steps
        epoch = self._plan(number // self.epoch_steps)
        self.optimizer.set_share(self._rate_share(number))
        self._rows.copy_(epoch.rows[place])
        self._real.copy_(epoch.real[place])
        torch.manual_seed(derive_seed(self.seed, "draws", epoch.number, place))
        self._replay(epoch.steps[place])()
        self.losses[place].copy_(self._loss)

    def _plan(self, number: int) -> _Epoch:
        """Return an epoch's batches, drawn once."""
        if self._epoch is None or self._epoch.number != number:
            steps = plan_epoch(
                self.lengths,
                batch=self.config.batch,
                widest=self.widest,
                seed=derive_seed(self.seed, "epoch", number),
            )
            rows = np.zeros((len(steps), self.config.batch), dtype=np.int64)
            real = np.zeros((len(steps), self.config.batch), dtype=np.float32)
            for place, step in enumerate(steps):
                rows[place] = step.rows[0]
                rows[place, : len(step.rows)] = step.rows
                real[place, : len(step.rows)] = 1
            tables = (torch.from_numpy(table).to(self.device) for table in (rows, real))
            self._epoch = _Epoch(number, steps, *tables)
        return self._epoch

    def _rate_share(self, number: int) -> float:
        config = self.config
        return float(
            rate_share(
                number,
                self.steps,
                schedule=config.schedule,
                warmup=config.warmup,
                decay=config.decay,
                epoch=number // self.epoch_steps,
            )
        )

    def _replay(self, step: Step) -> Replay:
        """Return a step of this shape, recorded once."""
        key = (step.task, step.width)
        if key not in self._replays:
            work = partial(self._learn, step.task, step.width)
            state = [*self.optimizer.moved(), self._loss]
            self._replays[key] = self.recorder.capture(work, state)
        return self._replays[key]

    def _learn(self, task: str, width: int) -> None:
        """Forward pass, backward pass and update by the rows that were put in place."""
        losses, weights = self.model.loss(task, self._rows, width)
        weights = weights.float() * self._real
        # A row that fills a batch up may be anything but must not spread: 0 times infinity is no
        # number.
        counted = torch.where(weights > 0, losses.float() * weights, 0.0)
        loss = counted.sum() / weights.sum().clamp(min=1.0)
        self.optimizer.step(loss)
        self._loss.copy_(loss.detach())

    def evaluates_after(self, done: int) -> bool:
        """Return whether an epoch ends there."""
        return done > 0 and done % self.epoch_steps == 0

    def evaluate(self, done: int) -> dict[str, Any]:
        """Evaluate dev after an epoch, where that is due, and keep the best weights."""
        number = done // self.epoch_steps
        row: dict[str, Any] = {"epoch": number, "loss": float(self.losses.mean())}
        if number % self.config.choose_every == 0 or number == self.config.epochs:
            main, row["dev"] = self.score()
            self.stopping.update(np.array([main]), number, self._weights)
        return row

    def failure(self) -> str:
        """Return the message if a loss of this epoch or a weight is not finite."""
        bad = torch.nonzero(~torch.isfinite(self.losses)).flatten().tolist()
        if not bad and bool(torch.isfinite(self.optimizer.values).all()):
            return ""
        step = bad[0] + 1 if bad else self.epoch_steps
        epoch = self._epoch.number + 1 if self._epoch else 1
        return (
            f"the loss is not finite at epoch {epoch}, step {step}; lower learning.rate (now "
            f"{self.config.rate}), set learning.clip (now {self.config.clip}), or use dtype "
            "float32."
        )

    def load_best(self) -> None:
        """Put the weights of the best epoch in place, and let go of what was recorded."""
        super().load_best()
        self._replays.clear()
