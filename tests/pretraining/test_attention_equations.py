"""A BERT layer against the chapter's equations 11.1 to 11.6, in float64, number by number."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from symprompt.pretraining.config import ShapeConfig
from symprompt.pretraining.tokenizer import Specials
from symprompt.pretraining.training import PretrainedModel, make_model

HIDDEN, HEADS, LENGTH = 8, 2, 6
SIZE = HIDDEN // HEADS
Vector = list[float]


@pytest.fixture
def model() -> PretrainedModel:
    """A tiny BERT with weights so large that attention is far from even, and no zero biases."""
    made = make_model(
        ShapeConfig(layers=1, hidden=HIDDEN, heads=HEADS, feedforward=12),
        vocabulary=20,
        specials=Specials(cls=2, sep=3, pad=0, mask=4),
        length=LENGTH,
    )
    generator = torch.Generator().manual_seed(0)
    for weight in made.parameters():
        weight.data.normal_(std=0.7, generator=generator)
    return made.double().eval()


@pytest.fixture
def ids() -> Tensor:
    return torch.tensor([[2, 9, 4, 7, 11, 3]])


def states(model: PretrainedModel, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """The first layer's input and output, [n, h] each, as transformers computes them."""
    with torch.no_grad():
        result = model.bert(input_ids=ids, attention_mask=mask, output_hidden_states=True)
    return result.hidden_states[0][0], result.hidden_states[1][0]


def product(matrix: Tensor, vector: Vector, bias: Tensor) -> Vector:
    return [
        sum(weight * value for weight, value in zip(row, vector, strict=True)) + shift
        for row, shift in zip(matrix.tolist(), bias.tolist(), strict=True)
    ]


def dot(first: Vector, second: Vector) -> float:
    return sum(a * b for a, b in zip(first, second, strict=True))


def normalise(vector: Vector, gain: Tensor, shift: Tensor) -> Vector:
    mean = sum(vector) / len(vector)
    variance = sum((value - mean) ** 2 for value in vector) / len(vector)
    scale = 1 / math.sqrt(variance + 1e-12)
    return [
        (value - mean) * scale * a + b
        for value, a, b in zip(vector, gain.tolist(), shift.tolist(), strict=True)
    ]


def attend_by_loops(model: PretrainedModel, inputs: list[Vector], keys: int) -> list[Vector]:
    """Equations 11.1 to 11.4 for each head, its vectors scaled as in 11.6, the heads side by side.

    Every token attends to every one of the first ``keys`` tokens, before it and after it.
    """
    own = model.bert.encoder.layer[0].attention.self
    queries = [product(own.query.weight, x, own.query.bias) for x in inputs]  # 11.1
    all_keys = [product(own.key.weight, x, own.key.bias) for x in inputs]
    values = [product(own.value.weight, x, own.value.bias) for x in inputs]
    outputs: list[Vector] = []
    for query in queries:
        joined: Vector = []
        for head in range(HEADS):
            part = slice(head * SIZE, (head + 1) * SIZE)
            scores = [  # 11.4
                dot(query[part], key[part]) / math.sqrt(SIZE) for key in all_keys[:keys]
            ]
            total = sum(math.exp(score) for score in scores)
            weights = [math.exp(score) / total for score in scores]  # 11.3
            joined += [  # 11.2
                sum(weight * value[part][d] for weight, value in zip(weights, values, strict=False))
                for d in range(SIZE)
            ]
        outputs.append(joined)
    return outputs


def run_layer_by_loops(model: PretrainedModel, inputs: Tensor, keys: int) -> Tensor:
    """The whole block: attention, residual and norm, feed-forward, residual and norm (11.1.1)."""
    layer = model.bert.encoder.layer[0]
    rows: list[Vector] = inputs.tolist()
    outputs = []
    for x, attended in zip(rows, attend_by_loops(model, rows, keys), strict=True):
        projection = layer.attention.output
        mixed = product(projection.dense.weight, attended, projection.dense.bias)
        norm = projection.LayerNorm
        middle = normalise([a + b for a, b in zip(mixed, x, strict=True)], norm.weight, norm.bias)
        inner = product(layer.intermediate.dense.weight, middle, layer.intermediate.dense.bias)
        inner = [0.5 * value * (1 + math.erf(value / math.sqrt(2))) for value in inner]
        outer = product(layer.output.dense.weight, inner, layer.output.dense.bias)
        norm = layer.output.LayerNorm
        outputs.append(
            normalise([a + b for a, b in zip(outer, middle, strict=True)], norm.weight, norm.bias)
        )
    return torch.tensor(outputs, dtype=torch.float64)


@pytest.mark.parametrize("keys", [LENGTH, 4])
def test_a_layer_is_what_the_equations_say(model: PretrainedModel, ids: Tensor, keys: int) -> None:
    mask = (torch.arange(LENGTH) < keys).long()[None]
    inputs, output = states(model, ids, mask)
    expected = run_layer_by_loops(model, inputs, keys)
    torch.testing.assert_close(output, expected, rtol=1e-10, atol=1e-10)
    assert output.std() > 0.3
