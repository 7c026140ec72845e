"""The loop: steps, looks at dev32, the best step, early stopping, checkpoints."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from symprompt.errors import RunError, TrainingError
from symprompt.files.atomic import read_tensors, write_tensors
from symprompt.runs.environment import derive_seed
from symprompt.tasks.patterns.config import LearningConfig
from symprompt.tasks.patterns.model import ClassHead
from symprompt.tasks.patterns.stepping import Stepper


@dataclass(frozen=True)
class Look:
    """One look at dev: after which step, accuracy in percent, loss, mean training loss; final."""

    step: int
    accuracy: float
    loss: float
    train_loss: float

    def better_than(self, other: Look | None) -> bool:
        """Say whether this is the one to keep: higher accuracy, or the same at a lower loss."""
        if other is None:
            return True
        return (self.accuracy, -self.loss) > (other.accuracy, -other.loss)


@dataclass(frozen=True)
class Recipe:
    """One training: its seed, rate and batch; final."""

    seed: int
    rate: float
    batch: int


@dataclass
class Progress:
    """What a training has seen so far; a checkpoint holds it."""

    step: int
    looks: list[Look]
    best: Look | None
    stale: int
    seconds: float

    @classmethod
    def start(cls) -> Progress:
        """Return the state before the first step."""
        return cls(0, [], None, 0, 0.0)


class Training:
    """Trains one recipe at a time through the same stepper; final.

    Args:
        stepper: makes the steps; reset to the recipe's seed before ``run``.
        learning: steps, looks at dev, patience.
        look: measures dev as the model is now: (accuracy in percent, loss).
        key: what a checkpoint must be of to be gone on from.
        state: where an unfinished training is kept; None keeps none.
        checkpoint_seconds: least time between two checkpoints.
    """

    def __init__(
        self,
        stepper: Stepper,
        learning: LearningConfig,
        look: Callable[[], tuple[float, float]],
        *,
        key: str = "",
        state: Path | None = None,
        checkpoint_seconds: float = 60.0,
    ) -> None:
        self.stepper = stepper
        self.learning = learning
        self.look = look
        self.key = key
        self.state = state
        self.checkpoint_seconds = checkpoint_seconds
        self._best: dict[str, Tensor] = {}

    def run(self, recipe: Recipe) -> Progress:
        """Train, and leave the stepper with the parameters of the best look at dev.

        Raises:
            TrainingError: the loss is not finite.
        """
        progress = self._resume(recipe)
        steps, every = self.plan(recipe)
        began, saved = time.monotonic() - progress.seconds, time.monotonic()
        while progress.step < steps and not self._stopped(progress):
            count = min(every, steps - progress.step)
            self._steps(recipe, progress.step, count, steps)
            progress.step += count
            self._take_look(progress, count, recipe)
            progress.seconds = time.monotonic() - began
            if time.monotonic() - saved >= self.checkpoint_seconds:
                self._save(recipe, progress)
                saved = time.monotonic()
        if self._best:
            self.stepper.set_parameters(self._best)
        return progress

    def plan(self, recipe: Recipe) -> tuple[int, int]:
        """Return how many steps there are, and after how many dev is looked at."""
        per_epoch = max(1, len(self.stepper.layout) // recipe.batch)
        steps = self.learning.epochs * per_epoch or self.learning.steps
        return steps, self.learning.evaluate_every or per_epoch

    def finish(self) -> None:
        """Remove the checkpoint: what came of the training is stored elsewhere."""
        if self.state is not None:
            self.state.unlink(missing_ok=True)

    def _stopped(self, progress: Progress) -> bool:
        return bool(self.learning.patience) and progress.stale >= self.learning.patience

    def _steps(self, recipe: Recipe, first: int, count: int, steps: int) -> None:
        device = self.stepper.device
        devices = [device] if device.type == "cuda" else []
        # Dropout draws from a state that depends on seed and step alone, so that nothing random has
        # to be stored.
        with torch.random.fork_rng(devices=devices), self._training():
            torch.manual_seed(derive_seed(recipe.seed, "dropout", first))
            for step in range(first, first + count):
                share = rate_share(step, steps, self.learning.warmup)
                rates = {"model": recipe.rate * share, "extra": self._extra_rate(recipe) * share}
                rows = batch_rows(step, len(self.stepper.layout), recipe)
                self.stepper.step(rows, rates)

    def _training(self) -> AbstractContextManager[None]:
        return self.stepper.model.training(dropout=self.learning.dropout)

    def _extra_rate(self, recipe: Recipe) -> float:
        head = isinstance(self.stepper.model.extra, ClassHead)
        return recipe.rate if head else self.learning.prompt_rate

    def _take_look(self, progress: Progress, count: int, recipe: Recipe) -> None:
        train_loss = self.stepper.take_loss() / count
        if not math.isfinite(train_loss):
            raise TrainingError(
                f"the loss is {train_loss} after step {progress.step} (seed {recipe.seed}, rate "
                f"{recipe.rate}); take a lower rate."
            )
        accuracy, loss = self.look()
        look = Look(progress.step, accuracy, loss, train_loss)
        higher = progress.best is None or accuracy > progress.best.accuracy
        progress.stale = 0 if higher else progress.stale + 1
        progress.looks.append(look)
        if look.better_than(progress.best):
            progress.best = look
            self.stepper.copy_parameters(self._best)

    # ------------------------------------------------------------------------------ checkpoints

    def _about(self, recipe: Recipe) -> dict[str, Any]:
        return {"key": self.key, "recipe": asdict(recipe)}

    def _save(self, recipe: Recipe, progress: Progress) -> None:
        if self.state is None:
            return
        tensors = {f"now:{name}": value for name, value in self.stepper.save().items()}
        tensors |= {f"best:{name}": value for name, value in self._best.items()}
        write_tensors(self.state, tensors, {**self._about(recipe), "progress": asdict(progress)})

    def _resume(self, recipe: Recipe) -> Progress:
        self._best = {}
        if self.state is None or not self.state.is_file():
            return Progress.start()
        tensors, about = read_tensors(self.state)
        if {key: about.get(key) for key in ("key", "recipe")} != self._about(recipe):
            return Progress.start()
        try:
            stored = about["progress"]
            looks = [Look(**entry) for entry in stored["looks"]]
            best = None if stored["best"] is None else Look(**stored["best"])
            progress = Progress(stored["step"], looks, best, stored["stale"], stored["seconds"])
            now = {key[4:]: own for key, own in tensors.items() if key.startswith("now:")}
            self.stepper.load(now)
        except (KeyError, TypeError) as error:
            raise RunError(
                f"{self.state} is no checkpoint of this training; remove it to begin anew."
            ) from error
        device = self.stepper.device
        self._best = {
            key[5:]: own.to(device) for key, own in tensors.items() if key.startswith("best:")
        }
        return progress


def rate_share(step: int, steps: int, warmup: int) -> float:
    """Return which share of its highest value a rate has at a step, counted from 0."""
    if step < warmup:
        return step / warmup
    return max(0.0, (steps - step) / max(1, steps - warmup))


def batch_rows(step: int, examples: int, recipe: Recipe) -> npt.NDArray[np.int64]:
    """Return a step's examples: epochs are shuffled, and one's last, smaller batch is left out."""
    batch = min(recipe.batch, examples)
    per_epoch = examples // batch
    epoch, place = divmod(step, per_epoch)
    seed = derive_seed(recipe.seed, "order", epoch)
    order = np.random.default_rng(seed).permutation(examples).astype(np.int64)
    return order[place * batch : (place + 1) * batch]
