"""Tiny random causal language models made in code, as ``save_pretrained`` would have left them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from tokenizers.trainers import BpeTrainer
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    GemmaConfig,
    GPT2Config,
    LlamaConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
)

from symprompt.probing.config import RunConfig
from tiny.models import LETTERS, MARKS, WORDS, run_config

TEMPLATE = "<2> [X] <1> [Y]"
SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 37,
    "max_position_embeddings": 48,
}


def make_byte_level() -> PreTrainedTokenizerFast:
    """Byte-level BPE as GPT-2's and Qwen's: one special token, put nowhere; no padding token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=5000,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([text for word in WORDS for text in (word, " " + word)], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|endoftext|>")


def make_metaspace(*, prepend: bool) -> PreTrainedTokenizerFast:
    """SentencePiece's kind, with a token before every sentence.

    Args:
        prepend: put the space mark before every text, as Llama 2 does; Gemma does not.
    """
    specials = ("<pad>", "<s>", "</s>", "<unk>")
    pieces = [(token, 0.0) for token in specials]
    pieces += [(word, -2.5) for word in WORDS] + [("▁" + word, -2.0) for word in WORDS]
    pieces += [("▁", -6.0)] + [(letter, -8.0) for letter in LETTERS + MARKS]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=3, byte_fallback=False))
    steps: list[Any] = [normalizers.Prepend("▁")] if prepend else []
    tokenizer.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", "▁")])
    tokenizer.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    tokenizer.decoder = decoders.Replace("▁", " ")
    tokenizer.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        unk_token=AddedToken("<unk>", special=True),
    )


@dataclass(frozen=True)
class CausalFamily:
    """How to make one family's model and tokenizer.

    Attributes:
        exact: whether a float64 model computes in float64 throughout (root-mean-square norms and
            rotary angles of transformers are float32 whatever the dtype).
    """

    config: Callable[..., Any]
    tokenizer: Callable[[], PreTrainedTokenizerFast]
    exact: bool = False


def _gpt2(**common: Any) -> Any:
    return GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=48, **common)


def _small(kind: Any, **more: Any) -> Callable[..., Any]:
    return lambda **common: kind(**{**SMALL, **common, **more})


def _llama_tokenizer() -> PreTrainedTokenizerFast:
    return make_metaspace(prepend=True)


def _gemma_tokenizer() -> PreTrainedTokenizerFast:
    return make_metaspace(prepend=False)


CAUSAL_FAMILIES: dict[str, CausalFamily] = {
    "gpt2": CausalFamily(_gpt2, make_byte_level, exact=True),
    "llama": CausalFamily(_small(LlamaConfig, tie_word_embeddings=False), _llama_tokenizer),
    "llama-tied": CausalFamily(_small(LlamaConfig, tie_word_embeddings=True), make_byte_level),
    "qwen2": CausalFamily(_small(Qwen2Config, tie_word_embeddings=True), make_byte_level),
    "qwen3": CausalFamily(
        _small(Qwen3Config, head_dim=8, tie_word_embeddings=False), make_byte_level
    ),
    "gemma": CausalFamily(_small(GemmaConfig, head_dim=8), _gemma_tokenizer),
    # Soft caps on attention scores and on the logits themselves, and a window of six tokens.
    "gemma2": CausalFamily(
        _small(
            Gemma2Config,
            head_dim=8,
            sliding_window=6,
            final_logit_softcapping=3.0,
            attn_logit_softcapping=2.0,
        ),
        _gemma_tokenizer,
    ),
}


def save_causal(name: str, folder: Path) -> Path:
    """Write one family's tiny checkpoint and return its folder; its logits differ clearly."""
    family = CAUSAL_FAMILIES[name]
    tokenizer = family.tokenizer()
    config = family.config(
        vocab_size=len(tokenizer) + 3,  # Qwen's kind has more rows than tokens
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = AutoModelForCausalLM.from_config(config).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            parameter.normal_(0, 0.3, generator=generator)
            if parameter.dim() == 1 and parameter_name.endswith("weight"):
                parameter.add_(1.0)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def causal_config(**sections: Any) -> RunConfig:
    """A small run config whose template ends with the object."""
    sections["prompt"] = {"template": TEMPLATE, **sections.get("prompt", {})}
    return run_config(**sections)
