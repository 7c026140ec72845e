"""Batches on their way to the device, made ahead of the steps that use them."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import fields
from typing import NamedTuple, Protocol

import numpy as np
import torch

from symprompt.pretrain.batch import Batch, DeviceBatch

_AHEAD = 4


class Sequences(Protocol):
    """What batches are made of."""

    def __len__(self) -> int:
        """Return how many sequences there are in an epoch."""
        ...

    def order(self, epoch: int) -> np.ndarray:
        """Return the order of an epoch, a permutation."""
        ...

    def batch(self, indices: np.ndarray, epoch: int) -> Batch:
        """Return these sequences as they are in an epoch."""
        ...


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
