"""Rows of a split as tensors, ready for the model and a head."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """Rows as tensors on one device; real tokens come first, padding after them.

    Attributes:
        ids: tokens [b, t].
        lengths: real tokens of each row [b].
        types: segments [b, t], for models that take them.
        labels: classes [b], or tags [b, t]; -100 where there is none.
        starts, ends: first and last token of the answer [b]; ``null`` where there is none, -100
            where it is not known.
        allowed: tokens that can be an answer's first or last, the null token among them [b, t].
    """

    ids: Tensor
    lengths: Tensor
    types: Tensor | None = None
    labels: Tensor | None = None
    starts: Tensor | None = None
    ends: Tensor | None = None
    allowed: Tensor | None = None

    def __len__(self) -> int:
        return int(self.ids.shape[0])

    @property
    def mask(self) -> Tensor:
        """True on real tokens [b, t]."""
        places = torch.arange(self.ids.shape[1], device=self.ids.device)
        return places < self.lengths[:, None]

    def need(self, name: str) -> Tensor:
        """Return a part that the kind of task must have."""
        value = getattr(self, name)
        if not isinstance(value, Tensor):
            raise ValueError(f"this batch has no {name}; it is of another kind of task")
        return value

    def select(self, rows: Tensor, width: int | None = None) -> Batch:
        """Return some rows, cut to a width that must hold all their real tokens."""
        chosen: dict[str, Tensor | None] = {}
        for entry in fields(self):
            value = getattr(self, entry.name)
            if value is not None:
                value = value[rows]
                if width is not None and value.dim() > 1:
                    value = value[:, :width]
            chosen[entry.name] = value
        return replace(self, **chosen)

    def to(self, device: torch.device) -> Batch:
        """Return the batch on a device."""
        moved = {
            entry.name: None if value is None else value.to(device, non_blocking=True)
            for entry in fields(self)
            for value in (getattr(self, entry.name),)
        }
        return replace(self, **moved)
