"""One part of a method around the recorded passes: its encoder before them, its optimiser after."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from symprompt.adam import Numbers, StackedAdam
from symprompt.methods.base import Method
from symprompt.prompts import PromptEncoder
from symprompt.runtime import quick_products, rehearse

Replay = Callable[[], None]


class CapturedPart:
    """What one part does before and after the passes: its encoder, its optimiser; final.

    Args:
        first: whose parameters are updated first where several parts' are ready.

    Attributes:
        start: [relation, n, width] the vectors at first.
    """

    def __init__(
        self, method: Method, part: str, optimizer: StackedAdam, *, first: bool, capture: bool
    ) -> None:
        self.encoder = method.encoders[part]
        self.optimizer = optimizer
        self.device = device = method.backbone.device
        # A body in half precision reads no more of the vectors than 8 bits.
        self._half = method.backbone.dtype.itemsize == 2
        with torch.no_grad():
            self.start = self.encoder().detach()
        self._active = torch.zeros(len(self.start), dtype=torch.bool, device=device)
        self._rate = torch.zeros(len(self.start), dtype=torch.float64, device=device)
        self._vectors: Tensor | None = None
        # What another stream reads is kept until this one has waited for it.
        self._kept: list[Tensor] = []
        self._ends: tuple[Replay, Replay] | None = None
        self._stream = self._aside = None
        if capture:
            # The most urgent first: encoders, then updates.
            self._stream = torch.cuda.Stream(device, priority=-2)  # type: ignore[no-untyped-call]
            self._aside = torch.cuda.Stream(device, priority=-int(first))  # type: ignore[no-untyped-call]

    def catch_up(self) -> None:
        """Let what is begun next wait for what was done so far, to the parameters above all."""
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self.device))

    def begin(self) -> None:
        """Make the vectors, and put them where the passes read them; they are there after join.

        Waits for this part's last update alone, and for what was done before ``catch_up``.
        """
        with self._on_stream():
            self._replays[0]()

    def end(self, active: Tensor, rate: Tensor) -> None:
        """Update the parameters by the vectors' gradient, and clear it.

        Args:
            active: [relation] bool, what moves.
            rate: [relation] learning rates.
        """
        self.catch_up()
        with self._on_stream():
            self._active.copy_(active)
            self._rate.copy_(rate)
            self._replays[1]()

    @property
    def _replays(self) -> tuple[Replay, Replay]:
        if self._ends is None:
            raise TypeError("plan comes before step")
        return self._ends

    def _on_stream(self) -> AbstractContextManager[Any]:
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def join(self) -> None:
        """Let what follows wait for what was begun."""
        if self._stream is not None:
            torch.cuda.current_stream(self.device).wait_stream(self._stream)

    def record(self, leaf: Tensor, gradient: Tensor) -> None:
        """Record both ends, once.

        Args:
            leaf: [relation, most, width], written with the vectors.
            gradient: of the same shape; what is this part's is read, and then cleared.
        """
        if self._ends is not None:
            return
        count = self.start.shape[1]
        leaf, gradient = leaf.detach()[:, :count], gradient[:, :count]

        def begin() -> None:
            self._vectors = self.encoder()
            with torch.no_grad():
                leaf.copy_(self._vectors)

        def end() -> None:
            self._update(gradient)
            gradient.zero_()

        self._ends = begin, end
        if self._stream is not None:
            self._ends = self._record_ends(begin, end, self._stream)

    def _update(self, gradient: Tensor) -> None:
        vectors = self._vectors
        assert vectors is not None
        with self._set_aside():
            numbers = self.optimizer.begin(self._active, self._rate)
        if vectors.is_leaf:
            # Free vectors are parameters themselves: autograd has nothing to do, and would wait
            # for a stream that is not being recorded.
            vectors.grad = gradient
        else:
            values = list(self.optimizer.parameters.values())
            with self._factoring(numbers):
                found = torch.autograd.grad(vectors, values, gradient, allow_unused=True)
            for value, own in zip(values, found, strict=True):
                value.grad = own
        self._vectors = None
        if self._aside is not None:
            torch.cuda.current_stream(self.device).wait_stream(self._aside)
        self._kept.clear()
        self.optimizer.finish(numbers)

    @contextmanager
    def _factoring(self, numbers: Numbers) -> Iterator[None]:
        """Update matrices by factors of their gradients, where encoder and optimiser can.

        The updates are bound by memory, what is left of the walk back by waiting for one kernel
        after the other; so they run at the same time, the walk first wherever both are ready.
        """
        if not isinstance(self.encoder, PromptEncoder) or not self.optimizer.takes_factors:
            yield
            return

        def take(name: str, left: Tensor, right: Tensor) -> None:
            self._kept += left, right
            with self._set_aside():
                self.optimizer.update_by_factors(name, left, right, numbers)

        with self.encoder.factoring(take):
            yield

    @contextmanager
    def _set_aside(self) -> Iterator[None]:
        """Do what is done within beside what follows, after what was done so far."""
        if self._aside is None:
            yield
            return
        self._aside.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._aside):
            yield

    def _record_ends(
        self, begin: Replay, end: Replay, stream: torch.cuda.Stream
    ) -> tuple[Replay, Replay]:
        self.optimizer.compile()
        if isinstance(self.encoder, PromptEncoder):
            self.encoder.compile_steps(half=self._half)

        def both() -> None:
            begin()
            end()

        first, second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with quick_products(self.device) if self._half else nullcontext():
            # Nothing is active yet, so these rehearsals change no parameter.
            rehearse(both, stream)
            with torch.cuda.graph(first, stream=stream):
                begin()
            with torch.cuda.graph(second, pool=first.pool(), stream=stream):
                end()
        return first.replay, second.replay
