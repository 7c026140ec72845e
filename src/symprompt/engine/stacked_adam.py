"""Adam over stacked relations, each with its own clock."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal, Protocol

import torch
from torch import Tensor, nn

from symprompt.accel.compiling import SWITCHES, compile_function

Numbers = Tensor
"""What an update takes of each relation, [5, relation]: how far the moments move, step size, bias
correction, shrinking by decoupled weight decay."""

TILE = 2**18
"""Most numbers of a parameter that are updated at once on a CPU."""


class AdamSettings(Protocol):
    """What the optimiser reads of a config."""

    @property
    def optimizer(self) -> Literal["adam", "adamw"]:
        """adam adds weight decay to the gradient, adamw shrinks the weights."""

    @property
    def weight_decay(self) -> float:
        """Weight decay."""

    @property
    def clip(self) -> float:
        """Largest gradient norm per relation; 0 does not clip."""


class StackedAdam:
    """Adam over parameters [relation, ...] with a step count and rate per relation; final.

    Relations that are not active in a step keep parameters, moments and step count unchanged.
    """

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        config: AdamSettings,
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

    def state_dict(self) -> dict[str, Tensor]:
        """Return moments and step counts; they share memory with the optimiser's."""
        means = {f"mean/{name}": value for name, value in self.mean.items()}
        squares = {f"square/{name}": value for name, value in self.square.items()}
        return {"steps": self.steps, **means, **squares}

    def compile(self) -> None:
        """Fuse the update into one kernel; it is bound by memory, and reads each number once."""
        self._update = compile_function(adam_update, dynamic=True, fullgraph=True)

    def step(self, active: Tensor, rate: Tensor) -> None:
        """Update the active relations by the parameters' gradients, and drop these.

        Args:
            active: [relation] bool.
            rate: [relation] learning rates, float64.
        """
        self.finish(self.begin(active, rate))

    @torch.no_grad()
    def begin(self, active: Tensor, rate: Tensor) -> Numbers:
        """Count a step of the active relations; ``finish`` ends it.

        In between ``update_by_factors`` may update parameters, which then have no gradient.
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
        }
        dtype = next(iter(self.parameters.values())).dtype
        return torch.stack(list(numbers.values())).to(dtype)

    @torch.no_grad()
    def finish(self, numbers: Numbers) -> None:
        """Update parameters by their gradients, and drop these."""
        clip = self._clip_scale() if self.config.clip else None
        for name, value in self.parameters.items():
            if value.grad is not None:
                rows = [each.view(len(value), -1) for each in (self.mean[name], self.square[name])]
                rows = [value.view(len(value), -1), value.grad.reshape(len(value), -1), *rows]
                for some, columns in _tiles(rows[0]):
                    mine, gradient, mean, square = (each[some, columns] for each in rows)
                    self._update(
                        mine,
                        gradient,
                        mean,
                        square,
                        numbers[:, some],
                        self.epsilon,
                        self.config.weight_decay,
                        self.config.optimizer == "adamw",
                        None if clip is None else clip[some],
                    )
                value.grad = None

    @property
    def takes_factors(self) -> bool:
        """Whether gradients may come as factors: on CUDA, in float32, and where none is scaled."""
        values = self.parameters.values()
        return (
            bool(SWITCHES["factors"])
            and not self.config.clip
            and all(value.is_cuda and value.dtype == torch.float32 for value in values)
        )

    @torch.no_grad()
    def update_by_factors(self, name: str, left: Tensor, right: Tensor, numbers: Numbers) -> None:
        """Update one parameter by its gradient's factors, where ``takes_factors`` says so.

        Args:
            left, right: [b, n, out] and [b, n, in], whose products summed over n are the gradient
                of the parameter seen as [b, out, in].
        """
        # Imported here: its compiler comes with builds of torch for CUDA alone.
        from symprompt.accel.adam_kernels import update_by_factors

        update_by_factors(
            self.parameters[name],
            self.mean[name],
            self.square[name],
            left,
            right,
            numbers,
            self.epsilon,
            self.config.weight_decay,
            self.config.optimizer == "adamw",
        )

    def _clip_scale(self) -> Tensor:
        total = torch.zeros_like(self.steps)
        for value in self.parameters.values():
            if value.grad is not None:
                total += value.grad.double().square().flatten(1).sum(1)
        scale = (self.config.clip / (total.sqrt() + 1e-6)).clamp(max=1.0)
        return scale.to(next(iter(self.parameters.values())).dtype)[:, None]


def _tiles(value: Tensor) -> Iterator[tuple[slice, slice]]:
    """Yield the parts of a parameter [relation, n] that are updated at once: all of it on a GPU.

    A CPU's cache holds a part through all the operations of an update, which then read and write
    memory once instead of once an operation.
    """
    count, width = value.shape
    rows = max(1, TILE // width) if value.is_cpu else count
    columns = min(TILE, width) if value.is_cpu else width
    for row in range(0, count, rows):
        for start in range(0, width, columns):
            yield slice(row, row + rows), slice(start, start + columns)


def adam_update(
    value: Tensor,
    gradient: Tensor,
    mean: Tensor,
    square: Tensor,
    numbers: Numbers,
    epsilon: float,
    weight_decay: float,
    decoupled: bool,
    clip: Tensor | None = None,
) -> None:
    """Update one parameter in place.

    Args:
        value, gradient, mean, square: [relation, n].
        decoupled: weight decay shrinks the weights (AdamW) instead of adding to the gradient.
        clip: [relation, 1] what the gradient is scaled by, if it is.
    """
    to_mean, to_square, size, correction, shrink = numbers[:, :, None].unbind()
    if clip is not None:
        gradient = gradient * clip
    if weight_decay and decoupled:
        value.mul_(shrink)
    elif weight_decay:
        gradient = gradient + weight_decay * value
    mean.lerp_(gradient, to_mean)
    square.lerp_(gradient * gradient, to_square)
    below = square.sqrt().div_(correction).add_(epsilon)
    value.sub_(mean.div(below).mul_(size))
