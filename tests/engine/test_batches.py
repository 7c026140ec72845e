"""Batches by a budget of tokens: every row once, no more than fit, none cut short needlessly."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from symprompt.engine.batches import Batch, few_widths, join_few, make_batches, multiples_of_8

ROWS = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 5)), max_size=60)


def batches(*given: Any, **options: Any) -> list[Batch]:
    return list(make_batches(*given, **options))


@given(ROWS, st.integers(1, 400), st.booleans())
def test_consecutive_rows_keep_to_the_budget(
    rows: list[tuple[int, int]], budget: int, apart: bool
) -> None:
    lengths = np.array([length for length, _ in rows], dtype=np.int64)
    sequences = np.array([count for _, count in rows], dtype=np.int64)
    found = batches(
        lengths, budget, sequences=sequences, order="given", apart=0.25 if apart else None
    )
    assert [row for batch in found for row in batch.rows.tolist()] == list(range(len(rows)))

    def tokens(members: np.ndarray) -> int:
        return int(multiples_of_8(lengths[members]).max() * sequences[members].sum())

    for batch in found:
        assert tokens(batch.rows) <= budget or len(batch.rows) == 1
        assert batch.width == multiples_of_8(lengths[batch.rows]).max()
    for batch, after in itertools.pairwise(found):
        # No needless batches: the next row would not have fitted, or is of another length than the
        # last one of a batch that is not small.
        full = tokens(np.append(batch.rows, after.rows[0])) > budget
        other = lengths[after.rows[0]] != lengths[batch.rows[-1]]
        assert full or (apart and other and tokens(batch.rows) >= budget // 4)


@given(st.lists(st.integers(1, 300), max_size=200), st.integers(1, 2000), st.integers(0, 9))
def test_sorted_rows_are_read_once(lengths: list[int], budget: int, most: int) -> None:
    own = np.array(lengths, dtype=np.int64)
    widest = int(own.max(initial=1))
    for order in ("shortest", "longest"):
        width = partial(few_widths, widest=widest)
        found = batches(own, budget, width=width, order=order, most=most)  # type: ignore[arg-type]
        rows = np.concatenate([batch.rows for batch in found] or [own])
        assert sorted(rows.tolist()) == list(range(len(own)))
        read = own[rows] if order == "shortest" else -own[rows]
        assert (np.diff(read) >= 0).all()
        for batch in found:
            assert own[batch.rows].max() <= batch.width
            assert len(batch.rows) == 1 or len(batch.rows) * batch.width <= budget
            assert not most or len(batch.rows) <= most


@given(st.lists(st.integers(1, 60), max_size=100), st.integers(1, 300))
def test_packed_rows_have_no_padding(lengths: list[int], budget: int) -> None:
    own = np.array(lengths, dtype=np.int64)
    found = batches(own, budget, order="given", packed=True)
    assert [row for batch in found for row in batch.rows.tolist()] == list(range(len(own)))
    for batch, after in itertools.pairwise(found):
        assert own[batch.rows].sum() + own[after.rows[0]] > budget
    assert all(own[b.rows].sum() <= budget or len(b.rows) == 1 for b in found)


def test_widths_stand_apart_where_that_is_wanted() -> None:
    lengths = np.array([8, 16, 8, 24, 16, 8])
    found = batches(lengths, 1000, apart=0.0)
    assert [(batch.rows.tolist(), batch.width) for batch in found] == [
        ([0, 2, 5], 8),
        ([1, 4], 16),
        ([3], 24),
    ]


def test_a_width_of_few_rows_joins_the_next_wider_one() -> None:
    widths = np.array([8, 8, 16, 24, 24, 24, 32])
    assert join_few(widths, 1).tolist() == widths.tolist()
    assert join_few(widths, 3).tolist() == [16, 16, 16, 24, 24, 24, 32]
    assert join_few(widths, 4).tolist() == [24, 24, 24, 24, 24, 24, 32]
    assert join_few(widths, 99).tolist() == [32] * 7


@pytest.mark.parametrize(
    ("length", "width"), [(1, 8), (8, 8), (30, 32), (33, 48), (64, 64), (65, 96), (129, 192)]
)
def test_widths_grow_with_length(length: int, width: int) -> None:
    assert few_widths(np.array([length]), 512).tolist() == [width]
    assert few_widths(np.array([length]), 20).tolist() == [min(width, 20)]
