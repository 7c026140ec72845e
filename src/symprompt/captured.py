"""Training steps as CUDA graphs: the same arithmetic, without a launch per kernel.

A step of stacked relations is some thousand small kernels, and launching them from Python takes
longer than running them. Here the sentences of a step are put into passes of a few fixed shapes
(width in tokens, number of sentences), each recorded once as a CUDA graph and replayed with new
indices; the prompt encoders and the optimiser are recorded too. What fills a pass up to its shape
counts nothing: its share of the loss is zero.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from symprompt.adam import StackedAdam
from symprompt.backbone import Inputs
from symprompt.methods.asking import Asks
from symprompt.methods.base import Method, Sentences
from symprompt.prompts import PromptEncoder

Replay = Callable[[], None]
_FEW = 48
"""A width with fewer sentences joins the next wider one, unless it is the widest."""


@dataclass(frozen=True)
class Shape:
    """A pass of fixed shape: how wide, and how many sentences of each of the method's questions.

    Sentences that ask forth and back go through the model together: a pass of a hundred sentences
    takes hardly less time than one of a thousand.
    """

    width: int
    rooms: tuple[int, ...]

    @property
    def sentences(self) -> int:
        """How many sentences there are in all."""
        return sum(self.rooms)


@dataclass(frozen=True)
class Pass:
    """One pass of a step: its shape, and where its sentences start in the epoch's table."""

    shape: Shape
    start: int


@dataclass(frozen=True, eq=False)
class EpochPasses:
    """An epoch's passes, step by step, and the table of their sentences on the device."""

    steps: list[list[Pass]]
    rows: Tensor
    offset: Tensor
    share: Tensor


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
        self.optimizers = dict(optimizers)
        self.max_tokens = max_tokens
        self.capture = capture
        self.device = method.backbone.device
        with torch.no_grad():
            vectors = method.vectors()
        relations = len(next(iter(vectors.values())))
        self._leaves = {part: value.clone().requires_grad_() for part, value in vectors.items()}
        self._gradients = {part: torch.zeros_like(value) for part, value in vectors.items()}
        self._losses = torch.zeros(relations, device=self.device)
        self._active = {
            part: torch.zeros(relations, dtype=torch.bool, device=self.device) for part in vectors
        }
        self._rate = torch.zeros(relations, dtype=torch.float64, device=self.device)
        self._vectors: dict[str, Tensor] = {}
        self._slots: dict[Shape, _Slot] = {}
        self._questions: list[Asks] = []
        self._ends: tuple[Replay, Replay] | None = None
        # What the encoders keep for their gradient must outlive the passes, which share theirs.
        self._pool = torch.cuda.graph_pool_handle() if capture else None

    def plan(self, plan: Sequence[Sequence[np.ndarray]]) -> EpochPasses:
        """Return an epoch's passes, recording those of new shapes.

        Args:
            plan: [step][relation] -> rows, as the trainer shuffled them.

        Raises:
            RuntimeError: the model does something that cannot be recorded.
        """
        steps: list[list[Pass]] = []
        table: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        filled = 0
        for batches in plan:
            rows = np.concatenate(batches)
            weight = np.concatenate([np.full(len(batch), 1 / len(batch)) for batch in batches])
            asks = self.method.asks(self.sentences, rows)
            if asks is None:
                raise TypeError(f"{type(self.method).__name__} gives no questions to record")
            self._questions = asks
            passes = []
            for shape, members in self._split(asks):
                passes.append(Pass(shape, filled))
                for ask, own, room in zip(asks, members, shape.rooms, strict=True):
                    if room:
                        table.append(_padded(ask, own, weight, room))
                filled += shape.sentences
            steps.append(passes)
        found = EpochPasses(
            steps,
            *(
                torch.from_numpy(np.concatenate(column)).to(self.device)
                for column in zip(*table, strict=True)
            ),
        )
        for shape in dict.fromkeys(entry.shape for passes in steps for entry in passes):
            if shape not in self._slots:
                self._slots[shape] = self._record_pass(shape)
        if self._ends is None:
            self._ends = self._record_ends()
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
        if self._ends is None:
            raise TypeError("plan comes before step")
        begin, end = self._ends
        begin()
        for entry in epoch.steps[step]:
            slot = self._slots[entry.shape]
            here = slice(entry.start, entry.start + entry.shape.sentences)
            slot.rows.copy_(epoch.rows[here])
            slot.offset.copy_(epoch.offset[here])
            slot.share.copy_(epoch.share[here])
            slot.run()
        for part, value in active.items():
            self._active[part].copy_(value)
        self._rate.copy_(rate)
        end()
        losses.copy_(self._losses)

    def _split(self, asks: Sequence[Asks]) -> list[tuple[Shape, list[np.ndarray]]]:
        """Return the passes that the questions' sentences take: shape, and members by question."""
        widths = []
        for ask in asks:
            lengths = ask.layout.lengths[ask.rows]
            widths.append(np.minimum(-(-lengths // 8) * 8, ask.layout.ids.shape[1]))
        levels = np.unique(np.concatenate(widths))
        passes: list[tuple[Shape, list[np.ndarray]]] = []
        below = 0
        for level in levels:
            members = [np.flatnonzero((below < own) & (own <= level)) for own in widths]
            if sum(map(len, members)) < _FEW and level != levels[-1]:
                continue
            below = int(level)
            most = max(1, self.max_tokens // below)
            largest = max(map(len, members))
            # Where one question has most of the sentences, the others' rooms may be coarse: every
            # combination of rooms is recorded.
            rooms = [
                _room(len(own), least=16 if len(own) == largest else 64) if len(own) else 0
                for own in members
            ]
            if sum(rooms) <= most:
                passes.append((Shape(below, tuple(rooms)), members))
                continue
            for question, own in enumerate(members):
                for start in range(0, len(own), most):
                    part = own[start : start + most]
                    alone = [part if place == question else own[:0] for place in range(len(asks))]
                    full = [min(_room(len(one)), most) if len(one) else 0 for one in alone]
                    passes.append((Shape(below, tuple(full)), alone))
        return passes

    def _ask(self, shape: Shape, rows: Tensor, offset: Tensor, share: Tensor) -> None:
        """Add the loss and its gradient of one pass to what the step has so far."""
        backbone = self.method.backbone
        asked = [
            (ask, own, place)
            for ask, own, place in zip(
                self._questions,
                rows.split(list(shape.rooms)),  # type: ignore[no-untyped-call]
                offset.split(list(shape.rooms)),  # type: ignore[no-untyped-call]
                strict=True,
            )
            if len(own)
        ]
        questions = [
            ask.layout.question(
                own,
                ask.base[own] + place,
                width=shape.width,
                mask_id=backbone.vocabulary.mask_id,
            )
            for ask, own, place in asked
        ]
        inputs = [
            question.inputs(backbone, self._leaves[ask.part])
            for question, (ask, _, _) in zip(questions, asked, strict=True)
        ]
        together = Inputs(
            torch.cat([one.embeddings for one in inputs]),
            torch.cat([one.mask for one in inputs if one.mask is not None]),
        )
        logits = backbone.logits_at(together, torch.cat([question.at for question in questions]))
        target = torch.cat([question.target for question in questions])
        loss = functional.cross_entropy(logits, target, reduction="none")
        weighted = loss * share.to(loss.dtype)
        parts = list(dict.fromkeys(ask.part for ask, _, _ in asked))
        gradients = torch.autograd.grad(weighted.sum(), [self._leaves[part] for part in parts])
        for part, gradient in zip(parts, gradients, strict=True):
            self._gradients[part].add_(gradient)
        relation = torch.cat([ask.layout.relation[own] for ask, own, _ in asked])
        self._losses.index_add_(0, relation, weighted.detach().float())

    def _begin(self) -> None:
        self._vectors = self.method.vectors()
        with torch.no_grad():
            for part, value in self._vectors.items():
                self._leaves[part].copy_(value)
                self._gradients[part].zero_()
        self._losses.zero_()

    def _end(self) -> None:
        made = {part: value for part, value in self._vectors.items() if not value.is_leaf}
        values = [value for part in made for value in self.optimizers[part].parameters.values()]
        if made:
            found = torch.autograd.grad(
                list(made.values()), values, [self._gradients[part] for part in made]
            )
            for value, gradient in zip(values, found, strict=True):
                value.grad = gradient
        for part, vectors in self._vectors.items():
            # Free vectors are parameters themselves: autograd has nothing to do, and would wait
            # for a stream that is not being recorded.
            if vectors.is_leaf:
                vectors.grad = self._gradients[part]
        self._vectors = {}
        for part, optimizer in self.optimizers.items():
            optimizer.step(self._active[part], self._rate)

    def _record_pass(self, shape: Shape) -> _Slot:
        numbers = torch.zeros(2, shape.sentences, dtype=torch.long, device=self.device)
        share = torch.zeros(shape.sentences, dtype=torch.float64, device=self.device)

        def run() -> None:
            self._ask(shape, numbers[0], numbers[1], share)

        if not self.capture:
            return _Slot(numbers[0], numbers[1], share, run)
        # Dropout draws from a state that depends on seed and epoch alone.
        state = torch.cuda.get_rng_state(self.device)
        self._warm_up(run)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            run()
        torch.cuda.set_rng_state(state, self.device)
        return _Slot(numbers[0], numbers[1], share, graph.replay)

    def _record_ends(self) -> tuple[Replay, Replay]:
        if not self.capture:
            return self._begin, self._end
        for optimizer in self.optimizers.values():
            optimizer.compile()
        for encoder in self.method.encoders.values():
            if isinstance(encoder, PromptEncoder):
                encoder.compile_steps()

        def both() -> None:
            self._begin()
            self._end()

        # Nothing is active yet, so these rehearsals change no parameter.
        self._warm_up(both)
        begin, end = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(begin):
            self._begin()
        with torch.cuda.graph(end, pool=begin.pool()):
            self._end()
        return begin.replay, end.replay

    def _warm_up(self, work: Replay) -> None:
        """Run what is about to be recorded, so that libraries have set themselves up."""
        stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream):
            for _ in range(2):
                work()
        torch.cuda.current_stream(self.device).wait_stream(stream)
        torch.cuda.synchronize(self.device)


def _room(sentences: int, *, least: int = 16) -> int:
    """Return how many sentences a pass is made for: few sizes, an eighth or ``least`` too large."""
    grain = max(least, 1 << max(0, sentences.bit_length() - 4))
    return -(-sentences // grain) * grain


def _padded(
    ask: Asks, members: np.ndarray, weight: np.ndarray, room: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return rows, offsets and shares of one pass, filled up to its room with nothing."""
    rows, offset = np.full(room, ask.rows[members[0]]), np.zeros(room, dtype=np.int64)
    share = np.zeros(room)
    rows[: len(members)] = ask.rows[members]
    offset[: len(members)] = ask.offset[members]
    share[: len(members)] = ask.share[members] * weight[ask.owner[members]]
    return rows, offset, share
