"""A split as arrays of rows, and rows as tensors that a model and a head read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from symprompt.tasks.windows import Ints

Arrays = Mapping[str, NDArray[np.generic]]


@dataclass(frozen=True)
class Batch:
    """Rows as tensors on one device; real tokens come first, padding after them; final.

    Attributes:
        ids: tokens [b, t].
        lengths: real tokens of each row [b].
        types: segments [b, t], for models that take them.
        targets: what the kind's head reads, by name. Those of two axes are per token [b, t].
    """

    ids: Tensor
    lengths: Tensor
    types: Tensor | None = None
    targets: Mapping[str, Tensor] = field(default_factory=dict)

    def __len__(self) -> int:
        return int(self.ids.shape[0])

    @property
    def mask(self) -> Tensor:
        """True on real tokens [b, t]."""
        places = torch.arange(self.ids.shape[1], device=self.ids.device)
        return places < self.lengths[:, None]

    def need(self, name: str) -> Tensor:
        """Return a target that the kind of task must have."""
        if name not in self.targets:
            raise ValueError(f"this batch has no {name}; it is of another kind of task")
        return self.targets[name]

    def select(self, rows: Tensor, width: int | None = None) -> Batch:
        """Return some rows, cut to a width that must hold all their real tokens."""

        def chosen(value: Tensor) -> Tensor:
            found = value[rows]
            return found[:, :width] if width is not None and found.dim() == 2 else found

        return Batch(
            chosen(self.ids),
            self.lengths[rows],
            None if self.types is None else chosen(self.types),
            {name: chosen(value) for name, value in self.targets.items()},
        )

    def to(self, device: torch.device) -> Batch:
        """Return the batch on a device."""

        def moved(value: Tensor) -> Tensor:
            return value.to(device, non_blocking=True)

        return Batch(
            moved(self.ids),
            moved(self.lengths),
            None if self.types is None else moved(self.types),
            {name: moved(value) for name, value in self.targets.items()},
        )


@dataclass(frozen=True)
class Features:
    """A split's rows; an example that is too long for the model has several; final.

    n rows, t tokens of the longest row. Each kind states which targets and notes it has.

    Attributes:
        examples: the number of examples of the split.
        ids: tokens, padded [n, t].
        lengths: real tokens of each row [n].
        example: which example of the split each row shows, ascending [n].
        types: 0 in the first segment, 1 in the second [n, t]; None if not wanted.
        targets: what the head reads of each row, by name; those of two axes are per token.
        notes: what decoding alone reads of each row, by name.
        cut: how many examples were shortened: sentences with a word longer than half a row, and
            those with spans that no row shows whole.
    """

    examples: int
    ids: Ints
    lengths: Ints
    example: Ints
    types: NDArray[np.uint8] | None = None
    targets: Arrays = field(default_factory=dict)
    notes: Arrays = field(default_factory=dict)
    cut: int = 0

    def __len__(self) -> int:
        return len(self.ids)

    def note(self, name: str) -> NDArray[np.int32]:
        """Return what decoding needs of each row."""
        if name not in self.notes:
            raise ValueError(f"these features have no {name}; they are of another kind of task")
        found: NDArray[np.int32] = self.notes[name]  # type: ignore[assignment]
        return found

    def batch(self, rows: NDArray[np.int64] | None = None) -> Batch:
        """Return some rows, or all, as tensors, cut to the longest of them."""
        chosen = np.arange(len(self)) if rows is None else rows
        width = int(self.lengths[chosen].max(initial=1))

        def tensor(values: NDArray[np.generic]) -> Tensor:
            own = values[chosen]
            own = own[:, :width] if own.ndim == 2 else own
            found = torch.from_numpy(np.ascontiguousarray(own))
            return found if found.dtype == torch.bool else found.long()

        return Batch(
            tensor(self.ids),
            tensor(self.lengths),
            None if self.types is None else tensor(self.types),
            {name: tensor(values) for name, values in self.targets.items()},
        )
