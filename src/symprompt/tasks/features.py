"""A split as arrays of rows, and rows as tensors that a model and a head read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from symprompt.errors import ConfigError, DataError
from symprompt.models import LanguageModel
from symprompt.models.vocabulary import Vocabulary
from symprompt.tasks.config import Segments

Ints = NDArray[np.int32]


@dataclass(frozen=True)
class Ragged:
    """Pieces of a flat array: piece i is ``values[start[i] : start[i] + length[i]]``; final."""

    values: NDArray[Any]
    start: NDArray[np.int64]
    length: NDArray[np.int64]

    @classmethod
    def of(cls, sequences: Sequence[Sequence[int]]) -> Ragged:
        """Make it from lists."""
        length = np.fromiter(map(len, sequences), np.int64, len(sequences))
        values = np.fromiter(chain.from_iterable(sequences), np.int32, int(length.sum()))
        return cls(values, np.cumsum(length) - length, length)

    def take(self, rows: NDArray[np.int64]) -> Ragged:
        """Return the pieces of some rows, in their order."""
        return Ragged(self.values, self.start[rows], self.length[rows])

    def flat(self) -> NDArray[Any]:
        """Return the values of all pieces, one after the other."""
        return self.values[_places(self.start, self.length)]

    def write(self, table: NDArray[Any], column: NDArray[np.int64]) -> NDArray[Any]:
        """Write each row's piece into a table, from a column on; return the table."""
        rows = np.repeat(np.arange(len(table)), self.length)
        table[rows, _places(column, self.length)] = self.flat()
        return table


def _places(start: NDArray[np.int64], length: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return start, start + 1, ... of each row, one row after the other."""
    before = np.cumsum(length) - length
    found: NDArray[np.int64] = np.arange(length.sum()) + np.repeat(start - before, length)
    return found


@dataclass(frozen=True)
class Windows:
    """Which part of which sequence each window shows; final.

    Attributes:
        example: the sequence of each window [n].
        start, length: the part it shows [n].
        own_start, own_end: the part of the sequence that this window, and no other, answers for:
            overlaps are parted in the middle, where both windows see most around a token [n].
    """

    example: NDArray[np.int64]
    start: NDArray[np.int64]
    length: NDArray[np.int64]
    own_start: NDArray[np.int64]
    own_end: NDArray[np.int64]


def make_windows(
    lengths: NDArray[np.int64],
    room: NDArray[np.int64],
    overlap: int,
    *,
    word_starts: Sequence[NDArray[np.int64]] | None = None,
) -> Windows:
    """Split sequences into windows that overlap; what fits is one window.

    Args:
        lengths: of the sequences [n].
        room: the most tokens a window of each may show, at least 1 [n].
        overlap: tokens that two neighbours share; at most half of a window.
        word_starts: each sequence's first tokens of words, ascending; windows then begin and end
            between words. No word may be longer than its sequence's room.
    """
    fits = lengths <= room
    rows: list[tuple[int, int, int, int, int]] = []
    for example in np.flatnonzero(~fits).tolist():
        words = None if word_starts is None else word_starts[example]
        rows += _split(example, int(lengths[example]), int(room[example]), overlap, words)
    whole = np.flatnonzero(fits)
    long = np.array(rows, np.int64).reshape(-1, 5)
    zeros = np.zeros(len(whole), np.int64)
    short = np.stack([whole, zeros, lengths[whole], zeros, lengths[whole]], 1)
    table = np.concatenate([short, long])
    # Stable, so that the windows of one sequence keep their order.
    table = table[np.argsort(table[:, 0], kind="stable")]
    return Windows(*(table[:, column] for column in range(5)))


def _split(
    example: int, length: int, room: int, overlap: int, words: NDArray[np.int64] | None
) -> list[tuple[int, int, int, int, int]]:
    """Return the windows of one long sequence."""
    shared = min(overlap, room // 2)
    spans = [(0, _snap(words, room, 0))]
    while spans[-1][1] < length:
        begin, end = spans[-1]
        after = _snap(words, max(begin, end - shared), begin)
        after = after if after > begin else end
        last = after + room
        spans.append((after, length if last >= length else _snap(words, last, after)))
    bounds = [0]
    for (_, end), (after, _) in pairwise(spans):
        bounds.append(max(after, _snap(words, (after + end + 1) // 2, after)))
    bounds.append(length)
    return [
        (example, begin, end - begin, bounds[place], bounds[place + 1])
        for place, (begin, end) in enumerate(spans)
    ]


def _snap(words: NDArray[np.int64] | None, place: int, least: int) -> int:
    """Return the last word start at or before a place, if it is after ``least``."""
    if words is None:
        return place
    found = int(words[np.searchsorted(words, place, side="right") - 1])
    return max(found, least)


Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Batch:
    """Rows as tensors on one device; real tokens come first, padding after them; final.

    Attributes:
        ids: tokens [b, t].
        lengths: real tokens of each row [b].
        types: segments [b, t], for models that take them.
        targets: what the kind's head reads, by name. Those of two axes are per token [b, t].
    """

    ids: Tensor
    lengths: Tensor
    types: Tensor | None = None
    targets: Mapping[str, Tensor] = field(default_factory=dict)

    def __len__(self) -> int:
        return int(self.ids.shape[0])

    @property
    def mask(self) -> Tensor:
        """True on real tokens [b, t]."""
        places = torch.arange(self.ids.shape[1], device=self.ids.device)
        return places < self.lengths[:, None]

    def select(self, rows: Tensor, width: int | None = None) -> Batch:
        """Return some rows, cut to a width that must hold all their real tokens."""

        def chosen(value: Tensor) -> Tensor:
            found = value[rows]
            return found[:, :width] if found.dim() == 2 else found

        types = None if self.types is None else chosen(self.types)
        targets = {name: chosen(value) for name, value in self.targets.items()}
        return Batch(chosen(self.ids), chosen(self.lengths), types, targets)


@dataclass(frozen=True)
class Features:
    """A split's rows; an example that is too long for the model has several; final.

    n rows, t tokens of the longest row. Each kind states which targets and notes it has.

    Attributes:
        ids: tokens, padded [n, t].
        lengths: real tokens of each row [n].
        example: which example of the split each row shows, ascending [n].
        types: 0 in the first segment, 1 in the second [n, t]; None if not wanted.
        targets: what the head reads of each row, by name; those of two axes are per token.
        notes: what decoding alone reads of each row, by name.
        cut: how many examples were shortened: sentences with a word longer than half a row, and
            those with spans that no row shows whole.
    """

    ids: Ints
    lengths: Ints
    example: Ints
    types: NDArray[np.uint8] | None = None
    targets: Arrays = field(default_factory=dict)
    notes: Arrays = field(default_factory=dict)
    cut: int = 0

    def __len__(self) -> int:
        return len(self.ids)

    def batch(self, device: torch.device | None = None) -> Batch:
        """Return all rows as tensors on a device."""

        def tensor(values: NDArray[Any]) -> Tensor:
            found = torch.from_numpy(values)
            found = found if found.dtype == torch.bool else found.long()
            return found.to(device=device, non_blocking=True)

        return Batch(
            tensor(self.ids),
            tensor(self.lengths),
            None if self.types is None else tensor(self.types),
            {name: tensor(values) for name, values in self.targets.items()},
        )


def takes_types(backbone: LanguageModel, wanted: Segments = "auto") -> bool:
    """Return whether second texts stand in a segment of their own.

    Args:
        wanted: auto: if the model has two segments and the second was trained; on: if it has two;
            off: never.
    """
    if wanted == "off" or backbone.causal or not backbone.reads_types:
        return False
    return wanted == "on" or backbone.trained.segments > 1


@dataclass(frozen=True)
class Sheet:
    """What rows are like: the tokenizer, its special tokens, how long, with segments or not; final.

    Attributes:
        before: the tokens before the first text.
        between: the tokens between two texts: [SEP], RoBERTa's two, or a causal model's new line.
        after: the tokens after the last text; a causal model has none.
        closing: one token that a causal model reads after a context, to say "no answer" there.
        max_length: the most tokens of a row, special tokens included.
        stride: tokens that two neighbouring windows of a long text share, as transformers counts
            it; never more than half of a window.
        types: whether to make segment types.
    """

    vocabulary: Vocabulary
    before: tuple[int, ...]
    between: tuple[int, ...]
    after: tuple[int, ...]
    closing: tuple[int, ...]
    max_length: int
    stride: int
    types: bool

    @classmethod
    def make(
        cls,
        vocabulary: Vocabulary,
        *,
        max_length: int,
        stride: int = 128,
        types: bool = False,
    ) -> Sheet:
        """Check the settings, and ask the tokenizer how it frames texts.

        Raises:
            ConfigError: the settings leave no room for any text.
        """
        before, after = tuple(vocabulary.prefix), tuple(vocabulary.suffix)
        between = _between(vocabulary, before, after)
        closing = between[-1:] if vocabulary.causal else ()
        # Two words at least, or nothing can be split.
        least = len(before) + len(between) + len(after) + len(closing) + 4
        if max_length < least:
            raise ConfigError(
                f"max_length is {max_length}, but at least {least} is needed for special tokens "
                "and some text; raise it."
            )
        return cls(vocabulary, before, between, after, closing, max_length, stride, types)

    def room(self, *, pair: bool, closing: bool = False) -> int:
        """Return how many tokens of text fit into a row."""
        special = len(self.before) + len(self.after) + len(self.between) * pair
        return self.max_length - special - len(self.closing) * closing

    def check_room(
        self, room: NDArray[np.int64], fits: NDArray[np.bool_], ids: Sequence[str], kept: str
    ) -> None:
        """Refuse an example whose other parts leave too little room for the text that is split."""
        least = max(1, self.max_length // 8)
        short = np.flatnonzero(~fits & (room < least))
        if len(short):
            first = int(short[0])
            raise DataError(
                f"example {ids[first]!r} is longer than {self.max_length} tokens and its {kept} "
                f"leaves {max(0, int(room[first]))} of them for the rest, but at least {least} are "
                f"needed ({len(short)} such example(s)); raise max_length or shorten it."
            )


def _between(
    vocabulary: Vocabulary, before: tuple[int, ...], after: tuple[int, ...]
) -> tuple[int, ...]:
    """Return what stands between two texts; where a tokenizer does not say, it is [SEP]."""
    tokenizer = vocabulary.tokenizer
    if vocabulary.causal:
        line = vocabulary.encode_glued("\n")
        if line and vocabulary.unknown_id not in line:
            return tuple(line)
        end = tokenizer.eos_token_id
        return (vocabulary.pad_id if end is None else int(end),)
    first, second = vocabulary.encode(["x", "y"])
    ids = list(tokenizer("x", "y")["input_ids"])
    head, tail = [*before, *first], [*second, *after]
    middle = ids[len(head) : len(ids) - len(tail)]
    if middle and ids == [*head, *middle, *tail]:
        return tuple(middle)
    others = (tokenizer.sep_token_id, tokenizer.eos_token_id, vocabulary.mask_id)
    return after or (int(next(token for token in others if token is not None)),)


def encode(vocabulary: Vocabulary, texts: Sequence[str], *, offsets: bool = False) -> Any:
    """Return texts' ids without special tokens; long texts are expected and not complained of."""
    if not texts:
        return {"input_ids": [], "offset_mapping": []}
    return vocabulary.tokenizer(
        list(texts), add_special_tokens=False, return_offsets_mapping=offsets, verbose=False
    )


def something(ids: Sequence[Sequence[int]], vocabulary: Vocabulary) -> list[Sequence[int]]:
    """Return token lists with an unknown token in those that are empty.

    A tokenizer reads some texts as nothing (control characters, spaces of no width), but every
    text and word needs a place.
    """
    others = (vocabulary.unknown_id, vocabulary.mask_id, vocabulary.pad_id)
    unknown = int(next(token for token in others if token is not None))
    return [entry or [unknown] for entry in ids]


def assemble(
    sheet: Sheet,
    example: NDArray[np.int64],
    *parts: Ragged,
    closing: bool = False,
) -> tuple[Features, list[NDArray[np.int64]]]:
    """Put special tokens and one part or two into rows; return the column of each part too [n].

    Args:
        example: which one each row shows [n].
        closing: end rows with what stands for "no answer" in a causal model.
    """
    count = len(example)

    def same(*tokens: int) -> Ragged:
        return Ragged.of([tokens]).take(np.zeros(count, np.int64))

    pieces = [same(*sheet.before), parts[0]]
    for part in parts[1:]:
        pieces += [same(*sheet.between), part]
    pieces.append(same(*sheet.after, *(sheet.closing if closing else ())))
    ends = np.cumsum([piece.length for piece in pieces], 0)
    width = int(ends[-1].max(initial=1))
    ids = np.full((count, width), sheet.vocabulary.pad_id, np.int32)
    for piece, end in zip(pieces, ends, strict=True):
        piece.write(ids, end - piece.length)
    types = None
    if sheet.types:
        places, second = np.arange(width), ends[2] if len(parts) > 1 else ends[-1]
        later = (places >= second[:, None]) & (places < ends[-1][:, None])
        types = later.astype(np.uint8)
    lengths = ends[-1].astype(np.int32)
    features = Features(ids, lengths, example.astype(np.int32), types)
    return features, [ends[2 * number] for number in range(len(parts))]


def tensorise_sentences(
    sentences: Sequence[Sequence[str]], sheet: Sheet, predicates: Sequence[str] | None = None
) -> Features:
    """Return sentences as rows; a long one is split between words.

    Words are read one by one as they stand after a space, so that tags cannot slip. A predicate
    follows its sentence after [SEP]; a causal model, which cannot look ahead, reads it first.

    Targets: words, which word of its row each token is of, from 0 on, -1 for none [n, t].
    Notes: words, the same counted within the example; first, whether it is its word's first token
    [n, t]; own, whether this row answers for the token's word: overlaps of rows are parted [n, t].
    Every word of an example is one row's own.
    """
    room = sheet.room(pair=predicates is not None)
    # A word longer than half a row (a data: URL) would leave no place for its neighbours.
    cap = max(1, room // 2)
    tokens, word, first_token, capped = _encode_sentences(sentences, sheet.vocabulary, cap)
    rooms = np.full(len(sentences), room, np.int64)
    asked = None
    if predicates is not None:
        read = something(sheet.vocabulary.encode_words(predicates), sheet.vocabulary)
        asked = Ragged.of([ids[: max(1, cap // 2)] for ids in read])
        rooms = rooms - asked.length
    # The first tokens of words of each sentence that is too long, nothing for others.
    word_starts = [
        np.flatnonzero(first_token[begin : begin + size]) if size > most else np.zeros(0, np.int64)
        for begin, size, most in np.stack([tokens.start, tokens.length, rooms], 1).tolist()
    ]
    windows = make_windows(tokens.length, rooms, sheet.stride, word_starts=word_starts)
    row = windows.example
    start, length = tokens.start[row] + windows.start, windows.length
    parts = [Ragged(tokens.values, start, length)]
    if asked is not None:
        parts.append(asked.take(row))
    if sheet.vocabulary.causal:
        parts.reverse()
    features, columns = assemble(sheet, row, *parts)
    column, shape = columns[-1 if sheet.vocabulary.causal else 0], features.ids.shape
    words = Ragged(word, start, length).write(np.full(shape, -1, np.int32), column)
    first = Ragged(first_token, start, length).write(np.zeros(shape, np.bool_), column)
    places = np.arange(shape[1]) - (column - windows.start)[:, None]
    own = (places >= windows.own_start[:, None]) & (places < windows.own_end[:, None])
    return replace(
        features,
        targets={"words": np.where(words >= 0, words - first_words(words)[:, None], -1)},
        notes={"words": words, "first": first, "own": own & (words >= 0)},
        cut=capped,
    )


def first_words(words: NDArray[np.int32]) -> NDArray[np.int64]:
    """Return the word of its example that each row begins with [n]."""
    found: NDArray[np.int64] = np.where(words < 0, np.iinfo(np.int32).max, words).min(1)
    return found.astype(np.int64)


def _encode_sentences(
    sentences: Sequence[Sequence[str]], vocabulary: Vocabulary, cap: int
) -> tuple[Ragged, Ints, NDArray[np.bool_], int]:
    """Return sentences' tokens, the word of each token, which are first, and how many are capped.

    Each distinct word is read once.
    """
    table: dict[str, int] = {}
    places = [table.setdefault(word, len(table)) for words in sentences for word in words]
    read = something(vocabulary.encode_words(list(table)), vocabulary)
    entries = Ragged.of([ids[:cap] for ids in read])
    long = np.array([len(ids) > cap for ids in read], np.bool_)
    flat = np.array(places, np.int64)
    counts = np.fromiter(map(len, sentences), np.int64, len(sentences))
    begins = np.concatenate(([0], np.cumsum(counts)))
    words = entries.take(flat)
    number = np.arange(len(flat)) - np.repeat(begins[:-1], counts)
    # The first token of every word, and the end of the last one.
    starts = np.concatenate(([0], np.cumsum(words.length)))
    first = np.zeros(starts[-1], np.bool_)
    first[starts[:-1]] = True
    sentence = np.repeat(np.arange(len(sentences)), counts)
    return (
        Ragged(words.flat(), starts[begins[:-1]], np.diff(starts[begins])),
        np.repeat(number, words.length).astype(np.int32),
        first,
        len(set(sentence[long[flat]].tolist())),
    )
