"""Rows of a split as tensors, ready for the model and a head."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

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
        words: which word of its row each token is of, from 0 on, -1 for none [b, t].
        firsts, lasts: first and last token of each word of the row; -1 for none [b, t].
        owned: whether this row answers for the word [b, t].
        spans: labelled spans: first word, words beside it, label; -1 where there is none [b, g, 3].
        pairs: relations: places among the row's spans of the two, label; -1 for none [b, p, 3].
    """

    ids: Tensor
    lengths: Tensor
    types: Tensor | None = None
    labels: Tensor | None = None
    starts: Tensor | None = None
    ends: Tensor | None = None
    allowed: Tensor | None = None
    words: Tensor | None = None
    firsts: Tensor | None = None
    lasts: Tensor | None = None
    owned: Tensor | None = None
    spans: Tensor | None = None
    pairs: Tensor | None = None

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

        def chosen(value: Tensor) -> Tensor:
            found = value[rows]
            # Lists of spans have three axes, the second of which is no token's.
            return found if width is None or found.dim() != 2 else found[:, :width]

        return self._each(chosen)

    def to(self, device: torch.device) -> Batch:
        """Return the batch on a device."""
        return self._each(lambda value: value.to(device, non_blocking=True))

    def _each(self, change: Callable[[Tensor], Tensor]) -> Batch:
        def other(value: Tensor | None) -> Tensor | None:
            return None if value is None else change(value)

        return Batch(
            ids=change(self.ids),
            lengths=change(self.lengths),
            types=other(self.types),
            labels=other(self.labels),
            starts=other(self.starts),
            ends=other(self.ends),
            allowed=other(self.allowed),
            words=other(self.words),
            firsts=other(self.firsts),
            lasts=other(self.lasts),
            owned=other(self.owned),
            spans=other(self.spans),
            pairs=other(self.pairs),
        )
