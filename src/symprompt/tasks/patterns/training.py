"""The training of a model through a pattern: AdamW, dev32 evaluated every so many steps.

A step of a few short sentences is some thousand small kernels, and launching them takes longer
than running them. So the examples lie on the device in fixed shapes, and a pass (forward and
backward, for one width and number of examples) and the update are each recorded once as a CUDA
graph and replayed with other rows; several seeds train one after the other through the same
recordings.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from symprompt.accel.compiling import Recorder, Replay
from symprompt.engine.flat_adamw import FlatAdamW, ParameterGroup
from symprompt.engine.loop import EarlyStopping, rate_share
from symprompt.errors import TrainingError
from symprompt.runs.environment import derive_seed, send
from symprompt.tasks.patterns.config import LearningConfig
from symprompt.tasks.patterns.layout import VerbalLayout
from symprompt.tasks.patterns.model import ClassHead, VerbalModel
from symprompt.tasks.training import FlatTraining

_GRAIN = 64
"""Passes are as wide as a multiple of it: fewer widths are recorded."""


@dataclass(frozen=True)
class Evaluation:
    """One evaluation of dev: after which step, accuracy in percent, loss; final."""

    step: int
    accuracy: float
    loss: float

    def better_than(self, other: Evaluation | None) -> bool:
        """Return whether this is the one to keep: higher accuracy, or the same at a lower loss."""
        if other is None:
            return True
        return (self.accuracy, -self.loss) > (other.accuracy, -other.loss)


@dataclass(frozen=True)
class Recipe:
    """One training: its seed, rate and batch; final."""

    seed: int
    rate: float
    batch: int


@dataclass(frozen=True, eq=False)
class _Pass:
    """The fixed places that a recorded pass reads from."""

    rows: Tensor
    share: Tensor
    run: Replay


class PatternTraining(FlatTraining):
    """Trains one recipe after the other in the same places; final, an engine's Trainable.

    Args:
        model: what is trained; the gradients of its language model must be on where it is.
        layout: the training examples.
        learning: steps, evaluations, patience, weight decay, clip, micro-batches, dropout.
        look: evaluates dev as the model is now: (accuracy in percent, loss).
        record: record CUDA graphs where there is a GPU.

    Attributes:
        parameters: name -> parameter; those the loss does not depend on are left out.
    """

    stage = "training"
    note = ""

    def __init__(
        self,
        model: VerbalModel,
        layout: VerbalLayout,
        learning: LearningConfig,
        look: Callable[[], tuple[float, float]],
        *,
        record: bool = True,
    ) -> None:
        self.model = model
        self.layout = layout
        self.learning = learning
        self.look = look
        self.device = model.backbone.device
        self.parameters = self._find_parameters()
        self.optimizer = FlatAdamW(self._groups(), clip=learning.clip)
        self.recorder = Recorder(self.device, wanted=record and model.backbone.records)
        self._start = self.optimizer.values.clone()
        self.losses = torch.zeros((), dtype=torch.float64, device=self.device)
        self._passes: dict[tuple[int, int], _Pass] = {}
        self._update: Replay | None = None

    def _find_parameters(self) -> dict[str, nn.Parameter]:
        """Return what may be trained and the loss depends on, by a pass over one example."""
        named: dict[str, nn.Parameter] = {}
        if self.model.extra is not None:
            named |= {f"extra.{name}": own for name, own in self.model.extra.named_parameters()}
        named |= {
            f"model.{name}": own for name, own in self.model.backbone.model.named_parameters()
        }
        named = {name: value for name, value in named.items() if value.requires_grad}
        if not named:
            raise TrainingError("there is nothing to train; train the model or learn vectors.")
        rows = torch.zeros(1, dtype=torch.long, device=self.device)
        loss = self.model.loss(self.layout, rows, self.layout.width_of(np.zeros(1, dtype=np.int64)))
        found = torch.autograd.grad(loss.sum(), list(named.values()), allow_unused=True)
        pairs = zip(named.items(), found, strict=True)
        return {name: value for (name, value), gradient in pairs if gradient is not None}

    def _groups(self) -> list[ParameterGroup]:
        """The model's matrices decay; its vectors and what stands beside it do not."""
        extra = {name: own for name, own in self.parameters.items() if name.startswith("extra.")}
        model = {name: own for name, own in self.parameters.items() if name not in extra}
        plain = {name: own for name, own in model.items() if own.dim() < 2}
        decayed = {name: own for name, own in model.items() if name not in plain}
        return [
            ParameterGroup(extra, self.learning.prompt_rate),
            ParameterGroup(plain, 0.0),
            ParameterGroup(decayed, 0.0, self.learning.weight_decay),
        ]

    @torch.no_grad()
    def begin(self, recipe: Recipe, extra: nn.Module | None) -> None:
        """Put everything back to the start, for another recipe.

        Args:
            extra: a module of the model's extra kind, drawn from the recipe's seed.
        """
        self.recipe = recipe
        self.optimizer.reset(self._start)
        if extra is not None and self.model.extra is not None:
            drawn = dict(extra.named_parameters())
            views = dict(self.optimizer.views(self.optimizer.values))
            for name, own in self.model.extra.named_parameters():
                views.get(f"extra.{name}", own).copy_(drawn[name])
            self.optimizer.refresh()
        self.losses.zero_()
        self.stopping = EarlyStopping(self._weights, patience=self.learning.patience)

    @property
    def _epoch_steps(self) -> int:
        return max(1, len(self.layout) // self.recipe.batch)

    @property
    def steps(self) -> int:
        """How many steps the recipe takes at most."""
        return self.learning.epochs * self._epoch_steps or self.learning.steps

    @property
    def _every(self) -> int:
        return self.learning.evaluate_every or self._epoch_steps

    @property
    def best(self) -> Evaluation:
        """The best evaluation of dev so far."""
        step = min(int(self.stopping.best[0]) * self._every, self.steps)
        return Evaluation(step, float(self.stopping.score[0]), -float(self.stopping.tie[0]))

    # ------------------------------------------------------------------------------ steps

    def training(self) -> AbstractContextManager[None]:
        """Return a context in which dropout is on."""
        return self.model.training(dropout=self.learning.model_dropout)

    def step(self, number: int) -> None:
        """Learn from one batch, in passes of at most ``micro_batch`` examples."""
        torch.manual_seed(derive_seed(self.recipe.seed, "dropout", number))
        rows = batch_rows(number, len(self.layout), self.recipe)
        size = self.learning.micro_batch or len(rows)
        for first in range(0, len(rows), size):
            part = rows[first : first + size]
            index = send(part, self.device)
            own = self._pass(self.layout.width_of(part, _GRAIN), index)
            own.rows.copy_(index, non_blocking=True)
            own.share.fill_(1 / len(rows))
            own.run()
        self.optimizer.set_rates(self._rates(number))
        if self._update is None:
            self._update = self.recorder.capture(self._apply, self._moved())
        self._update()

    def _rates(self, number: int) -> list[float]:
        share = rate_share(number, self.steps, warmup=self.learning.warmup)
        head = isinstance(self.model.extra, ClassHead)
        return [
            float(share) * (self.recipe.rate if head or not group.rate else group.rate)
            for group in self.optimizer.groups
        ]

    def _pass(self, width: int, index: Tensor) -> _Pass:
        """Return a pass of this shape, recorded once."""
        key = (width, len(index))
        if key not in self._passes:
            # Rows that are no longer than the width: of others, places beyond it would be read.
            rows = index.clone()
            share = torch.zeros((), dtype=torch.float64, device=self.device)

            def run() -> None:
                losses = self.model.loss(self.layout, rows, width)
                loss = (losses * share.to(losses.dtype)).sum()
                self.optimizer.collect(loss, first=False)
                self.losses.add_(loss.detach().double())

            self._passes[key] = _Pass(rows, share, self.recorder.capture(run, self._moved()))
        return self._passes[key]

    def _apply(self) -> None:
        self.optimizer.update()
        self.optimizer.gradients.zero_()

    def _moved(self) -> list[Tensor]:
        return [*self.optimizer.moved(), self.losses]

    def close(self) -> None:
        """Let go of what was recorded, whose memory nothing else would take."""
        self._passes.clear()
        self._update = None

    # ------------------------------------------------------------------------------ dev

    def evaluates_after(self, done: int) -> bool:
        """Return whether dev is evaluated there; after the last step it always is."""
        return done > 0 and (done % self._every == 0 or done == self.steps)

    def evaluate(self, done: int) -> dict[str, Any]:
        """Evaluate dev and keep the best weights."""
        steps = done - (done - 1) // self._every * self._every
        train_loss = float(self.losses) / steps
        self.losses.zero_()
        accuracy, loss = self.look()
        number = -(-done // self._every)
        self.stopping.update(np.array([accuracy]), number, self._weights, tie=-loss)
        return {"step": done, "accuracy": accuracy, "loss": loss, "train_loss": train_loss}

    def failure(self) -> str:
        """Return the message if a loss since the last evaluation is not finite."""
        loss = float(self.losses)
        if np.isfinite(loss):
            return ""
        return (
            f"the loss is {loss} (seed {self.recipe.seed}, rate {self.recipe.rate}); take a lower "
            "rate."
        )

    @torch.no_grad()
    def load_weights(self, values: Tensor) -> None:
        """Put weights in place, [n] as the optimiser has them."""
        self.optimizer.values.copy_(values)
        self.optimizer.refresh()


def batch_rows(step: int, examples: int, recipe: Recipe) -> npt.NDArray[np.int64]:
    """Return a step's examples: epochs are shuffled, and one's last, smaller batch is left out."""
    batch = min(recipe.batch, examples)
    per_epoch = examples // batch
    epoch, place = divmod(step, per_epoch)
    seed = derive_seed(recipe.seed, "order", epoch)
    order = np.random.default_rng(seed).permutation(examples).astype(np.int64)
    return order[place * batch : (place + 1) * batch]
