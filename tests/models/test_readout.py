"""States and their product against the model's own logits, for every family."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from symprompt.models import LanguageModel, ReadOut
from tiny.models import CAUSAL_FAMILIES, FAMILIES, HIDES_DECODER, make_inputs

# Gemma 2 caps its logits softly; the other keeps its product hidden.
LOGITS_ARE_STATES = (HIDES_DECODER, "gemma2")


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", [*FAMILIES, *CAUSAL_FAMILIES])
def test_logits_follow_from_states_and_from_sums_of_them(
    load_family: Callable[..., LanguageModel], name: str, dtype: str
) -> None:
    backbone = load_family(name, dtype)
    read = ReadOut(backbone)
    small = read.width < backbone.vocabulary_size
    assert small == (name not in LOGITS_ARE_STATES)
    inputs = make_inputs(backbone, (7, 7, 7))
    at = torch.tensor([1, 3, 5])
    wanted = backbone.logits_at(inputs, at)
    states = read.states_at(inputs, at)
    assert states.shape == (3, read.width)
    torch.testing.assert_close(read.logits(states), wanted, rtol=1e-4, atol=1e-4)
    weights = torch.tensor([0.2, 0.5, 0.1]).to(states)
    found = read.logits((weights @ states)[None], weights.sum()[None])[0]
    torch.testing.assert_close(found, weights @ wanted, rtol=1e-4, atol=1e-4)
    # The model is as it was.
    torch.testing.assert_close(backbone.logits_at(inputs, at), wanted, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_under_a_half_dtype_the_product_is_float32(
    load_family: Callable[..., LanguageModel], name: str
) -> None:
    backbone = load_family(name, "bfloat16")
    read = ReadOut(backbone)
    inputs = make_inputs(backbone, (3,))
    at = torch.tensor([1])
    states = read.states_at(inputs, at)
    assert (states.dtype, read.width < backbone.vocabulary_size) == (torch.float32, True)
    torch.testing.assert_close(
        read.logits(states), backbone.logits_at(inputs, at), rtol=1e-5, atol=1e-5
    )
