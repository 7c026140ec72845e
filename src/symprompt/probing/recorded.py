"""Training steps as CUDA graphs: the same arithmetic, without a launch per kernel.

A step of stacked relations is some thousand small kernels, and launching them from Python takes
longer than running them. Here the sentences of a step are put into passes of a few fixed shapes,
each recorded once as a CUDA graph and replayed with new indices; the prompt encoders and the
optimiser are recorded too. What fills a pass up to its shape counts nothing: its share of the loss
is zero.

The parts of a method (SPE's object and subject prompt with vectors of their own) go through
the model in the same passes, as if the second part's relations were more relations: one large pass
takes less time than two. Their encoders and optimisers run side by side: updates are bound
by memory, encoders by waiting for one kernel after the other, so one part's vectors are made
while the next one's parameters are still being updated. What a step's first pass reads, but
for the vectors, is tensorised while the step before it updates.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from symprompt.accel.compiling import Recorder, Replay, quick_products
from symprompt.engine.batches import join_few, make_batches, multiples_of_8
from symprompt.engine.stacked_adam import Numbers, StackedAdam
from symprompt.models import ReadOut
from symprompt.probing.methods.base import Method
from symprompt.probing.problem import Sentences
from symprompt.probing.queries import Queries
from symprompt.prompts import (
    Layout,
    PackedQuestion,
    PromptEncoder,
    Question,
    join_layouts,
    packed_question,
    slot_places,
)

_FEW = 48
"""A width with fewer sentences joins the next wider one, unless it is the widest."""


@dataclass(frozen=True)
class Shape:
    """A pass of fixed shape.

    Attributes:
        sentences: how many.
        width: tokens of each, padded; 0 if they stand one after the other.
        tokens: how many there are in all.
        longest: no sentence that stands after another has more tokens; a power of two, or 0 for
            padded ones.
    """

    sentences: int
    width: int
    tokens: int
    longest: int = 0


@dataclass(frozen=True)
class Pass:
    """One pass of a step: its shape, and where its sentences start in the epoch's table."""

    shape: Shape
    start: int


@dataclass(frozen=True, eq=False)
class EpochPasses:
    """The passes of an epoch, step by step, and the table of their sentences.

    Rows count through the layouts of the questions, one after the other. A sentence that only fills
    a pass up has no share, and the offset -1.
    """

    steps: list[list[Pass]]
    rows: Tensor
    offset: Tensor
    share: Tensor


def plan_passes(
    steps: Sequence[tuple[Sequence[Queries], np.ndarray]],
    *,
    max_tokens: int,
    packed: bool,
    device: torch.device,
) -> EpochPasses:
    """Return the passes that the steps of an epoch take.

    Queries for objects and for subjects go through the model together: a pass of a hundred
    sentences takes hardly less time than one of a thousand.

    Args:
        steps: each step's questions, and the weight of the facts they are about.
        max_tokens: most tokens in one pass, unless a sentence alone has more.
        packed: sentences stand one after the other instead of padded to a width.
    """
    found: list[list[Pass]] = []
    table: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    filled = 0
    for asks, weight in steps:
        first = np.cumsum([0, *(len(ask.layout) for ask in asks)])
        rows = np.concatenate([ask.rows + at for ask, at in zip(asks, first, strict=False)])
        offset = np.concatenate([ask.offset for ask in asks])
        share = np.concatenate([ask.share * weight[ask.owner] for ask in asks])
        lengths = np.concatenate([ask.layout.lengths[ask.rows] for ask in asks])
        if packed:
            split = split_packed(lengths, max_tokens)
        else:
            widest = max(ask.layout.ids.shape[1] for ask in asks)
            split = split_padded(lengths, max_tokens, widest)
        passes = []
        for shape, members in split:
            passes.append(Pass(shape, filled))
            more = shape.sentences - len(members)
            table.append(
                (
                    np.pad(rows[members], (0, more), mode="edge"),
                    np.pad(offset[members], (0, more), constant_values=-1),
                    np.pad(share[members], (0, more)),
                )
            )
            filled += shape.sentences
        found.append(passes)
    return EpochPasses(
        found,
        *(
            torch.from_numpy(np.concatenate(column)).to(device)
            for column in zip(*table, strict=True)
        ),
    )


def split_packed(lengths: np.ndarray, max_tokens: int) -> list[tuple[Shape, np.ndarray]]:
    """Return the passes of sentences one after the other: shape and members."""
    passes = []
    for members, _ in make_batches(lengths, max_tokens, order="given", packed=True):
        own = lengths[members]
        tokens = int(own.sum())
        size = max(tokens, min(room_for(tokens, least=64, bits=6), max_tokens))
        longest = 1 << (int(own.max()) - 1).bit_length()
        passes.append((Shape(room_for(len(members)), 0, size, max(16, longest)), members))
    return passes


def split_padded(
    lengths: np.ndarray, max_tokens: int, widest: int
) -> list[tuple[Shape, np.ndarray]]:
    """Return the passes of sentences padded to widths: shape and members."""
    widths = join_few(np.minimum(multiples_of_8(lengths), widest), _FEW)
    passes = []
    for members, width in make_batches(widths, max_tokens, width=lambda own: own, apart=0.0):
        room = min(room_for(len(members)), max(1, max_tokens // width))
        passes.append((Shape(room, width, width * room), members))
    return passes


def room_for(count: int, *, least: int = 16, bits: int = 4) -> int:
    """Return how many a pass is made for: few sizes, an eighth or ``least`` too large.

    Args:
        bits: how many leading ones tell sizes apart; each further one halves what is too much.
    """
    grain = max(least, 1 << max(0, count.bit_length() - bits))
    return -(-count // grain) * grain


class _Side:
    """A CUDA stream beside the current one; where nothing is recorded, no stream at all; final."""

    def __init__(self, recorder: Recorder, priority: int = 0) -> None:
        self.stream: torch.cuda.Stream | None = None
        self.device = recorder.device
        if recorder.active:
            self.stream = torch.cuda.Stream(recorder.device, priority=priority)  # type: ignore[no-untyped-call]

    def follow(self) -> None:
        """Let what is begun here next wait for what was done so far."""
        if self.stream is not None:
            self.stream.wait_stream(torch.cuda.current_stream(self.device))

    def join(self) -> None:
        """Let what follows on the current stream wait for what was begun here."""
        if self.stream is not None:
            torch.cuda.current_stream(self.device).wait_stream(self.stream)

    def within(self) -> AbstractContextManager[Any]:
        """Return a context in which work is begun here."""
        return nullcontext() if self.stream is None else torch.cuda.stream(self.stream)


class CapturedPart:
    """What one part does before and after the passes: its encoder, its optimiser; final.

    Args:
        first: whose parameters are updated first where several parts' are ready.

    Attributes:
        start: [relation, n, width] the vectors at first.
    """

    def __init__(
        self, method: Method, part: str, optimizer: StackedAdam, recorder: Recorder, *, first: bool
    ) -> None:
        self.recorder = recorder
        self.encoder = method.encoders[part]
        self.optimizer = optimizer
        self.device = device = method.backbone.device
        # A body in half precision reads no more of the vectors than 8 bits.
        self._half = method.backbone.dtype.itemsize == 2
        self._compiled = method.backbone.compiled
        with torch.no_grad():
            self.start = self.encoder().detach()
        self._active = torch.zeros(len(self.start), dtype=torch.bool, device=device)
        self._rate = torch.zeros(len(self.start), dtype=torch.float64, device=device)
        self._vectors: Tensor | None = None
        # What another stream reads is kept until this one has waited for it.
        self._kept: list[Tensor] = []
        self._ends: tuple[Replay, ...] = ()
        # The most urgent first: encoders, then updates.
        self.side, self._aside = _Side(recorder, -2), _Side(recorder, -int(first))

    def begin(self) -> None:
        """Make the vectors, and put them where the passes read them; there when the side is joined.

        Waits for this part's last update alone, and for what the side was let follow.
        """
        with self.side.within():
            self._ends[0]()

    def end(self, active: Tensor, rate: Tensor) -> None:
        """Update the parameters by the vectors' gradient, and clear it.

        Args:
            active: [relation] bool, what moves.
            rate: [relation] learning rates.
        """
        self.side.follow()
        with self.side.within():
            self._active.copy_(active)
            self._rate.copy_(rate)
            self._ends[1]()

    def record(self, leaf: Tensor, gradient: Tensor) -> None:
        """Record both ends, once.

        Args:
            leaf: [relation, most, width], written with the vectors.
            gradient: of the same shape; what is this part's is read, and then cleared.
        """
        if self._ends:
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
        if self.side.stream is not None:
            if self._compiled:
                self.optimizer.compile()
            if isinstance(self.encoder, PromptEncoder):
                self.encoder.compile_steps(half=self._half)
            with quick_products(self.device) if self._half else nullcontext():
                # Nothing is active yet, so rehearsals change no parameter.
                self._ends = tuple(
                    self.recorder.capture_all((begin, end), stream=self.side.stream, apart=True)
                )

    def _update(self, gradient: Tensor) -> None:
        vectors = self._vectors
        assert vectors is not None
        self._aside.follow()
        with self._aside.within():
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
        self._aside.join()
        self._kept.clear()
        self.optimizer.finish(numbers)

    @contextmanager
    def _factoring(self, numbers: Numbers) -> Iterator[None]:
        """Update matrices by factors of their gradients, where encoder and optimiser can.

        The updates are bound by memory, what is left of the backward pass by waiting for one kernel
        after the other; so they run at the same time, the backward pass first where both are ready.
        """
        if not isinstance(self.encoder, PromptEncoder) or not self.optimizer.takes_factors:
            yield
            return

        def take(name: str, left: Tensor, right: Tensor) -> None:
            self._kept += left, right
            self._aside.follow()
            with self._aside.within():
                self.optimizer.update_by_factors(name, left, right, numbers)

        with self.encoder.factoring(take):
            yield


@dataclass(frozen=True, eq=False)
class _Slot:
    """The fixed places a recorded pass reads from; ``ready`` tensorises its sentences for ``run``.

    Recordings share their memory, so no other pass may come between the two.
    """

    rows: Tensor
    offset: Tensor
    share: Tensor
    ready: Replay
    run: Replay


class CapturedSteps:
    """Runs training steps from recorded graphs; final.

    Args:
        method: what is trained; its ``queries`` must give its loss.
        sentences: the training facts.
        optimizers: one per part of the method.
        recorder: records the passes, where it is active; otherwise they run kernel by kernel.
        max_tokens: most tokens in one pass.
    """

    def __init__(
        self,
        method: Method,
        sentences: Sentences,
        optimizers: Mapping[str, StackedAdam],
        recorder: Recorder,
        *,
        max_tokens: int,
    ) -> None:
        self.recorder = recorder
        self.method = method
        self.sentences = sentences
        self.max_tokens = max_tokens
        self.device = device = method.backbone.device
        self.parts = {
            part: CapturedPart(method, part, optimizer, recorder, first=not number)
            for number, (part, optimizer) in enumerate(optimizers.items())
        }
        self._read = ReadOut(method.backbone)
        vectors = [part.start for part in self.parts.values()]
        self._relations = len(vectors[0])
        most, width = max(one.shape[1] for one in vectors), vectors[0].shape[2]
        # Part after part, as if a part's relations were relations of their own.
        self._leaf = vectors[0].new_zeros(len(vectors) * self._relations, most, width)
        self._leaf.requires_grad_()
        self._gradient = torch.zeros_like(self._leaf)
        self._losses = torch.zeros(len(self._leaf), device=device)
        self._layout: Layout | None = None
        self._blank: tuple[Tensor, Tensor] | None = None
        self._slots: dict[Shape, _Slot] = {}
        self._side, self._early = _Side(recorder), _Side(recorder)
        self._passed = torch.cuda.Event() if recorder.active else None  # type: ignore[no-untyped-call]

    def plan(self, plan: Sequence[Sequence[np.ndarray]]) -> EpochPasses:
        """Return an epoch's passes, recording those of new shapes.

        Args:
            plan: [step][relation] -> rows, as they were shuffled.
        """
        steps: list[tuple[list[Queries], np.ndarray]] = []
        for batches in plan:
            rows = np.concatenate(batches)
            weight = np.concatenate([np.full(len(batch), 1 / len(batch)) for batch in batches])
            asks = self.method.queries(self.sentences, rows)
            if asks is None:
                raise TypeError(f"{type(self.method).__name__} gives no questions to record")
            steps.append((asks, weight))
        if self._layout is None:
            # The sentences of all questions under one another.
            questions, order = steps[0][0], list(self.parts)
            layouts = [
                replace(
                    ask.layout,
                    relation=ask.layout.relation + order.index(ask.part) * self._relations,
                )
                for ask in questions
            ]
            self._layout = join_layouts(layouts)
            self._base = torch.cat([ask.base for ask in questions])
            if any(ask.end is not None for ask in questions):
                # At the queried token at the latest, and up to it at least.
                starts = [
                    ask.base if ask.whole else torch.full_like(ask.base, self._layout.limit)
                    for ask in questions
                ]
                ends = [ask.base if ask.end is None else ask.end for ask in questions]
                self._blank = torch.cat(starts), torch.cat(ends)
            self._places = slot_places(self._layout, self._leaf.shape[1])
        longest = max(int(ask.layout.lengths.max()) for ask in steps[0][0])
        backbone = self.method.backbone
        # Packed attention has no dropout.
        packed = longest <= backbone.longest_packed and not backbone.model.training
        found = plan_passes(steps, max_tokens=self.max_tokens, packed=packed, device=self.device)
        for shape in dict.fromkeys(entry.shape for step in found.steps for entry in step):
            if shape not in self._slots:
                self._slots[shape] = self._record_pass(shape)
        # What is one part's, [relation, n, width].
        own = (len(self.parts), self._relations, *self._leaf.shape[1:])
        leaves, gradients = self._leaf.view(own), self._gradient.view(own)
        for number, part in enumerate(self.parts.values()):
            part.record(leaves[number], gradients[number])
        # A step that was broken off may have left something.
        for part in self.parts.values():
            part.side.join()
        self._gradient.zero_()
        self._losses.zero_()
        for part in self.parts.values():
            part.side.follow()
        self._note_passed()
        return found

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
        for part in self.parts.values():
            part.begin()
        passes = epoch.steps[step]
        if self._early.stream is not None and self._passed is not None:
            # As soon as the passes noted last are over.
            self._early.stream.wait_event(self._passed)
        with self._early.within():
            self._ready(epoch, passes[0])
        self._early.join()
        for part in self.parts.values():
            part.side.join()
        for number, entry in enumerate(passes):
            if number:
                self._ready(epoch, entry)
            self._slots[entry.shape].run()
        self._note_passed()
        for name, part in self.parts.items():
            part.end(active[name], rate)
        losses.copy_(self._losses.view(len(self.parts), -1).sum(0))
        self._losses.zero_()
        for part in self.parts.values():
            part.side.join()

    def _note_passed(self) -> None:
        """Note that no pass is under way after what was begun so far."""
        if self._passed is not None:
            self._passed.record(torch.cuda.current_stream(self.device))

    def _ready(self, epoch: EpochPasses, entry: Pass) -> None:
        """Tensorise a pass's sentences."""
        slot = self._slots[entry.shape]
        here = slice(entry.start, entry.start + entry.shape.sentences)
        slot.rows.copy_(epoch.rows[here])
        slot.offset.copy_(epoch.offset[here])
        slot.share.copy_(epoch.share[here])
        slot.ready()

    def _question(self, shape: Shape, rows: Tensor, offset: Tensor) -> Question | PackedQuestion:
        """Return the sentences of one pass."""
        layout, mask_id = self._layout, self.method.backbone.vocabulary.mask_id
        assert layout is not None
        at = self._base[rows] + offset.clamp(min=0)
        since = until = None
        if self._blank is not None:
            start, end = (own[rows] for own in self._blank)
            since, until = torch.minimum(at, start), torch.maximum(at, end)
        if shape.width or mask_id is None:
            return layout.question(
                rows, at, width=shape.width, mask_id=mask_id, since=since, until=until
            )
        return packed_question(
            layout,
            rows,
            at,
            tokens=shape.tokens,
            longest=min(shape.longest, layout.ids.shape[1]),
            mask_id=mask_id,
            since=since,
            until=until,
            real=offset >= 0,
            places=self._places,
        )

    def _ask(self, question: Question | PackedQuestion, words: Tensor, share: Tensor) -> None:
        """Add the loss and its gradient of one pass to what the step has so far."""
        inputs = question.inputs(self.method.backbone, self._leaf, words)
        weighted = self._read.weighted_losses(inputs, question.at, question.target, share)
        (gradient,) = torch.autograd.grad(weighted.sum(), [self._leaf])
        self._gradient.add_(gradient)
        self._losses.index_add_(0, question.relation, weighted.detach().float())

    def _record_pass(self, shape: Shape) -> _Slot:
        numbers = torch.zeros(2, shape.sentences, dtype=torch.long, device=self.device)
        # Nothing but filling, until there is something to ask.
        numbers[1] = -1
        share = torch.zeros(shape.sentences, dtype=torch.float64, device=self.device)
        tensorised: list[tuple[Question | PackedQuestion, Tensor]] = []

        def ready() -> None:
            question = self._question(shape, numbers[0], numbers[1])
            tensorised[:] = [(question, self.method.backbone.embed(question.ids))]

        def run() -> None:
            self._ask(*tensorised[0], share)

        if self._side.stream is not None:
            # Nothing but filling is rehearsed; what it adds up is cleared before the first step.
            ready, run = self.recorder.capture_all((ready, run), stream=self._side.stream)
        return _Slot(numbers[0], numbers[1], share, ready, run)
