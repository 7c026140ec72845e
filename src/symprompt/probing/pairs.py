"""Ask (fact, prompt) pairs: several prompts per relation, in passes of sentences of a length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from symprompt.errors import DataError
from symprompt.models import LanguageModel, ReadOut
from symprompt.probing.methods.base import Sentences
from symprompt.prompts import Question, Template, make_frames

_MOST_NUMBERS = 1 << 26
_MOST_GPU_NUMBERS = 1 << 29


class Pairs:
    """Facts through the prompts of their relations; final.

    A prompt's number counts through all relations: those of relation r are ``first[r]`` and
    following, ``counts[r]`` of them.

    Args:
        prompts: each relation's templates.
        max_tokens: most tokens in one pass.
    """

    def __init__(
        self, backbone: LanguageModel, prompts: Sequence[Sequence[Template]], *, max_tokens: int
    ) -> None:
        self.backbone = backbone
        self.max_tokens = max_tokens
        self.frames = make_frames(backbone.vocabulary, prompts, backbone.device)
        self.counts = np.array([len(own) for own in prompts], dtype=np.int64)
        self.first = np.cumsum(self.counts) - self.counts
        glued = [not template.space_before("object") for own in prompts for template in own]
        self.twins = _twins(backbone) if any(glued) else None
        # Whether a prompt's answers are to be put in terms of tokens after a space.
        self.glued = torch.tensor(glued, device=backbone.device) & (self.twins is not None)

    @property
    def most_numbers(self) -> int:
        """How many numbers a table may hold: 256 MB of float32, or up to 2 GB on a GPU."""
        device = self.backbone.device
        if device.type != "cuda":
            return _MOST_NUMBERS
        memory: int = torch.cuda.get_device_properties(device).total_memory
        return min(_MOST_GPU_NUMBERS, memory // 64)

    def of(self, sentences: Sentences, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return every pair of the rows: the row's place [m] and the prompt's number [m]."""
        relation = sentences.relations[rows]
        counts = self.counts[relation]
        owner = np.repeat(np.arange(len(rows)), counts)
        step = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
        return owner, self.first[relation][owner] + step

    def passes(
        self, sentences: Sentences, rows: np.ndarray, prompts: np.ndarray, *, fewest: int = 1
    ) -> Iterator[tuple[np.ndarray, int]]:
        """Yield which pairs [k] of some [m] go into one pass, and its width.

        Args:
            fewest: a width with fewer sentences joins the next wider one.

        Raises:
            DataError: a sentence is longer than the model takes.
        """
        if sentences.names is None:
            raise TypeError("these sentences were laid out without their subjects' names")
        lengths = self.frames.pair_lengths(sentences.names, rows, prompts)
        limit = self.backbone.max_length
        if len(lengths) and int(lengths.max()) > limit:
            raise DataError(
                f"a fact needs {int(lengths.max())} tokens in its prompt and the model takes "
                f"{limit}; shorten the subject or leave the prompt out."
            )
        widths = np.minimum(-(-lengths // 8) * 8, limit)
        order = np.argsort(widths, kind="stable")
        levels, starts = np.unique(widths[order], return_index=True)
        start = 0
        for level, stop in zip(levels, [*starts[1:], len(order)], strict=True):
            if stop - start < fewest and stop < len(order):
                continue
            most = max(1, self.max_tokens // int(level))
            for at in range(start, stop, most):
                yield order[at : min(stop, at + most)], int(level)
            start = stop

    def questions(
        self, sentences: Sentences, rows: np.ndarray, prompts: np.ndarray, *, fewest: int = 1
    ) -> Iterator[tuple[Tensor, Question]]:
        """Yield passes: which pairs [k] of some [m], and the sentences that ask for their objects.

        Raises:
            DataError: a sentence is longer than the model takes.
        """
        device = self.backbone.device
        every = torch.from_numpy(np.stack((rows, prompts))).to(device)
        for members, width in self.passes(sentences, rows, prompts, fewest=fewest):
            place = torch.from_numpy(members).to(device)
            row, prompt = every[:, place]
            assert sentences.names is not None
            yield (
                place,
                self.frames.question(
                    sentences.names,
                    row,
                    prompt,
                    sentences.gold[row],
                    width=width,
                    mask_id=self.backbone.vocabulary.mask_id,
                ),
            )

    def ask(
        self,
        read: ReadOut,
        sentences: Sentences,
        rows: np.ndarray,
        prompts: np.ndarray,
    ) -> Tensor:
        """Return the states [m, width] at the objects' places of (fact, prompt) pairs."""
        backbone = self.backbone
        exact = torch.float64 if backbone.dtype == torch.float64 else torch.float32
        found = torch.empty(len(rows), read.width, dtype=exact, device=backbone.device)
        for place, question in self.questions(sentences, rows, prompts):
            found[place] = read.states_at(question.inputs(backbone, None), question.at)
        return found

    def put_spaced(self, logits: Tensor, prompts: Tensor) -> Tensor:
        """Return logits [m, v] of pairs, each in terms of the tokens words have after a space."""
        if self.twins is None:
            return logits
        return torch.where(self.glued[prompts, None], logits[:, self.twins], logits)


def _twins(backbone: LanguageModel) -> Tensor | None:
    """Return each score's twin, [v], or None where all are their own."""
    size = backbone.vocabulary_size
    twins = [*backbone.vocabulary.twins, *range(len(backbone.vocabulary), size)]
    return None if twins == list(range(size)) else torch.tensor(twins, device=backbone.device)
