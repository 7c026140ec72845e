"""What a pretraining run is made from: frozen dataclasses, read from TOML like every config."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from symprompt.config.build import build_config, read_config
from symprompt.errors import ConfigError


@dataclass(frozen=True)
class VocabularyConfig:
    """The tokenizer, learned from the text."""

    kind: Literal["wordpiece", "bpe", "unigram"] = "wordpiece"
    """wordpiece (BERT), bpe (byte-level, RoBERTa) or unigram (XLM-R)."""
    size: int = 26880
    """Tokens, special ones and whole words included."""
    cased: bool = True
    """Keep capital letters; otherwise everything is put in lower case, accents stripped."""
    whole_words: str = ""
    """File of words, one a line, that must be one token each."""
    alpha: float = 0.3
    """Languages are sampled by q_i proportional to p_i^alpha (equation 11.7); 1 as they are."""
    tokenizer: str = ""
    """Folder of a tokenizer to use instead of learning one."""


@dataclass(frozen=True)
class CorpusConfig:
    """How text becomes sequences."""

    packing: Literal["blocks", "sentences", "pairs"] = "blocks"
    """blocks: full sequences, cut where they are full; sentences: whole sentences, padded
    (RoBERTa's FULL-SENTENCES), both with a separator where a document ends; pairs: BERT's sentence
    pairs, half of them next to each other, for NSP."""
    length: int = 128
    """Tokens in a sequence, special ones included; up to 512."""
    alpha: float = 0.3
    """Languages are sampled by q_i proportional to p_i^alpha (equation 11.7)."""
    held_out: float = 0.005
    """Share of the documents kept for the validation loss."""


@dataclass(frozen=True)
class CorruptionConfig:
    """What is hidden from the model, and asked for."""

    kind: Literal[
        "tokens", "words", "spans", "substitution", "deletion", "insertion", "reordering"
    ] = "tokens"
    """tokens, whole words or spans of whole words are masked; the others are the rest of 11.2."""
    share: float = 0.15
    """Share of the tokens that is asked for; spans and words take at most this."""
    mask: float = 0.8
    """Share of the chosen that become the mask token."""
    random: float = 0.1
    """Share of the chosen that become a token drawn by unigram frequency; the rest stays."""
    span_stop: float = 0.2
    """p of the geometric distribution of span lengths, in words."""
    span_limit: int = 10
    """Longest span, in words."""


@dataclass(frozen=True)
class ShapeConfig:
    """The model to make."""

    family: Literal["bert", "electra"] = "bert"
    """bert, or electra: BERT with embeddings of a size of their own."""
    layers: int = 8
    """Transformer layers."""
    hidden: int = 512
    """Hidden size."""
    heads: int = 8
    """Attention heads."""
    feedforward: int = 0
    """Inner size of the feed-forward part; 0 is four times the hidden size."""
    embedding: int = 0
    """Embedding size (electra); 0 is the hidden size."""
    dropout: float = 0.0
    """Dropout in training; 0 when text is seen few times."""


@dataclass(frozen=True)
class OptimizerConfig:
    """How the weights are learned."""

    rate: float = 1e-3
    """Highest learning rate."""
    beta_1: float = 0.9
    """AdamW's first beta."""
    beta_2: float = 0.98
    """AdamW's second beta."""
    epsilon: float = 1e-8
    """AdamW's epsilon; gradients of queries and keys may begin far below 1e-6."""
    weight_decay: float = 0.01
    """Of matrices; biases and norms are not decayed."""
    warmup: float = 0.03
    """Share of the steps over which the rate rises from zero; then it falls linearly to zero."""
    clip: float = 1.0
    """Largest gradient norm; 0 does not clip."""
    batch: int = 1024
    """Sequences per step, over all devices."""
    micro_batch: int = 0
    """Most sequences in one pass on one device; 0 takes the device's whole share. Bounds memory."""
    steps: int = 10000
    """Steps in all."""
    compile: Literal["auto", "on", "off", "max-autotune"] = "auto"
    """torch.compile; auto compiles on CUDA; max-autotune tries more kernels first (minutes)."""


@dataclass(frozen=True)
class PretrainConfig:
    """One pretraining run: text in, a transformers model folder out. Flags override the file."""

    out: str = ""
    """Model folder to write."""
    seed: int = 34
    """Seed of weights, order and corruption."""
    objective: Literal["mlm", "mlm+nsp", "mlm+sbo"] = "mlm"
    """Masked tokens; with next-sentence prediction; with the span-boundary objective."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:N or mps."""
    dtype: str = "auto"
    """Of the passes: auto (bfloat16 on CUDA, else float32), float32 or bfloat16. Weights and
    moments are kept in float32."""
    save_dtype: Literal["float32", "float16", "bfloat16"] = "float32"
    """Of the weights in the model folder."""
    work: str = ""
    """Folder of the tokenised text and checkpoints; empty is OUT with .work appended."""
    prepared: str = ""
    """Folder of text that --prepare-only has prepared, or the work folder of an unfinished run;
    takes the place of --text. Its vocabulary and held-out documents are taken as they are."""
    checkpoint_seconds: float = 300.0
    """Least time between two checkpoints."""
    evaluate_every: int = 500
    """Steps between two validation losses."""
    vocabulary: VocabularyConfig = field(default_factory=VocabularyConfig)
    corpus: CorpusConfig = field(default_factory=CorpusConfig)
    corruption: CorruptionConfig = field(default_factory=CorruptionConfig)
    shape: ShapeConfig = field(default_factory=ShapeConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)


# What may differ between the two halves of a resumed run: none of it changes the recipe.
INCIDENTAL = ("out", "device", "work", "checkpoint_seconds", "optimizer.compile")


def load_pretrain_config(name: str) -> PretrainConfig:
    """Load a shipped pretraining config by name, or a TOML file by path.

    Raises:
        ConfigError: no such config, one for facts, not TOML, an unknown key or a bad value.
    """
    return read_config(PretrainConfig, name, check_pretrain_config)


def make_pretrain_config(table: dict[str, Any], *, where: str = "config") -> PretrainConfig:
    """Build a config from nested plain values, refusing unknown keys and bad values."""
    return build_config(PretrainConfig, table, check_pretrain_config, where=where)


def check_pretrain_config(config: PretrainConfig) -> None:
    """Refuse values out of range, and parts that do not go together.

    Raises:
        ConfigError: naming the key, what was got and what is allowed.
    """
    shape, corpus, corruption = config.shape, config.corpus, config.corruption
    optimizer, vocabulary = config.optimizer, config.vocabulary
    least = {
        "vocabulary.size": (vocabulary.size, 6),
        "corpus.length": (corpus.length, 8),
        "shape.layers": (shape.layers, 1),
        "shape.hidden": (shape.hidden, 1),
        "shape.heads": (shape.heads, 1),
        "shape.feedforward": (shape.feedforward, 0),
        "shape.embedding": (shape.embedding, 0),
        "corruption.span_limit": (corruption.span_limit, 1),
        "optimizer.batch": (optimizer.batch, 1),
        "optimizer.micro_batch": (optimizer.micro_batch, 0),
        "optimizer.steps": (optimizer.steps, 1),
        "optimizer.clip": (optimizer.clip, 0),
        "optimizer.weight_decay": (optimizer.weight_decay, 0),
        "evaluate_every": (config.evaluate_every, 1),
    }
    for key, (value, bound) in least.items():
        if not value >= bound:
            raise ConfigError(f"{key} is {value}; it must be at least {bound}.")
    inside = {
        "vocabulary.alpha": (vocabulary.alpha, 0, 1),
        "corpus.alpha": (corpus.alpha, 0, 1),
        "corpus.held_out": (corpus.held_out, 0, 0.5),
        "corruption.mask": (corruption.mask, 0, 1),
        "corruption.random": (corruption.random, 0, 1),
        "shape.dropout": (shape.dropout, 0, 0.9),
        "optimizer.warmup": (optimizer.warmup, 0, 0.99),
        "optimizer.beta_1": (optimizer.beta_1, 0, 0.9999),
        "optimizer.beta_2": (optimizer.beta_2, 0, 0.99999),
    }
    for key, (value, low, high) in inside.items():
        if not low <= value <= high:
            raise ConfigError(f"{key} is {value}; it must be from {low} to {high}.")
    if config.dtype not in ("auto", "float32", "bfloat16"):
        raise ConfigError(f"dtype is {config.dtype!r}; allowed are: auto, float32, bfloat16.")
    if corpus.length > 512:
        raise ConfigError(f"corpus.length is {corpus.length}; it may be at most 512.")
    if not 0 < corruption.share < 1:
        raise ConfigError(f"corruption.share is {corruption.share}; it must be between 0 and 1.")
    if not 0 < corruption.span_stop < 1:
        raise ConfigError(
            f"corruption.span_stop is {corruption.span_stop}; it must be between 0 and 1."
        )
    if corruption.mask + corruption.random > 1:
        raise ConfigError(
            f"corruption.mask + corruption.random is {corruption.mask + corruption.random}; "
            "together they may be at most 1."
        )
    if not optimizer.rate > 0:
        raise ConfigError(f"optimizer.rate is {optimizer.rate}; it must be above 0.")
    if shape.hidden % shape.heads:
        raise ConfigError(
            f"shape.hidden is {shape.hidden} and shape.heads is {shape.heads}; the heads must "
            "divide the hidden size."
        )
    if shape.family == "bert" and shape.embedding not in (0, shape.hidden):
        raise ConfigError(
            f'shape.embedding is {shape.embedding}; with shape.family = "bert" it is the hidden '
            'size. Choose "electra" for embeddings of another size.'
        )
    if (config.objective == "mlm+nsp") != (corpus.packing == "pairs"):
        raise ConfigError(
            f'objective = "{config.objective}" and corpus.packing = "{corpus.packing}" do not go '
            'together; "mlm+nsp" and "pairs" need each other.'
        )
    if config.objective == "mlm+nsp" and shape.family != "bert":
        raise ConfigError('objective = "mlm+nsp" needs shape.family = "bert", which has the head.')
    if config.objective == "mlm+sbo" and corruption.kind != "spans":
        raise ConfigError(
            f'objective = "mlm+sbo" needs corruption.kind = "spans", not "{corruption.kind}".'
        )
