"""The kernel for gradients in factors moves parameters as the plain update does."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from symprompt.engine.stacked_adam import StackedAdam
from symprompt.probing.config import LearningConfig


def make(optimizer: str, decay: float, device: str) -> StackedAdam:
    generator = torch.Generator().manual_seed(0)
    shapes = {"one": (3, 40, 24), "two": (3, 2, 40, 150)}
    parameters = {
        name: nn.Parameter(torch.randn(shape, generator=generator).to(device))
        for name, shape in shapes.items()
    }
    return StackedAdam(parameters, LearningConfig(optimizer=optimizer, weight_decay=decay))  # type: ignore[arg-type]


def test_factors_are_for_cuda_in_float32_without_a_clip() -> None:
    assert not make("adam", 0.0, "cpu").takes_factors


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(("optimizer", "decay"), [("adam", 0.0), ("adam", 0.1), ("adamw", 0.1)])
def test_kernels_move_parameters_as_the_plain_update_does(optimizer: str, decay: float) -> None:
    plain, quick = (make(optimizer, decay, "cuda") for _ in range(2))
    assert quick.takes_factors
    generator = torch.Generator().manual_seed(1)
    active = torch.tensor([True, False, True], device="cuda")
    rate = torch.tensor([1e-2, 1e-2, 3e-2], dtype=torch.float64, device="cuda")
    start = {name: value.detach().clone() for name, value in quick.parameters.items()}
    for turn in range(3):
        numbers = quick.begin(active, rate)
        for name, value in plain.parameters.items():
            # A parameter of more axes is seen now as more matrices, now as taller ones.
            batch = value.shape[:-2].numel() if turn else len(value)
            left, right = (
                torch.randn(batch, 9, size, generator=generator).cuda()
                for size in value.view(batch, -1, value.shape[-1]).shape[1:]
            )
            quick.update_by_factors(name, left, right, numbers)
            value.grad = torch.einsum("bno,bni->boi", left, right).view_as(value)
        plain.step(active, rate)
        quick.finish(numbers)
    for name, value in quick.parameters.items():
        torch.testing.assert_close(value, plain.parameters[name], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(quick.square[name], plain.square[name], rtol=1e-4, atol=1e-5)
        assert torch.equal(value[1], start[name][1])
        assert not torch.equal(value[0], start[name][0])
