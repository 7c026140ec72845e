"""Facts laid out once as index tensors, so that no batch needs Python per example.

A layout holds every fact's sentence with both blanks filled. A question is the same sentence with
some positions masked: the object's for the way forth, one subject token's for the way back. For a
causal model nothing is masked: the output before a position is about the token that stands there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from symprompt.backbone import Backbone, Inputs


@dataclass(frozen=True)
class Question:
    """A batch of sentences with positions that are asked about, ready to embed.

    Shapes: ids, slots, mask [b, t]; relation [b]; at, target [b] or [b, m]. The model's output at
    ``at`` is about ``target``. No mask means no padding.
    """

    ids: Tensor
    slots: Tensor
    mask: Tensor | None
    relation: Tensor
    at: Tensor
    target: Tensor

    def inputs(
        self, backbone: Backbone, vectors: Tensor | None, words: Tensor | None = None
    ) -> Inputs:
        """Return the model's input: word embeddings, with learned vectors at their slots.

        Args:
            vectors: [relation, n, width]; None for templates without vectors.
            words: the embeddings of ``ids``, where they are there already.
        """
        embeddings = backbone.embed(self.ids) if words is None else words
        if vectors is not None:
            count = vectors.shape[1]
            index = self.relation[:, None] * count + self.slots.clamp(min=0)
            learned = functional.embedding(index, vectors.reshape(-1, vectors.shape[2]))
            is_slot = (self.slots >= 0)[:, :, None]
            embeddings = torch.where(is_slot, learned.to(embeddings.dtype), embeddings)
        return Inputs(embeddings, self.mask)


@dataclass(frozen=True)
class Layout:
    """Every fact's sentence, both blanks filled.

    Device tensors: ids, slots [n, t] (slot -1: a word); relation, object_at, subject_at, length,
    subject_length, object_length [n]. CPU arrays: lengths, subject_lengths, object_lengths,
    relations [n], to plan batches without waiting for the device. ``limit`` is the longest sentence
    the model takes.
    """

    ids: Tensor
    slots: Tensor
    relation: Tensor
    object_at: Tensor
    subject_at: Tensor
    length: Tensor
    subject_length: Tensor
    object_length: Tensor
    lengths: np.ndarray
    subject_lengths: np.ndarray
    object_lengths: np.ndarray
    relations: np.ndarray
    limit: int

    def __len__(self) -> int:
        return len(self.lengths)

    def to(self, device: torch.device) -> Layout:
        """Return the layout with its tensors on a device."""
        return replace(
            self,
            ids=self.ids.to(device),
            slots=self.slots.to(device),
            relation=self.relation.to(device),
            object_at=self.object_at.to(device),
            subject_at=self.subject_at.to(device),
            length=self.length.to(device),
            subject_length=self.subject_length.to(device),
            object_length=self.object_length.to(device),
        )

    def filled(self, rows: np.ndarray, tokens: Tensor, lengths: np.ndarray) -> Layout:
        """Return the sentences of some rows with other objects, of any length, in place.

        Args:
            rows: [b] fact indices; one may stand several times.
            tokens: [b, t] the objects' tokens, on the device.
            lengths: [b] how many of them there are in each row, from 0.
        """
        index = torch.from_numpy(rows).to(self.ids.device)
        length = torch.from_numpy(lengths).to(self.ids.device)
        longer = lengths - self.object_lengths[rows]
        total = self.lengths[rows] + longer
        width = min(round_up(int(total.max(initial=1))), self.limit)
        steps = torch.arange(width, device=self.ids.device)[None, :]
        start = self.object_at[index]
        shift = length - self.object_length[index]
        before, after = steps < start[:, None], steps >= (start + length)[:, None]
        # Every position takes what stood there, or so many places earlier once past the object.
        source = torch.where(after, steps - shift[:, None], steps.expand(len(rows), -1))
        source = source.clamp(0, self.ids.shape[1] - 1)
        inside = (steps - start[:, None]).clamp(0, tokens.shape[1] - 1)
        ids, slots = self.ids[index].gather(1, source), self.slots[index].gather(1, source)
        fixed = before | after
        return replace(
            self,
            ids=torch.where(fixed, ids, tokens.gather(1, inside)),
            slots=slots.masked_fill(~fixed, -1),
            relation=self.relation[index],
            object_at=start,
            subject_at=self.subject_at[index] + shift * (self.subject_at[index] > start),
            length=self.length[index] + shift,
            subject_length=self.subject_length[index],
            object_length=length,
            lengths=total,
            subject_lengths=self.subject_lengths[rows],
            object_lengths=lengths,
            relations=self.relations[rows],
        )

    def sentences(self, at: Tensor) -> Question:
        """Return all sentences as they stand, nothing masked, to be read at positions ``at``."""
        steps = torch.arange(self.ids.shape[1], device=self.ids.device)
        mask = steps[None, :] < self.length[:, None]
        return Question(self.ids, self.slots, mask, self.relation, at, at)

    def take(self, rows: np.ndarray, relations: np.ndarray) -> Layout:
        """Return some facts' sentences, as facts of the relations with these indices."""
        index = torch.from_numpy(rows).to(self.ids.device)
        return replace(
            self,
            ids=self.ids[index],
            slots=self.slots[index],
            relation=torch.from_numpy(relations).to(self.ids.device),
            object_at=self.object_at[index],
            subject_at=self.subject_at[index],
            length=self.length[index],
            subject_length=self.subject_length[index],
            object_length=self.object_length[index],
            lengths=self.lengths[rows],
            subject_lengths=self.subject_lengths[rows],
            object_lengths=self.object_lengths[rows],
            relations=relations,
        )

    def width(self, rows: np.ndarray) -> int:
        """Return a width that holds these rows: theirs if all are as long, else one of a few."""
        lengths = self.lengths[rows]
        longest = int(lengths.max())
        if int(lengths.min()) == longest:
            return longest
        return min(round_up(longest), self.ids.shape[1])

    def is_padded(self, rows: np.ndarray, width: int) -> bool:
        """Say whether any of these rows is shorter than the width."""
        return int(self.lengths[rows].min()) < width

    def question(
        self,
        rows: Tensor,
        at: Tensor,
        *,
        width: int,
        mask_id: int | None,
        objects: Tensor | None = None,
        padded: bool = True,
    ) -> Question:
        """Return the sentences of some rows that ask for what stands at the positions ``at``.

        Args:
            rows: [b] fact indices, on the device.
            at: [b] or [b, m] positions asked about; one may be given twice in a row.
            width: what the batch is cut to, see ``width``.
            mask_id: the mask token, which takes those positions; None for a causal model, whose
                output is read one position earlier (P-tuning, section 4.1) and whose sentences end
                before the last position asked about.
            objects: [b] token ids that replace the true objects (candidates); None keeps them.
            padded: false if every row is as long as the width, see ``is_padded``: attention without
                a mask is faster.
        """
        ids = self.ids[rows, :width]
        if objects is not None:
            ids = ids.scatter(1, self.object_at[rows, None], objects[:, None])
        wanted = at if at.dim() == 2 else at[:, None]
        target = ids.gather(1, wanted)
        steps = torch.arange(width, device=ids.device)
        length = self.length[rows]
        if mask_id is None:
            length, at = wanted.max(1).values, at - 1
        else:
            ids = ids.scatter(1, wanted, mask_id)
        return Question(
            ids=ids,
            slots=self.slots[rows, :width],
            mask=steps[None, :] < length[:, None] if padded else None,
            relation=self.relation[rows],
            at=at,
            target=target if at.dim() == 2 else target[:, 0],
        )


def round_up(length: int) -> int:
    """Return the width that sentences of a length are padded to."""
    return -(-length // 8) * 8
