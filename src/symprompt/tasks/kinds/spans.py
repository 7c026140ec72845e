"""Sentences in words as rows, with the spans that each row answers for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from symprompt.tasks.data.examples import LabelSet, SpanExample, TaggedExample, TaskKind
from symprompt.tasks.features import Features
from symprompt.tasks.kinds.words import lay_out_words
from symprompt.tasks.rows import Sheet
from symprompt.tasks.windows import Ints


def lay_out_spans(
    kind: TaskKind,
    examples: Sequence[SpanExample],
    labels: LabelSet,
    relations: LabelSet,
    sheet: Sheet,
) -> Features:
    """Lay out sentences with spans; a long one is split between words.

    A span is the row's that answers for its first word, if that row shows it whole; spans that no
    row shows whole, and relations of two rows, are left out and their sentences counted as cut.
    """
    bare = [TaggedExample(entry.id, entry.words) for entry in examples]
    features = lay_out_words(kind, bare, LabelSet(()), sheet, label_all_tokens=False)
    rows = _Rows(features)
    spans: list[list[tuple[int, int, int]]] = [[] for _ in range(len(features))]
    pairs: list[list[tuple[int, int, int]]] = [[] for _ in range(len(features))]
    lost = 0
    for number, entry in enumerate(examples):
        whole = True
        found: dict[int, tuple[int, int]] = {}
        for place, (name, start, end) in enumerate(entry.spans or ()):
            row = rows.owner(number, start)
            if end > rows.end[row]:
                whole = False
            elif name in labels:
                found[place] = row, len(spans[row])
                spans[row].append((start - rows.begin[row], end - start - 1, labels.index[name]))
        for relation in entry.relations or ():
            one, other = found.get(relation.one), found.get(relation.other)
            if one is None or other is None or one[0] != other[0]:
                whole = False
            elif relation.name in relations:
                pairs[one[0]].append((one[1], other[1], relations.index[relation.name]))
        lost += not whole
    return replace(
        features,
        labels=None,
        spans=_table(spans),
        pairs=_table(pairs) if kind == "relations" else None,
        cut=features.cut + lost,
    )


class _Rows:
    """Which words of which example each row shows and answers for."""

    def __init__(self, features: Features) -> None:
        if features.words is None or features.own is None:
            raise ValueError("these features are not of words")
        words, own = features.words, features.own
        self.begin = features.first_words().tolist()
        self.end = (words.max(1) + 1).tolist()
        self._last = np.where(own, words, -1).max(1).tolist()
        self._first = np.searchsorted(features.example, np.arange(features.examples)).tolist()

    def owner(self, example: int, word: int) -> int:
        """Return the row that answers for a word of an example."""
        row = self._first[example]
        while self._last[row] < word:
            row += 1
        return int(row)


def _table(rows: Sequence[Sequence[tuple[int, int, int]]]) -> Ints:
    """Return lists of three numbers as an array, filled up with -1."""
    most = max(1, max(map(len, rows), default=0))
    table = np.full((len(rows), most, 3), -1, np.int32)
    for place, entries in enumerate(rows):
        if entries:
            table[place, : len(entries)] = entries
    return table
