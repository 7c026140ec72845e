"""The model a pretraining run starts from: BERT, or BERT with embeddings of a size of their own."""

from __future__ import annotations

import torch
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForPreTraining,
    ElectraConfig,
    ElectraForMaskedLM,
)

from symprompt.errors import ConfigError
from symprompt.pretraining.config import ShapeConfig
from symprompt.pretraining.tokenizer import Specials
from symprompt.runs.environment import derive_seed

PretrainedModel = BertForMaskedLM | BertForPreTraining | ElectraForMaskedLM
"""What ``make_model`` gives."""


def make_model(
    shape: ShapeConfig,
    *,
    vocabulary: int,
    specials: Specials,
    length: int = 512,
    objective: str = "mlm",
    seed: int = 0,
) -> PretrainedModel:
    """Return a model with fresh weights on the CPU, the same for the same seed anywhere.

    The caller's random state is not touched. The token embeddings and the vocabulary product share
    one matrix.

    Args:
        shape: family and sizes.
        vocabulary: tokens the model knows, special ones included.
        specials: the padding token goes into the model's config.
        length: positions, the longest sequence the model can read.
        objective: "mlm", "mlm+nsp" or "mlm+sbo"; "mlm+nsp" gives a model with the NSP head.
        seed: of the weights.

    Returns:
        BertForMaskedLM, BertForPreTraining with "mlm+nsp", or ElectraForMaskedLM: ELECTRA's
        generator at the full hidden size.

    Raises:
        ConfigError: ELECTRA has no NSP head.
    """
    config = _make_config(shape, vocabulary=vocabulary, pad=specials.pad, length=length)
    kind: type[PretrainedModel]
    if isinstance(config, ElectraConfig):
        if objective == "mlm+nsp":
            raise ConfigError('objective = "mlm+nsp" needs shape.family = "bert".')
        kind = ElectraForMaskedLM
    else:
        kind = BertForPreTraining if objective == "mlm+nsp" else BertForMaskedLM
    # Only the CPU's generator is seeded, so only that one has to be put back.
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(derive_seed(seed, "weights"))
        return kind(config)


def _make_config(
    shape: ShapeConfig, *, vocabulary: int, pad: int, length: int
) -> BertConfig | ElectraConfig:
    config: BertConfig | ElectraConfig
    if shape.family == "electra":
        config = ElectraConfig(embedding_size=shape.embedding or shape.hidden)
    else:
        config = BertConfig()
    config.vocab_size = vocabulary
    config.hidden_size = shape.hidden
    config.num_hidden_layers = shape.layers
    config.num_attention_heads = shape.heads
    config.intermediate_size = shape.feedforward or 4 * shape.hidden
    config.hidden_dropout_prob = shape.dropout
    config.attention_probs_dropout_prob = shape.dropout
    config.max_position_embeddings = length
    config.pad_token_id = pad
    config._attn_implementation = "sdpa"
    return config
