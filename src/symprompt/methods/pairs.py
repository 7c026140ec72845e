"""Ask (fact, prompt) pairs: several prompts per relation, in passes of sentences of a length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from symprompt.backbone import Backbone, ReadOut, Vocabulary
from symprompt.errors import DataError
from symprompt.methods.base import Sentences
from symprompt.prompts import Template, make_frames

_MOST_NUMBERS = {"cpu": 1 << 26, "cuda": 1 << 29}


class Pairs:
    """Facts through the prompts of their relations; final.

    A prompt's number counts through all relations: those of relation r are ``first[r]`` and
    following, ``counts[r]`` of them.

    Args:
        prompts: each relation's templates.
        max_tokens: most tokens in one pass.
    """

    def __init__(
        self, backbone: Backbone, prompts: Sequence[Sequence[Template]], *, max_tokens: int
    ) -> None:
        self.backbone = backbone
        self.max_tokens = max_tokens
        self.frames = make_frames(backbone.vocabulary, prompts, backbone.device)
        self.counts = np.array([len(own) for own in prompts], dtype=np.int64)
        self.first = np.cumsum(self.counts) - self.counts
        glued = [not template.space_before("object") for own in prompts for template in own]
        twins = find_twins(backbone.vocabulary, backbone.vocabulary_size) if any(glued) else None
        if twins is not None and torch.equal(twins, torch.arange(len(twins))):
            twins = None
        self.twins = None if twins is None else twins.to(backbone.device)
        # Whether a prompt's answers are to be put in terms of tokens after a space.
        self.glued = torch.tensor(glued, device=backbone.device) & (twins is not None)

    @property
    def most_numbers(self) -> int:
        """How many numbers a table may hold: 256 MB of float32, or 2 GB on a GPU."""
        return _MOST_NUMBERS.get(self.backbone.device.type, _MOST_NUMBERS["cpu"])

    def of(self, sentences: Sentences, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return every pair of the rows: the row's place [m] and the prompt's number [m]."""
        relation = sentences.relations[rows]
        counts = self.counts[relation]
        owner = np.repeat(np.arange(len(rows)), counts)
        step = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
        return owner, self.first[relation][owner] + step

    def passes(
        self, sentences: Sentences, rows: np.ndarray, prompts: np.ndarray
    ) -> Iterator[tuple[np.ndarray, int]]:
        """Yield which pairs [k] of some [m] go into one pass, and its width.

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
        for level, start, stop in zip(levels, starts, [*starts[1:], len(order)], strict=True):
            most = max(1, self.max_tokens // int(level))
            for at in range(start, stop, most):
                yield order[at : min(stop, at + most)], int(level)

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
        every = torch.from_numpy(np.stack((rows, prompts))).to(backbone.device)
        for members, width in self.passes(sentences, rows, prompts):
            place = torch.from_numpy(members).to(backbone.device)
            row, prompt = every[:, place]
            assert sentences.names is not None
            question = self.frames.question(
                sentences.names,
                row,
                prompt,
                sentences.gold[row],
                width=width,
                mask_id=backbone.vocabulary.mask_id,
            )
            found[place] = read.states_at(question.inputs(backbone, None), question.at)
        return found

    def put_spaced(self, logits: Tensor, prompts: Tensor) -> Tensor:
        """Return logits [m, v] of pairs, each in terms of the tokens words have after a space."""
        if self.twins is None:
            return logits
        return torch.where(self.glued[prompts, None], logits[:, self.twins], logits)


def find_twins(vocabulary: Vocabulary, size: int) -> Tensor:
    """Return, for each of ``size`` tokens, the token of the same word with no space before it.

    A token that is no word after a space, or whose word is several tokens without one, is its own.
    """
    texts = [vocabulary.text(token) for token in range(len(vocabulary))]
    spaced = vocabulary.single_tokens(texts)
    bare = vocabulary.single_tokens(texts, after_space=False)
    twins = torch.arange(size)
    for token, (own, twin) in enumerate(zip(spaced, bare, strict=True)):
        if own == token and twin is not None:
            twins[token] = twin
    return twins
