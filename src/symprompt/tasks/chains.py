"""Tags as a chain: a conditional random field, the grammar of IOB2, tokens of a word together.

Equation 11.14 of the chapter on masked language models (Jurafsky and Martin) scores every token by
itself; a CRF (Lafferty et al., 2001) scores the whole sequence: its tags' scores, and a learned
score for every two neighbours. All of it is vectorised over the batch; only the walk along the
sequence is a loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from symprompt.tasks.batches import Batch
from symprompt.tasks.data.examples import NO_LABEL, OUTSIDE
from symprompt.tasks.heads import Head, HeadKind

Combine = Literal["first", "mean"]
FORBIDDEN = -1e4
"""Score of what the grammar does not allow: far below any other, and still a number."""


class ChainHead(Head):
    """One tag for each word, chosen for the whole sequence or from all tokens of a word; final.

    Args:
        names: the tags, in the order of the scores.
        crf: learn a score for every two neighbouring tags.
        constrain: never give what IOB2 has not: I-X after anything but B-X and I-X.
        combine: a word's distribution is its first token's, or the normalised product of all its
            tokens'. A CRF reads first tokens.
        every_token: the chain runs over all tokens of words, not over their first ones.
    """

    def __init__(
        self,
        width: int,
        names: Sequence[str],
        *,
        crf: bool = False,
        constrain: bool = False,
        combine: Combine = "first",
        every_token: bool = False,
        kind: HeadKind = "linear",
        dropout: float = 0.0,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(width, len(names), kind=kind, dropout=dropout, generator=generator)
        self.crf, self.constrain, self.combine = crf, constrain, combine
        self.every_token = every_token and combine == "first"
        count = len(names)
        # From zero on the field is the softmax of every token by itself.
        if crf:
            self.transitions = nn.Parameter(torch.zeros(count, count))
            self.first = nn.Parameter(torch.zeros(count))
            self.last = nn.Parameter(torch.zeros(count))
        pairs, begin = (
            grammar(names) if constrain else (torch.zeros(count, count), torch.zeros(count))
        )
        self.register_buffer("_pairs", pairs, persistent=False)
        self.register_buffer("_begin", begin, persistent=False)

    def loss(self, states: Tensor, batch: Batch) -> Tensor:
        """Return each row's negative log-likelihood by word [b]."""
        labels = batch.need("labels")
        known = labels != NO_LABEL
        count = known.sum(1)
        logits = self.logits(states)
        if not self.crf:
            losses = nn.functional.cross_entropy(
                logits.transpose(1, 2), labels, reduction="none", ignore_index=NO_LABEL
            )
            return losses.sum(1) / count.clamp(min=1)
        places, mask = packed(known)
        emissions = _taken(logits, places)
        tags = labels.gather(1, places).clamp(min=0)
        first, between, last = self._field()
        right = path_score(emissions, tags, mask, first, between, last)
        total = log_partition(emissions, mask, first, between, last)
        # A row without a label has an empty chain, whose partition is none of a sequence.
        return torch.where(count > 0, (total - right) / count.clamp(min=1), 0.0)

    def weights(self, batch: Batch) -> Tensor:
        """Return each row's number of labelled tokens [b]."""
        return (batch.need("labels") != NO_LABEL).sum(1).float()

    def scores(self, states: Tensor, batch: Batch) -> Tensor:
        """Return log-probabilities [b, t, tags]; those of a chain are 0 on the best one, else -inf.

        A word's are at its first token.
        """
        logits = self.logits(states)
        words = batch.need("words")
        if not self.crf:
            logits = torch.log_softmax(logits, -1)
        if self.combine == "mean":
            logits = torch.log_softmax(joined(logits, words), -1)
        if not self.crf and not self.constrain:
            return logits
        inside = words >= 0
        places, mask = packed(inside if self.every_token else inside & _begins(words))
        best = best_path(_taken(logits, places), mask, *self._field())
        found = torch.full_like(logits, -torch.inf)
        # Columns beyond a chain all stand for its row's first token; they must not overwrite it.
        target = torch.where(mask, places, logits.shape[1])
        spread = torch.cat((found, found[:, :1]), 1)
        rows = torch.arange(len(logits), device=logits.device)[:, None]
        spread[rows, target, best] = 0.0
        return spread[:, :-1]

    def _field(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the scores of the first tag, of two neighbours and of the last tag."""
        pairs, begin = self.get_buffer("_pairs"), self.get_buffer("_begin")
        if not self.crf:
            return begin, pairs, torch.zeros_like(begin)
        return self.first + begin, self.transitions + pairs, self.last


def grammar(names: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Return the scores that IOB2 gives two neighbours [tags, tags] and a first tag [tags].

    0 is allowed; a type goes on only after itself.
    """
    pairs = torch.zeros(len(names), len(names))
    begin = torch.zeros(len(names))
    for after, tag in enumerate(names):
        if tag[:2] != "I-":
            continue
        begin[after] = FORBIDDEN
        for before, other in enumerate(names):
            if other == OUTSIDE or other[2:] != tag[2:]:
                pairs[before, after] = FORBIDDEN
    return pairs, begin


def packed(chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Return the chosen places of each row moved to the left [b, t], and which columns hold one."""
    rows, width = chosen.shape
    order = chosen.long().cumsum(1) - 1
    places = torch.zeros(rows, width + 1, dtype=torch.long, device=chosen.device)
    columns = torch.arange(width, device=chosen.device).expand(rows, -1)
    places.scatter_(1, torch.where(chosen, order, width), columns)
    count = chosen.sum(1, keepdim=True)
    mask = torch.arange(width, device=chosen.device) < count
    return torch.where(mask, places[:, :width], 0), mask


def joined(logits: Tensor, words: Tensor) -> Tensor:
    """Return the sum over the tokens of each token's word [b, t, tags].

    Args:
        words: each token's word within its row, below t; -1 for none [b, t].
    """
    known = words >= 0
    target = torch.where(known, words, 0)[..., None].expand_as(logits)
    total = torch.zeros_like(logits).scatter_add(1, target, logits * known[..., None])
    return torch.where(known[..., None], total.gather(1, target), logits)


def path_score(
    emissions: Tensor, tags: Tensor, mask: Tensor, first: Tensor, between: Tensor, last: Tensor
) -> Tensor:
    """Return the score of one sequence of tags for each row [b].

    Args:
        emissions: scores of tags [b, n, tags].
        tags: the sequence [b, n].
        mask: true on each row's own part, which comes first [b, n].
        first, between, last: scores of a first tag, of two neighbours (the earlier one first) and
            of a last tag.
    """
    own = emissions.gather(2, tags[..., None]).squeeze(2)
    rows, count = len(tags), len(first)
    # Gathered row by row: the gradient is then a sum over rows, not a sort of places.
    pairs = tags[:, :-1] * count + tags[:, 1:]
    steps = between.flatten().expand(rows, -1).gather(1, pairs) * mask[:, 1:]
    end = tags.gather(1, (mask.sum(1, keepdim=True) - 1).clamp(min=0))
    outer = first.expand(rows, -1).gather(1, tags[:, :1]) + last.expand(rows, -1).gather(1, end)
    return (own * mask).sum(1) + steps.sum(1) + outer.squeeze(1)


def log_partition(
    emissions: Tensor, mask: Tensor, first: Tensor, between: Tensor, last: Tensor
) -> Tensor:
    """Return the log of the sum of exp(score) over all sequences of tags of each row [b]."""
    total = first + emissions[:, 0]
    for place in range(1, emissions.shape[1]):
        after = torch.logsumexp(total[:, :, None] + between, 1) + emissions[:, place]
        total = torch.where(mask[:, place, None], after, total)
    return torch.logsumexp(total + last, 1)


def best_path(
    emissions: Tensor, mask: Tensor, first: Tensor, between: Tensor, last: Tensor
) -> Tensor:
    """Return the best sequence of tags of each row (Viterbi) [b, n]; ties take the earlier tag."""
    total = first + emissions[:, 0]
    stay = torch.arange(emissions.shape[2], device=emissions.device).expand_as(total)
    came: list[Tensor] = []
    for place in range(1, emissions.shape[1]):
        after, source = (total[:, :, None] + between).max(1)
        here = mask[:, place, None]
        total = torch.where(here, after + emissions[:, place], total)
        came.append(torch.where(here, source, stay))
    tag = (total + last).argmax(1)
    path = [tag]
    for source in reversed(came):
        tag = source.gather(1, tag[:, None]).squeeze(1)
        path.append(tag)
    return torch.stack(path[::-1], 1)


def _taken(values: Tensor, places: Tensor) -> Tensor:
    return values.gather(1, places[..., None].expand(-1, -1, values.shape[2]))


def _begins(words: Tensor) -> Tensor:
    before = torch.nn.functional.pad(words[:, :-1], (1, 0), value=-1)
    return words != before
