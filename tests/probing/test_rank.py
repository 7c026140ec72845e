"""Ranks against brute-force sorting, re-ranking invariants."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from symprompt.errors import SympromptError
from symprompt.probing import queries as ranking
from symprompt.probing.results import Ranks

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


def places(found: Ranks[torch.Tensor]) -> list[list[int]]:
    return torch.stack([found.optimistic, found.pessimistic], dim=1).tolist()


@st.composite
def questions(draw: st.DrawFn) -> dict[str, list]:
    """Draw a batch of rows with golds and padded ignored ids."""
    width = draw(st.integers(2, 8))
    rows = range(draw(st.integers(1, 3)))
    ids = st.integers(0, width - 1)
    padded = st.lists(st.integers(-1, width - 1), min_size=5, max_size=5)
    return {
        "scores": [draw(st.lists(values, min_size=width, max_size=width)) for _ in rows],
        "gold": [draw(ids) for _ in rows],
        "ignore": [draw(padded) for _ in rows],
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
        found_kept, found_candidates = ranking.top_k(scores.cuda(), k)
        assert torch.equal(found_candidates.cpu(), candidates)
        assert torch.equal(found_kept.cpu(), kept)
    found = ranking.ranks(scores.cuda(), gold.cuda(), ignore.cuda())
    assert places(found) == places(ranking.ranks(scores, gold, ignore))


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


SCORES, GOLD = torch.zeros(2, 3), torch.tensor([0, 2])
BROKEN = torch.tensor([[0.0, 0.0, 0.0], [0.0, math.nan, 0.0]])
COARSE = [SCORES.to(dtype) for dtype in (torch.float16, torch.bfloat16, torch.int64)]


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        *((lambda own=own: ranking.ranks(own, GOLD), "float32") for own in COARSE),
        *((lambda own=own: ranking.top_k(own, 1), "float32") for own in COARSE),
        (lambda: ranking.ranks(BROKEN, GOLD), "NaN"),
        (lambda: ranking.top_k(BROKEN, 1), "NaN"),
        (lambda: ranking.ranks(SCORES, torch.tensor([0, 3])), "0 to 3, allowed are 0 to 2"),
        (lambda: ranking.ranks(SCORES, GOLD, torch.tensor([[-2], [0]])), "ignore"),
        (lambda: ranking.ranks(SCORES, GOLD.int()), "gold"),
        (lambda: ranking.ranks(SCORES[0], GOLD), "shape"),
        (lambda: ranking.top_k(SCORES, 4), "k is 4, allowed is 1 to 3"),
    ],
)
def test_wrong_inputs_are_refused(ask: Callable[[], object], message: str) -> None:
    with pytest.raises(SympromptError, match=message):
        ask()


def test_inputs_are_not_changed() -> None:
    scores, gold = -torch.arange(24.0).view(4, 6), torch.tensor([0, 1, 2, 3])
    ignore = torch.tensor([[5, -1], [0, 0], [2, 3], [-1, -1]])
    inputs = (scores, gold, ignore)
    before = [tensor.clone() for tensor in inputs]
    ranking.ranks(*inputs)
    ranking.top_k(scores, 3)
    assert all(torch.equal(old, new) for old, new in zip(before, inputs, strict=True))
