"""Heads: losses against slow sums, no influence of padding, float32, and that they learn."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from symprompt.tasks.batches import Batch
from symprompt.tasks.heads import Head, make_head

WIDTH = 8


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def make_batch() -> tuple[Tensor, Batch]:
    """Three rows of 5, 2 and 3 real tokens with every kind of label."""
    lengths = torch.tensor([5, 2, 3])
    states = torch.randn(3, 5, WIDTH, generator=generator(1), dtype=torch.float64)
    tags = torch.tensor([[0, 1, -100, 2, 1], [-100] * 5, [2, -100, 0, -100, -100]])
    allowed = torch.tensor([[1, 0, 1, 1, 1], [1, 0, 0, 0, 0], [1, 0, 1, 0, 0]], dtype=torch.bool)
    batch = Batch(
        ids=torch.zeros(3, 5, dtype=torch.long),
        lengths=lengths,
        labels=tags,
        starts=torch.tensor([2, 0, -100]),
        ends=torch.tensor([4, 0, -100]),
        allowed=allowed,
    )
    return states, batch


def slow_logits(head: Head, state: Tensor) -> list[float]:
    values = state
    if head.hidden is not None:
        values = torch.tanh(head.hidden.weight @ values + head.hidden.bias)
    return (head.output.weight @ values + head.output.bias).tolist()


def slow_loss(logits: list[float], label: int) -> float:
    total = sum(math.exp(value) for value in logits if value > -math.inf)
    return math.log(total) - logits[label]


@pytest.mark.parametrize("kind", ["linear", "mlp"])
@pytest.mark.parametrize("causal", [False, True])
def test_sequence_losses_are_those_of_a_loop(kind: str, causal: bool) -> None:
    states, batch = make_batch()
    batch = Batch(batch.ids, batch.lengths, labels=torch.tensor([2, 0, -100]))
    head = make_head("pair", WIDTH, 3, causal=causal, kind=kind, generator=generator()).double()
    losses, scores = head.loss(states, batch), head.scores(states, batch)
    for row, label in enumerate([2, 0, -100]):
        at = int(batch.lengths[row]) - 1 if causal else 0
        logits = slow_logits(head, states[row, at])
        wanted = 0.0 if label < 0 else slow_loss(logits, label)
        assert losses[row].item() == pytest.approx(wanted, abs=1e-12)
        for place in range(3):
            assert scores[row, place].item() == pytest.approx(-slow_loss(logits, place))
    assert head.weights(batch).tolist() == [1, 1, 0]


@pytest.mark.parametrize("kind", ["linear", "mlp"])
def test_tagging_losses_are_those_of_a_loop(kind: str) -> None:
    states, batch = make_batch()
    head = make_head("tagging", WIDTH, 3, causal=False, kind=kind, generator=generator()).double()
    losses = head.loss(states, batch).tolist()
    for row in range(3):
        labels = batch.need("labels")[row].tolist()
        terms = [
            slow_loss(slow_logits(head, states[row, at]), label)
            for at, label in enumerate(labels)
            if label >= 0
        ]
        wanted = sum(terms) / len(terms) if terms else 0.0
        assert losses[row] == pytest.approx(wanted, abs=1e-12)
    assert head.weights(batch).tolist() == [4, 0, 2]


def test_span_losses_are_those_of_a_loop() -> None:
    states, batch = make_batch()
    head = make_head("question", WIDTH, 0, causal=False, generator=generator()).double()
    losses, scores = head.loss(states, batch).tolist(), head.scores(states, batch)
    allowed = batch.need("allowed")
    assert torch.isinf(scores[~allowed]).all()
    for row in range(3):
        terms = []
        for side, labels in enumerate((batch.need("starts"), batch.need("ends"))):
            if labels[row] < 0:
                continue
            logits = [
                slow_logits(head, states[row, at])[side] if allowed[row, at] else -math.inf
                for at in range(5)
            ]
            terms.append(slow_loss(logits, int(labels[row])))
        wanted = sum(terms) / 2 if terms else 0.0
        assert losses[row] == pytest.approx(wanted, abs=1e-12)
    assert head.weights(batch).tolist() == [1, 1, 0]


@pytest.mark.parametrize("task", ["sequence", "tagging", "question"])
def test_padding_and_other_rows_change_nothing(task: str) -> None:
    states, batch = make_batch()
    if task == "sequence":
        batch = Batch(batch.ids, batch.lengths, labels=torch.tensor([2, 0, 1]))
    head = make_head(task, WIDTH, 3, causal=True, generator=generator()).double()
    whole = head.loss(states, batch)
    for row, width in enumerate(batch.lengths.tolist()):
        alone = batch.select(torch.tensor([row]), width)
        assert head.loss(states[row : row + 1, :width], alone)[0].item() == pytest.approx(
            whole[row].item(), abs=1e-12
        )


@pytest.mark.parametrize("task", ["sequence", "tagging", "question"])
def test_scores_of_a_half_precision_body_are_float32(task: str) -> None:
    head = make_head(task, WIDTH, 3, causal=False, generator=generator())
    states, batch = make_batch()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        scores = head.scores(states.bfloat16(), batch)
    assert scores.dtype == torch.float32
    expected = head.scores(states.bfloat16().float(), batch)
    assert torch.equal(scores, expected)


def test_weights_come_from_the_generator_and_leave_the_global_one_alone() -> None:
    before = torch.random.get_rng_state()
    first = make_head("pair", WIDTH, 3, causal=False, kind="mlp", generator=generator(3))
    second = make_head("pair", WIDTH, 3, causal=False, kind="mlp", generator=generator(3))
    assert torch.equal(torch.random.get_rng_state(), before)
    for name, value in first.state_dict().items():
        assert torch.equal(value, second.state_dict()[name])
        assert value.dtype == torch.float32
    assert 0.01 < float(first.output.weight.detach().std()) < 0.04


def test_a_head_learns() -> None:
    states = torch.randn(64, 4, WIDTH, generator=generator(5))
    labels = (states[:, :, 0] > 0).long()
    batch = Batch(torch.zeros(64, 4).long(), torch.full((64,), 4), labels=labels)
    head = make_head("tagging", WIDTH, 2, causal=False, generator=generator())
    optimizer = torch.optim.AdamW(head.parameters(), lr=0.05)
    for _ in range(60):
        optimizer.zero_grad()
        head.loss(states, batch).mean().backward()
        optimizer.step()
    assert (head.scores(states, batch).argmax(-1) == labels).float().mean() > 0.95


def test_a_batch_of_another_kind_is_refused() -> None:
    states, _ = make_batch()
    bare = Batch(torch.zeros(3, 5).long(), torch.tensor([5, 2, 3]))
    with pytest.raises(ValueError, match="no labels"):
        make_head("pair", WIDTH, 3, causal=False).loss(states, bare)
