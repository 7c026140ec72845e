"""Float32 weights, moments and gradients of a model, each in one flat tensor, and their AdamW.

A flat tensor is clipped, reduced over processes, updated and copied to the passes' dtype by one
kernel each, whatever the number of parameters.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from symprompt.pretraining.config import OptimizerConfig

# Elements; keeps every parameter of a flat tensor where fast kernels may read it.
_ALIGNMENT = 128
_TINY = 1e-6


class FlatWeights:
    """The weights of a module as one float32 tensor, with gradients and AdamW's moments; final.

    In float32 the module's parameters are views of it; in bfloat16 they are views of a copy, which
    ``refresh`` renews, except embedding tables, which stay in float32: the gradient of a frequent
    word is a sum of many thousand terms, and in bfloat16 such a sum stops growing early. Matrices
    come first: only they are decayed.

    Args:
        module: its parameters are replaced; its buffers are moved.
        device: where everything goes.
        dtype: of the passes.
        extra: places behind the gradients for numbers that are summed over processes with them.
    """

    def __init__(
        self, module: nn.Module, *, device: torch.device, dtype: torch.dtype, extra: int = 0
    ) -> None:
        module.to(device)
        named = sorted(module.named_parameters(), key=lambda entry: entry[1].dim() < 2)
        self.parameters = [value for _, value in named]
        self._places: dict[str, tuple[slice, torch.Size]] = {}
        begin, self._matrices = 0, 0
        for name, value in named:
            self._places[name] = slice(begin, begin + value.numel()), value.shape
            begin += -(-value.numel() // _ALIGNMENT) * _ALIGNMENT
            if value.dim() >= 2:
                self._matrices = begin
        self.values = torch.zeros(begin, device=device)
        self.means = torch.zeros(begin, device=device)
        self.squares = torch.zeros(begin, device=device)
        self.reduced = torch.zeros(begin + extra, device=device)
        self.gradients, self.extra = self.reduced[:begin], self.reduced[begin:]
        self._copies = (
            self.values
            if dtype == torch.float32
            else torch.zeros(begin, device=device, dtype=dtype)
        )
        self._gradient_views = [view for _, view in self.views(self.gradients)]
        tables = {id(part.weight) for part in module.modules() if isinstance(part, nn.Embedding)}
        copies = self.views(self._copies)
        with torch.no_grad():
            for (_, view), (_, copy), value in zip(
                self.views(self.values), copies, self.parameters, strict=True
            ):
                view.copy_(value)
                value.data = view if id(value) in tables else copy
        self.refresh()

    def views(self, flat: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Yield every parameter's name and its part of a flat tensor, in its own shape."""
        for name, (place, shape) in self._places.items():
            yield name, flat[place].view(shape)

    @property
    def count(self) -> int:
        """How many weights there are."""
        return sum(value.numel() for value in self.parameters)

    def parts(self, flat: Tensor) -> tuple[Tensor, Tensor]:
        """Return what is decayed of a flat tensor, and what is not."""
        return flat[: self._matrices], flat[self._matrices : len(self.values)]

    def refresh(self) -> None:
        """Copy the float32 weights to the parameters of the passes, where those are copies."""
        if self._copies is not self.values:
            self._copies.copy_(self.values)

    def collect(self, *, first: bool) -> None:
        """Take the parameters' gradients, in float32: in place of the former ones, or added."""
        pairs = [
            (view, value.grad)
            for view, value in zip(self._gradient_views, self.parameters, strict=True)
            if value.grad is not None
        ]
        # Lists of one dtype each are handled by few kernels.
        for dtype in {gradient.dtype for _, gradient in pairs}:
            views = [view for view, gradient in pairs if gradient.dtype == dtype]
            gradients = [gradient for _, gradient in pairs if gradient.dtype == dtype]
            if first:
                torch._foreach_copy_(views, gradients)
            else:
                torch._foreach_add_(views, gradients)
        for value in self.parameters:
            value.grad = None

    def clip(self, largest: float) -> Tensor:
        """Scale the gradients to a norm of at most ``largest`` (0: any); return the norm before.

        Nothing is read back to the host.
        """
        norm: Tensor = torch.linalg.vector_norm(self.gradients)
        if largest:
            self.gradients.mul_((largest / (norm + _TINY)).clamp(max=1.0))
        return norm

    def restore(self, module: nn.Module) -> None:
        """Make the module's parameters the float32 weights themselves, to be saved."""
        for (_, view), value in zip(self.views(self.values), self.parameters, strict=True):
            value.data = view
        module.eval()


class Updater:
    """AdamW on flat weights, with a linear warm-up and a linear fall to zero; final.

    A step's rate follows from its number alone, so nothing but weights and moments has a state.
    """

    def __init__(self, weights: FlatWeights, config: OptimizerConfig) -> None:
        self._weights = weights
        self._config = config
        matrices, rest = weights.parts(weights.values)
        groups: list[dict[str, Any]] = [
            {"params": [matrices]},
            {"params": [rest], "weight_decay": 0.0},
        ]
        self._flat = torch.optim.AdamW(
            groups,
            lr=config.rate,
            betas=(config.beta_1, config.beta_2),
            eps=config.epsilon,
            weight_decay=config.weight_decay,
            fused=True,
        )
        self.set_step(0)
        for part, gradient in zip(self._tensors(), weights.parts(weights.gradients), strict=True):
            part.grad = gradient

    def set_step(self, done: int) -> None:
        """Take up after ``done`` steps; the weights hold the moments."""
        weights = self._weights
        both = zip(
            self._tensors(),
            weights.parts(weights.means),
            weights.parts(weights.squares),
            strict=True,
        )
        for part, mean, square in both:
            self._flat.state[part] = {
                "step": torch.tensor(float(done), device=part.device),
                "exp_avg": mean,
                "exp_avg_sq": square,
            }

    def rate(self, step: int) -> float:
        """Return the learning rate of a step, from 0."""
        config = self._config
        rising = round(config.warmup * config.steps)
        if step < rising:
            return config.rate * (step + 1) / rising
        return config.rate * (config.steps - step) / max(1, config.steps - rising)

    def update(self, step: int) -> None:
        """Change the weights by their gradients, and renew the copies."""
        for group in self._flat.param_groups:
            group["lr"] = self.rate(step)
        self._flat.step()
        self._weights.refresh()

    def _tensors(self) -> list[Tensor]:
        return [group["params"][0] for group in self._flat.param_groups]
