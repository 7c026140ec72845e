"""The training loop of labelled tasks: AdamW, a choice of epochs on dev, checkpoints, CUDA graphs.

A step reads inputs of one task that are laid out on the device, padded to one of few shapes (width,
batch). On a GPU the whole step, forward, backward and update, is recorded once per shape as a CUDA
graph and replayed with other rows: small models are bound by launches otherwise. Rows that fill a
batch up count zero. Random numbers are seeded step by step, so that a killed training goes on with
the numbers of an unbroken one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from symprompt.accel.compiling import rehearse
from symprompt.engine.flat_adamw import FlatAdamW, make_groups
from symprompt.errors import TrainingError
from symprompt.files.progress import Tick, silent
from symprompt.runs.environment import derive_seed
from symprompt.tasks.config import LearningConfig
from symprompt.tasks.passes import Step, plan_epoch, table_of

_TICK_EVERY = 10
_LOOK_EVERY = 64
"""Steps between two looks at whether it is time for a checkpoint: a look waits for the device."""


class Trainee(Protocol):
    """What the loop trains: numbers in a body and in heads, and a loss for rows of a task."""

    @property
    def device(self) -> torch.device:
        """Where it computes."""

    def body_parameters(self) -> dict[str, nn.Parameter]:
        """Return what is trained besides heads, by name; prompts' names begin with "prompt."."""

    def head_parameters(self) -> dict[str, nn.Parameter]:
        """Return what is trained of the heads."""

    def loss(self, task: str, rows: Tensor, width: int) -> tuple[Tensor, Tensor]:
        """Return the losses [b] of training inputs of a task, and what each counts [b]."""

    def training(self) -> Any:
        """Return a context in which dropout is on."""


@dataclass
class Progress:
    """How far a training is; everything in it is stored."""

    epoch: int = 0
    step: int = 0
    best_epoch: int = -1
    best_score: float = -np.inf
    seconds: float = 0.0
    stopped: bool = False
    history: list[dict[str, Any]] = field(default_factory=list)


Score = Callable[[], tuple[float, dict[str, float]]]
"""Asks dev: the number that chooses (larger is better), and all of dev's numbers."""
Checkpoint = Callable[[dict[str, Tensor], dict[str, Any]], None]


class TaskTrainer:
    """Trains a model on the training inputs of one task or several; final.

    Args:
        model: what is trained.
        lengths: task -> [n] tokens of each training input.
        widest: task -> tokens of the widest.
        config: how it is learned.
        seed: of order and dropout.
        record: record steps as CUDA graphs where there is a GPU.
        epochs: instead of the config's.
    """

    def __init__(
        self,
        model: Trainee,
        lengths: Mapping[str, np.ndarray],
        widest: Mapping[str, int],
        config: LearningConfig,
        *,
        seed: int,
        record: bool = True,
        epochs: int = 0,
    ) -> None:
        self.model = model
        self.lengths = dict(lengths)
        self.widest = dict(widest)
        self.config = config
        self.seed = seed
        self.epochs = epochs or config.epochs
        self.device = model.device
        groups = make_groups(
            model.body_parameters(),
            model.head_parameters(),
            rate=config.rate,
            head_rate=config.head_rate,
            weight_decay=config.weight_decay,
        )
        self.optimizer = FlatAdamW(groups, clip=config.clip)
        self.progress = Progress()
        self.recording = record and self.device.type == "cuda"
        self._best: list[Tensor] = []
        self._losses = torch.zeros(0, device=self.device)
        self._loss = torch.zeros((), device=self.device)
        self._rows = torch.zeros(config.batch, dtype=torch.long, device=self.device)
        self._real = torch.zeros(config.batch, device=self.device)
        self._graphs: dict[tuple[str, int], Callable[[], None]] = {}
        self._pool: Any = None

    def run(
        self,
        score: Score,
        *,
        tick: Tick = silent,
        checkpoint: Checkpoint | None = None,
        checkpoint_seconds: float = 60.0,
    ) -> None:
        """Train to the last epoch or until dev gets no better; leave the best epoch in place.

        Raises:
            TrainingError: a loss is not finite.
        """
        self._begun = time.perf_counter() - self.progress.seconds
        self._saved = time.perf_counter()
        self._every = checkpoint_seconds
        while self.progress.epoch < self.epochs and not self.progress.stopped:
            self._learn_epoch(tick, checkpoint)
            self._choose(score)
            self.progress.epoch += 1
            self.progress.step = 0
            self._store(checkpoint)
        if self._best:
            with torch.no_grad():
                for flat, best in zip(self.optimizer.values, self._best, strict=True):
                    flat.copy_(best)
        self.progress.seconds = time.perf_counter() - self._begun
        self._graphs.clear()

    def to_tensors(self) -> dict[str, Tensor]:
        """Return what a stored training needs: numbers, moments, the best epoch's, this epoch's
        losses."""
        best = {f"best/{place}": value for place, value in enumerate(self._best)}
        return {**self.optimizer.to_tensors(), **best, "losses": self._losses}

    def load(self, tensors: Mapping[str, Tensor], note: Mapping[str, Any]) -> None:
        """Take up a stored training.

        Raises:
            ValueError, TypeError, KeyError: it is damaged or of another training.
        """
        self.optimizer.load_tensors(tensors)
        self.progress = Progress(**note["progress"])
        if self.progress.best_epoch >= 0:
            self._best = [
                tensors[f"best/{place}"].to(self.device)
                for place in range(len(self.optimizer.values))
            ]
        self._losses = tensors["losses"].to(self.device)

    def _learn_epoch(self, tick: Tick, checkpoint: Checkpoint | None) -> None:
        epoch = self.progress.epoch
        steps = plan_epoch(
            self.lengths,
            batch=self.config.batch,
            widest=self.widest,
            seed=derive_seed(self.seed, "epoch", epoch),
        )
        rows, real = (
            torch.from_numpy(table).to(self.device) for table in table_of(steps, self.config.batch)
        )
        rates = self._rates(len(steps))
        if not self.progress.step:
            self._losses = torch.zeros(len(steps), device=self.device)
        total = self.epochs * len(steps)
        with self._randomness(), self.model.training():
            for place in range(self.progress.step, len(steps)):
                self.optimizer.set_rate(float(rates[place]))
                self._rows.copy_(rows[place])
                self._real.copy_(real[place])
                torch.manual_seed(derive_seed(self.seed, "draws", epoch, place))
                self._run_step(steps[place])
                self._losses[place].copy_(self._loss)
                self.progress.step = place + 1
                if place % _TICK_EVERY == 0 or place + 1 == len(steps):
                    tick("training", epoch * len(steps) + place + 1, total, f"epoch {epoch + 1}")
                if place % _LOOK_EVERY == _LOOK_EVERY - 1:
                    self._store(checkpoint)
        self._check_finite(self._losses)

    def _rates(self, steps: int) -> np.ndarray:
        """Return this epoch's learning rates as shares of the highest."""
        config, total = self.config, self.epochs * steps
        rising = config.warmup * total
        done = self.progress.epoch * steps + np.arange(steps)
        rise = np.clip((done + 1) / rising, 0, 1) if rising else np.ones(steps)
        if config.schedule == "exponential":
            return rise * config.decay**self.progress.epoch
        if config.schedule == "constant":
            return rise
        # The rate falls from its height to zero over what is left after the rise.
        return np.minimum(rise, np.clip((total - done) / (total - rising), 0, 1))

    @contextmanager
    def _randomness(self) -> Iterator[None]:
        devices = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            yield

    def _run_step(self, step: Step) -> None:
        key = (step.task, step.width)
        if self.recording and key not in self._graphs:
            self._record(step)
        if self.recording:
            self._graphs[key]()
        else:
            self._step(step)

    def _step(self, step: Step) -> None:
        losses, weights = self.model.loss(step.task, self._rows, step.width)
        weights = weights.float() * self._real
        # A row that fills a batch up may be anything but must not spread: 0 times infinity is no
        # number.
        counted = torch.where(weights > 0, losses.float() * weights, 0.0)
        loss = counted.sum() / weights.sum().clamp(min=1.0)
        self.optimizer.step(loss)
        self._loss.copy_(loss.detach())

    def _record(self, step: Step) -> None:
        """Record a step of a new shape; a model that cannot be recorded runs without."""
        before = {name: value.clone() for name, value in self.optimizer.to_tensors().items()}
        state = torch.cuda.get_rng_state(self.device)
        graph = torch.cuda.CUDAGraph()
        try:
            stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
            rehearse(lambda: self._step(step), stream)
            self._pool = self._pool or torch.cuda.graph_pool_handle()
            with torch.cuda.graph(graph, pool=self._pool):
                self._step(step)
            self._graphs[step.task, step.width] = graph.replay
        except RuntimeError as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            self.recording = False
            self._graphs.clear()
            self.progress.history.append(
                {"epoch": self.progress.epoch + 1, "not recorded": str(error).splitlines()[0]}
            )
        torch.cuda.set_rng_state(state, self.device)
        # The rehearsals moved the numbers; recording itself runs nothing.
        self.optimizer.load_tensors(before)

    def _check_finite(self, losses: Tensor) -> None:
        bad = torch.nonzero(~torch.isfinite(losses)).flatten().tolist()
        broken = [flat for flat in self.optimizer.values if not bool(torch.isfinite(flat).all())]
        if bad or broken:
            step = bad[0] + 1 if bad else len(losses)
            raise TrainingError(
                f"the loss is not finite at epoch {self.progress.epoch + 1}, step {step}; lower "
                f"learning.rate (now {self.config.rate}), set learning.clip (now "
                f"{self.config.clip}), or use dtype float32."
            )

    def _choose(self, score: Score) -> None:
        """Ask dev after an epoch, keep the best numbers, and see whether to stop."""
        progress, config = self.progress, self.config
        number = progress.epoch + 1
        entry: dict[str, Any] = {"epoch": number, "loss": float(self._losses.mean())}
        if number % config.choose_every == 0 or number == self.epochs:
            main, entry["dev"] = score()
            if main > progress.best_score or progress.best_epoch < 0:
                progress.best_epoch, progress.best_score = number, main
                self._best = [flat.detach().clone() for flat in self.optimizer.values]
            waited = number - progress.best_epoch
            progress.stopped = bool(config.patience) and waited >= config.patience
        progress.history.append(entry)

    def _store(self, checkpoint: Checkpoint | None) -> None:
        if checkpoint is None or time.perf_counter() - self._saved < self._every:
            return
        self._check_finite(self._losses)
        self.progress.seconds = time.perf_counter() - self._begun
        checkpoint(self.to_tensors(), {"progress": vars(self.progress)})
        self._saved = time.perf_counter()
