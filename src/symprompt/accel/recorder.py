"""Work recorded once as CUDA graphs and replayed, so that no kernel is launched from Python."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

Replay = Callable[[], None]


class Recorder:
    """Records functions as CUDA graphs; final.

    A function that cannot be recorded runs as it is, and so does everything that comes after it:
    ``reason`` then holds why. Graphs share one memory pool, so they must run one after the other,
    unless they are recorded apart.

    Args:
        device: where the functions run; only on CUDA is anything recorded.
        wanted: False records nothing.

    Attributes:
        active: whether functions are recorded.
        reason: why a function could not be recorded; "" as long as all could.
        seconds: time spent on recording, rehearsals and compiling.
    """

    def __init__(self, device: torch.device, *, wanted: bool = True) -> None:
        self.device = device
        self.active = wanted and device.type == "cuda"
        self.reason = ""
        self.seconds = 0.0
        self._pool: Any = None

    def capture(self, work: Replay, state: Sequence[Tensor] = ()) -> Replay:
        """Return what replays a function; see ``capture_all``."""
        return self.capture_all((work,), state)[0]

    def capture_all(
        self,
        works: Sequence[Replay],
        state: Sequence[Tensor] = (),
        *,
        stream: torch.cuda.Stream | None = None,
        apart: bool = False,
    ) -> tuple[Replay, ...]:
        """Return what replays each of some functions that always run in this order.

        Each becomes a graph of its own. Before that they run twice, so that libraries set
        themselves up; what this changes is put back.

        Args:
            state: every tensor that the functions change and that must keep its values.
            stream: where they are rehearsed and recorded; where recordings run at the same time,
                the one they run on, as libraries keep a workspace per stream.
            apart: with memory of their own, as they run at the same time as other graphs.

        Raises:
            torch.OutOfMemoryError: there is no memory for the graphs.
        """
        if not self.active:
            return tuple(works)
        begun = time.perf_counter()
        before = [value.clone() for value in state]
        random = torch.cuda.get_rng_state(self.device)
        try:
            return self._record(works, stream, apart)
        except RuntimeError as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            self.active = False
            self.reason = str(error).splitlines()[0]
            return tuple(works)
        finally:
            torch.cuda.synchronize(self.device)
            torch.cuda.set_rng_state(random, self.device)
            with torch.no_grad():
                for value, old in zip(state, before, strict=True):
                    value.copy_(old)
            self.seconds += time.perf_counter() - begun

    def _record(
        self, works: Sequence[Replay], stream: torch.cuda.Stream | None, apart: bool
    ) -> tuple[Replay, ...]:
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        pool = torch.cuda.graph_pool_handle() if apart else self._pool
        stream = stream or torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream):
            for _ in range(2):
                for work in works:
                    work()
        torch.cuda.current_stream(self.device).wait_stream(stream)
        torch.cuda.synchronize(self.device)
        replays = []
        for work in works:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool, stream=stream):
                work()
            replays.append(graph.replay)
        return tuple(replays)
