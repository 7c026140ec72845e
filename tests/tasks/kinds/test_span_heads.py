"""Heads for spans against slow loops over every span: losses, candidates, pairs."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from symprompt.tasks.config import HeadConfig, SpanConfig
from symprompt.tasks.features import Batch
from symprompt.tasks.kinds.spans import Projection, SpanHead, SpanStates
from tiny.oracles import generator

WIDTH = 6
SHAPE = SpanConfig(length=3, hidden=5, candidates=64)
KINDS = list(itertools.product(["plain", "ffn"], ["mean", "attention"]))


def make_batch() -> tuple[Tensor, Batch]:
    """Two rows; words of one to three tokens, the last word of the first row another row's."""
    firsts = torch.tensor([[1, 2, 4, 7, -1, -1, -1, -1, -1], [1, 3] + [-1] * 7])
    lasts = torch.tensor([[1, 3, 6, 7, -1, -1, -1, -1, -1], [2, 3] + [-1] * 7])
    owned = torch.tensor([[True, True, True] + [False] * 6, [True, True] + [False] * 7])
    spans = torch.tensor(
        [[[0, 0, 1], [1, 1, 2], [2, 0, 1], [0, 3, 2]], [[1, 0, 2]] + [[-1] * 3] * 3]
    )
    pairs = torch.tensor([[[0, 1, 1], [2, 0, 2]], [[-1] * 3] * 2])
    batch = Batch(
        torch.zeros(2, 9).long(),
        torch.tensor([9, 5]),
        targets={
            "firsts": firsts,
            "lasts": lasts,
            "owned": owned,
            "spans": spans,
            "pairs": pairs,
        },
    )
    states = torch.randn(2, 9, WIDTH, generator=generator(3), dtype=torch.float64)
    return states, batch


def make_head(shape: SpanConfig = SHAPE, relations: int = 0) -> SpanHead:
    config = HeadConfig(dropout=0.0)
    head = SpanHead(WIDTH, 3, shape, config, generator(), relations=relations).double().eval()
    # Large enough weights to matter.
    draws = generator(7)
    with torch.no_grad():
        for value in head.parameters():
            value.normal_(0, 0.7, generator=draws)
    return head


def slow_representation(parts: SpanStates, states: Tensor, start: int, end: int) -> list[Tensor]:
    """Return start, end and summary of one span's tokens (equations 11.21 to 11.26)."""
    tokens = states[start : end + 1]
    summary = tokens.mean(0)
    if parts.query is not None and parts.key is not None:
        query = sum(parts.query(token) for token in tokens) / len(tokens)
        scores = torch.stack([query @ parts.key(token) for token in tokens])
        weights = torch.softmax(scores / math.sqrt(parts.shape.hidden), 0)
        summary = sum(weight * token for weight, token in zip(weights, tokens, strict=True))
    return [parts.start(tokens[0]), parts.end(tokens[-1]), summary]


def slow_first_layer(project: Projection, representation: list[Tensor]) -> Tensor:
    """Return one product with the concatenation of a span's parts."""
    layers = (project.start, project.end, project.inside)
    weight = torch.cat([layer.weight for layer in layers], 1)
    return weight @ torch.cat(representation) + sum(layer.bias for layer in layers)


def slow_spans(batch: Batch, row: int, length: int) -> list[tuple[int, int, int, int]]:
    """Return every span of a row: first word, words beside it, first and last token."""
    firsts, lasts = batch.targets["firsts"][row].tolist(), batch.targets["lasts"][row].tolist()
    count = sum(token >= 0 for token in firsts)
    return [
        (word, more, firsts[word], lasts[word + more])
        for word in range(count)
        for more in range(length)
        if word + more < count and batch.targets["owned"][row, word]
    ]


def slow_logits(head: SpanHead, states: Tensor, start: int, end: int) -> Tensor:
    parts = slow_representation(head.states, states, start, end)
    return head.output(functional.gelu(slow_first_layer(head.project, parts)))


@pytest.mark.parametrize(("boundary", "summary"), KINDS)
def test_losses_are_those_of_a_loop_over_spans(boundary: str, summary: str) -> None:
    states, batch = make_batch()
    head = make_head(replace(SHAPE, boundary=boundary, summary=summary))
    losses = head.loss(states, batch)
    for row in range(2):
        gold = {(a, b): c for a, b, c in batch.targets["spans"][row].tolist() if c >= 0}
        total, spans = 0.0, slow_spans(batch, row, 3)
        for word, more, start, end in spans:
            scores = torch.log_softmax(slow_logits(head, states[row], start, end), -1)
            total -= scores[gold.get((word, more), 0)].item()
        words = int(batch.targets["owned"][row].sum())
        assert losses[row].item() == pytest.approx(total / words, abs=1e-10)
    assert head.weights(batch).tolist() == [3, 2]


@pytest.mark.parametrize(("boundary", "summary"), KINDS)
def test_candidates_are_the_best_spans_of_a_loop(boundary: str, summary: str) -> None:
    states, batch = make_batch()
    head = make_head(replace(SHAPE, boundary=boundary, summary=summary))
    found = head.scores(states, batch)
    assert found.shape == (2, 64, 4)
    for row in range(2):
        wanted = []
        for word, more, start, end in slow_spans(batch, row, 3):
            scores = torch.log_softmax(slow_logits(head, states[row], start, end), -1).tolist()
            label = max((1, 2), key=lambda place, own=scores: own[place])  # type: ignore[misc]
            wanted.append([word, more, label, scores[label] - scores[0]])
        wanted.sort(key=lambda entry: -entry[3])
        own = [entry for entry in found[row].tolist() if math.isfinite(entry[3])]
        assert [entry[:3] for entry in own] == [entry[:3] for entry in wanted]
        odds = [entry[3] for entry in wanted]
        assert [entry[3] for entry in own] == pytest.approx(odds, abs=1e-10)


def test_few_candidates_are_the_best_of_many() -> None:
    states, batch = make_batch()
    head = make_head()
    many = head.scores(states, batch)
    head.shape = replace(SHAPE, candidates=2)
    assert torch.equal(head.scores(states, batch), many[:, :2])


def slow_relation(
    head: SpanHead, states: Tensor, one: tuple[int, int, int], other: tuple[int, int, int]
) -> Tensor:
    """Return the scores of relations between two spans given by class, first and last token."""
    hidden = torch.zeros(SHAPE.hidden, dtype=torch.float64)
    sides = ((one, head.one, head.one_class), (other, head.other, head.other_class))
    for (label, start, end), project, by_class in sides:
        parts = slow_representation(head.states, states, start, end)
        hidden = hidden + slow_first_layer(project, parts)
        hidden = hidden + by_class.weight[:, label] + by_class.bias
    left, right = sorted((one[1:], other[1:]))
    between = states[left[1] + 1 : right[0]]
    if len(between):
        hidden = hidden + head.between(between.mean(0))
    return head.related(functional.gelu(hidden))


@pytest.mark.parametrize(("boundary", "summary"), KINDS)
def test_pairs_are_scored_as_a_loop_does(boundary: str, summary: str) -> None:
    states, batch = make_batch()
    head = make_head(replace(SHAPE, boundary=boundary, summary=summary, candidates=6), 3)
    plain = make_head(replace(SHAPE, boundary=boundary, summary=summary))
    plain.load_state_dict({k: v for k, v in head.state_dict().items() if k in plain.state_dict()})
    firsts, lasts = batch.targets["firsts"], batch.targets["lasts"]
    losses = head.loss(states, batch) - plain.loss(states, batch)
    scores = head.scores(states, batch)
    assert scores.shape == (2, 12, 16)
    for row in range(2):
        spans = [
            (label, int(firsts[row, word]), int(lasts[row, word + more]))
            for word, more, label in batch.targets["spans"][row].tolist()
            if label >= 0
        ]
        gold = {(a, b): c for a, b, c in batch.targets["pairs"][row].tolist() if c >= 0}
        terms = []
        for a, b in itertools.permutations(range(len(spans)), 2):
            found = slow_relation(head, states[row], spans[a], spans[b])
            found = torch.log_softmax(found, -1)
            terms.append(-found[gold.get((a, b), 0)].item())
            best = int(found[1:].argmax()) + 1
            assert scores[row, 6 + a, 4 + b] == best
            odds = (found[best] - found[0]).item()
            assert scores[row, 6 + a, 10 + b].item() == pytest.approx(odds, abs=1e-10)
        wanted = sum(terms) / max(1, len(terms))
        assert losses[row].item() == pytest.approx(wanted, abs=1e-10)
    assert torch.isneginf(scores[1, 6:, 10:]).all()


def test_candidates_are_paired_as_labelled_spans_are() -> None:
    states, batch = make_batch()
    head = make_head(replace(SHAPE, candidates=6), 3)
    scores = head.scores(states, batch)
    again = scores[:, :6, :3].long()
    again = torch.where(torch.isfinite(scores[:, :6, 3:4]), again, -1)
    assert (again[1, :, 2] > 0).sum() == 3
    given = head.scores(states, replace(batch, targets={**batch.targets, "spans": again}))
    torch.testing.assert_close(given[:, 6:, 4:], scores[:, :6, 4:])


def test_some_of_the_spans_of_no_class_are_drawn_while_training() -> None:
    states, batch = make_batch()
    head = make_head(replace(SHAPE, negatives=2))
    whole = head.loss(states, batch)
    torch.manual_seed(0)
    head.train()
    drawn = torch.stack([head.loss(states, batch) for _ in range(400)])
    assert (drawn <= whole + 1e-9).all()
    assert drawn[:, 0].std() > 0
    # The labelled ones always count, of the others two of seven.
    head.shape = replace(SHAPE, negatives=0)
    gold = torch.zeros(2, dtype=torch.float64)
    for row, count in enumerate((3, 1)):
        for word, more, label in batch.targets["spans"][row, :count].tolist():
            start = int(batch.targets["firsts"][row, word])
            end = int(batch.targets["lasts"][row, word + more])
            scores = torch.log_softmax(slow_logits(head, states[row], start, end), -1)
            gold[row] -= scores[label].item() / int(batch.targets["owned"][row].sum())
    rest = len(slow_spans(batch, 0, 3)) - 3
    share = 2 / rest
    expected = (gold + share * (whole - gold))[0].item()
    assert drawn.mean(0)[0].item() == pytest.approx(expected, rel=0.1)
