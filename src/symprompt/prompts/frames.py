"""Facts asked through many templates each: sentences put together on the device, from two tables.

A frame is a template without its subject; a sentence is a frame with a subject's tokens put in. So
p templates of n facts take p + n rows of memory instead of p x n, and no Python per sentence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from symprompt.models import Vocabulary
from symprompt.prompts.layout import Frame, Question, Template, pad_rows


@dataclass(frozen=True)
class Names:
    """Subjects as tokens, read in two ways: 0 at the start of a sentence, 1 after a space.

    Attributes:
        ids: [2, n, s] on the device.
        length: [2, n] on the device.
        lengths: the same on the CPU.
    """

    ids: Tensor
    length: Tensor
    lengths: np.ndarray


@dataclass(frozen=True)
class Frames:
    """Templates as index tensors, whose subjects are still to come.

    Attributes:
        ids, slots: [p, f]; positions after the subject are counted as if it had no token. The last
            column is padding in every row.
        relation, subject_at, object_at, length, spaced: [p] on the device; spaced is 1 where the
            subject follows a space.
        lengths, spaceds: [p] on the CPU.
    """

    ids: Tensor
    slots: Tensor
    relation: Tensor
    subject_at: Tensor
    object_at: Tensor
    length: Tensor
    spaced: Tensor
    lengths: np.ndarray
    spaceds: np.ndarray

    def pair_lengths(self, names: Names, rows: np.ndarray, prompts: np.ndarray) -> np.ndarray:
        """Return the number of tokens of each (fact, template) pair, [m], without the device."""
        found: np.ndarray = self.lengths[prompts] + names.lengths[self.spaceds[prompts], rows]
        return found

    def question(
        self,
        names: Names,
        rows: Tensor,
        prompts: Tensor,
        target: Tensor,
        *,
        width: int,
        mask_id: int | None,
    ) -> Question:
        """Return sentences that ask for the objects of (fact, template) pairs.

        Args:
            rows, prompts: [m] on the device.
            target: [m] the true objects.
            width: at least the longest pair's number of tokens.
            mask_id: the mask token, which takes the objects' places; None for a causal model, whose
                sentences end before them and whose output is read one position earlier.
        """
        spaced, start = self.spaced[prompts], self.subject_at[prompts, None]
        count = names.length[spaced, rows][:, None]
        steps = torch.arange(width, device=rows.device)[None, :]
        inside = (steps >= start) & (steps < start + count)
        frame = torch.where(steps < start, steps, steps - count)
        frame = frame.clamp(min=0, max=self.ids.shape[1] - 1)
        token = (steps - start).clamp(min=0, max=names.ids.shape[2] - 1)
        subject = names.ids[spaced[:, None], rows[:, None], token]
        ids = torch.where(inside, subject, self.ids[prompts[:, None], frame])
        slots = torch.where(inside, -1, self.slots[prompts[:, None], frame])
        # An object behind the subject is moved by it.
        before = self.object_at[prompts, None]
        at = before + torch.where(before >= start, count, 0)
        length = self.length[prompts, None] + count
        if mask_id is None:
            length, position = at, at - 1
        else:
            ids, position = ids.scatter(1, at, mask_id), at
        return Question(
            ids=ids,
            slots=slots,
            mask=steps < length,
            relation=self.relation[prompts],
            at=position[:, 0],
            target=target,
        )


def make_names(vocabulary: Vocabulary, subjects: Sequence[str], device: torch.device) -> Names:
    """Tokenise subjects in both ways."""
    both = [
        tokens
        for spaced in (False, True)
        for tokens in vocabulary.encode_names(subjects, [spaced] * len(subjects))
    ]
    table, lengths = pad_rows(both, vocabulary.pad_id)
    ids, length = (
        torch.from_numpy(values.reshape(2, len(subjects), -1)).to(device)
        for values in (table, lengths)
    )
    return Names(ids, length[..., 0], lengths.reshape(2, -1))


def make_frames(
    vocabulary: Vocabulary, templates: Sequence[Sequence[Template]], device: torch.device
) -> Frames:
    """Tensorise each relation's templates, one relation after the other.

    A relation's vectors are numbered through all its templates.

    Raises:
        TemplateError: an anchor word is a mask token.
    """
    flat = [(row, template) for row, own in enumerate(templates) for template in own]
    frames = [Frame(vocabulary, template, answer=[vocabulary.pad_id]) for _, template in flat]
    used = [0] * len(templates)
    numbered = []
    for (relation, template), frame in zip(flat, frames, strict=True):
        numbered.append([slot if slot < 0 else slot + used[relation] for slot in frame.slots])
        used[relation] += template.vectors
    # One more column, of padding.
    ids, lengths = pad_rows(
        [[*frame.ids, vocabulary.pad_id] for frame in frames], vocabulary.pad_id
    )
    slots, _ = pad_rows([[*row, -1] for row in numbered], -1)
    lengths = lengths - 1
    spaced = np.array([int(template.space_before("subject")) for _, template in flat])

    def there(values: Sequence[int] | np.ndarray) -> Tensor:
        return torch.from_numpy(np.asarray(values, dtype=np.int64)).to(device)

    return Frames(
        ids=there(ids),
        slots=there(slots),
        relation=there([relation for relation, _ in flat]),
        subject_at=there([frame.subject_at for frame in frames]),
        object_at=there([frame.object_at for frame in frames]),
        length=there(lengths),
        spaced=there(spaced),
        lengths=lengths,
        spaceds=spaced,
    )
