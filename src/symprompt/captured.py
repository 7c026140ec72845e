"""Training steps as CUDA graphs: the same arithmetic, without a launch per kernel.

A step of stacked relations is some thousand small kernels, and launching them from Python takes
longer than running them. Here the sentences of a step are put into passes of a few fixed shapes,
each recorded once as a CUDA graph and replayed with new indices; the prompt encoders and the
optimiser are recorded too. What fills a pass up to its shape counts nothing: its share of the loss
is zero.

Parts share no parameter and no sentence, so each is a chain of its own, on a stream of its own:
while one waits for memory (its encoder, the optimiser), the other computes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from symprompt.adam import Factors, StackedAdam
from symprompt.backbone import LONGEST, ReadOut
from symprompt.methods.asking import Asks
from symprompt.methods.base import Method, Sentences
from symprompt.passes import PartPasses, Shape, plan_passes
from symprompt.prompts import (
    Layout,
    PackedQuestion,
    PromptEncoder,
    Question,
    join_layouts,
    packed_question,
    slot_places,
)

Replay = Callable[[], None]
EpochPasses = Mapping[str, PartPasses]
"""An epoch's passes, of each part."""


@dataclass(frozen=True, eq=False)
class _Slot:
    """The fixed places a recorded pass reads from."""

    rows: Tensor
    offset: Tensor
    share: Tensor
    run: Replay


class CapturedSteps:
    """Runs training steps from recorded graphs; final.

    Args:
        method: what is trained; its ``asks`` must give its loss.
        sentences: the training facts.
        optimizers: one per part of the method.
        max_tokens: most tokens in one pass.
        capture: record CUDA graphs; otherwise the same passes run one kernel at a time.

    Attributes:
        seconds: time spent on recording, rehearsals and compiling included.
    """

    def __init__(
        self,
        method: Method,
        sentences: Sentences,
        optimizers: Mapping[str, StackedAdam],
        *,
        max_tokens: int,
        capture: bool = True,
    ) -> None:
        self.method = method
        self.sentences = sentences
        self.max_tokens = max_tokens
        self.device = method.backbone.device
        self.seconds = 0.0
        read = ReadOut(method.backbone)
        self.chains = {
            part: _Chain(method, part, optimizer, read, capture=capture)
            for part, optimizer in optimizers.items()
        }

    def plan(self, plan: Sequence[Sequence[np.ndarray]]) -> EpochPasses:
        """Return an epoch's passes, recording those of new shapes.

        Args:
            plan: [step][relation] -> rows, as the trainer shuffled them.

        Raises:
            RuntimeError: the model does something that cannot be recorded.
        """
        steps: dict[str, list[tuple[list[Asks], np.ndarray]]] = {part: [] for part in self.chains}
        for batches in plan:
            rows = np.concatenate(batches)
            weight = np.concatenate([np.full(len(batch), 1 / len(batch)) for batch in batches])
            asks = self.method.asks(self.sentences, rows)
            if asks is None:
                raise TypeError(f"{type(self.method).__name__} gives no questions to record")
            for part, own in steps.items():
                own.append(([ask for ask in asks if ask.part == part], weight))
        found = {}
        for part, chain in self.chains.items():
            layouts = [ask.layout for ask in steps[part][0][0]]
            packed = self._packed(max(int(layout.lengths.max()) for layout in layouts))
            found[part] = plan_passes(
                steps[part], max_tokens=self.max_tokens, packed=packed, device=self.device
            )
            begun = time.perf_counter()
            try:
                chain.record(steps[part][0][0], found[part])
            finally:
                self.seconds += time.perf_counter() - begun
        return found

    def _packed(self, longest: int) -> bool:
        backbone = self.method.backbone
        # Packed attention has no dropout.
        return backbone.packs and not backbone.model.training and longest <= LONGEST

    def step(
        self,
        epoch: EpochPasses,
        step: int,
        active: Mapping[str, Tensor],
        rate: Tensor,
        losses: Tensor,
    ) -> None:
        """Run one step: vectors, passes, gradients, update; write each relation's mean loss.

        Args:
            active: per part, [relation] bool.
            rate: [relation] learning rates.
            losses: [relation], written.
        """
        # Encoders are bound by memory, passes by products: the part with the most to pass begins,
        # and the encoders of the others run beside its passes.
        longest = max(
            epoch, key=lambda part: sum(one.shape.tokens for one in epoch[part].steps[step])
        )
        first = self.chains[longest]
        first.step(epoch[longest], step, active[longest], rate)
        for part, chain in self.chains.items():
            if chain is not first:
                chain.step(epoch[part], step, active[part], rate, after=first.begun)
        for chain in self.chains.values():
            chain.join()
        losses.copy_(torch.stack([chain.losses for chain in self.chains.values()]).sum(0))


class _Chain:
    """One part's steps: its encoder, its passes, its optimiser."""

    def __init__(
        self, method: Method, part: str, optimizer: StackedAdam, read: ReadOut, *, capture: bool
    ) -> None:
        self.method = method
        self._read = read
        self.encoder = method.encoders[part]
        self.optimizer = optimizer
        self.capture = capture
        self.device = device = method.backbone.device
        with torch.no_grad():
            vectors = self.encoder().detach()
        self._leaf = vectors.clone().requires_grad_()
        self._gradient = torch.zeros_like(vectors)
        self.losses = torch.zeros(len(vectors), device=device)
        self._active = torch.zeros(len(vectors), dtype=torch.bool, device=device)
        self._rate = torch.zeros(len(vectors), dtype=torch.float64, device=device)
        self._vectors: Tensor | None = None
        self._layout: Layout | None = None
        self._slots: dict[Shape, _Slot] = {}
        self._ends: tuple[Replay, Replay] | None = None
        # What the encoders keep for their gradient must outlive the passes, which share theirs.
        self._pool = torch.cuda.graph_pool_handle() if capture else None
        self._stream = torch.cuda.Stream(device) if capture else None  # type: ignore[no-untyped-call]
        self.begun = torch.cuda.Event() if capture else None  # type: ignore[no-untyped-call]

    def record(self, questions: Sequence[Asks], passes: PartPasses) -> None:
        """Record the passes of new shapes, and once the encoder and the optimiser."""
        if self._layout is None:
            self._layout = join_layouts([ask.layout for ask in questions])
            self._base = torch.cat([ask.base for ask in questions])
            self._places = slot_places(self._layout, self._leaf.shape[1])
        for shape in dict.fromkeys(entry.shape for step in passes.steps for entry in step):
            if shape not in self._slots:
                self._slots[shape] = self._record_pass(shape)
        if self._ends is None:
            self._ends = self._record_ends()

    def step(
        self,
        passes: PartPasses,
        step: int,
        active: Tensor,
        rate: Tensor,
        *,
        after: torch.cuda.Event | None = None,
    ) -> None:
        """Run one step, from an event on; the losses are there after ``join``."""
        if self._ends is None:
            raise TypeError("plan comes before step")
        if self._stream is None:
            self._run(passes, step, active, rate)
            return
        self._stream.wait_stream(torch.cuda.current_stream(self.device))
        if after is not None:
            self._stream.wait_event(after)
        with torch.cuda.stream(self._stream):
            self._run(passes, step, active, rate)

    def join(self) -> None:
        """Let what follows wait for the step."""
        if self._stream is not None:
            torch.cuda.current_stream(self.device).wait_stream(self._stream)

    def _run(self, passes: PartPasses, step: int, active: Tensor, rate: Tensor) -> None:
        assert self._ends is not None
        begin, end = self._ends
        begin()
        if self.begun is not None:
            self.begun.record(self._stream)
        for entry in passes.steps[step]:
            slot = self._slots[entry.shape]
            here = slice(entry.start, entry.start + entry.shape.sentences)
            slot.rows.copy_(passes.rows[here])
            slot.offset.copy_(passes.offset[here])
            slot.share.copy_(passes.share[here])
            slot.run()
        self._active.copy_(active)
        self._rate.copy_(rate)
        end()

    def _ask(self, shape: Shape, rows: Tensor, offset: Tensor, share: Tensor) -> None:
        """Add the loss and its gradient of one pass to what the step has so far."""
        layout, backbone = self._layout, self.method.backbone
        assert layout is not None
        mask_id = backbone.vocabulary.mask_id
        at = self._base[rows] + offset.clamp(min=0)
        question: Question | PackedQuestion
        if shape.width or mask_id is None:
            question = layout.question(rows, at, width=shape.width, mask_id=mask_id)
            inputs = question.inputs(backbone, self._leaf)
        else:
            question = packed_question(
                layout,
                rows,
                at,
                tokens=shape.tokens,
                longest=int(layout.lengths.max()),
                mask_id=mask_id,
                real=offset >= 0,
            )
            inputs = question.inputs(backbone, self._leaf, self._places[rows])
        weighted = self._read.weighted_losses(inputs, question.at, question.target, share)
        (gradient,) = torch.autograd.grad(weighted.sum(), [self._leaf])
        self._gradient.add_(gradient)
        self.losses.index_add_(0, layout.relation[rows], weighted.detach().float())

    def _begin(self) -> None:
        self._vectors = self.encoder()
        with torch.no_grad():
            self._leaf.copy_(self._vectors)
            self._gradient.zero_()
        self.losses.zero_()

    def _end(self) -> None:
        vectors = self._vectors
        factors: Factors | None = None
        assert vectors is not None
        if vectors.is_leaf:
            # Free vectors are parameters themselves: autograd has nothing to do, and would wait
            # for a stream that is not being recorded.
            vectors.grad = self._gradient
        else:
            values = list(self.optimizer.parameters.values())
            with self._factoring() as factors:
                found = torch.autograd.grad(vectors, values, self._gradient, allow_unused=True)
            for value, gradient in zip(values, found, strict=True):
                value.grad = gradient
        self._vectors = None
        self.optimizer.step(self._active, self._rate, factors)

    def _factoring(self) -> AbstractContextManager[Factors | None]:
        """Keep gradients as factors where encoder and optimiser can."""
        if isinstance(self.encoder, PromptEncoder) and self.optimizer.takes_factors:
            return self.encoder.factoring()
        return nullcontext()

    def _record_pass(self, shape: Shape) -> _Slot:
        numbers = torch.zeros(2, shape.sentences, dtype=torch.long, device=self.device)
        # Nothing but filling, until there is something to ask.
        numbers[1] = -1
        share = torch.zeros(shape.sentences, dtype=torch.float64, device=self.device)

        def run() -> None:
            self._ask(shape, numbers[0], numbers[1], share)

        if not self.capture:
            return _Slot(numbers[0], numbers[1], share, run)
        # Dropout draws from a state that depends on seed and epoch alone.
        state = torch.cuda.get_rng_state(self.device)
        self._warm_up(run)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            run()
        torch.cuda.set_rng_state(state, self.device)
        return _Slot(numbers[0], numbers[1], share, graph.replay)

    def _record_ends(self) -> tuple[Replay, Replay]:
        if not self.capture:
            return self._begin, self._end
        # A body in half precision reads no more of the vectors than 8 bits.
        half = self.method.backbone.dtype.itemsize == 2
        self.optimizer.compile()
        if isinstance(self.encoder, PromptEncoder):
            self.encoder.compile_steps(half=half)

        def both() -> None:
            self._begin()
            self._end()

        begin, end = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with _float32_products("high" if half else None):
            # Nothing is active yet, so these rehearsals change no parameter.
            self._warm_up(both)
            with torch.cuda.graph(begin, stream=self._stream):
                self._begin()
            with torch.cuda.graph(end, pool=begin.pool(), stream=self._stream):
                self._end()
        return begin.replay, end.replay

    def _warm_up(self, work: Replay) -> None:
        """Run what is about to be recorded, so that libraries have set themselves up."""
        # The chain's own stream: libraries keep a workspace per stream, which two chains that run
        # at the same time must not share.
        stream = self._stream
        assert stream is not None
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream):
            for _ in range(2):
                work()
        torch.cuda.current_stream(self.device).wait_stream(stream)
        torch.cuda.synchronize(self.device)


@contextmanager
def _float32_products(precision: str | None) -> Iterator[None]:
    """Record float32 products in another precision; "high" is TF32, 10 bits on tensor cores."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision or before)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
