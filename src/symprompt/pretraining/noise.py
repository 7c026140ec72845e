"""Random choices among the tokens, words and spans of a batch, for all rows at once.

Everything here is torch on the batch's device, with shapes that follow from [b, t] and the config
alone: no loop over rows or tokens and nothing read back to the host, so that it can run between
compiled steps without waiting for the GPU. Tables have one column more than is needed: what must
go nowhere is written there, and the column is cut off.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

_SHARE_PARTS = 1_000_000
# One more round places every word the rounds before could not: the longest word that may still be
# chosen gets shorter each time. Words of more than eight tokens may be passed over.
_WORD_ROUNDS = 8


class Words(NamedTuple):
    """Where the words of each row are; a row has at most t of them.

    Attributes:
        number: [b, t] int64, the word each token belongs to, from 0; special tokens have any.
        start: [b, t] int64, the first token of each word; t where there is no such word.
        size: [b, t] int64, the tokens of each word; 0 where there is no such word.
    """

    number: Tensor
    start: Tensor
    size: Tensor


class Spans(NamedTuple):
    """Spans of whole words, apart from each other.

    Attributes:
        start, end: [b, n] int64, first and last token; beyond the row where there is no span.
        chosen: [b, t] bool, tokens inside a span.
        owner: [b, t] int64, the span that holds each chosen token, from 0 to n - 1.
    """

    start: Tensor
    end: Tensor
    chosen: Tensor
    owner: Tensor


def draw_uniform(
    shape: tuple[int, ...], device: torch.device, generator: torch.Generator
) -> Tensor:
    """Return numbers from [0, 1), float32; a CPU generator gives every device the same ones."""
    return torch.rand(shape, generator=generator, device=generator.device).to(device)


def draw_tokens(shape: tuple[int, ...], frequencies: Tensor, generator: torch.Generator) -> Tensor:
    """Return tokens drawn by unigram frequency (11.2.1); a token of frequency zero never comes."""
    device = frequencies.device
    # A float32 sum over a vocabulary loses the rare tokens; MPS has nothing wider.
    dtype = torch.float32 if device.type == "mps" else torch.float64
    cumulative = frequencies.to(dtype).cumsum(0)
    total = cumulative[-1]
    noise = torch.rand(shape, generator=generator, device=generator.device, dtype=dtype)
    # The product may round up to the total, which lies beyond the last token.
    places = torch.minimum(
        noise.to(device) * total, torch.nextafter(total, torch.zeros_like(total))
    )
    return torch.searchsorted(cumulative, places, right=True)


def draw_span_lengths(
    shape: tuple[int, ...],
    device: torch.device,
    generator: torch.Generator,
    *,
    stop: float,
    limit: int,
) -> Tensor:
    """Return lengths from 1 to ``limit``, geometric: P(n) proportional to stop * (1 - stop)^(n-1).

    A length above the limit counts as drawn again, as in SpanBERT (the distribution is cut off and
    scaled, not heaped up at the limit): the mean is 3.8 with p = 0.2 and a limit of 10.
    """
    below_limit = 1 - (1 - stop) ** limit
    noise = draw_uniform(shape, device, generator)
    lengths = torch.log1p(-noise * below_limit) / math.log1p(-stop)
    return (lengths.long() + 1).clamp(1, limit)


def round_share(count: Tensor, share: float) -> Tensor:
    """Return round(share * count), halves to even as in Python; in integers, so exact anywhere."""
    doubled = 2 * count * round(share * _SHARE_PARTS) + _SHARE_PARTS
    rounded = doubled // (2 * _SHARE_PARTS)
    half = doubled % (2 * _SHARE_PARTS) == 0
    return rounded - (half & (rounded % 2 == 1)).long()


def floor_share(count: Tensor, share: float) -> Tensor:
    """Return the whole part of share * count, in integers, so exact on any device."""
    return count * round(share * _SHARE_PARTS) // _SHARE_PARTS


def compact(chosen: Tensor, places: int) -> tuple[Tensor, Tensor]:
    """Return the positions of the first ``places`` chosen tokens of each row, and which are used.

    Args:
        chosen: [b, t] bool.
        places: k, the width of the result.

    Returns:
        [b, k] int64 positions in rising order, 0 where unused; [b, k] bool.
    """
    rows, length = chosen.shape
    rank = chosen.cumsum(1) - 1
    slot = torch.where(chosen & (rank < places), rank, places)
    table = torch.zeros((rows, places + 1), dtype=torch.int64, device=chosen.device)
    positions = table.scatter(1, slot, _columns(chosen).expand(rows, length))[:, :places]
    return positions, torch.arange(places, device=chosen.device) < chosen.sum(1, keepdim=True)


def choose_tokens(corruptible: Tensor, counts: Tensor, generator: torch.Generator) -> Tensor:
    """Return [b, t] bool: ``counts`` [b] tokens of each row, uniformly, without replacement."""
    rows, length = corruptible.shape
    noise = draw_uniform((rows, length), corruptible.device, generator)
    order = noise.masked_fill(~corruptible, 2.0).argsort(dim=1, stable=True)
    first = _columns(corruptible) < counts[:, None]
    return torch.zeros_like(corruptible).scatter(1, order, first) & corruptible


def find_words(starts_word: Tensor, corruptible: Tensor) -> Words:
    """Return the words of each row: from a word's first token up to the next one or a special one.

    A row may begin in the middle of a word; what is there of it counts as a word.
    """
    rows, length = corruptible.shape
    before = torch.zeros_like(corruptible)
    before[:, 1:] = corruptible[:, :-1]
    begins = corruptible & (starts_word | ~before)
    number = (begins.cumsum(1) - 1).clamp(min=0)
    start = torch.full((rows, length + 1), length, dtype=torch.int64, device=corruptible.device)
    positions = _columns(corruptible).expand(rows, length)
    start = start.scatter(1, torch.where(begins, number, length), positions)[:, :length]
    size = torch.zeros((rows, length), dtype=torch.int64, device=corruptible.device)
    return Words(number, start, size.scatter_add(1, number, corruptible.long()))


def choose_words(
    words: Words, corruptible: Tensor, budget: Tensor, generator: torch.Generator
) -> Tensor:
    """Return [b, t] bool: whole words in random order, passing over what exceeds the budget.

    Args:
        budget: [b] int64, the most tokens of each row.
    """
    rows, length = corruptible.shape
    order = draw_uniform((rows, length), corruptible.device, generator).argsort(dim=1, stable=True)
    size = words.size.gather(1, order)
    taken = torch.zeros_like(corruptible)
    left = budget[:, None]
    for _ in range(_WORD_ROUNDS):
        fits = ~taken & (size > 0) & (size <= left)
        wanted = torch.where(fits, size, 0)
        take = fits & (wanted.cumsum(1) <= left)
        taken = taken | take
        left = left - torch.where(take, size, 0).sum(1, keepdim=True)
    by_word = torch.zeros_like(corruptible).scatter(1, order, taken)
    return by_word.gather(1, words.number) & corruptible


def choose_spans(
    words: Words,
    lengths: Tensor,
    budget: Tensor,
    generator: torch.Generator,
    *,
    limit: int,
    least: int = 1,
) -> Spans:
    """Return spans of whole words: proposals taken in turn, as long as they fit (11.5.1).

    A proposal starts at a word drawn uniformly from those that have enough words after them before
    a special token; if none has, it is as long as the longest such stretch. One that exceeds what
    is left of the budget is shortened to the whole words that fit, as SpanBERT does; one that
    overlaps or touches an earlier span is dropped, so that the tokens s-1 and e+1 of equation 11.19
    are never corrupted.

    Args:
        lengths: [b, n] int64, the proposals' lengths in words, from 1 to ``limit``.
        budget: [b] int64, the most tokens of each row.
        limit: the longest span, in words.
        least: fewest tokens of a span.
    """
    width = words.size.shape[1]
    start, sizes = _propose(words, lengths, generator, limit)
    starts, ends = torch.full_like(start, 2 * width), torch.full_like(start, -2)
    left = budget
    for index in range(start.shape[1]):
        fitting = sizes[:, index] * (sizes[:, index] <= left[:, None])
        first, size = start[:, index], fitting.amax(1)
        last = first + size - 1
        clash = ((starts <= last[:, None] + 1) & (ends >= first[:, None] - 1)).any(1)
        accepted = (size >= least) & ~clash
        starts[:, index] = torch.where(accepted, first, 2 * width)
        ends[:, index] = torch.where(accepted, last, -2)
        left = left - torch.where(accepted, size, 0)
    return _mark_spans(starts, ends, width)


def _propose(
    words: Words, lengths: Tensor, generator: torch.Generator, limit: int
) -> tuple[Tensor, Tensor]:
    """Return [b, n] the first tokens of the proposals and [b, n, limit] their sizes in tokens.

    The last axis is the size with one word, two words and so on; 0 beyond the length drawn.
    """
    device = words.size.device
    following = _words_following(words)
    wanted = torch.arange(1, limit + 1, device=device)
    available = (following[:, None, :] >= wanted[:, None]).sum(2)
    lengths = torch.minimum(lengths, following.amax(1, keepdim=True).clamp(min=1))
    count = available.gather(1, lengths - 1)
    noise = draw_uniform(tuple(lengths.shape), device, generator)
    # Sorted by the words that follow, the words fit for a length are the first ones.
    order = following.argsort(dim=1, descending=True, stable=True)
    pick = torch.minimum((noise * count).long(), count - 1).clamp(min=0)
    word = order.gather(1, pick)
    start = words.start.gather(1, word)
    end = words.start + words.size
    reached = (word[:, :, None] + wanted - 1).clamp(max=end.shape[1] - 1)
    size = end.gather(1, reached.flatten(1)).view_as(reached) - start[:, :, None]
    inside = (wanted <= lengths[:, :, None]) & (count > 0)[:, :, None]
    return start, torch.where(inside, size, 0)


def _words_following(words: Words) -> Tensor:
    """Return [b, t]: how many words, itself included, come from each word to the next special."""
    rows, length = words.size.shape
    number = torch.arange(length, device=words.size.device)
    goes_on = torch.zeros_like(words.size, dtype=torch.bool)
    goes_on[:, :-1] = (words.start + words.size)[:, :-1] == words.start[:, 1:]
    # A word that is not there starts at t, where a row without a last special token ends.
    goes_on[:, :-1] &= words.size[:, 1:] > 0
    last = torch.where(goes_on, length, number.expand(rows, length))
    last = last.flip(1).cummin(1).values.flip(1)
    return torch.where(words.size > 0, last - number + 1, 0)


def _mark_spans(starts: Tensor, ends: Tensor, width: int) -> Spans:
    rows, proposals = starts.shape
    device = starts.device
    index = torch.arange(proposals, device=device).expand(rows, proposals)
    table = torch.full((rows, width + 1), -1, dtype=torch.int64, device=device)
    begins = table.scatter(1, starts.clamp(max=width), index)[:, :width]
    positions = torch.arange(width, device=device)
    latest = torch.where(begins >= 0, positions, -1).cummax(1).values
    owner = begins.gather(1, latest.clamp(min=0)).clamp(min=0)
    chosen = (latest >= 0) & (positions <= ends.gather(1, owner))
    return Spans(starts, ends, chosen, owner)


def _columns(like: Tensor) -> Tensor:
    return torch.arange(like.shape[1], device=like.device)
