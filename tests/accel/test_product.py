"""The vocabulary product in parts, and losses whose gradient is made on the way forth."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from symprompt.accel.product import SplitProduct, split_weights, weigh_losses


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
