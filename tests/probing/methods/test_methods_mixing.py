"""Mixtures against slow loops, and learned weights against every weight on a fine grid."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from symprompt.probing.methods.ensemble import (
    log_loss,
    mix_probabilities,
    optimise_weights,
    probability_loss,
)


def random_table(seed: int, *shape: int) -> Tensor:
    """Log-probabilities over the last axis."""
    generator = torch.Generator().manual_seed(seed)
    draw = torch.randn(shape, generator=generator, dtype=torch.float64) * 2
    return draw.log_softmax(-1)


def slow_loss(table: Tensor, gold: Tensor, weights: list[float], mixture: str) -> float:
    """The mean over facts of -log of the mixture at gold, one number at a time."""
    total = 0.0
    for fact in range(len(table)):
        values = []
        for answer in range(table.shape[2]):
            logs = [float(table[fact, prompt, answer]) for prompt in range(len(weights))]
            pairs = list(zip(weights, logs, strict=True))
            if mixture == "log":
                values.append(math.exp(sum(weight * log for weight, log in pairs)))
            else:
                values.append(sum(weight * math.exp(log) for weight, log in pairs))
        total -= math.log(values[int(gold[fact])] / sum(values))
    return total / len(table)


def pool(table: Tensor, weights: Tensor) -> Tensor:
    """Weighted sums of logits, each prompt's shifted by what its softmax takes away again."""
    shifts = torch.arange(table.shape[1], dtype=table.dtype)
    return torch.einsum("npc,p->nc", table + shifts[None, :, None], weights)


def evaluation(table: Tensor, gold: Tensor, mixture: str):  # type: ignore[no-untyped-def]
    if mixture == "log":
        return log_loss(table, gold, pool, rows=4)
    return probability_loss(
        table.gather(2, gold[:, None, None].expand(-1, table.shape[1], 1))[..., 0]
    )


@pytest.mark.parametrize("mixture", ["log", "probability"])
def test_losses_and_gradients_are_those_of_the_slow_loop(mixture: str) -> None:
    table, gold = random_table(0, 6, 3, 4), torch.tensor([0, 1, 2, 3, 0, 1])
    weights = torch.tensor([0.5, 0.2, 0.3], dtype=torch.float64)
    loss, gradient = evaluation(table, gold, mixture)(weights)
    assert float(loss) == pytest.approx(
        slow_loss(table, gold, weights.tolist(), mixture), abs=1e-12
    )
    for one, other in itertools.permutations(range(3), 2):
        # Along the simplex: what one weight gains another loses.
        step = torch.zeros(3, dtype=torch.float64)
        step[one], step[other] = 1e-6, -1e-6
        up = slow_loss(table, gold, (weights + step).tolist(), mixture)
        down = slow_loss(table, gold, (weights - step).tolist(), mixture)
        slope = (up - down) / 2e-6
        assert float(gradient[one] - gradient[other]) == pytest.approx(slope, abs=1e-6)


@pytest.mark.parametrize("mixture", ["log", "probability"])
@pytest.mark.parametrize("seed", range(3))
def test_learned_weights_are_the_best_of_a_grid(mixture: str, seed: int) -> None:
    table, gold = random_table(seed, 8, 3, 4), torch.arange(8) % 4
    evaluate = evaluation(table, gold, mixture)
    weights = optimise_weights(evaluate, 3, like=table, tolerance=1e-6, steps=400)
    assert float(weights.sum()) == pytest.approx(1)
    grid = [
        torch.tensor([one, two, 40 - one - two], dtype=torch.float64).clamp(min=1e-9) / 40
        for one in range(41)
        for two in range(41 - one)
    ]
    best = min(grid, key=lambda point: float(evaluate(point)[0]))
    assert float(evaluate(weights)[0]) <= float(evaluate(best)[0]) + 1e-5
    assert (weights - best).abs().max() < 0.08
    equal = torch.full((3,), 1 / 3, dtype=torch.float64)
    assert evaluate(weights)[0] <= evaluate(equal)[0]


def test_weights_of_many_prompts_are_within_the_tolerance_of_the_best() -> None:
    table, gold = random_table(9, 40, 25, 6), torch.arange(40) % 6
    table[:, 7] = torch.nn.functional.one_hot(gold, 6).mul(3.0).log_softmax(-1).double()
    evaluate = log_loss(table, gold, pool)
    found = optimise_weights(evaluate, 25, like=table)
    exact = optimise_weights(evaluate, 25, like=table, tolerance=1e-8, steps=20000)
    assert float(evaluate(found)[0] - evaluate(exact)[0]) <= 1e-3
    assert int(exact.argmax()) == 7


def test_one_prompt_has_all_the_weight() -> None:
    table = random_table(1, 5, 1, 3)
    weights = optimise_weights(
        log_loss(table, torch.zeros(5, dtype=torch.long), pool), 1, like=table
    )
    assert weights.tolist() == [1.0]


def test_mixed_probabilities_are_those_of_the_slow_loop() -> None:
    table = random_table(2, 3, 2, 5)
    weights = torch.tensor([[0.25, 0.75], [1.0, 0.0], [0.5, 0.5]], dtype=torch.float64)
    owner, prompt = torch.tensor([[2, 0, 1, 0, 2], [1, 0, 0, 1, 0]])
    found = mix_probabilities(table[owner, prompt], owner, weights[owner, prompt], 3)
    for row in range(3):
        for answer in range(5):
            gold = torch.tensor([answer])
            own = weights[row].tolist()
            wanted = -slow_loss(table[row : row + 1], gold, own, "probability")
            assert float(found[row, answer]) == pytest.approx(wanted, abs=1e-12)


def test_very_small_probabilities_are_kept_apart_in_float32() -> None:
    scores = torch.tensor([[-0.1, -110.0, -130.0, -1000.0]])
    found = mix_probabilities(scores, torch.tensor([0]), torch.tensor([1.0]), 1)
    torch.testing.assert_close(found[:, :3], scores[:, :3], rtol=1e-5, atol=1e-5)
    assert found[0, 3] < -140
    assert torch.isfinite(found).all()
