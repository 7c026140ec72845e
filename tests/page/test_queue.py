"""What waits for a model: gathered in batches, bounded in number and in time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from starlette.requests import ClientDisconnect

from symprompt.page.queue import BusyError, Queue


async def here() -> bool:
    return False


def test_what_waits_is_answered_together_in_its_order() -> None:
    gate, seen = threading.Event(), []

    def answer(items: Sequence[int]) -> list[Any]:
        gate.wait(5)
        seen.append(list(items))
        return [own * 10 if own != 3 else ValueError("three") for own in items]

    async def ask() -> list[Any]:
        queue = Queue(answer, most=4, waiting=20)
        asked = [asyncio.ensure_future(queue.run(own, here)) for own in range(1, 8)]
        asked.append(asyncio.ensure_future(queue.run(8, here, size=9)))
        await asyncio.sleep(0.05)
        gate.set()
        found = await asyncio.gather(*asked, return_exceptions=True)
        assert (queue.items, queue.waiting) == (8, 0)
        return list(found)

    found = asyncio.run(ask())
    assert [str(own) for own in found] == ["10", "20", "three", "40", "50", "60", "70", "80"]
    # The first is with the model when the others come, and one that is too large goes alone.
    assert seen[-1] == [8]
    assert [own for batch in seen for own in batch] == list(range(1, 9))
    assert all(len(batch) <= 4 for batch in seen)
    assert len(seen) <= 4


def test_too_many_too_long_and_gone_are_refused() -> None:
    gate = threading.Event()

    def answer(items: Sequence[int]) -> list[int]:
        gate.wait(5)
        return list(items)

    async def ask() -> None:
        queue = Queue(answer, waiting=2, seconds=0.2)
        first = asyncio.ensure_future(queue.run(1, here))
        await asyncio.sleep(0.01)
        second = asyncio.ensure_future(queue.run(2, here))
        await asyncio.sleep(0.01)
        with pytest.raises(BusyError, match="2 questions are waiting already; ask again later"):
            await queue.run(3, here)
        for own in (first, second):
            with pytest.raises(BusyError, match=r"no answer in 0.2 s; ask again"):
                await own
        assert queue.waiting == 0
        gate.set()
        # Those who had waited too long are not asked any more, and it works again.
        assert await queue.run(4, here) == 4
        assert queue.items == 2

        async def gone() -> bool:
            return True

        with pytest.raises(ClientDisconnect):
            await queue.run(5, gone)

    asyncio.run(ask())


def test_an_error_of_a_batch_is_told_and_the_next_is_asked() -> None:
    def answer(items: Sequence[int]) -> list[int]:
        if 1 in items:
            raise RuntimeError("broken")
        return list(items)

    async def ask() -> None:
        queue = Queue(answer)
        with pytest.raises(RuntimeError, match="broken"):
            await queue.run(1, here)
        assert await queue.run(2, here) == 2

    asyncio.run(ask())
