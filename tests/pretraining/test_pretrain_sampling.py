"""Equation 11.7 against values worked out by hand, and counts that add up."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from symprompt.errors import ConfigError, DataError
from symprompt.pretraining.sampling import (
    draw_repeated,
    language_shares,
    plan_sampling,
    repeats_at,
    sampling_start,
)


def test_shares_are_those_of_the_equation() -> None:
    # p = 0.99, 0.01; 0.99^0.3 = 0.996989, 0.01^0.3 = 0.251189; their sum is 1.248178.
    shares = language_shares({"en": 990, "is": 10}, 0.3)
    assert shares["en"] == pytest.approx(0.798756, abs=1e-6)
    assert shares["is"] == pytest.approx(0.201244, abs=1e-6)


def test_square_roots_by_hand() -> None:
    # p = 16/25, 9/25; with alpha 0.5 they become 0.8 and 0.6, so q = 4/7 and 3/7.
    shares = language_shares({"a": 16, "b": 9}, 0.5)
    assert shares == pytest.approx({"a": 4 / 7, "b": 3 / 7})


def test_ends_of_alpha() -> None:
    counts = {"a": 6, "b": 3, "c": 1, "d": 0}
    as_they_are = {"a": 0.6, "b": 0.3, "c": 0.1, "d": 0.0}
    assert language_shares(counts, 1.0) == pytest.approx(as_they_are)
    third = 1 / 3
    assert language_shares(counts, 0.0) == pytest.approx(
        {"a": third, "b": third, "c": third, "d": 0}
    )


def test_plan_keeps_the_total_and_repeats_the_small_language() -> None:
    english, icelandic = plan_sampling({"en": 990, "is": 10}, 0.3)
    assert (english.before, english.after) == (990, 799)
    assert (icelandic.before, icelandic.after) == (10, 201)
    assert icelandic.prior == 0.01
    assert icelandic.share == pytest.approx(0.201244, abs=1e-6)


@pytest.mark.parametrize("alpha", [-0.1, 1.1, float("nan")])
def test_alpha_out_of_range_is_refused(alpha: float) -> None:
    with pytest.raises(ConfigError, match="alpha is"):
        language_shares({"a": 1}, alpha)


@pytest.mark.parametrize("counts", [{}, {"a": 0}, {"a": -1, "b": 2}])
def test_nothing_to_sample_is_refused(counts: dict[str, int]) -> None:
    with pytest.raises(DataError, match="at least one is needed"):
        language_shares(counts, 0.3)


@given(
    counts=st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 10_000), min_size=1),
    alpha=st.floats(0, 1),
    total=st.integers(0, 5000),
)
def test_plan_gives_exactly_what_is_wanted(
    counts: dict[str, int], alpha: float, total: int
) -> None:
    counts["a"] = counts.get("a", 0) + 1
    plan = plan_sampling(counts, alpha, total)
    assert sum(share.after for share in plan) == total
    assert sum(share.share for share in plan) == pytest.approx(1)
    assert all(share.after == 0 for share in plan if share.before == 0)


@given(before=st.integers(1, 300), after=st.integers(0, 900), seed=st.integers(0, 99))
def test_repeats_add_up_and_are_even(before: int, after: int, seed: int) -> None:
    start = sampling_start(seed, "de")
    times = [repeats_at(index, before, after, start) for index in range(before)]
    assert sum(times) == after
    assert max(times) - min(times) <= 1


@given(before=st.integers(1, 100), after=st.integers(0, 300), seed=st.integers(0, 99))
def test_draws_are_even(before: int, after: int, seed: int) -> None:
    drawn = draw_repeated(before, after, np.random.default_rng(seed))
    times = np.bincount(drawn, minlength=before)
    assert len(drawn) == after
    assert len(times) == before
    assert times.max() - times.min() <= 1
