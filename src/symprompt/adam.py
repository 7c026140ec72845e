"""Adam over stacked relations, each with its own clock."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from symprompt.config import TrainingConfig

Factors = Mapping[str, tuple[Tensor, Tensor]]
"""A parameter's name -> [b, n, out] and [b, n, in], whose products summed over n are its gradient;
b counts through all of the parameter's axes but the last two."""


class StackedAdam:
    """Adam over parameters [relation, ...] with a step count and rate per relation; final.

    Relations that are not active in a step keep parameters, moments and step count unchanged.
    """

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        config: TrainingConfig,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        epsilon: float = 1e-8,
    ) -> None:
        self.parameters = dict(parameters)
        self.config = config
        self.betas = betas
        self.epsilon = epsilon
        first = next(iter(self.parameters.values()))
        self.steps = torch.zeros(len(first), dtype=torch.float64, device=first.device)
        self.mean = {name: torch.zeros_like(value) for name, value in self.parameters.items()}
        self.square = {name: torch.zeros_like(value) for name, value in self.parameters.items()}
        self._update = adam_update

    def compile(self) -> None:
        """Fuse the update into one kernel; it is bound by memory, and reads each number once."""
        self._update = torch.compile(adam_update, dynamic=True, fullgraph=True)

    @torch.no_grad()
    def step(self, active: Tensor, rate: Tensor, factors: Factors | None = None) -> None:
        """Update the active relations by the parameters' gradients, and drop these.

        Args:
            active: [relation] bool.
            rate: [relation] learning rates, float64.
            factors: what makes the gradients of parameters that have none; ``takes_factors`` says
                whether there may be any.
        """
        self.steps += active
        moving = active.double()
        first, second = self.betas
        done = self.steps.clamp(min=1)
        numbers = {
            "mean": moving * (1 - first),
            "square": moving * (1 - second),
            "size": rate * moving / (1 - first**done),
            "correction": (1 - second**done).sqrt(),
            "shrink": 1 - rate * moving * self.config.weight_decay,
            "clip": self._clip_scale() if self.config.clip else torch.ones_like(moving),
        }
        dtype = next(iter(self.parameters.values())).dtype
        for name, (left, right) in (factors or {}).items():
            self._update_by_factors(name, left, right, numbers)
        numbers = {key: value.to(dtype)[:, None] for key, value in numbers.items()}
        for name, value in self.parameters.items():
            if value.grad is not None:
                self._update(
                    value.view(len(value), -1),
                    value.grad.reshape(len(value), -1),
                    self.mean[name].view(len(value), -1),
                    self.square[name].view(len(value), -1),
                    numbers,
                    self.epsilon,
                    self.config.weight_decay,
                    self.config.optimizer == "adamw",
                    bool(self.config.clip),
                )
                value.grad = None

    @property
    def takes_factors(self) -> bool:
        """Whether gradients may come as factors: on CUDA, in float32, and where none is scaled."""
        values = self.parameters.values()
        return not self.config.clip and all(
            value.is_cuda and value.dtype == torch.float32 for value in values
        )

    def _update_by_factors(
        self, name: str, left: Tensor, right: Tensor, numbers: Mapping[str, Tensor]
    ) -> None:
        # Imported here: its compiler comes with builds of torch for CUDA alone.
        from symprompt.adam_kernels import update_by_factors

        keys = ("mean", "square", "size", "correction", "shrink")
        update_by_factors(
            self.parameters[name],
            self.mean[name],
            self.square[name],
            left,
            right,
            torch.stack([numbers[key] for key in keys]).float(),
            self.epsilon,
            self.config.weight_decay,
            self.config.optimizer == "adamw",
        )

    def _clip_scale(self) -> Tensor:
        total = torch.zeros_like(self.steps)
        for value in self.parameters.values():
            if value.grad is not None:
                total += value.grad.double().square().flatten(1).sum(1)
        return (self.config.clip / (total.sqrt() + 1e-6)).clamp(max=1.0)


def adam_update(
    value: Tensor,
    gradient: Tensor,
    mean: Tensor,
    square: Tensor,
    numbers: Mapping[str, Tensor],
    epsilon: float,
    weight_decay: float,
    decoupled: bool,
    clip: bool,
) -> None:
    """Update one parameter in place.

    Args:
        value, gradient, mean, square: [relation, n].
        numbers: [relation, 1] each: how far the moments move, step size, bias correction,
            shrinking by decoupled weight decay, scale of the gradient.
        decoupled: weight decay shrinks the weights (AdamW) instead of adding to the gradient.
        clip: whether the gradient is scaled at all.
    """
    if clip:
        gradient = gradient * numbers["clip"]
    if weight_decay and decoupled:
        value.mul_(numbers["shrink"])
    elif weight_decay:
        gradient = gradient + weight_decay * value
    mean.lerp_(gradient, numbers["mean"])
    square.lerp_(gradient * gradient, numbers["square"])
    below = square.sqrt().div_(numbers["correction"]).add_(epsilon)
    value.sub_(mean.div(below).mul_(numbers["size"]))
