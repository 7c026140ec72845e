"""The training loop of every command: rates, steps, the best evaluation, checkpoints, stopping.

A training is a ``Trainable``. Its steps follow from their numbers alone: batches, learning rates
and random draws are derived from (seed, number), so there is no random state to keep. That makes a
checkpoint at any step enough to go on with the numbers of an unbroken training.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from symprompt.accel.compiling import Recorder
from symprompt.engine.processes import ProcessGroup
from symprompt.errors import STOPPING, RunError, TrainingError
from symprompt.files.atomic import read_tensors, write_json, write_tensors
from symprompt.files.progress import Tick, silent
from symprompt.runs.folder import PROGRESS

State = tuple[dict[str, Tensor], dict[str, Any]]
"""Tensors by name, and plain values."""

_TOGETHER_STEPS = 10
"""Several processes agree on whether to stop after this many steps."""
_REST = 10
"""After a checkpoint so many times as long as it took is trained before the next one."""
TELL_SECONDS = 2.0
"""Least time between two notes of how far a training is, beside its checkpoint."""


class Trainable(Protocol):
    """What the loop trains: gradient steps, a search, a fit of weights.

    Attributes:
        stage: what progress is reported under.
        steps: how many there are in all.
        device: where the steps run.
        recorder: records them, where they are recorded.
        note: what is reported beside the number of steps.
        stopped: no further step is worth while.
    """

    stage: str
    device: torch.device
    recorder: Recorder

    @property
    def steps(self) -> int: ...

    @property
    def note(self) -> str: ...

    @property
    def stopped(self) -> bool: ...

    def training(self) -> AbstractContextManager[Any]:
        """Return a context for the steps between two evaluations, as one with dropout on."""

    def step(self, number: int) -> None:
        """Run a training step; numbers count from 0."""

    def evaluates_after(self, done: int) -> bool:
        """Say whether to evaluate after so many steps; 0 asks before the first one."""

    def evaluate(self, done: int) -> dict[str, Any] | None:
        """Evaluate, keep what is the best so far, and return a row of the history."""

    def failure(self) -> str:
        """Return what to say if a loss or a parameter is not finite; "" if all are."""

    def state_dict(self) -> State:
        """Return everything the next step depends on, but its number."""

    def load_state_dict(self, tensors: Mapping[str, Tensor], note: Mapping[str, Any]) -> None:
        """Go on from a stored state."""

    def load_best(self) -> None:
        """Put the best evaluation's parameters in place."""


@dataclass
class Progress:
    """How far a training is; a checkpoint holds it.

    Attributes:
        done: steps.
        seconds: time of all the processes that took turns in it, preparation left out.
        recording: of these, the seconds for compiling and recording steps.
        history: a row for every evaluation.
    """

    done: int = 0
    seconds: float = 0.0
    recording: float = 0.0
    history: list[dict[str, Any]] = field(default_factory=list)


class Loop:
    """Trains from the first step, or from a checkpoint, to the last; final.

    Args:
        trainable: what is trained.
        checkpoint: the file that holds an unfinished training; None keeps none.
        key: a checkpoint with another key is of another training and not gone on with.
        checkpoint_seconds: least time between two checkpoints; longer where they take long to
            write. 0 writes one after every step.
        tick: is called with every step.
        group: the processes that train together; None for one process.
    """

    def __init__(
        self,
        trainable: Trainable,
        *,
        checkpoint: Path | None = None,
        key: Any = None,
        checkpoint_seconds: float = 60.0,
        tick: Tick = silent,
        group: ProcessGroup | None = None,
    ) -> None:
        self.trainable = trainable
        self.progress = Progress()
        self._checkpoint = checkpoint
        self._key = key
        self._checkpoint_seconds = checkpoint_seconds
        self._rest = 0.0
        self._group = group or ProcessGroup(0, 1, trainable.device)
        # One process writes and reports for all.
        self._first = self._group.rank == 0
        self._tick = tick if self._first else silent
        self._stop_wanted = False
        self._stopping = False
        self._reported = False

    def run(self) -> Progress:
        """Train to the last step or until the trainable stops; leave its best parameters in place.

        Raises:
            TrainingError: a loss or a parameter is not finite.
            KeyboardInterrupt: Ctrl-C, a termination or a lost terminal; a checkpoint was written
                first.
            RunError: a checkpoint cannot be read or written.
        """
        trainable, progress = self.trainable, self._resume()
        self._begun = self._saved_at = self._told_at = time.monotonic()
        self._before = (progress.seconds, progress.recording)
        self._saved_step = progress.done
        self._tick(trainable.stage, progress.done, trainable.steps, "")
        with self._listening():
            if not progress.done and trainable.evaluates_after(0):
                self._evaluate()
            while progress.done < trainable.steps and not trainable.stopped:
                self._train()
                self._check()
                if trainable.evaluates_after(progress.done):
                    self._evaluate()
                self._pause()
        trainable.load_best()
        self._count_seconds()
        return progress

    def _train(self) -> None:
        """Run steps until an evaluation is due, or until there is a reason to pause."""
        trainable, progress = self.trainable, self.progress
        devices = [trainable.device] if trainable.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices), trainable.training():
            while progress.done < trainable.steps and not trainable.stopped:
                trainable.step(progress.done)
                progress.done += 1
                self._show()
                # Once a step, and by all processes.
                self._stopping = self._must_stop()
                if trainable.evaluates_after(progress.done) or self._stopping or self._is_due():
                    return

    def _evaluate(self) -> None:
        row = self.trainable.evaluate(self.progress.done)
        reason = self.trainable.recorder.reason
        if row is not None and reason and not self._reported:
            self._reported = True
            row = row | {"not recorded": reason}
        if row is not None:
            self.progress.history.append(row)

    def _show(self) -> None:
        trainable, now = self.trainable, time.monotonic()
        self._tick(trainable.stage, self.progress.done, trainable.steps, trainable.note)
        if self._checkpoint is not None and self._first and now - self._told_at >= TELL_SECONDS:
            self._told_at = now
            self._count_seconds()
            about = asdict(self.progress) | {
                "stage": trainable.stage,
                "total": trainable.steps,
                "note": trainable.note,
            }
            # Who looks on may miss a line; the training goes on.
            with suppress(RunError):
                write_json(self._checkpoint.with_name(PROGRESS), about)

    def _check(self) -> None:
        """Refuse what is not finite."""
        message = self.trainable.failure()
        if message:
            kept = (
                f" The checkpoint of step {self._saved_step} is kept." if self._saved_step else ""
            )
            raise TrainingError(message + kept)

    # ------------------------------------------------------------------------------ pauses

    def _pause(self) -> None:
        """Write a checkpoint where that is due, and stop where that is wanted."""
        if self._stopping or self._is_due():
            self.save()
        if self._stopping:
            # A process that ends first would have the others ended before they are done.
            self._group.wait()
            raise KeyboardInterrupt

    def _is_due(self) -> bool:
        if self._checkpoint is None or not self._first:
            return False
        wanted = self._checkpoint_seconds
        return time.monotonic() - self._saved_at >= (max(wanted, self._rest) if wanted else 0)

    def _must_stop(self) -> bool:
        if self._group.size == 1:
            return self._stop_wanted
        together = self.progress.done % _TOGETHER_STEPS == 0
        return together and self._group.any(self._stop_wanted)

    @contextmanager
    def _listening(self) -> Iterator[None]:
        """Take Ctrl-C, a termination and a lost terminal as a wish to stop after the step.

        In one process a second Ctrl-C stops at once.
        """

        def hear(number: int, frame: FrameType | None) -> None:
            if self._stop_wanted and self._group.size == 1 and number == signal.SIGINT:
                raise KeyboardInterrupt
            self._stop_wanted = True

        before: dict[signal.Signals, Callable[[int, FrameType | None], Any] | int | None] = {}
        if threading.current_thread() is threading.main_thread():
            for wanted in (signal.SIGINT, *STOPPING):
                # A process that its parent shields from Ctrl-C stays so.
                if signal.getsignal(wanted) is not signal.SIG_IGN:
                    before[wanted] = signal.signal(wanted, hear)
        try:
            yield
        finally:
            for wanted, handler in before.items():
                signal.signal(wanted, handler)

    # ------------------------------------------------------------------------------ checkpoints

    def save(self) -> None:
        """Write a checkpoint; one process does it for all."""
        self._count_seconds()
        begun = time.monotonic()
        if self._checkpoint is not None and self._first:
            tensors, note = self.trainable.state_dict()
            about = {"key": self._key, "progress": asdict(self.progress), "note": note}
            write_tensors(self._checkpoint, tensors, about)
        self._saved_step = self.progress.done
        self._saved_at = time.monotonic()
        self._rest = _REST * (self._saved_at - begun)

    def _resume(self) -> Progress:
        """Go on from the checkpoint if there is one of this training."""
        if self._checkpoint is None or not self._checkpoint.is_file():
            return self.progress
        tensors, about = read_tensors(self._checkpoint)
        try:
            if about["key"] != self._key:
                return self.progress
            progress = Progress(**about["progress"])
            self.trainable.load_state_dict(tensors, about["note"])
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise RunError(
                f"{self._checkpoint} is damaged or of another training: {error}; delete that file "
                "to train from the start."
            ) from error
        self.progress = progress
        return progress

    def _count_seconds(self) -> None:
        seconds, recording = self._before
        self.progress.seconds = seconds + time.monotonic() - self._begun
        self.progress.recording = recording + self.trainable.recorder.seconds


_KEPT = ("score", "tie", "best", "raised", "stopped")
_NEVER = -2
"""Before the first evaluation; one of what training starts from is -1."""


class EarlyStopping:
    """Keeps each relation's best values, and stops those that get no better; final.

    A training without relations is the case of one relation.

    Args:
        values: name -> [relation, ...], what is trained; each relation's best rows are copied.
        patience: evaluations, or whatever ``at`` counts, without a higher score after which a
            relation stops; 0 never stops one.

    Attributes:
        score: [relation] the best score so far.
        tie: [relation] what chose among equal scores, higher is better.
        best: [relation] where the best score was.
        raised: [relation] where patience is counted from.
        stopped: [relation] bool.
        values: name -> [relation, ...] the best rows; those of the start before any evaluation.
    """

    def __init__(self, values: Mapping[str, Tensor], *, patience: int) -> None:
        relations = len(next(iter(values.values())))
        self.patience = patience
        self.score = np.full(relations, -np.inf)
        self.tie = np.full(relations, -np.inf)
        self.best = np.full(relations, _NEVER, dtype=np.int64)
        self.raised = np.full(relations, _NEVER, dtype=np.int64)
        self.stopped = np.zeros(relations, dtype=bool)
        self.values = {name: value.detach().clone() for name, value in values.items()}

    @torch.no_grad()
    def update(
        self,
        scores: np.ndarray,
        at: int,
        values: Mapping[str, Tensor],
        *,
        tie: np.ndarray | float = 0.0,
        tie_counts: bool = False,
    ) -> None:
        """Take an evaluation's scores, higher is better.

        Args:
            at: the number of the evaluation or epoch.
            values: as they are now.
            tie: chooses among equal scores, higher is better; equal ones take the earlier.
            tie_counts: whether a score that wins a tie is worth more patience.
        """
        scores = np.where(np.isnan(scores), -np.inf, scores)
        higher = (scores > self.score) | (self.best == _NEVER)
        wins = higher | ((scores == self.score) & (tie > self.tie))
        higher, wins = higher & ~self.stopped, wins & ~self.stopped
        self.score = np.where(wins, scores, self.score)
        self.tie = np.where(wins, tie, self.tie)
        self.best = np.where(wins, at, self.best)
        self.raised = np.where(wins if tie_counts else higher, at, self.raised)
        if self.patience:
            self.stopped = self.stopped | (at - self.raised >= self.patience)
        for name, value in values.items():
            if wins.all():
                self.values[name].copy_(value)
            elif wins.any():
                mask = torch.from_numpy(wins).to(value.device)
                self.values[name][mask] = value.detach()[mask]

    @torch.no_grad()
    def load_best(self, values: Mapping[str, Tensor]) -> None:
        """Put each relation's best values in place."""
        for name, value in values.items():
            value.copy_(self.values[name])

    def state_dict(self) -> dict[str, Tensor]:
        """Return everything that later evaluations depend on."""
        numbers = {name: torch.from_numpy(getattr(self, name)) for name in _KEPT}
        return {**numbers, **{f"values/{name}": value for name, value in self.values.items()}}

    @torch.no_grad()
    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on from a stored state.

        Raises:
            KeyError, ValueError, RuntimeError: it is damaged or of another training.
        """
        for name in _KEPT:
            if tensors[name].shape != (len(self.score),):
                raise ValueError(f"{name} has the shape {list(tensors[name].shape)}")
            setattr(self, name, tensors[name].cpu().numpy())
        for name, value in self.values.items():
            fill(value, tensors[f"values/{name}"])


@torch.no_grad()
def fill(tensor: Tensor, stored: Tensor) -> None:
    """Put stored values into a tensor's place.

    Raises:
        ValueError: they are of another shape.
    """
    if tensor.shape != stored.shape:
        raise ValueError(f"the shape {list(stored.shape)} is not {list(tensor.shape)}")
    tensor.copy_(stored)


ScheduleName = Literal["linear", "exponential", "constant"]


def rate_share(
    step: Any,
    steps: Any,
    *,
    schedule: ScheduleName = "linear",
    warmup: float = 0.0,
    decay: float = 1.0,
    epoch: int = 0,
) -> Any:
    """Return the share of its highest value that a learning rate has at a step.

    Args:
        step: counted from 0; a number or an array.
        steps: how many there are in all; a number or an array.
        schedule: linear falls to zero over the steps after the warm-up, exponential is multiplied
            by ``decay`` after each epoch.
        warmup: share of all steps over which the rate rises from zero.
        decay: factor per epoch of the exponential schedule.
        epoch: which one the step is in.
    """
    rising = warmup * steps
    rise = np.clip((step + 1) / rising, 0.0, 1.0) if warmup else 1.0
    if schedule == "exponential":
        return rise * decay**epoch
    if schedule == "constant":
        return rise * np.ones_like(step, dtype=np.float64)
    return np.minimum(rise, np.clip((steps - step) / (steps - rising), 0.0, 1.0))
