"""Sentences in words as rows of tokens: words are never split, long sentences are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from symprompt.models.vocabulary import Vocabulary
from symprompt.tasks.features import Features
from symprompt.tasks.rows import Part, Sheet, assemble, something
from symprompt.tasks.windows import Ints, Ragged, make_windows


@dataclass(frozen=True)
class _Tokens:
    """Sentences' tokens one after the other, and the word of each."""

    ids: Ragged
    word: Ints
    first: NDArray[np.bool_]
    capped: int


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
    tokens = _encode_sentences(sentences, sheet.vocabulary, cap)
    rooms = np.full(len(sentences), room, np.int64)
    asked = None
    if predicates is not None:
        read = _encode_words(predicates, sheet.vocabulary)
        asked = Ragged.of([ids[: max(1, cap // 2)] for ids in read])
        rooms = rooms - asked.lengths
    windows = make_windows(
        tokens.ids.lengths, rooms, sheet.stride, word_starts=_word_starts(tokens, rooms)
    )
    row = windows.example
    start = tokens.ids.starts[row] + windows.start
    shown = Part(tokens.ids.values, start, windows.length)
    if asked is None:
        rows = assemble(sheet, shown)
        column = rows.first
    else:
        other = Part(asked.values, asked.starts[row], asked.lengths[row])
        leads = sheet.vocabulary.causal
        rows = assemble(sheet, other, shown) if leads else assemble(sheet, shown, other)
        column = rows.second if leads else rows.first
    words = rows.spread(Part(tokens.word, start, windows.length), column, -1)
    first = rows.spread(Part(tokens.first.astype(np.int32), start, windows.length), column, 0)
    places = np.arange(rows.ids.shape[1]) - (column - windows.start)[:, None]
    own = (places >= windows.own_start[:, None]) & (places < windows.own_end[:, None])
    return Features(
        len(sentences),
        rows.ids,
        rows.lengths,
        row.astype(np.int32),
        rows.types,
        {"words": np.where(words >= 0, words - first_words(words)[:, None], -1)},
        {"words": words, "first": first.astype(np.bool_), "own": own & (words >= 0)},
        cut=tokens.capped,
    )


def first_words(words: NDArray[np.int32]) -> NDArray[np.int64]:
    """Return the word of its example that each row begins with [n]."""
    found: NDArray[np.int64] = np.where(words < 0, np.iinfo(np.int32).max, words).min(1)
    return found.astype(np.int64)


def _encode_sentences(
    sentences: Sequence[Sequence[str]], vocabulary: Vocabulary, cap: int
) -> _Tokens:
    """Return sentences' tokens; each distinct word is read once."""
    table: dict[str, int] = {}
    places = [table.setdefault(word, len(table)) for words in sentences for word in words]
    read = _encode_words(list(table), vocabulary)
    entries = Ragged.of([ids[:cap] for ids in read])
    long = np.array([len(ids) > cap for ids in read], np.bool_)
    flat = np.array(places, np.int64)
    counts = np.fromiter(map(len, sentences), np.int64, len(sentences))
    ends = np.cumsum(counts)
    sizes = entries.lengths[flat]
    ids = entries.take(flat)
    bounds = np.concatenate(([0], np.cumsum(sizes)))
    starts = np.concatenate(([0], bounds[ends])) if len(sentences) else np.zeros(1, np.int64)
    number = np.arange(len(flat)) - np.repeat(ends - counts, counts)
    first = np.zeros(len(ids.values), np.bool_)
    first[bounds[:-1]] = True
    sentence = np.repeat(np.arange(len(sentences)), counts)
    return _Tokens(
        Ragged(ids.values, starts),
        np.repeat(number, sizes).astype(np.int32),
        first,
        len(set(sentence[long[flat]].tolist())),
    )


def _encode_words(words: Sequence[str], vocabulary: Vocabulary) -> list[Sequence[int]]:
    return something(vocabulary.encode_words(words), vocabulary)


def _word_starts(tokens: _Tokens, rooms: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Return the first tokens of words of each sentence that is too long, nothing for others."""
    starts = tokens.ids.starts
    return [
        np.flatnonzero(tokens.first[begin:end]) if end - begin > room else np.zeros(0, np.int64)
        for begin, end, room in zip(
            starts[:-1].tolist(), starts[1:].tolist(), rooms.tolist(), strict=True
        )
    ]
