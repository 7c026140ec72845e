"""The flat optimiser against torch's: groups, copies, micro-batches, clipping, states."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from symprompt.engine.flat_adamw import FlatAdamW, ParameterGroup


def two_parameters() -> dict[str, nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return {
        "a": nn.Parameter(torch.randn(3, 5, generator=generator)),
        "b": nn.Parameter(torch.randn(7, generator=generator)),
    }


def loss_of(values: dict[str, nn.Parameter], number: int) -> Tensor:
    factors = torch.Generator().manual_seed(number)
    return sum(
        ((value * torch.randn(value.shape, generator=factors)) ** 2).sum()
        for value in values.values()
    )  # type: ignore[return-value]


def test_parameters_are_views_that_start_at_even_places() -> None:
    values = two_parameters()
    before = {name: value.detach().clone() for name, value in values.items()}
    flat = FlatAdamW([ParameterGroup(values, 0.1), ParameterGroup({}, 0.1)])
    assert len(flat.groups) == 1
    assert flat.size == 22
    assert all(torch.equal(values[name], before[name]) for name in values)
    assert all(value.storage_offset() % 64 == 0 for value in values.values())
    flat.values.add_(1.0)
    assert torch.equal(values["b"], before["b"] + 1)
    with pytest.raises(ValueError, match="do not fit"):
        flat.load_state_dict({"values": torch.zeros(3)})


@pytest.mark.parametrize("clip", [0.0, 0.5])
@pytest.mark.parametrize("fused", [False, True])
def test_steps_are_those_of_torch(clip: float, fused: bool) -> None:
    values, others = two_parameters(), two_parameters()
    flat = FlatAdamW(
        [ParameterGroup({"a": values["a"]}, 0.1, 0.05), ParameterGroup({"b": values["b"]}, 0.02)],
        clip=clip,
        betas=(0.8, 0.95),
        fused=fused,
    )
    plain = torch.optim.AdamW(
        [
            {"params": [others["a"]], "lr": 0.1, "weight_decay": 0.05},
            {"params": [others["b"]], "lr": 0.02, "weight_decay": 0.0},
        ],
        betas=(0.8, 0.95),
    )
    flat.set_rates([group.rate for group in flat.groups])
    for number in range(5):
        # Half the gradient at a time, as micro-batches are.
        flat.collect(loss_of(values, number) / 2)
        flat.collect(loss_of(values, number) / 2, first=False)
        norm = flat.update()
        plain.zero_grad()
        loss_of(others, number).backward()
        found = nn.utils.clip_grad_norm_(list(others.values()), clip or torch.inf)
        torch.testing.assert_close(norm, found)
        plain.step()
    for name, value in values.items():
        torch.testing.assert_close(value, others[name])


def test_copies_in_another_dtype_follow_the_weights() -> None:
    values = two_parameters()
    start = values["a"].detach().clone()
    flat = FlatAdamW(
        [
            ParameterGroup({"a": values["a"]}, 0.1, dtype=torch.bfloat16),
            ParameterGroup({"b": values["b"]}, 0.1),
        ]
    )
    assert values["a"].dtype == torch.bfloat16
    assert values["b"].dtype == torch.float32
    assert torch.equal(flat.values[:15].view(3, 5), start)
    flat.set_rates([1e-3 * group.rate for group in flat.groups])
    for number in range(20):
        flat.collect(loss_of(values, number))
        flat.update()
    weights = dict(flat.views(flat.values))
    assert torch.equal(values["a"], weights["a"].bfloat16())
    # Steps that bfloat16 could not hold add up.
    assert (weights["a"] - start).abs().max() > 1e-3
    flat.restore()
    assert values["a"].dtype == torch.float32
    assert torch.equal(values["a"], weights["a"])


def test_a_parameter_that_a_step_does_not_use_forgets_its_last_gradient() -> None:
    used, other = (nn.Parameter(torch.ones(3)) for _ in range(2))
    flat = FlatAdamW([ParameterGroup({"used": used, "other": other}, 0.1)])
    flat.set_rates([group.rate for group in flat.groups])
    flat.collect(used.sum() + other.sum())
    flat.update()
    flat.collect(used.sum())
    flat.update()
    gradients = dict(flat.views(flat.gradients))
    assert [float(gradients["used"][0]), float(gradients["other"][0])] == [1.0, 0.0]


def test_a_state_goes_on_with_the_same_bits_and_a_reset_begins_anew() -> None:
    values, others = two_parameters(), two_parameters()
    flat, other = (FlatAdamW([ParameterGroup(own, 0.1)]) for own in (values, others))
    start = flat.values.clone()
    for one in (flat, other):
        one.set_rates([group.rate for group in one.groups])
    for number in range(3):
        flat.collect(loss_of(values, number))
        flat.update()
    other.load_state_dict(flat.state_dict())
    for one, own in ((flat, values), (other, others)):
        one.collect(loss_of(own, 3))
        one.update()
    assert torch.equal(flat.values, other.values)
    flat.reset(start)
    fresh_values = two_parameters()
    fresh = FlatAdamW([ParameterGroup(fresh_values, 0.1)])
    fresh.set_rates([group.rate for group in fresh.groups])
    flat.collect(loss_of(values, 0))
    flat.update()
    fresh.collect(loss_of(fresh_values, 0))
    fresh.update()
    assert torch.equal(flat.values, fresh.values)


def test_gradients_and_extras_are_summed_over_processes() -> None:
    values = two_parameters()
    seen: list[int] = []

    def double(value: Tensor) -> None:
        seen.append(len(value))
        value.mul_(2)

    flat = FlatAdamW([ParameterGroup(values, 0.1)], extra=3, sum_up=double)
    flat.extra.copy_(torch.arange(3.0))
    flat.collect(values["b"].sum())
    flat.update()
    assert seen == [len(flat.values) + 3]
    assert flat.extra.tolist() == [0.0, 2.0, 4.0]
    assert dict(flat.views(flat.gradients))["b"].unique().tolist() == [2.0]
