"""Corruption of sequences: what is hidden from the model, and what it must predict (11.2, 11.5.1).

Masking of tokens, whole words and spans, and the other kinds the chapter names: substitution,
deletion, insertion and reordering. All of it is drawn anew for every batch, on its device: torch
alone, for all rows at once, with shapes that follow from [b, t] and the config. There is no loop
over rows or tokens and nothing is read back to the host, so that it can run between compiled steps
without waiting for the GPU. Tables have one column more than is needed: what must go nowhere is
written there, and the column is cut off.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import NamedTuple

import torch
from torch import Tensor

from symprompt.pretraining.config import CorruptionConfig
from symprompt.pretraining.sequences import Batch
from symprompt.pretraining.tokenizer import Specials

_SHARE_PARTS = 1_000_000
# One more round places every word the rounds before could not: the longest word that may still be
# chosen gets shorter each time. Words of more than eight tokens may be passed over.
_WORD_ROUNDS = 8


@dataclass(frozen=True, eq=False)
class Corrupted:
    """What the model sees, and what it must predict; shapes depend on [b, t] and the config alone.

    Attributes:
        ids: [b, t] int64, the corrupted sequence.
        lengths: [b] int64, tokens before the padding (deletion and insertion change them).
        segments: [b, t] int64.
        positions: [b, k] int64, the queried positions; 0 where unused.
        targets: [b, k] int64, the tokens that were there.
        asked: [b, k] bool, which of the k positions are used.
        left, right: [b, k] int64, the tokens just outside the span that holds the position (s-1 and
            e+1 in equation 11.19); 0 where there are no spans.
        offset: [b, k] int64, position - s, from 0, within its span.
    """

    ids: Tensor
    lengths: Tensor
    segments: Tensor
    positions: Tensor
    targets: Tensor
    asked: Tensor
    left: Tensor
    right: Tensor
    offset: Tensor

    def __getitem__(self, rows: slice) -> Corrupted:
        return Corrupted(**{entry.name: getattr(self, entry.name)[rows] for entry in fields(self)})


@dataclass(frozen=True, eq=False)
class _Task:
    """One batch to corrupt, and everything that takes."""

    batch: Batch[Tensor]
    config: CorruptionConfig
    specials: Specials
    frequencies: Tensor
    generator: torch.Generator

    @property
    def corruptible(self) -> Tensor:
        return ~self.batch.special

    @property
    def places(self) -> int:
        return count_positions(self.batch.ids.shape[1], self.config)

    def counts(self, part: Callable[[Tensor, float], Tensor]) -> Tensor:
        # [b]: the share of a row's tokens, rounded by ``part``, at least 1; or any number of them,
        # from 1 to all, every one as likely.
        every = self.corruptible.sum(1)
        wanted = part(every, self.config.share).clamp(1, self.places)
        if self.config.uniform:
            wanted = (self.draw(len(every)) * every).long() + 1
        return torch.minimum(wanted, every)

    def draw(self, *shape: int) -> Tensor:
        return draw_uniform(shape, self.batch.ids.device, self.generator)


def corrupt(
    batch: Batch[Tensor],
    config: CorruptionConfig,
    *,
    specials: Specials,
    frequencies: Tensor,
    generator: torch.Generator,
) -> Corrupted:
    """Return the batch with part of its tokens corrupted, and the positions to predict at.

    Special tokens are never changed. Kinds, and what is to be predicted:

    - tokens: round(share * tokens) of each row, at least 1, uniformly without replacement; each
      becomes the mask token, a token drawn by unigram frequency, or stays (80/10/10). With
      ``uniform`` each row has a number of its own, from 1 to all, every one as likely (MLM-U).
    - words: whole words in random order while they stay within the share; then token by token
      as above, as BERT's whole-word masking does.
    - spans: spans of whole words with geometric lengths, within the share; mask, random or as it
      was is decided once for a span, and every random token is drawn for itself.
    - substitution: tokens chosen as in "tokens", all replaced by drawn ones.
    - deletion: tokens chosen as in "tokens" and taken out; the row closes up and is padded. The
      token before each gap predicts the first token that is missing after it.
    - insertion: drawn tokens after half as many tokens as "tokens" would choose. They predict the
      padding token: nothing was here; as many tokens of the text predict themselves. Where the row
      gets too long, tokens just before its last one are cut; inserted tokens that are cut are not
      queried.
    - reordering: windows of two or more tokens, with lengths as of spans, in tokens, within the
      share, are shuffled. Each position predicts the token that was there; it may still be.

    Args:
        batch: whole sequences.
        config: the kind and the shares.
        specials: the mask and the padding token are used.
        frequencies: [v] unigram probabilities on the batch's device, zero for special tokens.
        generator: of the batch's device, or of the CPU to draw the same on every device (then
            the draws are copied there).

    Returns:
        The corrupted sequences; k, the positions of a row, is ``count_positions(t, config)``.
    """
    task = _Task(batch, config, specials, frequencies, generator)
    return _KINDS.get(config.kind, _replace_each)(task)


def count_positions(length: int, config: CorruptionConfig) -> int:
    """Return k, the most queried positions of a row of ``length`` tokens, two of them special."""
    if config.uniform:
        return length
    return max(1, round(config.share * (length - 2)))


def _replace_each(task: _Task) -> Corrupted:
    """Corrupt tokens chosen one by one, or by whole words; each is decided on by itself."""
    if task.config.kind == "words":
        words = find_words(task.batch.starts_word, task.corruptible)
        chosen = choose_words(words, task.corruptible, task.counts(floor_share), task.generator)
    else:
        chosen = choose_tokens(task.corruptible, task.counts(round_share), task.generator)
    positions, asked = compact(chosen, task.places)
    ids = _replace(task, positions, asked, task.draw(*positions.shape))
    return _finish(task, ids, positions, asked)


def _mask_spans(task: _Task) -> Corrupted:
    spans = _draw_spans(task, task.batch.starts_word, least=1)
    positions, asked = compact(spans.chosen, task.places)
    owner = spans.owner.gather(1, positions)
    decision = task.draw(*spans.start.shape).gather(1, owner)
    ids = _replace(task, positions, asked, decision)
    start, end = spans.start.gather(1, owner), spans.end.gather(1, owner)
    last = task.batch.ids.shape[1] - 1
    return _finish(
        task,
        ids,
        positions,
        asked,
        left=torch.where(asked, start - 1, 0).clamp(min=0),
        right=torch.where(asked, end + 1, 0).clamp(max=last),
        offset=torch.where(asked, positions - start, 0),
    )


def _reorder(task: _Task) -> Corrupted:
    spans = _draw_spans(task, task.corruptible, least=2)
    places = torch.arange(spans.chosen.shape[1], device=spans.chosen.device)
    # Every token of a window sorts between the window's first position and the next one.
    noise = task.draw(*spans.chosen.shape)
    window = spans.start.gather(1, spans.owner) + noise
    order = torch.where(spans.chosen, window, places.to(noise.dtype)).argsort(dim=1, stable=True)
    positions, asked = compact(spans.chosen, task.places)
    return _finish(task, task.batch.ids.gather(1, order), positions, asked)


def _draw_spans(task: _Task, starts: Tensor, *, least: int) -> Spans:
    """Return spans of whole words within the budget; ``starts`` marks where a word begins."""
    config = task.config
    rows, length = task.batch.ids.shape
    # Spans are longer than one token on average, and few proposals are dropped: twice as many
    # proposals as tokens are plenty.
    proposals = 2 * math.ceil(config.share * length)
    lengths = draw_span_lengths(
        (rows, proposals),
        task.batch.ids.device,
        task.generator,
        stop=config.span_stop,
        limit=config.span_limit,
    )
    words = find_words(starts, task.corruptible)
    return choose_spans(
        words,
        lengths,
        task.counts(floor_share),
        task.generator,
        limit=config.span_limit,
        least=least,
    )


def _delete(task: _Task) -> Corrupted:
    batch = task.batch
    # Before the first position there is no token that could be queried.
    deletable = task.corruptible & (torch.arange(batch.ids.shape[1], device=batch.ids.device) > 0)
    counts = torch.minimum(task.counts(round_share), deletable.sum(1))
    chosen = choose_tokens(deletable, counts, task.generator)
    destination = (~chosen).cumsum(1) - 1
    gap = chosen.clone()
    gap[:, 1:] &= ~chosen[:, :-1]
    removed, asked = compact(gap, task.places)
    before = destination.gather(1, (removed - 1).clamp(min=0))
    return _finish(
        task,
        _move(batch.ids, destination, ~chosen, fill=task.specials.pad),
        torch.where(asked, before, 0),
        asked,
        targets=batch.ids.gather(1, removed),
        lengths=batch.lengths - chosen.sum(1),
        segments=_move(batch.segments, destination, ~chosen, fill=0),
    )


def _insert(task: _Task) -> Corrupted:
    batch = task.batch
    length = batch.ids.shape[1]
    places = torch.arange(length, device=batch.ids.device)
    is_last = places == batch.lengths[:, None] - 1
    inner = task.corruptible & ~is_last
    wanted = task.counts(round_share)
    chosen = choose_tokens(inner, torch.minimum((wanted + 1) // 2, inner.sum(1)), task.generator)
    destination = places + chosen.cumsum(1) - chosen.long()
    # The last token, a separator, stays; what would come to lie on it or behind it is cut.
    end = (batch.lengths + chosen.sum(1)).clamp(max=length)[:, None]
    destination = torch.where(is_last, end - 1, destination)
    kept = is_last | (destination < end - 1)
    inserted = chosen & (destination + 1 < end - 1)
    # As many tokens of the text predict themselves, or every answer would be the same.
    counts = torch.minimum(wanted // 2, inserted.sum(1))
    same = choose_tokens(inner & kept, counts, task.generator)
    new = _move(inserted, destination + 1, inserted, fill=0)
    positions, asked = compact(new | _move(same, destination, same, fill=0), task.places)
    # Padding stands where tokens will be inserted: that is what they predict.
    ids = _move(batch.ids, destination, kept, fill=task.specials.pad)
    drawn = draw_tokens(tuple(positions.shape), task.frequencies, task.generator)
    segments = _move(batch.segments, destination, kept, fill=0)
    return _finish(
        task,
        _write(ids, positions, asked & new.gather(1, positions), drawn),
        positions,
        asked,
        targets=ids.gather(1, positions),
        lengths=end[:, 0],
        segments=segments + _move(batch.segments, destination + 1, inserted, fill=0),
    )


def _replace(task: _Task, positions: Tensor, asked: Tensor, decision: Tensor) -> Tensor:
    """Return [b, t] ids with the mask token, drawn tokens or the same ones at the positions."""
    config = task.config
    substituted = config.kind == "substitution"
    mask, random = (0.0, 1.0) if substituted else (config.mask, config.random)
    drawn = draw_tokens(tuple(positions.shape), task.frequencies, task.generator)
    same = task.batch.ids.gather(1, positions)
    new = torch.where(decision < mask + random, drawn, same)
    new = torch.where(decision < mask, task.specials.mask, new)
    return _write(task.batch.ids, positions, asked, new)


def _write(table: Tensor, positions: Tensor, used: Tensor, values: Tensor) -> Tensor:
    """Return the table [b, t] with values [b, k] at the positions that are used."""
    length = table.shape[1]
    wider = torch.cat([table, table[:, :1]], dim=1)
    return wider.scatter(1, torch.where(used, positions, length), values)[:, :length]


def _move(table: Tensor, destination: Tensor, kept: Tensor, *, fill: int) -> Tensor:
    """Return the table [b, t] with what is kept at its destination, and ``fill`` elsewhere."""
    rows, length = table.shape
    wider = torch.full((rows, length + 1), fill, dtype=table.dtype, device=table.device)
    return wider.scatter(1, torch.where(kept, destination, length), table)[:, :length]


def _finish(
    task: _Task, ids: Tensor, positions: Tensor, asked: Tensor, **given: Tensor
) -> Corrupted:
    """Return the result; what is not given is as it was, and zero for the spans."""
    batch, nowhere = task.batch, torch.zeros_like(positions)
    if "targets" not in given:
        given["targets"] = batch.ids.gather(1, positions)
    given["targets"] = torch.where(asked, given["targets"], 0)
    spans = {"left": nowhere, "right": nowhere, "offset": nowhere}
    rest = {"lengths": batch.lengths, "segments": batch.segments, **spans, **given}
    return Corrupted(ids=ids, positions=positions, asked=asked, **rest)


_KINDS: dict[str, Callable[[_Task], Corrupted]] = {
    "spans": _mask_spans,
    "deletion": _delete,
    "insertion": _insert,
    "reordering": _reorder,
}


# -- random choices among tokens, words and spans --------------------------------------------------


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
    """Return draws from [0, 1), float32; a CPU generator gives every device the same ones."""
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
    rank = chosen.cumsum(1) - 1
    positions = _move(_columns(chosen), rank, chosen & (rank < places), fill=0)[:, :places]
    return positions, torch.arange(places, device=chosen.device) < chosen.sum(1, keepdim=True)


def choose_tokens(corruptible: Tensor, counts: Tensor, generator: torch.Generator) -> Tensor:
    """Return [b, t] bool: ``counts`` [b] tokens of each row, uniformly, without replacement."""
    rows, length = corruptible.shape
    noise = draw_uniform((rows, length), corruptible.device, generator)
    order = noise.masked_fill(~corruptible, 2.0).argsort(dim=1, stable=True)
    first = torch.arange(length, device=corruptible.device) < counts[:, None]
    return torch.zeros_like(corruptible).scatter(1, order, first) & corruptible


def find_words(starts_word: Tensor, corruptible: Tensor) -> Words:
    """Return the words of each row: from a word's first token up to the next one or a special one.

    A row may begin in the middle of a word; what is there of it counts as a word.
    """
    before = torch.zeros_like(corruptible)
    before[:, 1:] = corruptible[:, :-1]
    begins = corruptible & (starts_word | ~before)
    number = (begins.cumsum(1) - 1).clamp(min=0)
    start = _move(_columns(corruptible), number, begins, fill=corruptible.shape[1])
    size = torch.zeros_like(number).scatter_add(1, number, corruptible.long())
    return Words(number, start, size)


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
    """Return each position's number [b, t]."""
    return torch.arange(like.shape[1], device=like.device).expand(like.shape)
