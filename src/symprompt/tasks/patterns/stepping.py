"""Steps of AdamW on a language model and what stands beside it, recorded as CUDA graphs.

A step of a few short sentences is some thousand small kernels, and launching them takes longer
than running them. Here the examples lie on the device in fixed shapes, so a pass (forward and
backward, for one width and number of examples) and the update are each recorded once and replayed
with other rows; several seeds train one after the other through the same recordings. Where a model
does something that cannot be recorded, the same passes run kernel by kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from symprompt.accel.compiling import rehearse
from symprompt.errors import TrainingError
from symprompt.runs.environment import send
from symprompt.tasks.patterns.config import LearningConfig
from symprompt.tasks.patterns.layout import VerbalLayout
from symprompt.tasks.patterns.model import VerbalModel

Replay = Callable[[], None]
_GRAIN = 64
"""Passes are as wide as a multiple of it: fewer widths are recorded."""
_BETAS = (0.9, 0.999)
_EPSILON = 1e-8


class Stepper:
    """Makes training steps on one layout; final.

    Every tensor it changes stays where it is: ``reset`` starts the next seed in the same places.

    Args:
        model: what is trained; the gradients of its language model must be on where it is.
        layout: the training examples.
        learning: weight decay, clip, micro-batches, dropout.
        capture: record CUDA graphs; None does so on a GPU.

    Attributes:
        parameters: name -> parameter; those the loss does not depend on are left out.
    """

    def __init__(
        self,
        model: VerbalModel,
        layout: VerbalLayout,
        learning: LearningConfig,
        *,
        capture: bool | None = None,
    ) -> None:
        self.model = model
        self.layout = layout
        self.learning = learning
        self.device = model.backbone.device
        self.capture = self.device.type == "cuda" if capture is None else capture
        self.parameters = self._find_parameters()
        self._values = list(self.parameters.values())
        self._gradients = [torch.zeros_like(value) for value in self._values]
        for value, gradient in zip(self._values, self._gradients, strict=True):
            value.grad = gradient
        self._optimizer = self._make_optimizer()
        self._loss = torch.zeros((), dtype=torch.float64, device=self.device)
        self._slots: dict[tuple[int, int], tuple[Tensor, Tensor, Replay]] = {}
        self._update: Replay | None = None
        # Recordings run one after the other and leave nothing behind but what lies outside them.
        self._pool = torch.cuda.graph_pool_handle() if self.capture else None
        self._start = {name: value.detach().clone() for name, value in self.parameters.items()}

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

    def _make_optimizer(self) -> torch.optim.AdamW:
        """Make AdamW: the model's matrices decay, its vectors and what stands beside it do not."""
        groups: dict[str, list[nn.Parameter]] = {"extra": [], "model": [], "decayed": []}
        for name, value in self.parameters.items():
            kind = "extra" if name.startswith("extra.") else "model"
            groups[kind if kind == "extra" or value.dim() < 2 else "decayed"].append(value)
        on_gpu = self.device.type == "cuda"
        options: dict[str, Any] = {"fused": True, "capturable": True} if on_gpu else {}
        made = [
            {
                "params": own,
                "name": kind,
                "weight_decay": self.learning.weight_decay if kind == "decayed" else 0.0,
                "lr": torch.zeros((), device=self.device) if on_gpu else 0.0,
            }
            for kind, own in groups.items()
            if own
        ]
        return torch.optim.AdamW(made, betas=_BETAS, eps=_EPSILON, **options)

    # ------------------------------------------------------------------------------ steps

    def step(self, rows: npt.NDArray[np.int64], rates: Mapping[str, float]) -> None:
        """Learn from some examples; the mean of their losses is added to what ``take_loss`` gives.

        Args:
            rows: the examples of the step.
            rates: learning rates of the "model" and of what is "extra".
        """
        size = self.learning.micro_batch or len(rows)
        for first in range(0, len(rows), size):
            part = rows[first : first + size]
            width = self.layout.width_of(part, _GRAIN)
            index = send(part, self.device)
            own, share, run = self._slot(width, index)
            own.copy_(index, non_blocking=True)
            share.fill_(1 / len(rows))
            run()
        for group in self._optimizer.param_groups:
            rate = rates["extra" if group["name"] == "extra" else "model"]
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate
        if self._update is None:
            self._update = self._record(self._apply)
        self._update()

    def take_loss(self) -> float:
        """Return the sum of the steps' losses since this was last asked."""
        total = float(self._loss)
        self._loss.zero_()
        return total

    def close(self) -> None:
        """Let go of what was recorded, whose memory nothing else would take."""
        self._slots.clear()
        self._update = None

    def _slot(self, width: int, index: Tensor) -> tuple[Tensor, Tensor, Replay]:
        count = len(index)
        if (width, count) not in self._slots:
            # Rows that are no longer than the width: of others, places beyond it would be read.
            rows = index.clone()
            share = torch.zeros((), dtype=torch.float64, device=self.device)

            def run() -> None:
                self._learn(rows, share, width)

            # Rehearsals count nothing, as the share is zero.
            self._slots[width, count] = rows, share, self._record(run)
        return self._slots[width, count]

    def _learn(self, rows: Tensor, share: Tensor, width: int) -> None:
        """Add one pass's loss and gradient to the step's."""
        losses = self.model.loss(self.layout, rows, width)
        total = (losses * share.to(losses.dtype)).sum()
        found = torch.autograd.grad(total, self._values)
        torch._foreach_add_(self._gradients, found)
        self._loss += total.detach().double()

    def _apply(self) -> None:
        if self.learning.clip:
            nn.utils.clip_grad_norm_(self._values, self.learning.clip, foreach=True)
        self._optimizer.step()
        torch._foreach_zero_(self._gradients)

    def _record(self, work: Replay) -> Replay:
        """Return the work as a recorded graph, or as it is; what it changes is put back."""
        if not self.capture:
            return work
        before = {name: value.clone() for name, value in self._state().items()}
        gradients = [value.clone() for value in self._gradients]
        loss = self._loss.clone()
        random = torch.cuda.get_rng_state(self.device)
        replay: Replay = work
        try:
            rehearse(work, torch.cuda.Stream(self.device))  # type: ignore[no-untyped-call]
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool):
                work()
            replay = graph.replay
        except RuntimeError as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            self.capture = False
        torch.cuda.synchronize(self.device)
        torch.cuda.set_rng_state(random, self.device)
        with torch.no_grad():
            for name, value in self._state().items():
                if name in before:
                    value.copy_(before[name])
                else:
                    value.zero_()
            for gradient, old in zip(self._gradients, gradients, strict=True):
                gradient.copy_(old)
            self._loss.copy_(loss)
        return replay

    # ------------------------------------------------------------------------------ state

    def _state(self) -> dict[str, Tensor]:
        """Return every tensor that training moves, by name: parameters, moments, step counts."""
        found: dict[str, Tensor] = {name: own.data for name, own in self.parameters.items()}
        for name, value in self.parameters.items():
            for key, entry in self._optimizer.state.get(value, {}).items():
                found[f"{name}/{key}"] = entry
        return found

    def reset(self, extra: nn.Module | None) -> None:
        """Put everything back to the start, and take the drawn parameters of a new seed.

        Args:
            extra: a module of the model's extra kind, drawn from the new seed.
        """
        with torch.no_grad():
            for name, value in self._state().items():
                if name in self._start:
                    value.copy_(self._start[name])
                else:
                    value.zero_()
            if extra is not None and self.model.extra is not None:
                drawn = dict(extra.named_parameters())
                for name, own in self.model.extra.named_parameters():
                    own.copy_(drawn[name])
        self._loss.zero_()

    def copy_parameters(self, into: dict[str, Tensor]) -> None:
        """Copy the parameters, into the same tensors every time."""
        for name, value in self.parameters.items():
            if name in into:
                into[name].copy_(value.detach())
            else:
                into[name] = value.detach().clone()

    @torch.no_grad()
    def set_parameters(self, values: Mapping[str, Tensor]) -> None:
        """Put other values into the parameters' places."""
        for name, value in self.parameters.items():
            value.copy_(values[name])

    def save(self) -> dict[str, Tensor]:
        """Return what a training goes on from."""
        return self._state()

    @torch.no_grad()
    def load(self, values: Mapping[str, Tensor]) -> None:
        """Go on from what ``save`` gave."""
        for name, own in self.parameters.items():
            moments = {
                key.removeprefix(f"{name}/"): value
                for key, value in values.items()
                if key.startswith(f"{name}/")
            }
            if own not in self._optimizer.state:
                self._optimizer.state[own] = {
                    key: value.clone().to(value.device if key == "step" else self.device)
                    for key, value in moments.items()
                }
        # AdamW keeps its step counts on the device where it runs as one kernel.
        if self.device.type == "cuda":
            for state in self._optimizer.state.values():
                state["step"] = state["step"].to(self.device)
        for name, value in self._state().items():
            if name in values:
                value.copy_(values[name])
