"""Windows: they fit, overlap, cover everything, and answer for each token once."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from symprompt.tasks.features import Ragged, make_windows


@given(st.lists(st.integers(1, 60), min_size=1, max_size=6), st.integers(2, 20), st.integers(0, 30))
def test_windows_cover_every_token_once(lengths: list[int], room: int, overlap: int) -> None:
    sizes = np.array(lengths)
    windows = make_windows(sizes, np.full(len(sizes), room), overlap)
    assert (np.diff(windows.example) >= 0).all()
    assert (windows.length <= room).all()
    assert (windows.length >= 1).all()
    for example, size in enumerate(lengths):
        rows = np.flatnonzero(windows.example == example)
        owned = [
            token for row in rows for token in range(windows.own_start[row], windows.own_end[row])
        ]
        assert owned == list(range(size))
        for row in rows:
            assert windows.start[row] <= windows.own_start[row]
            assert windows.own_end[row] <= windows.start[row] + windows.length[row]
        shared = windows.start[rows[:-1]] + windows.length[rows[:-1]] - windows.start[rows[1:]]
        assert (shared == min(overlap, room // 2)).all()
        if size <= room:
            assert len(rows) == 1


@given(st.lists(st.integers(1, 5), min_size=1, max_size=40), st.integers(5, 16), st.integers(0, 9))
def test_windows_part_between_words(words: list[int], room: int, overlap: int) -> None:
    starts = np.concatenate(([0], np.cumsum(words)[:-1]))
    size = sum(words)
    windows = make_windows(np.array([size]), np.array([room]), overlap, word_starts=[starts])
    bounds = {*starts.tolist(), size}
    ends = windows.start + windows.length
    assert {*windows.start.tolist(), *ends.tolist()} <= bounds
    assert {*windows.own_start.tolist(), *windows.own_end.tolist()} <= bounds
    assert (windows.length <= room).all()
    owned = [
        token
        for begin, end in zip(windows.own_start, windows.own_end, strict=True)
        for token in range(begin, end)
    ]
    assert owned == list(range(size))
    assert (windows.start <= windows.own_start).all()
    assert (windows.own_end <= ends).all()


def test_a_token_belongs_to_the_window_that_sees_most_around_it() -> None:
    windows = make_windows(np.array([10]), np.array([6]), 3)
    assert windows.start.tolist() == [0, 3, 6]
    assert windows.own_start.tolist() == [0, 5, 8]


@given(st.lists(st.lists(st.integers(0, 9), max_size=5), max_size=6))
def test_ragged_sequences_come_back(sequences: list[list[int]]) -> None:
    ragged = Ragged.of(sequences)
    back = ragged.take(np.arange(len(sequences))[::-1])
    for own, wanted in ((ragged, sequences), (back, sequences[::-1])):
        assert own.flat().tolist() == [value for sequence in wanted for value in sequence]
        table = own.write(np.full((len(wanted), 7), -1), np.ones(len(wanted), np.int64))
        for row, sequence in zip(table.tolist(), wanted, strict=True):
            assert row == [-1, *sequence] + [-1] * (6 - len(sequence))
