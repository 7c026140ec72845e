"""A batch of sequences on its way from the corpus to the model."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Batch:
    """Sequences as the corpus gives them, whole and uncorrupted, on the host.

    Attributes:
        ids: [b, t] uint16 or uint32, special tokens in place, padded.
        starts_word: [b, t] bool, the first token of a word; special tokens are False.
        special: [b, t] bool, tokens that are never corrupted: [CLS], [SEP], padding.
        lengths: [b] int64, tokens before the padding.
        segments: [b, t] uint8, 0 or 1; all 0 but in pairs.
        is_next: [b] bool, whether the second sentence follows the first; all True but in pairs.
    """

    ids: np.ndarray
    starts_word: np.ndarray
    special: np.ndarray
    lengths: np.ndarray
    segments: np.ndarray
    is_next: np.ndarray

    def __len__(self) -> int:
        return len(self.ids)

    def to(self, device: torch.device) -> DeviceBatch:
        """Return the batch as tensors on a device; ids and segments become int64 there."""
        wide = self.ids if self.ids.dtype != np.uint32 else self.ids.astype(np.int64)
        moved = {
            "ids": torch.from_numpy(wide),
            "segments": torch.from_numpy(self.segments),
            "starts_word": torch.from_numpy(self.starts_word),
            "special": torch.from_numpy(self.special),
            "lengths": torch.from_numpy(self.lengths),
            "is_next": torch.from_numpy(self.is_next),
        }
        if device.type == "cuda":
            moved = {name: value.pin_memory() for name, value in moved.items()}
        there = {name: value.to(device, non_blocking=True) for name, value in moved.items()}
        there["ids"] = there["ids"].long()
        there["segments"] = there["segments"].long()
        return DeviceBatch(**there)


@dataclass(frozen=True, eq=False)
class DeviceBatch:
    """The same on the device, as tensors: ids and segments [b, t] int64; the rest as in Batch."""

    ids: Tensor
    starts_word: Tensor
    special: Tensor
    lengths: Tensor
    segments: Tensor
    is_next: Tensor

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, eq=False)
class Corrupted:
    """What the model sees, and what it is asked for. Shapes depend on [b, t] and the config alone.

    Attributes:
        ids: [b, t] int64, the corrupted sequence.
        lengths: [b] int64, tokens before the padding (deletion and insertion change them).
        segments: [b, t] int64.
        positions: [b, k] int64, where the model is asked; unused places are 0.
        targets: [b, k] int64, the tokens that were there.
        asked: [b, k] bool, which of the k places are used.
        left, right: [b, k] int64, the tokens just outside the span that holds the position (s-1 and
            e+1 in equation 11.19); 0 where there are no spans.
        offset: [b, k] int64, position - s, from 0, within its span.
    """

    ids: Tensor
    lengths: Tensor
    segments: Tensor
    positions: Tensor
    targets: Tensor
    asked: Tensor
    left: Tensor
    right: Tensor
    offset: Tensor

    def __getitem__(self, rows: slice) -> Corrupted:
        return Corrupted(**{entry.name: getattr(self, entry.name)[rows] for entry in fields(self)})
