"""Calls of models in a thread of their own: those that wait are answered together."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from starlette.requests import ClientDisconnect

from symprompt.errors import SympromptError, counted

T = TypeVar("T")
Gone = Callable[[], Awaitable[bool]]
"""Tells whether who asked has gone."""


class BusyError(SympromptError):
    """Too much waits for the model already, or it took too long."""


@dataclass(frozen=True)
class _Waiting(Generic[T]):
    item: T
    size: int
    gone: Gone
    found: asyncio.Future[Any]


class Queue(Generic[T]):
    """What waits for a model, in the order it came; final.

    While a batch is with the model, others gather; the next batch has all of them, as far as it
    goes. Nobody waits for a batch to become full.

    Args:
        answer: gets the items of a batch and returns what each one gives: a value, or an error.
        most: the largest size of a batch; an item that is larger is a batch of its own.
        waiting: so many items may be here.
        seconds: so long may one take, waiting included; 0 is for ever.
    """

    def __init__(
        self,
        answer: Callable[[Sequence[T]], Sequence[Any]],
        *,
        most: int = 1,
        waiting: int = 8,
        seconds: float = 0.0,
    ) -> None:
        self.answer, self.most, self.limit, self.seconds = answer, most, waiting, seconds
        self.waiting = self.items = self.batches = 0
        self._thread = ThreadPoolExecutor(1, "model")
        self._line: deque[_Waiting[T]] = deque()
        self._at_work: asyncio.Task[None] | None = None

    async def run(self, item: T, gone: Gone, size: int = 1) -> Any:
        """Return what an item gives, when it is its turn.

        Args:
            size: how much of a batch it takes.

        Raises:
            BusyError: too many are waiting, or it took too long.
            ClientDisconnect: who asked has gone before its turn.
        """
        if self.waiting >= self.limit:
            raise BusyError(
                f"{counted(self.limit, 'question')} are waiting already; ask again later."
            )
        own = _Waiting(item, size, gone, asyncio.get_running_loop().create_future())
        self.waiting += 1
        self._line.append(own)
        if self._at_work is None or self._at_work.done():
            self._at_work = asyncio.ensure_future(self._work())
        try:
            return await asyncio.wait_for(own.found, self.seconds or None)
        except TimeoutError:
            raise BusyError(
                f"there was no answer in {self.seconds:g} s; ask again later."
            ) from None
        finally:
            self.waiting -= 1

    async def _work(self) -> None:
        """Answer batch after batch until nothing waits."""
        while self._line:
            batch = await self._next()
            if not batch:
                continue
            items = [own.item for own in batch]
            loop = asyncio.get_running_loop()
            try:
                found = await loop.run_in_executor(self._thread, self.answer, items)
            except Exception as error:  # told to everybody who asked; the next batch is asked
                found = [error] * len(batch)
            self.items, self.batches = self.items + len(batch), self.batches + 1
            for own, value in zip(batch, found, strict=True):
                if own.found.done():
                    continue  # nobody waits for it any more
                if isinstance(value, Exception):
                    own.found.set_exception(value)
                else:
                    own.found.set_result(value)

    async def _next(self) -> list[_Waiting[T]]:
        """Return the next batch; who has gone meanwhile is left out."""
        batch: list[_Waiting[T]] = []
        size = 0
        while self._line and (not batch or size + self._line[0].size <= self.most):
            own = self._line.popleft()
            if own.found.done():
                continue
            if await own.gone():
                own.found.set_exception(ClientDisconnect())
                continue
            batch.append(own)
            size += own.size
        return batch
