"""Trained parameters as few flat tensors, so that an optimiser's step is a few kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

_BETAS = (0.9, 0.999)
_EPSILON = 1e-8
_EVEN = 64


@dataclass(frozen=True)
class Group:
    """Parameters with one learning rate and one weight decay.

    Attributes:
        parameters: name -> parameter; each is put into the group's flat tensor, as a view of it.
        rate: the highest learning rate.
    """

    parameters: Mapping[str, nn.Parameter]
    rate: float
    weight_decay: float = 0.0


class FlatAdamW:
    """AdamW over groups of parameters, each group one flat tensor; final.

    Gradients are handed over by ``autograd.grad`` and not accumulated by autograd, which would wait
    for a stream that is not being recorded.

    Args:
        groups: what is trained; a group without parameters is left out.
        clip: largest norm of all gradients together; 0 does not clip.
    """

    def __init__(self, groups: Sequence[Group], *, clip: float) -> None:
        self.groups = [group for group in groups if group.parameters]
        self.clip = clip
        self.parameters = [value for group in self.groups for value in group.parameters.values()]
        self.device = self.parameters[0].device
        self.values = [_flatten(list(group.parameters.values())) for group in self.groups]
        self._views: list[Tensor] = []
        rates = [torch.zeros((), device=self.device) for _ in self.groups]
        for flat, group in zip(self.values, self.groups, strict=True):
            flat.grad = torch.zeros_like(flat)
            self._views += _views(flat.grad, list(group.parameters.values()))
        # A rate that is a tensor can change between replays of a recorded step.
        self._rates = rates
        on_gpu = self.device.type == "cuda"
        self.optimizer = torch.optim.AdamW(
            [
                {
                    "params": [flat],
                    "lr": rate if on_gpu else 0.0,
                    "weight_decay": group.weight_decay,
                }
                for flat, rate, group in zip(self.values, rates, self.groups, strict=True)
            ],
            betas=_BETAS,
            eps=_EPSILON,
            fused=on_gpu,
            foreach=False,
            capturable=on_gpu,
        )
        self._make_state()

    @property
    def size(self) -> int:
        """How many numbers are trained."""
        return sum(value.numel() for value in self.parameters)

    def set_rate(self, share: float) -> None:
        """Take a share of every group's highest learning rate for the next step."""
        for entry, rate, group in zip(
            self.optimizer.param_groups, self._rates, self.groups, strict=True
        ):
            if self.device.type == "cuda":
                rate.fill_(group.rate * share)
            else:
                entry["lr"] = group.rate * share

    def step(self, loss: Tensor) -> None:
        """Update the parameters by the gradient of a loss."""
        found = torch.autograd.grad(loss, self.parameters, allow_unused=True)
        used = [
            (view, gradient)
            for view, gradient in zip(self._views, found, strict=True)
            if gradient is not None
        ]
        with torch.no_grad():
            # Another task's head is not used in this step: what it learned from last is over.
            unused = [v for v, entry in zip(self._views, found, strict=True) if entry is None]
            if unused:
                torch._foreach_zero_(unused)
            torch._foreach_copy_([view for view, _ in used], [entry for _, entry in used])
            if self.clip:
                gradients = [flat.grad for flat in self.values if flat.grad is not None]
                norms = torch.stack([torch.linalg.vector_norm(entry) for entry in gradients])
                scale = (self.clip / (torch.linalg.vector_norm(norms) + 1e-6)).clamp(max=1.0)
                for entry in gradients:
                    entry.mul_(scale)
        self.optimizer.step()

    def to_tensors(self) -> dict[str, Tensor]:
        """Return parameters and moments, for a state; they share memory with what is trained."""
        tensors: dict[str, Tensor] = {}
        for place, flat in enumerate(self.values):
            state = self.optimizer.state[flat]
            tensors |= {
                f"value/{place}": flat.detach(),
                f"mean/{place}": state["exp_avg"],
                f"square/{place}": state["exp_avg_sq"],
                f"step/{place}": state["step"],
            }
        return tensors

    @torch.no_grad()
    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Put parameters and moments in place, keeping their addresses.

        Raises:
            ValueError: one is missing or of another shape.
        """
        for name, own in self.to_tensors().items():
            if name not in tensors or tensors[name].shape != own.shape:
                raise ValueError(f"{name} does not fit")
            own.copy_(tensors[name])

    def _make_state(self) -> None:
        """Make the moments before the first step, so that they can be stored and recorded."""
        for flat in self.values:
            where = self.device if self.device.type == "cuda" else torch.device("cpu")
            self.optimizer.state[flat] = {
                "step": torch.zeros((), dtype=torch.float32, device=where),
                "exp_avg": torch.zeros_like(flat, requires_grad=False),
                "exp_avg_sq": torch.zeros_like(flat, requires_grad=False),
            }


def make_groups(
    body: Mapping[str, nn.Parameter],
    head: Mapping[str, nn.Parameter],
    *,
    rate: float,
    head_rate: float,
    weight_decay: float,
) -> list[Group]:
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
            groups.append(Group(parameters, own_rate))
        else:
            groups += [Group(decayed, own_rate, weight_decay), Group(others, own_rate)]
    return groups


def _flatten(parameters: Sequence[nn.Parameter]) -> nn.Parameter:
    """Return one flat parameter; those given become views of it."""
    first = parameters[0]
    size = sum(_room(value) for value in parameters)
    flat = nn.Parameter(torch.zeros(size, dtype=first.dtype, device=first.device))
    with torch.no_grad():
        for value, view in zip(parameters, _views(flat.detach(), parameters), strict=True):
            view.copy_(value)
            value.data = view
    return flat


def _views(flat: Tensor, parameters: Sequence[nn.Parameter]) -> list[Tensor]:
    parts = torch.split(flat, [_room(value) for value in parameters])
    return [
        part[: value.numel()].view(value.shape)
        for part, value in zip(parts, parameters, strict=True)
    ]


def _room(value: Tensor) -> int:
    """Return the numbers a parameter takes: kernels are quicker where it starts at even places."""
    return -(-value.numel() // _EVEN) * _EVEN
