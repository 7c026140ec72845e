"""Sentences in words as rows, with the tag of each word at its tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from symprompt.models.vocabulary import Vocabulary
from symprompt.tasks.data.examples import NO_LABEL, LabelSet, RolesExample, TaggedExample, TaskKind
from symprompt.tasks.features import Features
from symprompt.tasks.rows import Part, Sheet, assemble, something
from symprompt.tasks.windows import Ints, Ragged, make_windows

Tagged = TaggedExample | RolesExample


@dataclass(frozen=True)
class _Tokens:
    """Sentences' tokens one after the other, and the word of each."""

    ids: Ragged
    word: Ints
    first: NDArray[np.bool_]
    capped: int


def lay_out_words(
    kind: TaskKind,
    examples: Sequence[Tagged],
    labels: LabelSet,
    sheet: Sheet,
    *,
    label_all_tokens: bool,
) -> Features:
    """Lay out sentences with tags; a long one is split between words.

    Words are read one by one as they stand after a space, so that tags cannot slip. A role's
    predicate follows the sentence after [SEP]; a causal model, which cannot look ahead, reads it
    first.
    """
    roles = kind == "roles"
    room = sheet.room(pair=roles)
    # A word longer than half a row (a data: URL) would leave no place for its neighbours.
    cap = max(1, room // 2)
    tokens = _encode_sentences([entry.words for entry in examples], sheet.vocabulary, cap)
    rooms = np.full(len(examples), room, np.int64)
    predicates = None
    if roles:
        predicates = _encode_predicates(examples, sheet.vocabulary, max(1, cap // 2))
        rooms = rooms - predicates.lengths
    windows = make_windows(
        tokens.ids.lengths, rooms, sheet.stride, word_starts=_word_starts(tokens, rooms)
    )
    row = windows.example
    start = tokens.ids.starts[row] + windows.start
    sentence = Part(tokens.ids.values, start, windows.length)
    other = None
    if predicates is not None:
        other = Part(predicates.values, predicates.starts[row], predicates.lengths[row])
    swapped = roles and sheet.vocabulary.causal
    rows = (
        assemble(sheet, other, sentence)
        if swapped and other is not None
        else assemble(sheet, sentence, other)
    )
    column = rows.second if swapped else rows.first
    words = rows.spread(Part(tokens.word, start, windows.length), column, -1)
    places = np.arange(rows.ids.shape[1]) - (column - windows.start)[:, None]
    own = (places >= windows.own_start[:, None]) & (places < windows.own_end[:, None])
    own &= words >= 0
    tags = _token_labels(examples, labels, tokens, label_all_tokens)
    spread = rows.spread(Part(tags, start, windows.length), column, NO_LABEL)
    first = rows.spread(Part(tokens.first.astype(np.int32), start, windows.length), column, 0)
    return Features(
        kind=kind,
        examples=len(examples),
        ids=rows.ids,
        lengths=rows.lengths,
        types=rows.types,
        example=row.astype(np.int32),
        labels=np.where(own, spread, NO_LABEL).astype(np.int32),
        words=words,
        first=first.astype(np.bool_),
        own=own,
        cut=tokens.capped,
    )


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


def _encode_predicates(examples: Sequence[Tagged], vocabulary: Vocabulary, cap: int) -> Ragged:
    words = [
        entry.words[entry.predicate_index] for entry in examples if isinstance(entry, RolesExample)
    ]
    return Ragged.of([ids[:cap] for ids in _encode_words(words, vocabulary)])


def _word_starts(tokens: _Tokens, rooms: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Return the first tokens of words of each sentence that is too long, nothing for others."""
    starts = tokens.ids.starts
    return [
        np.flatnonzero(tokens.first[begin:end]) if end - begin > room else np.zeros(0, np.int64)
        for begin, end, room in zip(
            starts[:-1].tolist(), starts[1:].tolist(), rooms.tolist(), strict=True
        )
    ]


def _token_labels(
    examples: Sequence[Tagged], labels: LabelSet, tokens: _Tokens, label_all_tokens: bool
) -> Ints:
    """Return the label of every token of every sentence."""
    find = labels.index.get
    flat = [
        find(tag, NO_LABEL)
        for entry in examples
        for tag in (entry.tags if entry.tags is not None else [""] * len(entry.words))
    ]
    of_word = np.cumsum(tokens.first) - 1
    found = np.array(flat, np.int32)[of_word]
    if not label_all_tokens:
        return np.where(tokens.first, found, NO_LABEL).astype(np.int32)
    inside = np.arange(len(labels), dtype=np.int32)
    for name, place in labels.index.items():
        inside[place] = labels.index.get("I-" + name[2:], place) if name[:2] == "B-" else place
    # The last entry stands for NO_LABEL, which is negative.
    later = np.append(inside, np.int32(NO_LABEL))[np.where(found < 0, len(inside), found)]
    return np.where(tokens.first, found, later).astype(np.int32)
