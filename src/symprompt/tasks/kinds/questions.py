"""Questions and their contexts as rows, with the answer's first and last token."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from symprompt.errors import ModelError
from symprompt.models.vocabulary import Vocabulary
from symprompt.tasks.data.examples import NO_LABEL, QuestionExample
from symprompt.tasks.features import Features
from symprompt.tasks.rows import Part, Sheet, assemble, encode
from symprompt.tasks.windows import Ints, Ragged, fill, make_windows

_BATCH = 4096


def lay_out_questions(examples: Sequence[QuestionExample], sheet: Sheet) -> Features:
    """Lay out questions; a context that is too long is split into windows that overlap."""
    vocabulary = sheet.vocabulary
    table: dict[str, int] = {}
    context = np.array([table.setdefault(x.context, len(table)) for x in examples], np.int64)
    tokens, offsets = _encode_contexts(list(table), vocabulary)
    asked = encode(vocabulary, [entry.question.strip() for entry in examples])["input_ids"]
    question = Ragged.of(asked)
    room = sheet.room(pair=True, closing=True) - question.lengths
    lengths = tokens.lengths[context]
    sheet.check_room(room, lengths <= room, [entry.id for entry in examples], "question")
    windows = make_windows(lengths, room, sheet.stride)
    row = windows.example
    start = tokens.starts[context[row]] + windows.start
    shown = Part(tokens.values, start, windows.length)
    rows = assemble(
        sheet,
        Part(question.values, question.starts[row], question.lengths[row]),
        shown,
        closing=True,
    )
    covered = np.full((*rows.ids.shape, 2), -1, np.int32)
    for side in range(2):
        fill(covered[..., side], rows.second, offsets[:, side], start, windows.length)
    null = rows.lengths - 1 if vocabulary.causal else np.zeros_like(rows.lengths)
    begin, end = _answers(examples, context, tokens, offsets)
    state = np.array([_state(entry) for entry in examples], np.int64)
    first, last = begin[row] - windows.start, end[row] - windows.start
    found = (first >= 0) & (last < windows.length) & (first <= last)
    state[(state == _ANSWERED) & (begin > end)] = _UNKNOWN  # the tokenizer reads it as nothing
    cases = [state[row] == _UNKNOWN, (state[row] == _ANSWERED) & found]
    starts, ends = (
        np.select(cases, [np.full_like(first, NO_LABEL), rows.second + place], null)
        for place in (first, last)
    )
    return Features(
        kind="question",
        examples=len(examples),
        ids=rows.ids,
        lengths=rows.lengths,
        types=rows.types,
        example=row.astype(np.int32),
        starts=starts.astype(np.int32),
        ends=ends.astype(np.int32),
        null=null.astype(np.int32),
        offsets=covered,
    )


_UNKNOWN, _ANSWERED, _IMPOSSIBLE = range(3)


def _state(example: QuestionExample) -> int:
    if example.impossible:
        return _IMPOSSIBLE
    return _ANSWERED if example.answers else _UNKNOWN


def _encode_contexts(texts: Sequence[str], vocabulary: Vocabulary) -> tuple[Ragged, Ints]:
    """Return contexts' tokens and the characters [n, 2] that each token covers."""
    if not vocabulary.tokenizer.is_fast:
        raise ModelError(
            "the tokenizer of this model does not say which characters its tokens cover, so "
            "answers cannot be found; use a model with a fast tokenizer (tokenizer.json)."
        )
    ids: list[list[int]] = []
    offsets: list[Ints] = []
    for begin in range(0, len(texts), _BATCH):
        found = encode(vocabulary, texts[begin : begin + _BATCH], offsets=True)
        ids += found["input_ids"]
        pairs = chain.from_iterable(chain.from_iterable(found["offset_mapping"]))
        offsets.append(np.fromiter(pairs, np.int32).reshape(-1, 2))
    covered = np.concatenate(offsets) if offsets else np.zeros((0, 2), np.int32)
    return Ragged.of(ids), covered


def _answers(
    examples: Sequence[QuestionExample],
    context: NDArray[np.int64],
    tokens: Ragged,
    offsets: Ints,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the first and last context token of each example's first answer.

    The first token is the first that ends after the answer's start, the last the last that starts
    before its end: tokens may cover the space before their word. First after last: no token.
    """
    spans = [
        (x.answers[0].start, len(x.answers[0].text)) if x.answers else (0, 0) for x in examples
    ]
    start, length = np.array(spans, np.int64).reshape(-1, 2).T
    # One search over all contexts: characters counted on from context to context.
    far = int(max((len(entry.context) for entry in examples), default=0)) + 2
    base = np.repeat(np.arange(len(tokens.lengths)), tokens.lengths) * far
    here = context * far
    first = np.searchsorted(base + offsets[:, 1], here + start, side="right")
    last = np.searchsorted(base + offsets[:, 0], here + start + length, side="left") - 1
    origin = tokens.starts[context]
    return first - origin, last - origin
