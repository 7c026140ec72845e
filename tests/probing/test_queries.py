"""The two queries and the ranks of their answers, against loops and sorting."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from symprompt.errors import SympromptError
from symprompt.facts import FactSet
from symprompt.models import Inputs, LanguageModel
from symprompt.probing import queries as ranking
from symprompt.probing.prepare import prepare
from symprompt.probing.problem import Problem
from symprompt.probing.queries import (
    Masking,
    TokenLikelihoods,
    object_logits,
    subject_likelihoods,
)
from symprompt.probing.results import Ranks
from tiny.models import causal_config, run_config


@pytest.fixture
def problem(bert: LanguageModel, facts: FactSet) -> Problem:
    return prepare(run_config(dtype="float64"), bert, facts)


@pytest.fixture
def vectors(bert: LanguageModel) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(3, 5, bert.width, generator=generator, dtype=torch.float64)


def test_answers_do_not_depend_on_the_batch(
    bert: LanguageModel, problem: Problem, vectors: torch.Tensor
) -> None:
    layout = problem.sentences["train"].object_prompt
    rows = np.arange(len(layout))
    together = object_logits(bert, layout, rows, vectors)
    for row in rows:
        alone = object_logits(bert, layout, rows[row : row + 1], vectors)[0]
        torch.testing.assert_close(alone, together[row], rtol=0, atol=1e-10)
    backwards = object_logits(bert, layout, rows[::-1].copy(), vectors).flip(0)
    torch.testing.assert_close(backwards, together, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_the_object_never_leaks_into_its_own_question(
    name: str, load_family: Callable[..., LanguageModel], facts: FactSet, vectors: torch.Tensor
) -> None:
    backbone = load_family(name)
    config = (causal_config if backbone.causal else run_config)(dtype="float64")
    layout = prepare(config, backbone, facts).sentences["train"].object_prompt
    before = object_logits(backbone, layout, np.arange(3), vectors)
    layout.ids.scatter_(1, layout.object_at[:, None], 7)
    assert torch.equal(object_logits(backbone, layout, np.arange(3), vectors), before)


@pytest.mark.parametrize("masking", ["one", "chain"])
def test_packed_sentences_get_the_answers_of_padded_ones(
    masking: Masking,
    bert: LanguageModel,
    problem: Problem,
    vectors: torch.Tensor,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sentences = problem.sentences["train"]
    rows = np.array([0, 6, 11, 6])
    found = []
    asked: list[bool] = []
    logits_at = bert.logits_at

    def watch(inputs: Inputs, *positions: torch.Tensor) -> torch.Tensor:
        asked.append(inputs.packing is not None)
        return logits_at(inputs, *positions)

    monkeypatch.setattr(bert, "logits_at", watch)
    for packed in (False, True):
        monkeypatch.setitem(bert.__dict__, "longest_packed", 128 * packed)
        logits = object_logits(bert, sentences.object_prompt, rows, vectors)
        objects = torch.tensor([10, 11, 12, 10])
        back = subject_likelihoods(
            bert, sentences.subject_prompt, rows, vectors, masking=masking, objects=objects
        ).log_likelihood
        found.append((logits, back))
    assert asked == [False, False, True, True]
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-10)


@pytest.mark.parametrize("masking", ["one", "chain", "whole"])
def test_a_row_may_be_asked_with_several_objects(
    masking: Masking, bert: LanguageModel, problem: Problem, vectors: torch.Tensor
) -> None:
    layout = problem.sentences["train"].subject_prompt
    rows = np.array([6, 6, 11, 6])
    objects = torch.tensor([10, 11, 12, 10])
    found = subject_likelihoods(bert, layout, rows, vectors, masking=masking, objects=objects)
    assert found.count.tolist() == layout.subject_lengths[rows].tolist()
    assert found.owner.tolist() == np.repeat(np.arange(4), layout.subject_lengths[rows]).tolist()
    score = found.mean_log()
    torch.testing.assert_close(score[0], score[3], rtol=0, atol=1e-12)
    assert (score[0] - score[1]).abs() > 1e-6


def test_true_objects_are_asked_where_none_are_given(
    bert: LanguageModel, problem: Problem, vectors: torch.Tensor
) -> None:
    sentences = problem.sentences["train"]
    rows = np.array([0, 6, 11])
    given = subject_likelihoods(
        bert, sentences.subject_prompt, rows, vectors, masking="one", objects=sentences.gold[rows]
    )
    default = subject_likelihoods(bert, sentences.subject_prompt, rows, vectors, masking="one")
    assert torch.equal(given.log_likelihood, default.log_likelihood)


def test_averages_of_token_likelihoods() -> None:
    likelihood = torch.tensor([0.5, 0.1, 0.3, 0.2]).double()
    tokens = TokenLikelihoods(likelihood.log(), torch.tensor([0, 1, 1, 1]), torch.tensor([1, 3]))
    logs = [math.log(0.1), math.log(0.3), math.log(0.2)]
    assert tokens.mean_log().tolist() == pytest.approx([math.log(0.5), sum(logs) / 3])
    assert tokens.log_mean().tolist() == pytest.approx([math.log(0.5), math.log(0.2)])


def test_mean_of_very_small_likelihoods_stays_finite() -> None:
    # In float32 e^-200 is zero and its log minus infinity.
    tokens = TokenLikelihoods(
        torch.tensor([-200.0, -201.0]), torch.tensor([0, 0]), torch.tensor([2])
    )
    assert tokens.log_mean().item() == pytest.approx(-200 + math.log((1 + math.exp(-1)) / 2))


def test_rows_of_one_length_need_no_mask(
    bert: LanguageModel, problem: Problem, vectors: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = problem.sentences["train"].object_prompt
    same = np.flatnonzero(layout.lengths == layout.lengths[0])
    mixed = np.array([int(layout.lengths.argmin()), int(layout.lengths.argmax())])
    masks: list[bool] = []
    original = bert.logits_at

    def seen(inputs: Inputs, positions: torch.Tensor) -> torch.Tensor:
        masks.append(inputs.mask is not None)
        return original(inputs, positions)

    monkeypatch.setattr(bert, "logits_at", seen)
    assert layout.width(same) == layout.lengths[0]
    object_logits(bert, layout, same, vectors)
    assert layout.lengths[mixed[0]] < layout.lengths[mixed[1]]
    object_logits(bert, layout, mixed, vectors)
    assert masks == [False, True]


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
    if k > scores.shape[1]:
        with pytest.raises(SympromptError, match=f"k is {k}, allowed is 1 to"):
            ranking.top_k(scores, k)
        return
    found, ids = ranking.top_k(scores, k)
    for row, own in enumerate(batch["scores"]):
        real = [token for token, score in enumerate(own) if score > MINUS_INFINITY]
        expected = sorted(real, key=lambda token, own=own: (-own[token], token))[:k]
        fillers = k - len(expected)
        assert ids[row].tolist() == expected + [-1] * fillers
        assert found[row].tolist() == [own[token] for token in expected] + [-math.inf] * fillers


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
