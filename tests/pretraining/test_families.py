"""Every masked family in training: losses and gradients of transformers' own forward pass."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from symprompt.pretraining.config import CorruptionConfig
from symprompt.pretraining.corruption import Corrupted, corrupt
from symprompt.pretraining.sequences import Batch
from symprompt.pretraining.tokenizer import Specials
from symprompt.pretraining.training import Pretrainer
from tiny.models import FAMILIES, make_model
from tiny.text import make_batch

LENGTH = 24


@cache
def made(family: str) -> tuple[Any, Specials, int]:
    """A family's model in float64, its special ids and the size of its vocabulary."""
    tokenizer = FAMILIES[family].tokenizer()
    model = make_model(family, tokenizer).double().eval()
    ids = [getattr(tokenizer, f"{name}_token_id") for name in ("cls", "sep", "pad", "mask")]
    return model, Specials(*ids), len(tokenizer)


def make_pretrainer(family: str) -> Pretrainer:
    return Pretrainer(copy.deepcopy(made(family)[0])).eval()


def make_corrupted(family: str, *, ragged: bool) -> tuple[Batch[Tensor], Corrupted]:
    _, specials, size = made(family)
    batch = make_batch(5, LENGTH, ragged=ragged, vocabulary=size)
    there = torch.arange(LENGTH) < batch.lengths[:, None]
    batch = replace(batch, ids=batch.ids.masked_fill(~there, specials.pad))
    frequencies = torch.ones(size)
    frequencies[:5] = 0
    corrupted = corrupt(
        batch,
        CorruptionConfig(share=0.3),
        specials=specials,
        frequencies=frequencies,
        generator=torch.Generator().manual_seed(0),
    )
    return batch, corrupted


def own_loss(model: Any, corrupted: Corrupted) -> Tensor:
    """The summed loss at the asked positions by the model's whole forward pass."""
    given: dict[str, Any] = {}
    if getattr(model.config, "type_vocab_size", 0) > 1:
        given["token_type_ids"] = corrupted.segments.long()
    mask = (torch.arange(LENGTH) < corrupted.lengths[:, None]).long()
    logits = model(input_ids=corrupted.ids, attention_mask=mask, **given).logits
    rows = torch.arange(len(corrupted.ids))[:, None]
    asked = logits[rows, corrupted.positions][corrupted.asked]
    return functional.cross_entropy(asked, corrupted.targets[corrupted.asked], reduction="sum")


def loss_of(pretrainer: Any, batch: Batch[Tensor], corrupted: Corrupted, padded: bool) -> Tensor:
    found: Tensor = pretrainer(**vars(corrupted), is_next=batch.is_next, padded=padded)
    return found.sum()


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("family", list(FAMILIES))
def test_losses_and_gradients_are_those_of_the_whole_model(family: str, padded: bool) -> None:
    pretrainer = make_pretrainer(family)
    batch, corrupted = make_corrupted(family, ragged=padded)
    model: Any = pretrainer.model
    named = dict(model.named_parameters())
    expected = own_loss(model, corrupted)
    wanted = torch.autograd.grad(expected, list(named.values()), allow_unused=True)
    loss = loss_of(pretrainer, batch, corrupted, padded)
    found = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    # Rotary angles of transformers are float32 whatever the dtype.
    close = 1e-5 if family == "modernbert" else 1e-9
    torch.testing.assert_close(loss, expected, rtol=close, atol=0)
    for name, one, other in zip(named, found, wanted, strict=True):
        zero = torch.zeros_like(named[name])
        one, other = (zero if grad is None else grad for grad in (one, other))
        scale = float(other.abs().max())
        torch.testing.assert_close(one, other, rtol=close, atol=close * max(scale, 1e-3), msg=name)
    if family == "mpnet":
        bias = dict(zip(named, wanted, strict=True))["mpnet.encoder.relative_attention_bias.weight"]
        assert bias.abs().max() > 1e-3


@pytest.mark.parametrize("family", list(FAMILIES))
def test_compiles_as_one_graph(family: str) -> None:
    pretrainer = make_pretrainer(family).train()
    batch, corrupted = make_corrupted(family, ragged=True)
    compiled = torch.compile(pretrainer, fullgraph=True, backend="aot_eager", dynamic=False)
    for padded in (False, True):
        torch.manual_seed(0)
        expected = loss_of(pretrainer, batch, corrupted, padded)
        torch.manual_seed(0)
        loss = loss_of(compiled, batch, corrupted, padded)
        torch.testing.assert_close(loss, expected, rtol=1e-3, atol=0)
    torch._dynamo.reset()
