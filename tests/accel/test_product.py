"""The vocabulary product in parts, and losses whose gradient is made on the way forth."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from symprompt.accel.product import SplitProduct, split_weights, weigh_groups, weigh_losses


def test_three_bfloat16_parts_add_up_to_float32_weights() -> None:
    weight = torch.randn(50, 30, generator=torch.Generator().manual_seed(0)) * 3
    parts = split_weights(weight)
    assert parts.dtype == torch.bfloat16
    first, second, third = parts.float().chunk(3, dim=1)
    assert torch.equal(first + second + third, weight)


@pytest.mark.parametrize("biased", [True, False])
def test_the_product_in_parts_is_the_float32_one(biased: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(40, 16, generator=generator)
    bias = torch.randn(40, generator=generator) * 5 if biased else None
    rows = torch.randn(7, 16, generator=generator).bfloat16().requires_grad_()
    found = SplitProduct(weight, bias).logits(rows)
    exact = functional.linear(
        rows.double(), weight.double(), None if bias is None else bias.double()
    )
    torch.testing.assert_close(found.double(), exact, rtol=0, atol=1e-5)
    (gradient,) = torch.autograd.grad(found.square().sum(), rows)
    (wanted,) = torch.autograd.grad(exact.square().sum(), rows)
    torch.testing.assert_close(gradient, wanted, rtol=2e-2, atol=0.5)


def test_losses_and_their_gradient_are_cross_entropys() -> None:
    generator = torch.Generator().manual_seed(2)
    weight, bias = torch.randn(40, 16, generator=generator), torch.randn(40, generator=generator)
    rows = torch.randn(7, 16, generator=generator).bfloat16().requires_grad_()
    target = torch.randint(0, 40, (7,), generator=generator)
    share = torch.rand(7, generator=generator, dtype=torch.float64)
    share[3] = 0
    found = SplitProduct(weight, bias).losses(rows, target, share, weigh_losses)
    exact = functional.linear(rows.double(), weight.double(), bias.double())
    wanted = functional.cross_entropy(exact, target, reduction="none") * share
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-5)
    outer = torch.linspace(0.5, 2, 7)
    (gradient,) = torch.autograd.grad((found * outer).sum(), rows)
    (true,) = torch.autograd.grad((wanted * outer).sum(), rows)
    torch.testing.assert_close(gradient, true, rtol=2e-2, atol=2e-2)
    assert bool((gradient[3] == 0).all())


GROUPS = torch.tensor([[2, 5, -1], [0, 1, 6], [4, -1, -1], [0, -1, -1]])
WEIGHT = torch.tensor([0.7, 2.0, 1.0, 0.0], dtype=torch.float64)


def listwise(losses: torch.Tensor) -> torch.Tensor:
    """The same by loops."""
    total = losses.new_zeros(())
    for members, weight in zip(GROUPS.tolist(), WEIGHT.tolist(), strict=True):
        scores = torch.stack([-losses[member] for member in members if member >= 0])
        total = total - weight * torch.log(scores[0].exp() / scores.exp().sum())
    return total


def test_a_groups_derivatives_are_those_of_its_listwise_loss() -> None:
    losses = torch.rand(7, generator=torch.Generator().manual_seed(0)).double().requires_grad_()
    found, moved = weigh_groups(losses, GROUPS, WEIGHT)
    wanted = listwise(losses)
    torch.testing.assert_close(found.sum(), wanted)
    # What is alone in its group has nothing to be told from.
    assert found[2:].tolist() == [0.0, 0.0]
    (gradient,) = torch.autograd.grad(wanted, losses)
    torch.testing.assert_close(moved.detach(), gradient)
    (own,) = torch.autograd.grad(found.sum(), losses)
    torch.testing.assert_close(own, gradient)


def test_losses_with_groups_have_the_gradient_of_both() -> None:
    generator = torch.Generator().manual_seed(3)
    weight, bias = torch.randn(40, 16, generator=generator), torch.randn(40, generator=generator)
    rows = torch.randn(7, 16, generator=generator).bfloat16().requires_grad_()
    target = torch.randint(0, 40, (7,), generator=generator)
    share = torch.rand(7, generator=generator, dtype=torch.float64)
    share[5] = 0
    found = SplitProduct(weight, bias).losses(rows, target, share, weigh_losses, GROUPS, WEIGHT)
    exact = functional.linear(rows.double(), weight.double(), bias.double())
    losses = functional.cross_entropy(exact, target, reduction="none")
    wanted = (losses * share).sum() + listwise(losses)
    torch.testing.assert_close(found.double().sum(), wanted, rtol=1e-5, atol=1e-5)
    (gradient,) = torch.autograd.grad(found.sum(), rows)
    (true,) = torch.autograd.grad(wanted, rows)
    torch.testing.assert_close(gradient, true, rtol=2e-2, atol=2e-2)
