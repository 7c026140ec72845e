"""The last layer at the asked positions alone, against the whole encoder of transformers."""

from __future__ import annotations

import pytest
import torch

from symprompt.pretraining.config import ShapeConfig
from symprompt.pretraining.corruption import Specials
from symprompt.pretraining.model import make_model
from symprompt.pretraining.objectives import encode_at, take

ROWS, LENGTH, HIDDEN = 3, 7, 8


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("family", ["bert", "electra"])
def test_states_and_gradients_are_those_of_the_whole_encoder(
    family: str, layers: int, padded: bool
) -> None:
    shape = ShapeConfig(family, layers, HIDDEN, 2, feedforward=12)  # type: ignore[arg-type]
    specials = Specials(cls=2, sep=3, pad=0, mask=4, unk=1)
    model = make_model(shape, vocabulary=20, specials=specials, length=LENGTH)
    generator = torch.Generator().manual_seed(0)
    for weight in model.parameters():
        weight.data.normal_(std=0.7, generator=generator)
    encoder = model.double().eval().base_model.encoder
    state = torch.randn(ROWS, LENGTH, HIDDEN, dtype=torch.float64, generator=generator)
    positions = torch.tensor([[0, 2, 2], [1, 4, 0], [6, 5, 3]])
    mask = None
    if padded:
        there = torch.arange(LENGTH) < torch.tensor([3, 5, 7])[:, None]
        mask = there[:, None, None, :].expand(-1, 1, LENGTH, -1)
    whole = encoder(state, attention_mask=mask).last_hidden_state
    rows = torch.arange(ROWS)[:, None]
    pull = torch.randn(ROWS, 3, HIDDEN, dtype=torch.float64, generator=generator)
    weights = list(encoder.parameters())
    expected = torch.autograd.grad((whole[rows, positions] * pull).sum(), weights)
    found = encode_at(encoder, state, mask, positions)
    torch.testing.assert_close(found, whole[rows, positions])
    for one, other in zip(
        torch.autograd.grad((found * pull).sum(), weights), expected, strict=True
    ):
        torch.testing.assert_close(one, other)


def test_take_gathers_by_row() -> None:
    hidden = torch.arange(2 * 3 * 2).reshape(2, 3, 2)
    positions = torch.tensor([[2, 0], [1, 1]])
    assert take(hidden, positions).tolist() == [[[4, 5], [0, 1]], [[8, 9], [8, 9]]]
