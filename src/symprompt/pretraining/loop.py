"""The state of an unfinished training: to a file and back, so that a kill changes nothing.

The training loop: steps, losses, checkpoints, and what stops it.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from symprompt.errors import RunError, TrainingError
from symprompt.files.atomic import read_tensors, write_tensors
from symprompt.files.progress import Tick, silent
from symprompt.pretraining.batch import DeviceBatch, Fed, Feed
from symprompt.pretraining.step import Learner, Reading

_KINDS = ("values", "means", "squares")
_WINDOW = "window"


@dataclass
class Progress:
    """How far a training is.

    Attributes:
        done: steps.
        tokens: tokens seen, padding left out.
        seconds: time spent by all the processes that took turns in it, preparation left out.
        first_seconds: of these, time for each process's first step, which compiles.
        steady_tokens: tokens of the other steps.
        history: the loss curve, a row for every record.
    """

    done: int = 0
    tokens: int = 0
    seconds: float = 0.0
    first_seconds: float = 0.0
    steady_tokens: int = 0
    history: list[dict[str, Any]] = field(default_factory=list)

    @property
    def tokens_per_second(self) -> float:
        """Tokens per second, each process's first step left out."""
        steady = self.seconds - self.first_seconds
        return self.steady_tokens / steady if steady > 0 and self.steady_tokens else 0.0


def save_state(path: Path, learner: Learner, progress: Progress) -> None:
    """Write everything the next step depends on."""
    tensors = {_WINDOW: learner.window}
    for kind in _KINDS:
        flat = getattr(learner.weights, kind).cpu()
        tensors |= {f"{kind}/{name}": view for name, view in learner.weights.views(flat)}
    note = {"window_steps": learner.window_steps, "dtype": str(learner.dtype)}
    write_tensors(path, tensors, asdict(progress) | note)


def load_state(path: Path, learner: Learner) -> Progress:
    """Put a stored state in place; return how far it was.

    Raises:
        RunError: the file is missing or damaged, or the passes were in another dtype.
    """
    tensors, note = read_tensors(path)
    try:
        if note["dtype"] != str(learner.dtype):
            before, now = (
                name.removeprefix("torch.") for name in (note["dtype"], str(learner.dtype))
            )
            raise RunError(
                f"{path.parent} was begun in {before} and would go on in {now}; resume on the same "
                "kind of device, or choose another --out."
            )
        with torch.no_grad():
            for kind in _KINDS:
                flat = getattr(learner.weights, kind)
                for name, view in learner.weights.views(flat):
                    stored = tensors[f"{kind}/{name}"]
                    if stored.shape != view.shape:
                        raise ValueError(f"{name} has the shape {list(stored.shape)}")
                    view.copy_(stored)
            learner.window.copy_(tensors[_WINDOW])
        learner.window_steps = note["window_steps"]
        progress = Progress(**{entry.name: note[entry.name] for entry in fields(Progress)})
    except KeyError as error:
        raise RunError(f"{path} is damaged: {error} is missing.") from error
    except (TypeError, ValueError, RuntimeError) as error:
        raise RunError(f"{path} is damaged: {error}.") from error
    learner.updater.set_step(progress.done)
    learner.weights.refresh()
    return progress


STAGE = "training"
# Losses are read this often at least: reading waits for the device.
_READ_STEPS = 20
_READ_SECONDS = 0.5
# Several processes must read, and ask each other whether to stop, at the same steps.
_TOGETHER_STEPS = 10
_RECORDS = 100


class Loop:
    """A training from its first step, or from where it was, to its last; final.

    Args:
        learner: with the state it goes on from.
        feed: the batches.
        validation: a fixed batch for the validation loss; None gives none.
        progress: how far it is; kept up to date.
        state: the file that checkpoints go to.
        tick: told of the steps, with the loss and tokens per second.
    """

    def __init__(
        self,
        learner: Learner,
        feed: Feed,
        validation: DeviceBatch | None,
        progress: Progress,
        *,
        state: Path,
        tick: Tick = silent,
    ) -> None:
        self.learner = learner
        self.progress = progress
        self._feed = feed
        self._validation = validation
        self._state = state
        self._config = learner.config
        self._group = learner.group
        self._tick = tick if learner.group.is_first else silent
        self._stop = _Stop()
        self._before = progress.seconds
        self._begun = self._read_at = self._saved_at = time.monotonic()
        self._saved_step = progress.done if progress.done else -1
        # Tokens and time at the last sight of the device: rates are counted from there.
        self._shown = self._recorded = (progress.tokens, self._begun)

    def run(self) -> Progress:
        """Train to the last step.

        Raises:
            TrainingError: a loss is not finite.
            KeyboardInterrupt: the user or the system asked to stop; the state was written first.
            RunError: a checkpoint cannot be written.
        """
        steps, progress = self._config.optimizer.steps, self.progress
        self._tick(STAGE, progress.done, steps, "")
        with self._stop.listen(alone=self._group.size == 1):
            batches = self._feed.run(progress.done, steps, self.learner.device)
            try:
                for turn, fed in enumerate(batches):
                    self._step(fed, first=turn == 0)
            finally:
                # At once, and not when the generator is collected: its thread holds the corpus.
                batches.close()
        progress.seconds = self._seconds()
        return progress

    def _step(self, fed: Fed, *, first: bool) -> None:
        progress = self.progress
        self.learner.step(progress.done, fed.batch)
        progress.done += 1
        progress.tokens += fed.tokens
        if first:
            self._note_first()
        else:
            progress.steady_tokens += fed.tokens
        if self._is_record():
            self._record()
            self._save_if_due()
        elif self._is_reading():
            self._show(self._checked(self.learner.read()))
            self._save_if_due()
        if self._must_stop():
            self._checked(self.learner.read())
            self._save()
            # A process that ends first would have the others ended before they are done.
            self._group.wait()
            raise KeyboardInterrupt

    def _note_first(self) -> None:
        """Count the first step apart: it compiles."""
        self._checked(self.learner.read())
        now = time.monotonic()
        self.progress.first_seconds += now - self._begun
        self._shown = self._recorded = (self.progress.tokens, now)

    def _is_record(self) -> bool:
        done, steps = self.progress.done, self._config.optimizer.steps
        every = max(1, steps // _RECORDS)
        return done % every == 0 or done == steps or self._is_evaluation()

    def _is_evaluation(self) -> bool:
        done = self.progress.done
        return done % self._config.evaluate_every == 0 or done == self._config.optimizer.steps

    def _is_reading(self) -> bool:
        if self._group.size > 1:
            return self.progress.done % _TOGETHER_STEPS == 0
        waited = time.monotonic() - self._read_at
        return self.progress.done % _READ_STEPS == 0 or waited >= _READ_SECONDS

    def _record(self) -> None:
        """Add a row to the loss curve, with the validation loss where it is due."""
        reading = self._checked(self.learner.record())
        progress = self.progress
        tokens, before = self._recorded
        spent = max(time.monotonic() - before, 1e-9)
        row: dict[str, Any] = {
            "step": progress.done,
            "tokens": progress.tokens,
            "loss": sum(reading.loss.values()),
            "parts": reading.loss,
            "gradient_norm": reading.norm,
            "rate": self.learner.updater.rate(progress.done - 1),
            "tokens_per_second": round((progress.tokens - tokens) / spent),
            "validation": None,
        }
        self._show(reading)
        if self._is_evaluation() and self._validation is not None and self._group.is_first:
            row["validation"] = self.learner.evaluate(self._validation)
        progress.history.append(row)
        self._recorded = self._shown = (progress.tokens, time.monotonic())

    def _show(self, reading: Reading) -> None:
        """Tell of a reading."""
        tokens, before = self._shown
        now = time.monotonic()
        rate = (self.progress.tokens - tokens) / max(now - before, 1e-9)
        self._shown = (self.progress.tokens, now)
        self._read_at = now
        speed = f", {short_number(rate)} tokens/s" if rate else ""
        note = f"loss {sum(reading.loss.values()):.3f}{speed}"
        self._tick(STAGE, self.progress.done, self._config.optimizer.steps, note)

    def _save_if_due(self) -> None:
        if time.monotonic() - self._saved_at >= self._config.checkpoint_seconds:
            self._save()

    def _save(self) -> None:
        """Write the state; one process does it for all."""
        self.progress.seconds = self._seconds()
        if self._group.is_first and self._saved_step != self.progress.done:
            save_state(self._state, self.learner, self.progress)
        self._saved_step = self.progress.done
        self._saved_at = time.monotonic()

    def _seconds(self) -> float:
        return self._before + time.monotonic() - self._begun

    def _must_stop(self) -> bool:
        if self._group.size == 1:
            return self._stop.asked
        together = self.progress.done % _TOGETHER_STEPS == 0
        return together and self._group.any(self._stop.asked)

    def _checked(self, reading: Reading) -> Reading:
        if reading.broken:
            kept = (
                f"the checkpoint of step {self._saved_step} is kept"
                if self._saved_step > 0
                else "no checkpoint was written yet"
            )
            raise TrainingError(
                f"the loss or its gradient is not finite at step {reading.broken}; lower "
                f"optimizer.rate (now {self._config.optimizer.rate:g}) or raise optimizer.warmup "
                f"({kept})."
            )
        return reading


class _Stop:
    """Whether Ctrl-C or a termination was asked for while a block ran."""

    def __init__(self) -> None:
        self.asked = False

    @contextmanager
    def listen(self, *, alone: bool) -> Iterator[None]:
        """Take both signals as a wish to stop; alone, a second Ctrl-C stops at once."""

        def hear(number: int, frame: FrameType | None) -> None:
            if self.asked and alone and number == signal.SIGINT:
                raise KeyboardInterrupt
            self.asked = True

        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, hear) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def short_number(value: float) -> str:
    """Return a number with three digits and a unit: 2.21 M, 45.3 k, 870."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.3g}"
