"""What is added between layers, against passes that are made layer by layer, and refusals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from symprompt.errors import ModelError
from symprompt.models import Inputs, LanguageModel
from symprompt.models.layers import LayerInputs
from tiny.models import CAUSAL_FAMILIES, FAMILIES, make_inputs
from tiny.oracles import slow_bert_layer, slow_gpt2_layer


def adding(inputs: Inputs, added: Tensor) -> Inputs:
    return replace(inputs, added=lambda layer: added[layer - 1])


@pytest.mark.parametrize("name", [*FAMILIES, *CAUSAL_FAMILIES])
def test_every_family_has_places_before_its_layers(
    load_family: Callable[..., LanguageModel], name: str
) -> None:
    backbone = load_family(name)
    assert backbone.layers.count == 2
    at = torch.tensor([1, 3, 5])
    inputs = make_inputs(backbone, (7, 7, 7))
    plain = backbone.logits_at(inputs, at)
    nothing = torch.zeros(1, 3, 7, backbone.layers.width).double()
    found = backbone.logits_at(adding(inputs, nothing), at)
    torch.testing.assert_close(found, plain, rtol=0, atol=1e-12)
    draw = torch.Generator().manual_seed(2)
    changed = torch.randn(nothing.shape, generator=draw).double().requires_grad_()
    moved = backbone.logits_at(adding(inputs, changed), at)
    assert not torch.allclose(moved, plain, atol=1e-3)
    (slope,) = torch.autograd.grad(moved.square().sum(), changed)
    assert (slope.abs().sum(-1) > 0)[0, torch.arange(3), at].all()
    # And nothing stays behind.
    again = backbone.logits_at(inputs, at)
    torch.testing.assert_close(again, plain, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["bert", "gpt2"])
@torch.no_grad()
def test_layers_written_out_by_hand_give_the_same(
    load_family: Callable[..., LanguageModel], name: str
) -> None:
    backbone = load_family(name)
    model, at = backbone.model, torch.tensor([1, 3, 5])
    added = torch.randn(1, 3, 7, 32, generator=torch.Generator().manual_seed(1)).double()
    inputs = adding(make_inputs(backbone, (7, 7, 7)), added)
    if name == "bert":
        hidden = model.bert.embeddings(inputs_embeds=inputs.embeddings)
        hidden = slow_bert_layer(model.bert.encoder.layer[0], hidden)
        wanted = model.cls(slow_bert_layer(model.bert.encoder.layer[1], hidden + added[0]))
    else:
        hidden = inputs.embeddings + model.transformer.wpe(torch.arange(7))
        for index, layer in enumerate(model.transformer.h):
            hidden = slow_gpt2_layer(layer, hidden + (added[0] if index else 0), backbone)
        wanted = model.lm_head(model.transformer.ln_f(hidden))
    found = backbone.logits_at(inputs, at)
    torch.testing.assert_close(found, wanted[torch.arange(3), at], rtol=0, atol=1e-9)


class Odd(nn.Module):
    """A body whose layers are not as its config says, or read something else."""

    def __init__(self, layers: int, used: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(layers))
        self.used = used

    def forward(self, hidden: Tensor) -> Tensor:
        for layer in self.layers[: self.used]:
            hidden = layer(hidden)
        return hidden


def find_layers(body: Odd, count: int, hidden: Tensor) -> LayerInputs:
    layers = LayerInputs(body, count)
    with layers.probing(2, 3):
        body(hidden)
    return layers


def test_a_model_whose_layers_are_not_found_is_refused() -> None:
    body = Odd(3, 3)
    with pytest.raises(ModelError, match="Odd has no list of 4 layers"):
        find_layers(body, 4, torch.zeros(2, 3, 4))
    # The sentences run together into one axis: whose position is whose could not be known.
    with pytest.raises(ModelError, match="Odd has no list of 3 layers"):
        find_layers(body, 3, torch.zeros(6, 4))


def test_a_pass_that_leaves_layers_out_is_refused() -> None:
    body = Odd(3, 3)
    places = find_layers(body, 3, torch.zeros(2, 3, 4))
    body.used = 2
    with (
        pytest.raises(ModelError, match="Odd called 2 of its 3 layers"),
        places.adding(lambda layer: torch.zeros(2, 3, 4)),
    ):
        body(torch.zeros(2, 3, 4))
    body.used = 3
    with places.adding(lambda layer: torch.ones(2, 3, 4)):
        moved = body(torch.zeros(2, 3, 4))
    assert not torch.equal(moved, body(torch.zeros(2, 3, 4)))
