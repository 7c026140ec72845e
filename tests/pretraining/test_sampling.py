"""Equation 11.7 against values worked out by hand, and counts that add up."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from symprompt.errors import ConfigError, DataError
from symprompt.pretraining.tokenizer import (
    draw_repeated,
    language_shares,
    plan_sampling,
    repeats_at,
)


@pytest.mark.parametrize(
    ("counts", "alpha", "expected"),
    [
        # p = 0.99, 0.01; 0.99^0.3 = 0.996989, 0.01^0.3 = 0.251189; their sum is 1.248178.
        ((990, 10), 0.3, (0.798756, 0.201244)),
        # p = 16/25, 9/25; with alpha 0.5 they become 0.8 and 0.6.
        ((16, 9), 0.5, (4 / 7, 3 / 7)),
        ((6, 3, 1, 0), 1.0, (0.6, 0.3, 0.1, 0.0)),
        ((6, 3, 1, 0), 0.0, (1 / 3, 1 / 3, 1 / 3, 0)),
    ],
)
def test_shares_are_those_of_the_equation(
    counts: tuple[int, ...], alpha: float, expected: tuple[float, ...]
) -> None:
    shares = language_shares(dict(zip("abcd", counts, strict=False)), alpha)
    assert tuple(shares.values()) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("counts", "alpha", "error", "message"),
    [
        *(({"a": 1}, alpha, ConfigError, "alpha is") for alpha in (-0.1, 1.1, float("nan"))),
        ({}, 0.3, DataError, "at least one is needed"),
        ({"a": 0}, 0.3, DataError, "at least one is needed"),
        ({"a": -1, "b": 2}, 0.3, DataError, "at least one is needed"),
    ],
)
def test_what_cannot_be_sampled_is_refused(
    counts: dict[str, int], alpha: float, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        language_shares(counts, alpha)


@given(
    counts=st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 10_000), min_size=1),
    alpha=st.floats(0, 1),
)
def test_plan_keeps_the_number_of_sentences(counts: dict[str, int], alpha: float) -> None:
    counts["a"] = counts.get("a", 0) + 1
    plan = plan_sampling(counts, alpha)
    assert sum(share.after for share in plan) == sum(counts.values())
    assert sum(share.share for share in plan) == pytest.approx(1)
    assert all(share.after == 0 for share in plan if share.before == 0)


def test_plan_keeps_the_total_and_repeats_the_small_language() -> None:
    english, icelandic = plan_sampling({"en": 990, "is": 10}, 0.3)
    assert (english.before, english.after) == (990, 799)
    assert (icelandic.before, icelandic.after) == (10, 201)
    assert icelandic.prior == 0.01
    assert icelandic.share == pytest.approx(0.201244, abs=1e-6)


@given(before=st.integers(1, 300), after=st.integers(0, 900), seed=st.integers(0, 99))
def test_repeats_add_up_and_are_even(before: int, after: int, seed: int) -> None:
    times = [repeats_at(index, before, after, seed * 7919) for index in range(before)]
    assert sum(times) == after
    assert max(times) - min(times) <= 1


@given(before=st.integers(1, 100), after=st.integers(0, 300), seed=st.integers(0, 99))
def test_draws_are_even(before: int, after: int, seed: int) -> None:
    drawn = draw_repeated(before, after, np.random.default_rng(seed))
    times = np.bincount(drawn, minlength=before)
    assert len(drawn) == after
    assert len(times) == before
    assert times.max() - times.min() <= 1
