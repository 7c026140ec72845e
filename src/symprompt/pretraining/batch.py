"""Batches on their way from the corpus to the device, made ahead of the steps that use them."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from symprompt.pretraining.sequences import Sequences

_AHEAD = 4


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
        there = {}
        for name, values in vars(self).items():
            wide = values.astype(np.int64) if values.dtype == np.uint32 else values
            moved = torch.from_numpy(wide)
            if device.type == "cuda":
                moved = moved.pin_memory()
            there[name] = moved.to(device, non_blocking=True)
            if name in ("ids", "segments"):
                there[name] = there[name].long()
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
    """What the model sees, and what it must predict; shapes depend on [b, t] and the config alone.

    Attributes:
        ids: [b, t] int64, the corrupted sequence.
        lengths: [b] int64, tokens before the padding (deletion and insertion change them).
        segments: [b, t] int64.
        positions: [b, k] int64, the queried positions; 0 where unused.
        targets: [b, k] int64, the tokens that were there.
        asked: [b, k] bool, which of the k positions are used.
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


class Fed(NamedTuple):
    """A batch on the device, and how many tokens it holds, padding left out."""

    batch: DeviceBatch
    tokens: int


class Feed:
    """The batches of a run by step, whichever step it starts from; final.

    Epochs follow each other without a gap: a batch may hold the end of one and the start of the
    next, so no sequence is left out.
    """

    def __init__(self, sequences: Sequences, batch: int) -> None:
        self._sequences = sequences
        self._batch = batch
        self._order: tuple[int, np.ndarray] = (-1, np.empty(0, np.int64))
        self._running: Generator[Fed] | None = None
        self._next = 0

    def rows(self, step: int) -> list[tuple[int, np.ndarray]]:
        """Return the sequences of a step by epoch; mostly that is one."""
        size = len(self._sequences)
        begin, end = step * self._batch, (step + 1) * self._batch
        pieces = []
        while begin < end:
            epoch, place = divmod(begin, size)
            taken = min(size - place, end - begin)
            pieces.append((epoch, self._epoch(epoch)[place : place + taken]))
            begin += taken
        return pieces

    def make(self, step: int, device: torch.device) -> Fed:
        """Return the batch of a step on a device."""
        pieces = [self._sequences.batch(rows, epoch) for epoch, rows in self.rows(step)]
        batch = pieces[0] if len(pieces) == 1 else _join(pieces)
        return Fed(batch.to(device), int(batch.lengths.sum()))

    def take(self, step: int, last: int, device: torch.device) -> Fed:
        """Return the batch of a step on a device; those of the next ones are made ahead.

        Args:
            last: how many steps there are.
        """
        if self._running is None or self._next != step:
            self.close()
            self._running = self.run(step, last, device)
        self._next = step + 1
        return next(self._running)

    def close(self) -> None:
        """End the thread that makes batches ahead: it holds the corpus."""
        if self._running is not None:
            self._running.close()
            self._running = None

    def run(self, first: int, last: int, device: torch.device) -> Generator[Fed]:
        """Yield the batches of steps ``first`` to ``last`` - 1, made ahead by another thread."""

        def enter() -> None:
            # A thread starts on the first GPU, whichever one its process uses.
            if device.type == "cuda":
                torch.cuda.set_device(device)

        waiting: deque[Future[Fed]] = deque()
        executor = ThreadPoolExecutor(1, "batches", initializer=enter)
        try:
            for step in range(first, last):
                waiting.append(executor.submit(self.make, step, device))
                if len(waiting) > _AHEAD:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            executor.shutdown(wait=True, cancel_futures=True)

    def _epoch(self, epoch: int) -> np.ndarray:
        if self._order[0] != epoch:
            self._order = (epoch, self._sequences.order(epoch))
        return self._order[1]


def _join(pieces: list[Batch]) -> Batch:
    return Batch(
        **{
            entry.name: np.concatenate([getattr(piece, entry.name) for piece in pieces])
            for entry in fields(Batch)
        }
    )
