"""What a pretraining run is made from: text, what is hidden from it, a model, how it learns."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from symprompt.config import (
    Amount,
    Common,
    Compile,
    Count,
    Incidental,
    Portion,
    Positive,
    Rate,
    Seed,
    Share,
    load,
    settings,
)
from symprompt.config import LearningConfig as BasicLearningConfig
from symprompt.errors import ConfigError


@settings
class VocabularyConfig:
    """The tokenizer, learned from the text."""

    kind: Literal["wordpiece", "bpe", "unigram"] = "wordpiece"
    """wordpiece (BERT), bpe (byte-level, RoBERTa) or unigram (XLM-R)."""
    size: Common[Annotated[int, Field(ge=6)]] = 26880
    """Tokens, special ones and whole words included."""
    cased: bool = True
    """Keep capital letters; otherwise everything is put in lower case, accents stripped."""
    whole_words: str = ""
    """File of words, one a line, that must be one token each."""
    alpha: Portion = 0.3
    """Languages are sampled by q_i proportional to p_i^alpha (equation 11.7); 1 as they are."""
    tokenizer: str = ""
    """Folder of a tokenizer to use instead of learning one, or "shipped"."""


@settings
class CorpusConfig:
    """How text becomes sequences."""

    packing: Literal["blocks", "sentences", "pairs"] = "blocks"
    """blocks: full sequences, cut where they are full; sentences: whole sentences, padded
    (RoBERTa's FULL-SENTENCES), both with a separator where a document ends; pairs: BERT's sentence
    pairs, half of them next to each other, for NSP."""
    length: Common[Annotated[int, Field(ge=8, le=512)]] = 128
    """Tokens in a sequence, special ones included; up to 512."""
    alpha: Portion = 0.3
    """Languages are sampled by q_i proportional to p_i^alpha (equation 11.7)."""
    held_out: Annotated[float, Field(ge=0, le=0.5)] = 0.005
    """Share of the documents kept for the validation loss."""


@settings
class CorruptionConfig:
    """What is hidden from the model, and asked for."""

    kind: Literal[
        "tokens", "words", "spans", "substitution", "deletion", "insertion", "reordering"
    ] = "tokens"
    """tokens, whole words or spans of whole words are masked; the others are the rest of 11.2."""
    share: Annotated[float, Field(gt=0, lt=1)] = 0.15
    """Share of the tokens that is asked for; spans and words take at most this."""
    uniform: bool = False
    """A new share for every sequence, drawn between 0 and 1 (MLM-U), instead of ``share``, which
    the validation loss keeps; for tokens and words. Three times as many predictions."""
    mask: Portion = 0.8
    """Share of the chosen that become the mask token."""
    random: Portion = 0.1
    """Share of the chosen that become a token drawn by unigram frequency; the rest stays."""
    span_stop: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """p of the geometric distribution of span lengths, in words."""
    span_limit: Positive = 10
    """Longest span, in words."""


@settings
class ShapeConfig:
    """The model to make; of a model that is gone on from, dropout alone counts."""

    family: Literal["bert", "electra"] = "bert"
    """bert, or electra: BERT with embeddings of a size of their own."""
    layers: Common[Positive] = 8
    """Transformer layers."""
    hidden: Common[Positive] = 512
    """Hidden size."""
    heads: Positive = 8
    """Attention heads."""
    feedforward: Count = 0
    """Inner size of the feed-forward part; 0 is four times the hidden size."""
    embedding: Count = 0
    """Embedding size (electra); 0 is the hidden size."""
    dropout: Share = 0.0
    """Dropout in training; 0 when text is seen few times."""


@settings
class WeightsConfig:
    """Which weights of a model that is gone on from are trained."""

    layers: Annotated[int, Field(ge=-1)] = -1
    """How many layers, counted from the last, and the head; -1: every weight; 0: the head alone."""


@settings
class LearningConfig(BasicLearningConfig):
    """How the weights are learned."""

    rate: Common[Rate] = 1e-3
    """Highest learning rate; to go on from a model, 1e-4 to 5e-4."""
    beta_1: Share = 0.9
    """AdamW's first beta."""
    beta_2: Share = 0.98
    """AdamW's second beta."""
    epsilon: Rate = 1e-8
    """AdamW's epsilon; gradients of queries and keys may begin far below 1e-6."""
    weight_decay: Amount = 0.01
    warmup: Share = 0.03
    """Share of all steps over which the rate rises from zero; then it falls linearly to zero."""
    clip: Amount = 1.0
    batch: Common[Positive] = 1024
    """Sequences per step, over all devices."""
    micro_batch: Count = 0
    """Most sequences in one pass on one device; 0 takes the device's whole share. Bounds memory."""
    steps: Common[Positive] = 10000
    """Steps in all."""


@settings
class PretrainConfig:
    """One pretraining run: text in, a transformers model folder out. Flags override the file."""

    out: Common[Incidental[str]] = ""
    """Model folder to write."""
    model: Common[str] = ""
    """Masked language model to go on from: a folder, a hub name or "shipped"; empty trains one from
    scratch. Its tokenizer is kept; an encoder without a masked-LM head gets one. Lower the rate:
    --rate 1e-4 to 5e-4, as at those of the configs a model unlearns what it knows."""
    seed: Common[Seed] = 34
    """Seed of weights, order and corruption."""
    objective: Common[Literal["mlm", "mlm+nsp", "mlm+sbo"]] = "mlm"
    """Masked tokens; with next-sentence prediction; with the span-boundary objective."""
    device: Common[Incidental[str]] = "auto"
    """auto, cpu, cuda, cuda:N or mps."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of the passes: auto (bfloat16 on CUDA, else float32), float32 or bfloat16. Weights and
    moments are kept in float32."""
    save_dtype: Literal["float32", "float16", "bfloat16"] = "float32"
    """Of the weights in the model folder."""
    work: Incidental[str] = ""
    """Folder of the tokenised text and checkpoints; empty is OUT with .work appended."""
    prepared: Common[str] = ""
    """Folder of text that --prepare-only has prepared, or the work folder of an unfinished run;
    takes the place of --text. Its vocabulary and held-out documents are taken as they are."""
    checkpoint_seconds: Incidental[Amount] = 300.0
    """Least time between two checkpoints; ten times as long as writing one takes, if that is
    longer."""
    compile: Incidental[Compile] = "auto"
    """Compile a step's passes. auto compiles on CUDA where training is long enough to pay for it;
    max-autotune tries more kernels first (minutes)."""
    evaluate_every: Positive = 500
    """Steps between two validation losses."""
    vocabulary: VocabularyConfig = VocabularyConfig()
    corpus: CorpusConfig = CorpusConfig()
    corruption: CorruptionConfig = CorruptionConfig()
    shape: ShapeConfig = ShapeConfig()
    weights: WeightsConfig = WeightsConfig()
    learning: LearningConfig = LearningConfig()

    def __post_init__(self) -> None:
        """Refuse parts that do not go together."""
        shape, packing, corruption = self.shape, self.corpus.packing, self.corruption
        changed = corruption.mask + corruption.random
        refusals = {
            f"weights.layers is {self.weights.layers} and there is no model to go on from; name "
            "one with --model, or leave it at -1.": self.weights.layers != -1 and not self.model,
            f"corruption.mask + corruption.random is {changed}; together they may be at most 1.": (
                changed > 1
            ),
            f"shape.hidden is {shape.hidden} and shape.heads is {shape.heads}; the heads must "
            "divide the hidden size.": shape.hidden % shape.heads,
            f'shape.embedding is {shape.embedding}; with shape.family = "bert" it is the hidden '
            'size. Choose "electra" for embeddings of another size.': (
                shape.family == "bert" and shape.embedding not in (0, shape.hidden)
            ),
            f'objective = "{self.objective}" and corpus.packing = "{packing}" do not go together; '
            '"mlm+nsp" and "pairs" need each other.': (
                (self.objective == "mlm+nsp") != (packing == "pairs")
            ),
            'corruption.uniform goes with corruption.kind = "tokens" or "words", not '
            f'"{corruption.kind}".': (
                corruption.uniform and corruption.kind not in ("tokens", "words")
            ),
            f'objective = "mlm+sbo" needs corruption.kind = "spans", not "{corruption.kind}".': (
                self.objective == "mlm+sbo" and corruption.kind != "spans"
            ),
        }
        for message, refused in refusals.items():
            if refused:
                raise ConfigError(message)


def load_pretrain_config(name: str) -> PretrainConfig:
    """Load a shipped pretraining config by name, or a TOML file by path.

    Raises:
        ConfigError: no such config, one for facts, not TOML, an unknown key or a bad value.

    Example:
        >>> config = load_pretrain_config("pretrain-tiny")
        >>> override(config, hidden=256).shape.hidden
        256
    """
    return load(PretrainConfig, name)
