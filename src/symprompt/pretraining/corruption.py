"""Corruption of sequences: what is hidden from the model, and what it is asked for (11.2, 11.5.1).

Masking of tokens, whole words and spans, and the other ways the chapter names: substitution,
deletion, insertion and reordering. All of it is drawn anew for every batch, on its device.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from symprompt.pretraining.batch import Corrupted, DeviceBatch
from symprompt.pretraining.config import CorruptionConfig
from symprompt.pretraining.noise import (
    Spans,
    choose_spans,
    choose_tokens,
    choose_words,
    compact,
    draw_span_lengths,
    draw_tokens,
    draw_uniform,
    find_words,
    floor_share,
    round_share,
)


@dataclass(frozen=True)
class Specials:
    """The ids of the special tokens."""

    cls: int
    sep: int
    pad: int
    mask: int
    unk: int


@dataclass(frozen=True, eq=False)
class _Task:
    """One batch to corrupt, and everything that takes."""

    batch: DeviceBatch
    config: CorruptionConfig
    specials: Specials
    frequencies: Tensor
    generator: torch.Generator

    @property
    def corruptible(self) -> Tensor:
        return ~self.batch.special

    @property
    def places(self) -> int:
        return count_places(self.batch.ids.shape[1], self.config)

    def exact_counts(self) -> Tensor:
        """[b]: round(share * tokens), at least 1."""
        counts = self.corruptible.sum(1)
        wanted = round_share(counts, self.config.share).clamp(1, self.places)
        return torch.minimum(wanted, counts)

    def budget(self) -> Tensor:
        """[b]: the most tokens that are at most the share; one may always be taken."""
        counts = self.corruptible.sum(1)
        return floor_share(counts, self.config.share).clamp(1, self.places)

    def draw(self, *shape: int) -> Tensor:
        return draw_uniform(shape, self.batch.ids.device, self.generator)

    def draw_tokens(self, *shape: int) -> Tensor:
        return draw_tokens(shape, self.frequencies, self.generator)


def corrupt(
    batch: DeviceBatch,
    config: CorruptionConfig,
    *,
    specials: Specials,
    frequencies: Tensor,
    generator: torch.Generator,
) -> Corrupted:
    """Return the batch with part of its tokens corrupted, and the places the model is asked at.

    Special tokens are never changed. Kinds, and what is asked for:

    - tokens: round(share * tokens) of each row, at least 1, uniformly without replacement; each
      becomes the mask token, a token drawn by unigram frequency, or stays (80/10/10).
    - words: whole words in random order while they stay within the share; then token by token
      as above, as BERT's whole-word masking does.
    - spans: spans of whole words with geometric lengths, within the share; mask, random or as it
      was is decided once for a span, and every random token is drawn for itself.
    - substitution: tokens chosen as in "tokens", all replaced by drawn ones.
    - deletion: tokens chosen as in "tokens" and taken out; the row closes up and is padded. The
      token before each gap is asked for the first token that is missing after it.
    - insertion: drawn tokens after half as many tokens as "tokens" would choose. They are asked for
      the padding token: nothing was here; as many tokens of the text are asked for themselves.
      Where the row gets too long, tokens just before its last one are cut; inserted tokens that
      are cut are not asked.
    - reordering: windows of two or more tokens, with lengths as of spans, in tokens, within the
      share, are shuffled. Each place is asked for the token that was there; it may still be.

    Args:
        batch: whole sequences.
        config: the kind and the shares.
        specials: the mask and the padding token are used.
        frequencies: [v] unigram probabilities on the batch's device, zero for special tokens.
        generator: of the batch's device, or of the CPU to draw the same on every device (then
            the draws are copied there).

    Returns:
        The corrupted sequences; k, the places of a row, is ``count_places(t, config)``.
    """
    task = _Task(batch, config, specials, frequencies, generator)
    return _KINDS[config.kind](task)


def count_places(length: int, config: CorruptionConfig) -> int:
    """Return k, the most places asked of a row of ``length`` tokens, two of them special."""
    return max(1, round(config.share * (length - 2)))


def leaves_padding(config: CorruptionConfig) -> bool:
    """Return whether rows that were full may be padded after the corruption."""
    return config.kind == "deletion"


def _mask_tokens(task: _Task) -> Corrupted:
    chosen = choose_tokens(task.corruptible, task.exact_counts(), task.generator)
    return _replace_each(task, chosen, mask=task.config.mask, random=task.config.random)


def _substitute(task: _Task) -> Corrupted:
    chosen = choose_tokens(task.corruptible, task.exact_counts(), task.generator)
    return _replace_each(task, chosen, mask=0.0, random=1.0)


def _mask_words(task: _Task) -> Corrupted:
    words = find_words(task.batch.starts_word, task.corruptible)
    chosen = choose_words(words, task.corruptible, task.budget(), task.generator)
    return _replace_each(task, chosen, mask=task.config.mask, random=task.config.random)


def _replace_each(task: _Task, chosen: Tensor, *, mask: float, random: float) -> Corrupted:
    positions, asked = compact(chosen, task.places)
    decision = task.draw(*positions.shape)
    ids = _replace(task, positions, asked, decision, mask=mask, random=random)
    return _ask(task, ids, positions, asked)


def _mask_spans(task: _Task) -> Corrupted:
    spans = _draw_spans(task, task.batch.starts_word, least=1)
    positions, asked = compact(spans.chosen, task.places)
    owner = spans.owner.gather(1, positions)
    decision = task.draw(*spans.start.shape).gather(1, owner)
    config = task.config
    ids = _replace(task, positions, asked, decision, mask=config.mask, random=config.random)
    start, end = spans.start.gather(1, owner), spans.end.gather(1, owner)
    last = task.batch.ids.shape[1] - 1
    return _ask(
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
    # Every token of a window sorts between the window's first place and the next one.
    noise = task.draw(*spans.chosen.shape)
    window = spans.start.gather(1, spans.owner) + noise
    order = torch.where(spans.chosen, window, places.to(noise.dtype)).argsort(dim=1, stable=True)
    positions, asked = compact(spans.chosen, task.places)
    return _ask(task, task.batch.ids.gather(1, order), positions, asked)


def _draw_spans(task: _Task, starts: Tensor, *, least: int) -> Spans:
    """Spans of whole words within the budget; ``starts`` says where a word begins."""
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
        words, lengths, task.budget(), task.generator, limit=config.span_limit, least=least
    )


def _delete(task: _Task) -> Corrupted:
    batch = task.batch
    # Before the first place there is no token that could be asked.
    deletable = task.corruptible & (torch.arange(batch.ids.shape[1], device=batch.ids.device) > 0)
    counts = torch.minimum(task.exact_counts(), deletable.sum(1))
    chosen = choose_tokens(deletable, counts, task.generator)
    destination = (~chosen).cumsum(1) - 1
    gap = chosen.clone()
    gap[:, 1:] &= ~chosen[:, :-1]
    removed, asked = compact(gap, task.places)
    before = destination.gather(1, (removed - 1).clamp(min=0))
    return _ask(
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
    wanted = task.exact_counts()
    chosen = choose_tokens(inner, torch.minimum((wanted + 1) // 2, inner.sum(1)), task.generator)
    destination = places + chosen.cumsum(1) - chosen.long()
    # The last token, a separator, stays; what would come to lie on it or behind it is cut.
    end = (batch.lengths + chosen.sum(1)).clamp(max=length)[:, None]
    destination = torch.where(is_last, end - 1, destination)
    kept = is_last | (destination < end - 1)
    inserted = chosen & (destination + 1 < end - 1)
    # As many tokens of the text are asked for themselves, or every answer would be the same.
    counts = torch.minimum(wanted // 2, inserted.sum(1))
    same = choose_tokens(inner & kept, counts, task.generator)
    new = _move(inserted, destination + 1, inserted, fill=0)
    positions, asked = compact(new | _move(same, destination, same, fill=0), task.places)
    # Padding stands where tokens will be inserted: that is what they are asked for.
    ids = _move(batch.ids, destination, kept, fill=task.specials.pad)
    drawn = task.draw_tokens(*positions.shape)
    segments = _move(batch.segments, destination, kept, fill=0)
    return _ask(
        task,
        _write(ids, positions, asked & new.gather(1, positions), drawn),
        positions,
        asked,
        targets=ids.gather(1, positions),
        lengths=end[:, 0],
        segments=segments + _move(batch.segments, destination + 1, inserted, fill=0),
    )


def _replace(
    task: _Task,
    positions: Tensor,
    asked: Tensor,
    decision: Tensor,
    *,
    mask: float,
    random: float,
) -> Tensor:
    """Return [b, t] ids with the mask token, drawn tokens or the same ones at the positions."""
    drawn = task.draw_tokens(*positions.shape)
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


def _ask(
    task: _Task,
    ids: Tensor,
    positions: Tensor,
    asked: Tensor,
    *,
    targets: Tensor | None = None,
    lengths: Tensor | None = None,
    segments: Tensor | None = None,
    left: Tensor | None = None,
    right: Tensor | None = None,
    offset: Tensor | None = None,
) -> Corrupted:
    """Return the result; what is not given is as it was, and zero for the spans."""
    batch = task.batch
    if targets is None:
        targets = batch.ids.gather(1, positions)
    nowhere = torch.zeros_like(positions)
    return Corrupted(
        ids=ids,
        lengths=batch.lengths if lengths is None else lengths,
        segments=batch.segments if segments is None else segments,
        positions=positions,
        targets=torch.where(asked, targets, 0),
        asked=asked,
        left=nowhere if left is None else left,
        right=nowhere if right is None else right,
        offset=nowhere if offset is None else offset,
    )


_KINDS: dict[str, Callable[[_Task], Corrupted]] = {
    "tokens": _mask_tokens,
    "words": _mask_words,
    "spans": _mask_spans,
    "substitution": _substitute,
    "deletion": _delete,
    "insertion": _insert,
    "reordering": _reorder,
}
