"""AdamW over flat tensors: few kernels for a step, whatever the number of parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

_ALIGNMENT = 128
"""Elements; keeps every parameter of a flat tensor where fast kernels may read it."""
_TINY = 1e-6


@dataclass(frozen=True)
class ParameterGroup:
    """Parameters with one learning rate and one weight decay.

    Attributes:
        parameters: name -> parameter; all on one device.
        rate: the highest learning rate.
        dtype: what the passes read the parameters in; None: their own. Where it is not that of the
            flat weights, the parameters become copies, renewed after every update.
    """

    parameters: Mapping[str, nn.Parameter]
    rate: float
    weight_decay: float = 0.0
    dtype: torch.dtype | None = None


class FlatAdamW:
    """AdamW over groups of parameters that lie in one flat tensor; final.

    Weights, moments and gradients are float32 (float64 where a parameter is), each one flat tensor
    in which a group is a slice: one fused kernel updates it. Nothing is read back to the host, and
    every tensor stays where it is, so that a step can be recorded as a CUDA graph.

    Args:
        groups: what is trained; a group without parameters is left out.
        clip: largest norm of all gradients together; 0 does not clip.
        fused: update by one kernel a group on the CPU too; on CUDA that is always so.
        extra: places behind the gradients for values that are summed over processes with them.
        sum_up: replaces a tensor by its sum over all processes.

    Attributes:
        values, means, squares, gradients: [n] the weights, AdamW's moments, the gradients.
        parameters: what is trained, in the order of the groups.
    """

    def __init__(
        self,
        groups: Sequence[ParameterGroup],
        *,
        clip: float = 0.0,
        betas: tuple[float, float] = (0.9, 0.999),
        epsilon: float = 1e-8,
        fused: bool = False,
        extra: int = 0,
        sum_up: Callable[[Tensor], None] | None = None,
    ) -> None:
        self.groups = [group for group in groups if group.parameters]
        self.clip = clip
        self._sum_up = sum_up
        named = {name: own for group in self.groups for name, own in group.parameters.items()}
        self.parameters = list(named.values())
        self.device = self.parameters[0].device
        wide = any(value.dtype == torch.float64 for value in self.parameters)
        self.dtype = torch.float64 if wide else torch.float32
        self._places: dict[str, tuple[slice, torch.Size]] = {}
        slices, end = [], 0
        for group in self.groups:
            start = end
            for name, value in group.parameters.items():
                self._places[name] = slice(end, end + value.numel()), value.shape
                end += -(-value.numel() // _ALIGNMENT) * _ALIGNMENT
            slices.append(slice(start, end))
        self.values = self._zeros(end)
        self.means, self.squares = self._zeros(end), self._zeros(end)
        self._reduced = self._zeros(end + extra)
        self.gradients, self.extra = self._reduced[:end], self._reduced[end:]
        self._gradient_views = [view for _, view in self.views(self.gradients)]
        self._copies: list[tuple[Tensor, Tensor]] = []
        with torch.no_grad():
            for view, value in zip(self._value_views(), self.parameters, strict=True):
                view.copy_(value)
            self._place_parameters(slices)
        self._make_optimizer(slices, betas, epsilon, fused)
        self.refresh()

    def _zeros(self, size: int) -> Tensor:
        return torch.zeros(size, dtype=self.dtype, device=self.device)

    def _value_views(self) -> list[Tensor]:
        return [view for _, view in self.views(self.values)]

    def _place_parameters(self, slices: Sequence[slice]) -> None:
        """Make parameters views of the weights, or of copies in their group's dtype."""
        for group, place in zip(self.groups, slices, strict=True):
            values = list(group.parameters.values())
            dtype = group.dtype or values[0].dtype
            flat, first = self.values, 0
            if dtype != self.dtype:
                flat, first = self.values[place].to(dtype), place.start
                self._copies.append((flat, self.values[place]))
            for name, value in group.parameters.items():
                own, shape = self._places[name]
                value.data = flat[own.start - first : own.stop - first].view(shape)

    def _make_optimizer(
        self, slices: Sequence[slice], betas: tuple[float, float], epsilon: float, fused: bool
    ) -> None:
        # A rate that is a tensor can change between replays of a recorded step.
        on_gpu = self.device.type == "cuda"
        parts = [self.values[place] for place in slices]
        self._parts = [self.gradients[place] for place in slices]
        for part, gradient in zip(parts, self._parts, strict=True):
            part.grad = gradient
        self._optimizer = torch.optim.AdamW(
            [
                {
                    "params": [part],
                    "lr": torch.zeros((), device=self.device) if on_gpu else 0.0,
                    "weight_decay": group.weight_decay,
                }
                for part, group in zip(parts, self.groups, strict=True)
            ],
            betas=betas,
            eps=epsilon,
            fused=fused or on_gpu,
            foreach=False,
            capturable=on_gpu,
        )
        # Made before the first step, so that they can be stored and recorded.
        self._steps = torch.zeros(len(slices), device=self.device)
        for part, place, steps in zip(parts, slices, self._steps, strict=True):
            self._optimizer.state[part] = {
                "step": steps,
                "exp_avg": self.means[place],
                "exp_avg_sq": self.squares[place],
            }

    @property
    def size(self) -> int:
        """How many parameters are trained."""
        return sum(value.numel() for value in self.parameters)

    def views(self, flat: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Yield every parameter's name and its part of a flat tensor, in its own shape."""
        for name, (place, shape) in self._places.items():
            yield name, flat[place].view(shape)

    # ------------------------------------------------------------------------------ a step

    def set_rates(self, rates: Sequence[float]) -> None:
        """Set each group's learning rate for the next step."""
        for entry, rate in zip(self._optimizer.param_groups, rates, strict=True):
            if isinstance(entry["lr"], Tensor):
                entry["lr"].fill_(rate)
            else:
                entry["lr"] = rate

    def collect(self, loss: Tensor, *, first: bool = True) -> None:
        """Take the gradient of a loss: in place of the former one, or added to it.

        Gradients are handed over and not accumulated by autograd, which would wait for a stream
        that is not being recorded.
        """
        found = torch.autograd.grad(loss, self.parameters, allow_unused=True)
        with torch.no_grad():
            if first:
                # What this loss does not depend on, as another task's head, learns nothing.
                self._zero(
                    [v for v, own in zip(self._gradient_views, found, strict=True) if own is None]
                )
            pairs = [
                (view, own)
                for view, own in zip(self._gradient_views, found, strict=True)
                if own is not None
            ]
            # Lists of one dtype each are handled by few kernels.
            for dtype in dict.fromkeys(own.dtype for _, own in pairs):
                views = [view for view, own in pairs if own.dtype == dtype]
                owns = [own for _, own in pairs if own.dtype == dtype]
                if first:
                    torch._foreach_copy_(views, owns)
                else:
                    torch._foreach_add_(views, owns)

    @staticmethod
    def _zero(views: list[Tensor]) -> None:
        if views:
            torch._foreach_zero_(views)

    @torch.no_grad()
    def update(self) -> Tensor:
        """Update the weights by the gradients; return the gradients' norm before clipping."""
        if self._sum_up is not None:
            self._sum_up(self._reduced)
        norms = torch.stack([torch.linalg.vector_norm(part) for part in self._parts])
        norm: Tensor = torch.linalg.vector_norm(norms)
        if self.clip:
            self.gradients.mul_((self.clip / (norm + _TINY)).clamp(max=1.0))
        self._optimizer.step()
        self.refresh()
        return norm

    # ------------------------------------------------------------------------------ state

    @torch.no_grad()
    def refresh(self) -> None:
        """Copy the weights to parameters of another dtype."""
        for copy, own in self._copies:
            copy.copy_(own)

    def restore(self) -> None:
        """Make the parameters the weights themselves, to be saved; nothing is trained after it."""
        for view, value in zip(self._value_views(), self.parameters, strict=True):
            value.data = view

    def moved(self) -> list[Tensor]:
        """Return every tensor that a step changes."""
        copies = [copy for copy, _ in self._copies]
        return [*self.state_dict().values(), self._reduced, *copies]

    def state_dict(self) -> dict[str, Tensor]:
        """Return weights, moments and step counts; they share memory with what is trained."""
        return {
            "values": self.values,
            "means": self.means,
            "squares": self.squares,
            "steps": self._steps,
        }

    @torch.no_grad()
    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        """Put weights, moments and step counts in place, keeping their addresses.

        Raises:
            ValueError: one is missing or of another shape.
        """
        for name, own in self.state_dict().items():
            if name not in tensors or tensors[name].shape != own.shape:
                raise ValueError(f"the optimiser's {name} do not fit")
            own.copy_(tensors[name])
        self.refresh()

    @torch.no_grad()
    def reset(self, values: Tensor) -> None:
        """Start again from other weights, [n]."""
        self.values.copy_(values)
        for own in (self.means, self.squares, self._steps, self._reduced):
            own.zero_()
        self.refresh()


def make_groups(
    body: Mapping[str, nn.Parameter],
    head: Mapping[str, nn.Parameter],
    *,
    rate: float,
    head_rate: float,
    weight_decay: float,
) -> list[ParameterGroup]:
    """Return the groups of a model: body and head, what is decayed and what is not.

    Biases, norms and prompts are not decayed; a matrix is called a prompt by the caller's name
    "prompt.".
    """
    groups = []
    for parameters, own_rate in ((body, rate), (head, head_rate or rate)):
        decayed = {
            name: value
            for name, value in parameters.items()
            if value.dim() > 1 and not name.startswith("prompt.")
        }
        others = {name: value for name, value in parameters.items() if name not in decayed}
        if not weight_decay:
            groups.append(ParameterGroup(parameters, own_rate))
        else:
            groups += [
                ParameterGroup(decayed, own_rate, weight_decay),
                ParameterGroup(others, own_rate),
            ]
    return groups
