"""Averages by hand, bootstrap against a slow loop."""

from __future__ import annotations

import itertools
import math
import time

import numpy as np
import pytest

from symprompt.errors import SympromptError
from symprompt.runs import statistics as averages

RANK = np.array([1.0, 2.0, 11.0, 1.5, 1.0])
RELATION = np.array([3, 3, 3, 7, 7])


def test_averages_by_hand() -> None:
    found = averages.by_relation(RANK, RELATION)
    assert list(found) == [3, 7]
    assert found[3] == averages.Summary(
        pytest.approx(100 / 3),
        pytest.approx(200 / 3),
        pytest.approx(100 * (1 + 1 / 2 + 1 / 11) / 3),
    )
    assert found[7] == averages.Summary(50.0, 100.0, pytest.approx(100 * (2 / 3 + 1) / 2))
    both = averages.summarise(RANK, RELATION)
    assert list(both) == ["mean over relations", "mean over facts"]
    assert both["mean over relations"].p1 == pytest.approx((100 / 3 + 50) / 2)
    assert both["mean over facts"].p1 == pytest.approx(40.0)
    assert both["mean over facts"].p10 == pytest.approx(80.0)
    assert averages.hits(RANK, 1).tolist() == [1, 0, 0, 0, 1]


def test_seeds_are_averaged() -> None:
    stacked = averages.summarise(np.stack([RANK, np.ones(5)]), RELATION)
    alone = averages.summarise(RANK, RELATION)
    assert stacked["mean over facts"].p1 == pytest.approx((alone["mean over facts"].p1 + 100) / 2)


def some_runs(facts: int = 60) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    generator = np.random.default_rng(5)
    relation = np.repeat([0, 1, 2], [facts // 6, facts // 3, facts // 2])
    rank_a = generator.integers(1, 20, facts).astype(float)
    rank_b = np.maximum(1.0, rank_a + generator.integers(-3, 3, facts))
    return rank_a, rank_b, relation


def slow_bootstrap(
    rank: np.ndarray, relation: np.ndarray, draws: int, other: np.ndarray | None = None
) -> dict[str, np.ndarray]:
    """Resample facts one by one and summarise every time; with other, its gain over rank."""
    generator = np.random.default_rng(99)
    found: dict[str, list[list[float]]] = {averages.OVER_RELATIONS: [], averages.OVER_FACTS: []}
    rank = np.atleast_2d(rank)
    for _ in range(draws):
        picked = np.concatenate(
            [
                generator.choice(np.flatnonzero(relation == r), (relation == r).sum())
                for r in set(relation)
            ]
        )
        means = averages.summarise(rank[:, picked], relation[picked])
        minus = None if other is None else averages.summarise(other[:, picked], relation[picked])
        for averaging, rows in found.items():
            row = [getattr(means[averaging], metric) for metric in averages.METRICS]
            if minus is not None:
                gain = [getattr(minus[averaging], metric) for metric in averages.METRICS]
                row = [after - before for before, after in zip(row, gain, strict=True)]
            rows.append(row)
    return {averaging: np.array(rows) for averaging, rows in found.items()}


def test_bootstrap_agrees_with_a_slow_loop() -> None:
    rank, _, relation = some_runs()
    slow = slow_bootstrap(rank, relation, 2000)
    fast = averages.bootstrap(rank, relation, draws=5000, seed=1)
    for averaging, means in slow.items():
        for index, metric in enumerate(averages.METRICS):
            # P@1 of 60 facts moves in steps of half a standard deviation; one step is allowed.
            near = 0.5 * means[:, index].std()
            low, high = np.quantile(means[:, index], [0.025, 0.975])
            assert fast[averaging][metric].low == pytest.approx(low, abs=near)
            assert fast[averaging][metric].high == pytest.approx(high, abs=near)


def test_resampled_mean_and_spread_are_those_of_the_formula() -> None:
    rank, _, relation = some_runs()
    contributions, groups = averages._per_fact(rank), averages._groups(relation)
    found = averages._resample(contributions, groups, 20_000, 3)
    over_relations = sum(contributions[:, f].var(axis=1) / f.size for f in groups.values()) / 9
    over_facts = sum(contributions[:, f].var(axis=1) * f.size for f in groups.values()) / 60**2
    for averaging, variance in (("relations", over_relations), ("facts", over_facts)):
        means = found[f"mean over {averaging}"]
        assert means.std(axis=1) == pytest.approx(np.sqrt(variance), rel=0.03)
    assert found[averages.OVER_FACTS].mean(axis=1) == pytest.approx(
        contributions.mean(axis=1), abs=0.3
    )


def test_paired_bootstrap_agrees_with_a_slow_loop_over_several_seeds() -> None:
    rank_a, rank_b, relation = some_runs()
    several_a, several_b = np.stack([rank_a, rank_b, rank_a]), np.stack([rank_b, rank_b, rank_b])
    slow = slow_bootstrap(several_a, relation, 1500, several_b)
    fast = averages.paired_bootstrap(several_a, several_b, relation, draws=5000, seed=1)
    before, after = (averages.summarise(r, relation) for r in (several_a, several_b))
    for averaging, means in slow.items():
        for index, metric in enumerate(averages.METRICS):
            found = fast[averaging][metric]
            spread = means[:, index].std()
            assert found.difference == pytest.approx(
                getattr(after[averaging], metric) - getattr(before[averaging], metric)
            )
            low, high = np.quantile(means[:, index], [0.025, 0.975])
            assert found.low == pytest.approx(low, abs=0.3 * spread)
            assert found.high == pytest.approx(high, abs=0.3 * spread)
            sides = (means[:, index] <= 1e-9).mean(), (means[:, index] >= -1e-9).mean()
            assert found.p == pytest.approx(min(1, 2 * min(sides)), abs=0.05)


def test_bootstrap_is_exact_where_nothing_varies() -> None:
    relation = np.array([0, 0, 0, 1])
    found = averages.bootstrap(np.full(4, 4.0), relation, draws=50)
    for metrics in found.values():
        assert metrics["p1"] == averages.Interval(0.0, 0.0)
        assert metrics["p10"].low == metrics["p10"].high == pytest.approx(100.0)
        assert metrics["mrr"].low == pytest.approx(25.0)
    # One fact per relation: every draw is the data itself.
    single = averages.bootstrap(np.array([1.0, 20.0]), np.array([0, 1]), draws=50)
    assert single[averages.OVER_FACTS]["p1"] == averages.Interval(50.0, 50.0)


def test_paired_bootstrap_of_equal_better_and_worse_runs() -> None:
    rank_a, _, relation = some_runs()
    same = averages.paired_bootstrap(rank_a, np.stack([rank_a] * 3), relation, draws=99)
    better = averages.paired_bootstrap(rank_a + 1, np.ones(60), relation, draws=99)
    worse = averages.paired_bootstrap(np.ones(60), rank_a + 1, relation, draws=99)
    for averaging in (averages.OVER_RELATIONS, averages.OVER_FACTS):
        for metric in averages.METRICS:
            assert same[averaging][metric].difference == pytest.approx(0.0, abs=1e-12)
            assert same[averaging][metric].p == 1.0
        assert better[averaging]["p1"].difference == pytest.approx(100.0)
        assert worse[averaging]["p1"].difference == pytest.approx(-100.0)
        assert better[averaging]["p1"].p == worse[averaging]["p1"].p == pytest.approx(0.02)


def test_opposite_facts_cancel_to_a_difference_that_counts_as_zero() -> None:
    rank_a, rank_b = np.array([3.0, 7.0]), np.array([7.0, 3.0])
    found = averages.paired_bootstrap(rank_a, rank_b, np.array([0, 1]), draws=20)
    assert found[averages.OVER_FACTS]["mrr"].p == 1.0


def test_bootstrap_depends_on_the_seed_alone() -> None:
    rank, _, relation = some_runs()
    first = averages.bootstrap(rank, relation, draws=200, seed=4)
    np.random.default_rng(0).random(10)
    assert averages.bootstrap(rank, relation, draws=200, seed=4) == first
    assert averages.bootstrap(rank, relation, draws=200, seed=5) != first


def test_no_draws_are_refused() -> None:
    rank, _, relation = some_runs()
    with pytest.raises(SympromptError, match="draws"):
        averages.bootstrap(rank, relation, draws=0)


def test_order_of_relations_and_chunks_is_no_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    rank, _, relation = some_runs()
    monkeypatch.setattr(averages, "_CHUNK", 7)  # smaller than a relation: one draw at a time
    small = averages.bootstrap(rank, relation, draws=2000)[averages.OVER_FACTS]["mrr"]
    monkeypatch.undo()
    large = averages.bootstrap(rank, relation, draws=2000)[averages.OVER_FACTS]["mrr"]
    assert small.low == pytest.approx(large.low, abs=1.5)
    assert small.high == pytest.approx(large.high, abs=1.5)


def test_paired_bootstrap_of_all_lama_facts_is_fast() -> None:
    generator = np.random.default_rng(0)
    relation = generator.integers(0, 41, 34_039)
    rank = generator.integers(1, 1000, (2, 34_039)).astype(float)
    start = time.perf_counter()
    averages.paired_bootstrap(rank[0], rank[1], relation, draws=1000)
    assert time.perf_counter() - start < 10  # 0.3 s on one idle core


def test_the_sign_test_counts_every_way_that_coins_can_fall() -> None:
    for total in range(9):
        falls = [sum(fall) for fall in itertools.product((0, 1), repeat=total)]
        for more in range(total + 1):
            far = abs(more - total / 2)
            share = sum(abs(heads - total / 2) >= far for heads in falls) / len(falls)
            assert averages.sign_test(more, total - more) == pytest.approx(share)


def test_the_sign_test_is_exact_where_floats_are_not() -> None:
    # Two thousand tosses: the probability of one fall is below the smallest float.
    assert averages.sign_test(2000, 0) == 0.0
    assert averages.sign_test(1000, 0) == 2.0**-999
    large = averages.sign_test(17_300, 16_700)
    assert large == pytest.approx(math.erfc((600 - 1) / math.sqrt(34_000) / math.sqrt(2)), rel=0.01)


def test_p_values_are_corrected_by_holm() -> None:
    assert averages.correct([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert averages.correct([0.9, 0.8]) == [1.0, 1.0]
    assert averages.correct([]) == []


def test_signs_are_exchanged_in_all_ways_by_hand() -> None:
    change = np.array([4.0, 1.0, -2.0, 0.0, 3.0])
    sums = [sum(own) for own in itertools.product(*((-value, value) for value in change if value))]
    wanted = sum(abs(own) >= abs(change.sum()) for own in sums) / len(sums)
    assert averages.exchange_test(change) == pytest.approx(wanted)
    assert averages.exchange_test(np.zeros(4)) == 1.0
    # Of right or wrong alone it is the sign test.
    flips = np.array([1.0] * 9 + [-1.0] * 3 + [0.0] * 30)
    assert averages.exchange_test(flips) == pytest.approx(averages.sign_test(9, 3))


def test_drawn_signs_are_near_to_all_of_them() -> None:
    draw = np.random.default_rng(0)
    for change in draw.normal(0.4, 1, (3, 13)):
        exact = averages.exchange_test(change, draws=1 << 13)
        assert averages.exchange_test(change, draws=8000) == pytest.approx(exact, abs=0.02)
    assert averages.exchange_test(np.ones(300)) == pytest.approx(1 / 20_001)


def test_runs_that_are_the_same_but_for_chance_seldom_differ() -> None:
    draw = np.random.default_rng(1)
    relation = np.arange(600) % 20
    found = 0
    for seed in range(20):
        ranks = draw.integers(1, 12, (2, 600))
        by = averages.paired_by_relation(*ranks, relation, draws=50, seed=seed)
        found += any(own["mrr"].p < 0.05 for own in by.values())
    # In each of twenty trials one of twenty relations or more, by chance, five times of a hundred.
    assert found <= 4


def test_a_relation_that_loses_is_found_among_others_that_do_not() -> None:
    draw = np.random.default_rng(2)
    relation = np.repeat(np.arange(40), 30)
    before = draw.integers(1, 6, len(relation))
    after = before.copy()
    worse = relation == 7
    after[worse] += 3
    found = averages.paired_by_relation(before, after, relation, draws=200)
    for number, own in found.items():
        mine = relation == number
        assert own["mrr"].difference == pytest.approx(
            100 * float((1 / after[mine] - 1 / before[mine]).mean())
        )
        assert (own["mrr"].p < 0.01) == (number == 7)
        # Its p is at least what it is alone, times as many as there are relations.
        if number == 7:
            alone = averages.exchange_test(1 / after[mine] - 1 / before[mine])
            assert own["mrr"].p == pytest.approx(40 * float(alone))
            assert own["mrr"].low <= own["mrr"].difference <= own["mrr"].high
