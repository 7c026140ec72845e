"""Deep prefixes of every family, against caches of past keys and loops written out by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from symprompt.errors import ModelError
from symprompt.models import Inputs, LanguageModel, Prefix
from tiny.causal import CAUSAL_FAMILIES
from tiny.models import FAMILIES
from tiny.prefix import by_cache, by_pairs, by_tokens

REFUSED = "mpnet"
BESIDE = ("albert", "distilbert", "modernbert")
EXACT = ("bert", "roberta", "xlm-roberta", "albert", "electra", "distilbert", "gpt2")
SERVED = [name for name in (*FAMILIES, *CAUSAL_FAMILIES) if name != REFUSED]


def make_inputs(backbone: LanguageModel, lengths: tuple[int, ...] = (7, 5, 6)) -> Inputs:
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(6, len(backbone.vocabulary), (len(lengths), max(lengths)), generator=draw)
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return Inputs(backbone.embed(ids), mask)


def make_states(backbone: LanguageModel, length: int = 3, tasks: int = 1) -> Tensor:
    layers, heads, size = backbone.prefix_shape
    draw = torch.Generator().manual_seed(1)
    return torch.randn((tasks, layers, 2, heads, length, size), generator=draw).to(backbone.dtype)


def close(found: Tensor, wanted: Tensor, mask: Tensor | None, atol: float = 1e-9) -> None:
    if mask is not None:
        found, wanted = found[mask], wanted[mask]
    torch.testing.assert_close(found, wanted, rtol=0, atol=atol)


@pytest.mark.parametrize("name", SERVED)
def test_every_layer_of_every_family_reads_its_prefix(
    load_family: Callable[..., LanguageModel], name: str
) -> None:
    backbone = load_family(name)
    inputs = make_inputs(backbone)
    plain = backbone.states(inputs)
    assert plain.shape[:2] == inputs.embeddings.shape[:2]
    states = make_states(backbone).requires_grad_()
    found = backbone.states(inputs, prefix=Prefix(states))
    assert found.shape == plain.shape
    assert not torch.allclose(found, plain, atol=1e-3)
    (slope,) = torch.autograd.grad(found[:, 0].square().sum(), states)
    assert (slope.abs().sum((0, 3, 5)) > 0).all()
    # And nothing stays behind.
    close(backbone.states(inputs), plain, None, atol=0)


@pytest.mark.parametrize("shift", [False, True])
@pytest.mark.parametrize("name", SERVED)
def test_every_family_equals_a_pass_without_the_interface(
    load_family: Callable[..., LanguageModel], name: str, shift: bool
) -> None:
    backbone = load_family(name)
    # Longer than the windows of ModernBERT and Gemma 2, with padding.
    inputs = make_inputs(backbone, (9, 5, 7))
    states = make_states(backbone).requires_grad_()
    slow = by_tokens if name in BESIDE else by_pairs if "deberta" in name else by_cache
    wanted = slow(backbone, inputs, states[0], shift=shift)
    found = backbone.states(inputs, prefix=Prefix(states, shift_positions=shift))
    # The scale of DeBERTa's position terms is float32 in transformers, rotary angles are too.
    exact = name in EXACT
    close(found, wanted, inputs.mask, atol=1e-9 if exact else 5e-5)
    assert inputs.mask is not None
    slopes = [
        torch.autograd.grad(own[inputs.mask].square().sum(), states)[0] for own in (found, wanted)
    ]
    close(*slopes, None, atol=1e-8 if exact else 5e-3)


@pytest.mark.parametrize("name", SERVED)
def test_a_prefix_of_no_keys_is_no_prefix(
    load_family: Callable[..., LanguageModel], name: str
) -> None:
    backbone = load_family(name)
    inputs = make_inputs(backbone)
    plain = backbone.states(inputs)
    none = backbone.states(inputs, prefix=Prefix(make_states(backbone, 0)))
    close(none, plain, None, atol=0)
    # Nor is one that no row sees.
    hidden = Prefix(make_states(backbone), visible=torch.zeros(1, 3, dtype=torch.bool))
    close(backbone.states(inputs, prefix=hidden), plain, inputs.mask, atol=5e-5)


def test_a_family_that_bypasses_the_interface_is_refused(
    load_family: Callable[..., LanguageModel],
) -> None:
    backbone = load_family(REFUSED)
    with pytest.raises(ModelError, match="MPNetModel called transformers' attention interface 0"):
        print(backbone.prefix_shape)
    # And is as it was: plain passes go on.
    inputs = make_inputs(backbone)
    states = torch.randn(1, 2, 2, 4, 3, 8).double()
    with pytest.raises(ModelError, match="MPNetModel called transformers' attention interface 0"):
        backbone.states(inputs, prefix=Prefix(states))
    assert backbone.states(inputs).isfinite().all()


@pytest.mark.parametrize("name", SERVED)
def test_rows_of_two_tasks_in_one_batch_equal_each_alone(
    load_family: Callable[..., LanguageModel], name: str
) -> None:
    backbone = load_family(name)
    inputs = make_inputs(backbone)
    states = make_states(backbone, 4, tasks=2)
    visible = torch.arange(4) < torch.tensor([[4], [2]])
    row = torch.tensor([1, 0, 1])
    mixed = backbone.states(inputs, prefix=Prefix(states, row, visible=visible))
    for task, length in ((0, 4), (1, 2)):
        rows = row == task
        assert inputs.mask is not None
        own = replace(inputs, embeddings=inputs.embeddings[rows], mask=inputs.mask[rows])
        alone = backbone.states(own, prefix=Prefix(states[task : task + 1, ..., :length, :]))
        close(mixed[rows], alone, own.mask, atol=5e-5)
