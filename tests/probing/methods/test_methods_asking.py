"""The two questions: which object, and how likely is the subject."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from symprompt.facts import FactSet
from symprompt.models import Inputs, LanguageModel
from symprompt.probing.prepare import prepare
from symprompt.probing.problem import Problem
from symprompt.probing.queries import TokenLikelihoods, object_logits, subject_likelihoods
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


def test_packed_sentences_get_the_answers_of_padded_ones(
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

    def watch(inputs: Inputs, positions: torch.Tensor) -> torch.Tensor:
        asked.append(inputs.packing is not None)
        return logits_at(inputs, positions)

    monkeypatch.setattr(bert, "logits_at", watch)
    for packed in (False, True):
        monkeypatch.setitem(bert.__dict__, "longest_packed", 128 * packed)
        logits = object_logits(bert, sentences.object_prompt, rows, vectors)
        objects = torch.tensor([10, 11, 12, 10])
        back = subject_likelihoods(
            bert, sentences.subject_prompt, rows, vectors, masking="one", objects=objects
        ).log_likelihood
        found.append((logits, back))
    assert asked == [False, False, True, True]
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-10)


@pytest.mark.parametrize("masking", ["one", "whole"])
def test_a_row_may_be_asked_with_several_objects(
    masking: str, bert: LanguageModel, problem: Problem, vectors: torch.Tensor
) -> None:
    layout = problem.sentences["train"].subject_prompt
    rows = np.array([6, 6, 11, 6])
    objects = torch.tensor([10, 11, 12, 10])
    found = subject_likelihoods(bert, layout, rows, vectors, masking=masking, objects=objects)  # type: ignore[arg-type]
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
