"""Texts and pairs of texts as rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from symprompt.tasks.data.examples import NO_LABEL, LabelSet, PairExample, TaskKind, TextExample
from symprompt.tasks.features import Features
from symprompt.tasks.rows import LongTexts, Part, Sheet, assemble, encode, something
from symprompt.tasks.windows import Ragged, make_windows

Texts = TextExample | PairExample


def lay_out_texts(
    kind: TaskKind,
    examples: Sequence[Texts],
    labels: LabelSet,
    sheet: Sheet,
    long_texts: LongTexts,
) -> Features:
    """Lay out texts or pairs; of a pair that is too long the longer text is split, or cut."""
    pair = kind == "pair"
    firsts = [entry.first if isinstance(entry, PairExample) else entry.text for entry in examples]
    seconds = [entry.second for entry in examples if isinstance(entry, PairExample)]
    first, other = (_tokens(texts, sheet) for texts in (firsts, seconds))
    second = other if pair else None
    none = np.zeros(len(examples), np.int64)
    sizes = [first.lengths, none if second is None else second.lengths]
    whole = sheet.room(pair=pair)
    fits = sizes[0] + sizes[1] <= whole
    shortened = 0
    if long_texts == "cut":
        shortened = int((~fits).sum())
        sizes = _cut(sizes[0], sizes[1], whole)
    shorter = np.minimum(*sizes) if pair else none
    if long_texts == "windows" and pair:
        sheet.check_room(whole - shorter, fits, [entry.id for entry in examples], "shorter text")
    windows = make_windows(np.maximum(*sizes), whole - shorter, sheet.stride)
    row = windows.example
    split_first = sizes[0][row] >= sizes[1][row]
    parts = []
    for tokens, size, is_split in (
        (first, sizes[0], split_first),
        (second, sizes[1], ~split_first),
    ):
        if tokens is not None:
            start = tokens.starts[row] + np.where(is_split, windows.start, 0)
            length = np.where(is_split, windows.length, size[row])
            parts.append(Part(tokens.values, start, length))
    rows = assemble(sheet, parts[0], parts[1] if pair else None)
    known = [NO_LABEL if x.label is None else labels.index.get(x.label, NO_LABEL) for x in examples]
    return Features(
        kind=kind,
        examples=len(examples),
        ids=rows.ids,
        lengths=rows.lengths,
        types=rows.types,
        example=row.astype(np.int32),
        labels=np.array(known, np.int32)[row],
        cut=shortened,
    )


def _tokens(texts: Sequence[str], sheet: Sheet) -> Ragged:
    ids = encode(sheet.vocabulary, texts)["input_ids"]
    return Ragged.of(something(ids, sheet.vocabulary))


def _cut(first: NDArray[np.int64], second: NDArray[np.int64], room: int) -> list[NDArray[np.int64]]:
    """Return the lengths that stay when tokens are taken from the longer text until both fit."""
    half = room // 2
    kept_second = np.where(
        first + second <= room, second, np.minimum(second, np.maximum(half, room - first))
    )
    return [np.minimum(first, room - kept_second), kept_second]
