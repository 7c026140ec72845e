"""Flat weights: the same as AdamW on every parameter of its own."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from symprompt.pretraining.config import OptimizerConfig
from symprompt.pretraining.weights import FlatWeights, Updater

CPU = torch.device("cpu")


class Tied(nn.Module):
    """Two layers, one of which shares the embedding's matrix."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.embedding = nn.Embedding(7, 5)
        self.norm = nn.LayerNorm(5)
        self.decoder = nn.Linear(5, 7)
        self.decoder.weight = self.embedding.weight
        with torch.no_grad():
            for value in self.parameters():
                value.copy_(torch.randn(value.shape, generator=generator))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        state = self.norm(self.embedding(ids).to(self.norm.weight.dtype))
        matrix = self.decoder.weight.to(state.dtype)
        logits = nn.functional.linear(state, matrix, self.decoder.bias).float()
        return nn.functional.cross_entropy(logits, ids, reduction="sum")


IDS = torch.tensor([0, 3, 3, 6, 1])


def test_steps_are_those_of_adamw_with_matrices_alone_decayed() -> None:
    config = OptimizerConfig(rate=0.01, weight_decay=0.3, clip=0.5, steps=8, warmup=0.25)
    flat, plain = Tied(), Tied()
    weights = FlatWeights(flat, device=CPU, dtype=torch.float32, extra=2)
    updater = Updater(weights, config)
    matrices = [value for value in plain.parameters() if value.dim() > 1]
    others = [value for value in plain.parameters() if value.dim() < 2]
    adamw = torch.optim.AdamW(
        [{"params": matrices}, {"params": others, "weight_decay": 0.0}],
        betas=(config.beta_1, config.beta_2),
        eps=config.epsilon,
        weight_decay=config.weight_decay,
    )
    for step in range(config.steps):
        flat(IDS).backward()
        weights.collect(first=True)
        norm = weights.clip(config.clip)
        updater.update(step)
        plain(IDS).backward()
        wanted = nn.utils.clip_grad_norm_(plain.parameters(), config.clip)
        for group in adamw.param_groups:
            group["lr"] = updater.rate(step)
        adamw.step()
        adamw.zero_grad()
        torch.testing.assert_close(norm, wanted)
    for one, other in zip(flat.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one, other)
    assert flat.decoder.weight is flat.embedding.weight
    assert weights.count == 7 * 5 + 5 + 5 + 7


def test_the_rate_rises_and_falls_linearly_to_zero() -> None:
    config = OptimizerConfig(rate=1.0, steps=10, warmup=0.2)
    updater = Updater(FlatWeights(Tied(), device=CPU, dtype=torch.float32), config)
    rates = [updater.rate(step) for step in range(10)]
    assert rates[:3] == [0.5, 1.0, 1.0]
    assert rates[2:] == pytest.approx([(10 - step) / 8 for step in range(2, 10)])


def test_half_precision_parameters_are_copies_of_float32_weights() -> None:
    config = OptimizerConfig(rate=1e-4, steps=4, warmup=0.0, weight_decay=0.0)
    module, whole = Tied(), copy.deepcopy(Tied())
    weights = FlatWeights(module, device=CPU, dtype=torch.bfloat16)
    updater = Updater(weights, config)
    # Of embeddings the gradients add up over thousands of tokens, too many for bfloat16.
    assert module.embedding.weight.dtype == torch.float32
    assert {value.dtype for value in module.parameters() if value.dim() < 2} == {torch.bfloat16}
    for (_, view), value in zip(weights.views(weights.values), weights.parameters, strict=True):
        assert torch.equal(view.to(value.dtype), value)
    module(IDS).backward()
    weights.collect(first=True)
    before = weights.values.clone()
    updater.update(0)
    # Steps this small would be lost in bfloat16.
    assert (weights.values - before).abs().max() < 2e-4
    assert not torch.equal(weights.values, before)
    for (_, view), value in zip(weights.views(weights.values), weights.parameters, strict=True):
        assert torch.equal(view.to(value.dtype), value)
    weights.restore(module)
    assert {value.dtype for value in module.parameters()} == {torch.float32}
    assert not torch.equal(module.embedding.weight, whole.embedding.weight)


def test_gradients_add_up_in_float32() -> None:
    module = Tied()
    weights = FlatWeights(module, device=CPU, dtype=torch.bfloat16)
    module(IDS).backward()
    weights.collect(first=True)
    once = weights.gradients.clone()
    for _ in range(2):
        module(IDS).backward()
        weights.collect(first=False)
    torch.testing.assert_close(weights.gradients, 3 * once)
    assert all(value.grad is None for value in weights.parameters)
