"""Ranks against brute-force sorting, re-ranking invariants, bootstrap against a slow loop."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from symprompt import ranking
from symprompt.errors import SympromptError

MINUS_INFINITY = -math.inf
# Few distinct values on purpose: nearly every example has ties.
values = st.sampled_from([MINUS_INFINITY, -2.0, -1.0, -0.0, 0.0, 1.0])


def slow_ranks(order: dict[int, tuple[float, ...]], gold: int, ignore: list[int]) -> list[int]:
    """Sort all ids that count and read off the first and the last place the gold could take."""
    kept = [key for token, key in order.items() if token == gold or token not in ignore]
    kept.sort(reverse=True)
    first = kept.index(order[gold]) + 1
    last = len(kept) - kept[::-1].index(order[gold])
    return [first, last]


def slow_reranked(
    row: list[float], gold: int, candidates: list[int], joint: list[float], ignore: list[int]
) -> list[int]:
    order = {token: (0.0, score) for token, score in enumerate(row)}
    order |= {token: (1.0, score) for token, score in zip(candidates, joint, strict=True)}
    return slow_ranks(order, gold, ignore)


def places(found: ranking.Ranks) -> list[list[int]]:
    return torch.stack([found.optimistic, found.pessimistic], dim=1).tolist()


@st.composite
def questions(draw: st.DrawFn) -> dict[str, list]:
    """Draw a batch of rows with golds, padded ignored ids and candidates with joint scores."""
    width = draw(st.integers(2, 8))
    k = draw(st.integers(1, width))
    rows = range(draw(st.integers(1, 3)))
    ids = st.integers(0, width - 1)
    padded = st.lists(st.integers(-1, width - 1), min_size=5, max_size=5)
    return {
        "scores": [draw(st.lists(values, min_size=width, max_size=width)) for _ in rows],
        "gold": [draw(ids) for _ in rows],
        "ignore": [draw(padded) for _ in rows],
        "candidates": [draw(st.permutations(range(width)))[:k] for _ in rows],
        "joint": [draw(st.lists(values, min_size=k, max_size=k)) for _ in rows],
    }


@given(questions())
@settings(deadline=None, max_examples=200)
def test_ranks_equal_sorting(batch: dict[str, list]) -> None:
    scores, gold = torch.tensor(batch["scores"]), torch.tensor(batch["gold"])
    ignore = torch.tensor(batch["ignore"])
    orders = [{token: (score,) for token, score in enumerate(row)} for row in batch["scores"]]
    assert places(ranking.ranks(scores, gold)) == [
        slow_ranks(order, true, []) for order, true in zip(orders, batch["gold"], strict=True)
    ]
    filtered = [
        slow_ranks(order, true, others)
        for order, true, others in zip(orders, batch["gold"], batch["ignore"], strict=True)
    ]
    assert places(ranking.ranks(scores, gold, ignore)) == filtered


@given(questions())
@settings(deadline=None, max_examples=200)
def test_reranked_ranks_equal_sorting(batch: dict[str, list]) -> None:
    tensors = {name: torch.tensor(rows) for name, rows in batch.items()}
    expected = [
        slow_reranked(*row)
        for row in zip(
            batch["scores"],
            batch["gold"],
            batch["candidates"],
            batch["joint"],
            batch["ignore"],
            strict=True,
        )
    ]
    assert places(ranking.reranked_ranks(**tensors)) == expected
    del tensors["ignore"]
    only_padding = torch.full((len(batch["gold"]), 1), -1)
    assert places(ranking.reranked_ranks(**tensors)) == places(
        ranking.reranked_ranks(**tensors, ignore=only_padding)
    )


@given(questions(), st.integers(1, 8))
@settings(deadline=None, max_examples=200)
def test_top_k_equals_sorting_by_score_then_id(batch: dict[str, list], k: int) -> None:
    scores = torch.tensor(batch["scores"])
    allowed = min(sum(score > MINUS_INFINITY for score in row) for row in batch["scores"])
    if k > allowed:
        with pytest.raises(SympromptError, match=f"k is {k}, .*{allowed}|allowed is 1 to"):
            ranking.top_k(scores, k)
        return
    found, ids = ranking.top_k(scores, k)
    expected = [
        sorted(range(len(row)), key=lambda token, row=row: (-row[token], token))[:k]
        for row in batch["scores"]
    ]
    assert ids.tolist() == expected
    assert torch.equal(found, scores.gather(1, ids))


def test_top_k_with_thousands_of_ties_at_the_border() -> None:
    generator = torch.Generator().manual_seed(0)
    scores = torch.randint(0, 3, (20, 5000), generator=generator).float()
    scores[0] = 1.0
    scores[1] = torch.arange(5000).float()
    for k in (1, 15, 2500):
        _, ids = ranking.top_k(scores, k)
        assert torch.equal(ids, scores.sort(dim=1, descending=True, stable=True).indices[:, :k])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_gives_what_the_processor_gives() -> None:
    generator = torch.Generator().manual_seed(3)
    scores = -torch.randint(0, 6, (64, 3000), generator=generator).float()  # holds -0.0
    scores[:, ::7] = 0.0
    scores[:, ::11] = MINUS_INFINITY
    gold = torch.randint(0, 3000, (64,), generator=generator)
    ignore = torch.randint(-1, 3000, (64, 9), generator=generator)
    for k in (1, 15, 700):
        kept, candidates = ranking.top_k(scores, k)
        joint = ranking.rerank(kept, kept.flip(1), weight=0.5)
        found_kept, found_candidates = ranking.top_k(scores.cuda(), k)
        found_joint = ranking.rerank(found_kept, found_kept.flip(1), weight=0.5)
        assert torch.equal(found_candidates.cpu(), candidates)
        assert torch.equal(found_joint.cpu(), joint)
        inputs = (scores, gold, candidates, joint, ignore)
        found = ranking.reranked_ranks(*(tensor.cuda() for tensor in inputs))
        assert places(found) == places(ranking.reranked_ranks(*inputs))


def test_realistic_is_the_mean_in_float64() -> None:
    found = ranking.ranks(torch.tensor([[1.0, 3.0, 1.0, 0.0]]), torch.tensor([0]))
    assert (found.better.tolist(), found.equal.tolist()) == ([1], [1])
    assert found.better.dtype == found.equal.dtype == torch.int64
    assert found.realistic.dtype == torch.float64
    assert found.realistic.tolist() == [2.5]


def test_a_gold_that_is_no_candidate_comes_last_and_ties() -> None:
    scores = torch.tensor([[MINUS_INFINITY, 1.0, MINUS_INFINITY, 2.0]])
    found = ranking.ranks(scores, torch.tensor([0]))
    assert places(found) == [[3, 4]]


def tie_free(rows: int, width: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    order = torch.stack([torch.randperm(width, generator=generator) for _ in range(rows)])
    return -order.float() / width


@pytest.mark.parametrize("filtered", [False, True])
def test_candidates_up_to_ten_leave_p10_alone_and_one_changes_nothing(filtered: bool) -> None:
    generator = torch.Generator().manual_seed(2)
    scores = tie_free(300, 40)
    gold = torch.randint(0, 40, (300,), generator=generator)
    ignore = torch.randint(-1, 40, (300, 4), generator=generator) if filtered else None
    forward = ranking.ranks(scores, gold, ignore)
    moved = False
    for k in range(1, 11):
        kept, candidates = ranking.top_k(scores, k)
        backward = torch.rand(300, k, generator=generator)
        joint = ranking.rerank(kept, backward, weight=3.0)
        found = ranking.reranked_ranks(scores, gold, candidates, joint, ignore)
        assert torch.equal(found.realistic <= 10, forward.realistic <= 10)
        if k == 1:
            assert torch.equal(found.better, forward.better)
            assert torch.equal(found.equal, forward.equal)
        moved |= not torch.equal(found.better, forward.better)
    assert moved


def test_weight_zero_gives_forward_ranks() -> None:
    scores = tie_free(50, 30)
    gold = torch.arange(50) % 30
    kept, candidates = ranking.top_k(scores, 12)
    joint = ranking.rerank(kept, torch.full_like(kept, MINUS_INFINITY), weight=0.0)
    found = ranking.reranked_ranks(scores, gold, candidates, joint)
    assert torch.equal(found.realistic, ranking.ranks(scores, gold).realistic)


def test_rerank_is_equation_ten() -> None:
    forward = torch.tensor([[-1.0, -2.0], [-3.0, -4.0]])
    backward = torch.tensor([[-5.0, -1.0], [-2.0, -1.0]])
    assert ranking.rerank(forward, backward, weight=0.5).tolist() == [[-3.5, -2.5], [-4.0, -4.5]]
    per_fact = torch.tensor([0.0, 2.0], dtype=torch.float64)
    expected = [[-1.0, -2.0], [-7.0, -6.0]]
    for weight in (per_fact, per_fact[:, None]):
        joint = ranking.rerank(forward, backward, weight=weight)
        assert joint.dtype == torch.float32
        assert joint.tolist() == expected
    with pytest.raises(SympromptError, match="weight is"):
        ranking.rerank(forward, backward, weight=torch.ones(1, 2))
    with pytest.raises(SympromptError, match="backward"):
        ranking.rerank(forward, backward[:, :1], weight=1.0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int64])
def test_coarse_scores_are_refused(dtype: torch.dtype) -> None:
    scores = torch.zeros(1, 3, dtype=dtype)
    with pytest.raises(SympromptError, match="float32"):
        ranking.ranks(scores, torch.tensor([0]))
    with pytest.raises(SympromptError, match="float32"):
        ranking.top_k(scores, 1)
    with pytest.raises(SympromptError, match="float32"):
        ranking.rerank(scores, torch.zeros(1, 3), weight=1.0)


def test_wrong_inputs_are_refused() -> None:
    scores, gold = torch.zeros(2, 3), torch.tensor([0, 2])
    broken = scores.clone()
    broken[1, 1] = math.nan
    with pytest.raises(SympromptError, match="NaN"):
        ranking.ranks(broken, gold)
    with pytest.raises(SympromptError, match="NaN"):
        ranking.top_k(broken, 1)
    with pytest.raises(SympromptError, match="NaN"):
        ranking.reranked_ranks(scores, gold, torch.tensor([[0], [1]]), broken[:, 1:2])
    with pytest.raises(SympromptError, match="0 to 3, allowed are 0 to 2"):
        ranking.ranks(scores, torch.tensor([0, 3]))
    with pytest.raises(SympromptError, match="ignore"):
        ranking.ranks(scores, gold, torch.tensor([[-2], [0]]))
    with pytest.raises(SympromptError, match="gold"):
        ranking.ranks(scores, gold.int())
    with pytest.raises(SympromptError, match="shape"):
        ranking.ranks(scores[0], gold)
    with pytest.raises(SympromptError, match="k is 4, allowed is 1 to 3"):
        ranking.top_k(scores, 4)
    with pytest.raises(SympromptError, match="twice"):
        ranking.reranked_ranks(scores, gold, torch.tensor([[0, 0], [0, 1]]), scores[:, :2])
    with pytest.raises(SympromptError, match="joint has 1 rows"):
        ranking.reranked_ranks(scores, gold, torch.tensor([[0], [1]]), scores[:1, :1])


def test_inputs_are_not_changed() -> None:
    scores, gold = tie_free(4, 6), torch.tensor([0, 1, 2, 3])
    ignore = torch.tensor([[5, -1], [0, 0], [2, 3], [-1, -1]])
    _, candidates = ranking.top_k(scores, 3)
    inputs = (scores, gold, candidates, scores[:, :3], ignore)
    before = [tensor.clone() for tensor in inputs]
    ranking.reranked_ranks(*inputs)
    assert all(torch.equal(old, new) for old, new in zip(before, inputs, strict=True))


RANK = np.array([1.0, 2.0, 11.0, 1.5, 1.0])
RELATION = np.array([3, 3, 3, 7, 7])


def test_averages_by_hand() -> None:
    found = ranking.by_relation(RANK, RELATION)
    assert list(found) == [3, 7]
    assert found[3] == ranking.Summary(
        pytest.approx(100 / 3),
        pytest.approx(200 / 3),
        pytest.approx(100 * (1 + 1 / 2 + 1 / 11) / 3),
    )
    assert found[7] == ranking.Summary(50.0, 100.0, pytest.approx(100 * (2 / 3 + 1) / 2))
    both = ranking.summarise(RANK, RELATION)
    assert list(both) == ["mean over relations", "mean over facts"]
    assert both["mean over relations"].p1 == pytest.approx((100 / 3 + 50) / 2)
    assert both["mean over facts"].p1 == pytest.approx(40.0)
    assert both["mean over facts"].p10 == pytest.approx(80.0)
    assert ranking.hits(RANK, 1).tolist() == [1, 0, 0, 0, 1]


def test_seeds_are_averaged() -> None:
    stacked = ranking.summarise(np.stack([RANK, np.ones(5)]), RELATION)
    alone = ranking.summarise(RANK, RELATION)
    assert stacked["mean over facts"].p1 == pytest.approx((alone["mean over facts"].p1 + 100) / 2)


@pytest.mark.parametrize(
    ("rank", "relation"),
    [
        (np.ones(3), np.zeros(4, dtype=int)),
        (np.ones(0), np.zeros(0, dtype=int)),
        (np.array([0.5]), np.array([0])),
        (np.array([math.nan]), np.array([0])),
        (np.array([math.inf]), np.array([0])),
        (np.ones(1), np.array([0.0])),
    ],
)
def test_wrong_ranks_are_refused(rank: np.ndarray, relation: np.ndarray) -> None:
    with pytest.raises(SympromptError):
        ranking.summarise(rank, relation)


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
    found: dict[str, list[list[float]]] = {ranking.OVER_RELATIONS: [], ranking.OVER_FACTS: []}
    rank = np.atleast_2d(rank)
    for _ in range(draws):
        picked = np.concatenate(
            [
                generator.choice(np.flatnonzero(relation == r), (relation == r).sum())
                for r in set(relation)
            ]
        )
        means = ranking.summarise(rank[:, picked], relation[picked])
        minus = None if other is None else ranking.summarise(other[:, picked], relation[picked])
        for averaging, rows in found.items():
            row = [getattr(means[averaging], metric) for metric in ranking.METRICS]
            if minus is not None:
                gain = [getattr(minus[averaging], metric) for metric in ranking.METRICS]
                row = [after - before for before, after in zip(row, gain, strict=True)]
            rows.append(row)
    return {averaging: np.array(rows) for averaging, rows in found.items()}


def test_bootstrap_agrees_with_a_slow_loop() -> None:
    rank, _, relation = some_runs()
    slow = slow_bootstrap(rank, relation, 2000)
    fast = ranking.bootstrap(rank, relation, draws=5000, seed=1)
    for averaging, means in slow.items():
        for index, metric in enumerate(ranking.METRICS):
            # P@1 of 60 facts moves in steps of half a standard deviation; one step is allowed.
            near = 0.5 * means[:, index].std()
            low, high = np.quantile(means[:, index], [0.025, 0.975])
            assert fast[averaging][metric].low == pytest.approx(low, abs=near)
            assert fast[averaging][metric].high == pytest.approx(high, abs=near)


def test_resampled_mean_and_spread_are_those_of_the_formula() -> None:
    rank, _, relation = some_runs()
    contributions, groups = ranking._prepare(rank, relation)
    found = ranking._resample(contributions, groups, 20_000, 3)
    over_relations = sum(contributions[:, f].var(axis=1) / f.size for f in groups.values()) / 9
    over_facts = sum(contributions[:, f].var(axis=1) * f.size for f in groups.values()) / 60**2
    for averaging, variance in (("relations", over_relations), ("facts", over_facts)):
        means = found[f"mean over {averaging}"]
        assert means.std(axis=1) == pytest.approx(np.sqrt(variance), rel=0.03)
    assert found[ranking.OVER_FACTS].mean(axis=1) == pytest.approx(
        contributions.mean(axis=1), abs=0.3
    )


def test_paired_bootstrap_agrees_with_a_slow_loop_over_several_seeds() -> None:
    rank_a, rank_b, relation = some_runs()
    several_a, several_b = np.stack([rank_a, rank_b, rank_a]), np.stack([rank_b, rank_b, rank_b])
    slow = slow_bootstrap(several_a, relation, 1500, several_b)
    fast = ranking.paired_bootstrap(several_a, several_b, relation, draws=5000, seed=1)
    before, after = (ranking.summarise(r, relation) for r in (several_a, several_b))
    for averaging, means in slow.items():
        for index, metric in enumerate(ranking.METRICS):
            found = fast[averaging][metric]
            spread = means[:, index].std()
            assert found.difference == pytest.approx(
                getattr(after[averaging], metric) - getattr(before[averaging], metric)
            )
            low, high = np.quantile(means[:, index], [0.025, 0.975])
            assert found.low == pytest.approx(low, abs=0.3 * spread)
            assert found.high == pytest.approx(high, abs=0.3 * spread)
            assert found.p == pytest.approx((means[:, index] <= 1e-9).mean(), abs=0.05)


def test_bootstrap_is_exact_where_nothing_varies() -> None:
    relation = np.array([0, 0, 0, 1])
    found = ranking.bootstrap(np.full(4, 4.0), relation, draws=50)
    for metrics in found.values():
        assert metrics["p1"] == ranking.Interval(0.0, 0.0)
        assert metrics["p10"].low == metrics["p10"].high == pytest.approx(100.0)
        assert metrics["mrr"].low == pytest.approx(25.0)
    # One fact per relation: every draw is the data itself.
    single = ranking.bootstrap(np.array([1.0, 20.0]), np.array([0, 1]), draws=50)
    assert single[ranking.OVER_FACTS]["p1"] == ranking.Interval(50.0, 50.0)


def test_paired_bootstrap_of_equal_better_and_worse_runs() -> None:
    rank_a, _, relation = some_runs()
    same = ranking.paired_bootstrap(rank_a, np.stack([rank_a] * 3), relation, draws=99)
    better = ranking.paired_bootstrap(rank_a + 1, np.ones(60), relation, draws=99)
    worse = ranking.paired_bootstrap(np.ones(60), rank_a + 1, relation, draws=99)
    for averaging in (ranking.OVER_RELATIONS, ranking.OVER_FACTS):
        for metric in ranking.METRICS:
            assert same[averaging][metric].difference == pytest.approx(0.0, abs=1e-12)
            assert same[averaging][metric].p == 1.0
        assert better[averaging]["p1"].difference == pytest.approx(100.0)
        assert better[averaging]["p1"].p == pytest.approx(0.01)
        assert worse[averaging]["p1"].difference == pytest.approx(-100.0)
        assert worse[averaging]["p1"].p == 1.0


def test_opposite_facts_cancel_to_a_difference_that_counts_as_zero() -> None:
    rank_a, rank_b = np.array([3.0, 7.0]), np.array([7.0, 3.0])
    found = ranking.paired_bootstrap(rank_a, rank_b, np.array([0, 1]), draws=20)
    assert found[ranking.OVER_FACTS]["mrr"].p == 1.0


def test_bootstrap_depends_on_the_seed_alone() -> None:
    rank, _, relation = some_runs()
    first = ranking.bootstrap(rank, relation, draws=200, seed=4)
    np.random.default_rng(0).random(10)
    assert ranking.bootstrap(rank, relation, draws=200, seed=4) == first
    assert ranking.bootstrap(rank, relation, draws=200, seed=5) != first


def test_a_wider_level_is_a_wider_interval_and_wrong_settings_are_refused() -> None:
    rank, _, relation = some_runs()
    narrow = ranking.bootstrap(rank, relation, draws=500, level=0.5)[ranking.OVER_FACTS]["mrr"]
    wide = ranking.bootstrap(rank, relation, draws=500, level=0.99)[ranking.OVER_FACTS]["mrr"]
    assert wide.low < narrow.low < narrow.high < wide.high
    with pytest.raises(SympromptError, match="draws"):
        ranking.bootstrap(rank, relation, draws=0)
    with pytest.raises(SympromptError, match="level"):
        ranking.bootstrap(rank, relation, level=95, draws=1)


def test_order_of_relations_and_chunks_is_no_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    rank, _, relation = some_runs()
    monkeypatch.setattr(ranking, "_CHUNK", 7)  # smaller than a relation: one draw at a time
    small = ranking.bootstrap(rank, relation, draws=2000)[ranking.OVER_FACTS]["mrr"]
    monkeypatch.undo()
    large = ranking.bootstrap(rank, relation, draws=2000)[ranking.OVER_FACTS]["mrr"]
    assert small.low == pytest.approx(large.low, abs=1.5)
    assert small.high == pytest.approx(large.high, abs=1.5)


def test_paired_bootstrap_of_all_lama_facts_is_fast() -> None:
    generator = np.random.default_rng(0)
    relation = generator.integers(0, 41, 34_039)
    rank = generator.integers(1, 1000, (2, 34_039)).astype(float)
    start = time.perf_counter()
    ranking.paired_bootstrap(rank[0], rank[1], relation, draws=1000)
    assert time.perf_counter() - start < 10  # 0.3 s on one idle core
