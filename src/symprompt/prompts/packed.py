"""Questions of any lengths one after the other in a row, without padding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

from symprompt.accel.compiling import compile_function
from symprompt.models import Inputs, LanguageModel, Packing, pack
from symprompt.prompts.layout import Layout, hidden_places

Work = Callable[..., Tensor]


@dataclass(frozen=True)
class PackedQuestion:
    """Sentences in a row, each with one queried position, to be answered by a masked model.

    Shapes: ids, slots, owner [n]; relation, at, target [s]; ``at`` counts through the row, and so
    does ``places`` [s, k], where each of k vectors stands, -1 nowhere: for the vectors' gradient.
    """

    ids: Tensor
    slots: Tensor
    owner: Tensor
    relation: Tensor
    packing: Packing
    at: Tensor
    target: Tensor
    places: Tensor | None = None

    def inputs(
        self, backbone: LanguageModel, vectors: Tensor | None, words: Tensor | None = None
    ) -> Inputs:
        """Return the model's input: word embeddings, with learned vectors at their slots.

        Args:
            vectors: [relation, k, width]; None for templates without vectors.
            words: the embeddings of ``ids``, where they are there already.
        """
        embeddings = backbone.embed(self.ids) if words is None else words
        if vectors is not None:
            embeddings = _Placed.apply(  # type: ignore[no-untyped-call]
                embeddings,
                vectors,
                self.slots,
                self.relation,
                self.owner,
                self.places,
                _compiled if backbone.compiled else _plain,
            )
        return Inputs(embeddings[None], None, packing=self.packing)


def packed_question(
    layout: Layout,
    rows: Tensor,
    at: Tensor,
    *,
    tokens: int,
    longest: int,
    mask_id: int,
    objects: Tensor | None = None,
    since: Tensor | None = None,
    until: Tensor | None = None,
    real: Tensor | None = None,
    places: Tensor | None = None,
) -> PackedQuestion:
    """Return the sentences of some rows, in a row, that ask for what stands at ``at``.

    Args:
        rows: [s] fact indices, on the device.
        at: [s] the queried position of each.
        tokens: how long the row is, at least as many as the sentences have.
        longest: no sentence has more tokens.
        mask_id: the token that takes the queried positions.
        objects: [s] token ids that replace the true objects; None keeps them.
        since, until: [s] the first and the last position to be masked; None is the queried one.
        real: [s] bool, sentences that count; the others get no tokens.
        places: ``slot_places`` of the layout, for a gradient of the vectors.
    """
    lengths = layout.length[rows]
    if real is not None:
        lengths = lengths * real
    packing, owner = pack(lengths, tokens, longest)
    place = packing.place
    fact = rows[owner]
    ids = layout.ids[fact, place]
    if objects is not None:
        ids = torch.where(place == layout.object_at[fact], objects[owner], ids)
    flat = (packing.starts[:-1] + at).clamp(max=tokens - 1)
    target = ids[flat]
    first, last = (None if own is None else own[owner] for own in (since, until))
    ids = torch.where(hidden_places(place, at[owner], first, last), mask_id, ids)
    own = None
    if places is not None:
        # A sentence that only fills up has no tokens: its vectors stand nowhere.
        own = places[rows]
        here = (own >= 0) & (packing.starts.diff()[:, None] > 0)
        own = torch.where(here, packing.starts[:-1, None] + own, -1)
    return PackedQuestion(
        ids, layout.slots[fact, place], owner, layout.relation[rows], packing, flat, target, own
    )


def join_layouts(layouts: Sequence[Layout]) -> Layout:
    """Return layouts of the same relations one after the other; rows count through them."""
    if len(layouts) == 1:
        return layouts[0]
    widest = max(layout.ids.shape[1] for layout in layouts)

    def join(name: str) -> Any:
        parts = [getattr(layout, name) for layout in layouts]
        if isinstance(parts[0], np.ndarray):
            return np.concatenate(parts)
        if parts[0].dim() == 2:
            filler = -1 if name == "slots" else 0
            parts = [pad(part, (0, widest - part.shape[1]), value=filler) for part in parts]
        return torch.cat(parts)

    names = [field.name for field in fields(Layout) if field.name != "limit"]
    return replace(layouts[0], **{name: join(name) for name in names})


def slot_places(layout: Layout, count: int) -> Tensor:
    """Return where each of ``count`` vectors stands in each sentence, [n, count], -1 nowhere."""
    rows, width = layout.slots.shape
    steps = torch.arange(width, device=layout.slots.device).expand(rows, -1)
    index = torch.where(layout.slots >= 0, layout.slots, count)
    found = torch.full((rows, count + 1), -1, device=layout.slots.device)
    return found.scatter_(1, index, steps)[:, :count]


def _plain(work: Work) -> Work:
    return work


@cache
def _compiled(work: Work) -> Work:
    found = compile_function(work)

    def run(*tensors: Tensor) -> Tensor:
        # Compiled once for any number of tokens, sentences, relations and vectors.
        for tensor in tensors:
            counts = range(tensor.dim() - tensor.is_floating_point())
            torch._dynamo.maybe_mark_dynamic(tensor, list(counts))
        return found(*tensors)

    return run


def _put(words: Tensor, vectors: Tensor, slots: Tensor, relation: Tensor, owner: Tensor) -> Tensor:
    """Return words [n, w], with vectors [relation, k, w] at their slots."""
    learned = vectors[relation[owner], slots.clamp(min=0)].to(words.dtype)
    return torch.where((slots >= 0)[:, None], learned, words)


def _take(rows: Tensor, places: Tensor) -> Tensor:
    """Return the rows [n, w] at places [s, k], zeros where a place is -1: [s, k * w]."""
    found = torch.where((places >= 0)[:, :, None], rows[places.clamp(min=0)], 0)
    return found.flatten(1)


class _Placed(torch.autograd.Function):
    """Word embeddings [n, w] with vectors [relation, k, w] at their slots.

    Written out because the gradient of a lookup is sorted by row, in many small kernels; here each
    sentence's gradients are added up by relation in one product, always in the same order.
    ``fuse`` may compile what it is given.
    """

    @staticmethod
    def forward(
        ctx: Any,
        words: Tensor,
        vectors: Tensor,
        slots: Tensor,
        relation: Tensor,
        owner: Tensor,
        places: Tensor | None,
        fuse: Callable[[Work], Work],
    ) -> Tensor:
        ctx.places, ctx.fuse = places, fuse
        ctx.save_for_backward(relation)
        ctx.shape, ctx.dtype = vectors.shape, vectors.dtype
        return fuse(_put)(words, vectors.detach(), slots, relation, owner)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.places is None:
            raise TypeError("the vectors' places are needed for their gradient")
        (relation,) = ctx.saved_tensors
        rows = ctx.fuse(_take)(gradients[0], ctx.places)
        every = torch.arange(ctx.shape[0], device=relation.device)
        found = _add_up(relation[None, :] == every[:, None], rows, ctx.dtype)
        return None, found.view(ctx.shape), None, None, None, None, None


def _add_up(own: Tensor, rows: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the sums [r, m] of rows [s, m], of those that are each one's own, [r, s] bool."""
    if rows.is_cuda and rows.dtype == torch.bfloat16 and dtype == torch.float32:
        # Ones and zeros are exact in any type, and sums are of float32.
        return torch.mm(own.to(rows.dtype), rows, out_dtype=dtype)
    return own.to(dtype) @ rows.to(dtype)
