"""The model that pretraining starts from."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from transformers import BertForMaskedLM, BertForPreTraining, ElectraForMaskedLM

from symprompt.pretraining.config import ShapeConfig
from symprompt.pretraining.tokenizer import Specials
from symprompt.pretraining.training import PretrainedModel, make_model

SPECIALS = Specials(cls=2, sep=3, pad=0, mask=4)
TINY = ShapeConfig(layers=2, hidden=16, heads=4)
FACTORISED = ShapeConfig(family="electra", layers=2, hidden=16, heads=4, embedding=8)


def make(shape: ShapeConfig, objective: str = "mlm", seed: int = 0) -> PretrainedModel:
    return make_model(
        shape, vocabulary=50, specials=SPECIALS, length=32, objective=objective, seed=seed
    )


@pytest.mark.parametrize(
    ("shape", "objective", "kind"),
    [
        (TINY, "mlm", BertForMaskedLM),
        (TINY, "mlm+sbo", BertForMaskedLM),
        (TINY, "mlm+nsp", BertForPreTraining),
        (FACTORISED, "mlm", ElectraForMaskedLM),
        (FACTORISED, "mlm+sbo", ElectraForMaskedLM),
    ],
)
def test_family_and_objective_choose_the_class(
    shape: ShapeConfig, objective: str, kind: type
) -> None:
    with torch.device("meta"):
        model = make(shape, objective)
    assert type(model) is kind
    config = model.config
    assert (config.num_hidden_layers, config.hidden_size, config.num_attention_heads) == (2, 16, 4)
    assert (config.vocab_size, config.max_position_embeddings, config.pad_token_id) == (50, 32, 0)
    assert config.intermediate_size == 64
    assert config._attn_implementation == "sdpa"
    assert config.hidden_dropout_prob == config.attention_probs_dropout_prob == 0
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}
    assert {weight.device.type for weight in model.parameters()} == {"cpu"}


def test_positions_are_512_unless_said_and_the_inner_size_can_be_given() -> None:
    shape = ShapeConfig(layers=1, hidden=8, heads=2, feedforward=24, dropout=0.2)
    config = make_model(shape, vocabulary=10, specials=SPECIALS).config
    assert config.max_position_embeddings == 512
    assert config.intermediate_size == 24
    assert config.hidden_dropout_prob == config.attention_probs_dropout_prob == 0.2


@pytest.mark.parametrize("shape", [TINY, FACTORISED, replace(FACTORISED, embedding=0)])
def test_embeddings_are_tied_and_of_their_own_size(shape: ShapeConfig) -> None:
    model = make(shape)
    embedding = model.get_input_embeddings().weight
    assert model.get_output_embeddings().weight is embedding
    assert embedding.shape == (50, shape.embedding or shape.hidden)


def test_weights_follow_from_the_seed_and_the_random_state_is_untouched() -> None:
    before = torch.get_rng_state()
    first = make(TINY, seed=1).state_dict()
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(3)
    second, other = make(TINY, seed=1).state_dict(), make(TINY, seed=2).state_dict()
    torch.set_rng_state(before)
    assert all(torch.equal(first[name], second[name]) for name in first)
    name = "bert.encoder.layer.0.attention.self.query.weight"
    assert not torch.equal(first[name], other[name])
    assert abs(float(first[name].std()) - 0.02) < 0.005
