"""What a run through a pattern is made from: a task, its pattern, a method, how it learns."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from symprompt.config import (
    Amount,
    Common,
    Count,
    Different,
    Incidental,
    Positive,
    Rate,
    Seed,
    Several,
    Share,
    build,
    load,
    read_toml,
    settings,
    shipped_configs,
)
from symprompt.config import LearningConfig as BasicLearningConfig
from symprompt.errors import ConfigError
from symprompt.tasks.config import ExamplesConfig, TaskRunConfig
from symprompt.tasks.patterns.methods import METHODS
from symprompt.tasks.patterns.pattern import Pattern
from symprompt.tasks.patterns.superglue import find_task

EncoderKind = Literal["free", "mlp", "bilstm"]
VerbalMethod = Literal["ptuning", "pt2", "mp", "zero-shot", "cls"]


@settings
class PatternConfig(ExamplesConfig):
    """The task, its pattern and what answers in it."""

    task: Common[str] = "rte"
    """boolq, cb, wic, rte, multirc, wsc or copa."""
    method: Common[VerbalMethod] = "ptuning"
    """ptuning: learned vectors in the pattern; pt2: a manual pattern and a prefix at every layer of
    a frozen model (P-tuning v2 with a verbalizer); mp: a manual pattern, the model fine-tuned;
    zero-shot: a manual pattern and the model as it is; cls: a head on [CLS], no pattern."""
    template: Common[str] = ""
    """The pattern: {field}, <n> vectors, [MASK], [SEP], words; or the name of a published one, such
    as pet-0. Empty takes P-tuning's own, for pt2, mp and zero-shot with its words alone."""
    words: Several[str] = ()
    """The verbalizer: one text for each label, in the task's order; empty takes the published."""
    encoder: EncoderKind = "bilstm"
    """free: the vectors are parameters; mlp, bilstm: they come out of a small network."""
    lstm_hidden: Count = 0
    """LSTM size per direction; 0 is the model's embedding width, as in P-tuning's few-shot code."""
    train_model: bool = True
    """Train the language model too, as P-tuning does on SuperGLUE; if not, the vectors alone. pt2
    never does."""
    prefix_length: Positive = 20
    """How many keys and values stand before each layer's own (pt2)."""
    prefix_encoder: Literal["free", "mlp"] = "free"
    """free: the keys and values are parameters; mlp: they come out of a small network (pt2)."""
    prefix_dropout: Share = 0.0
    """Of the prefix while training (pt2)."""
    max_length: Annotated[int, Field(ge=8)] = 256
    """Most tokens of a sentence; longer ones lose the end of their longest field, and are counted.
    The model's own limit holds too."""
    spans: Literal["together", "one"] = "together"
    """Answers of several tokens, masked models: all masked at once, or one at a time
    (pseudo-likelihood)."""
    average: Literal["sum", "mean"] = "sum"
    """Score of an answer of several tokens: sum or mean of their log-likelihoods."""
    mirror: bool = True
    """Train on COPA's examples with their choices exchanged too, as PET does."""


@settings
class LearningConfig(BasicLearningConfig):
    """How model and vectors are learned; dev32 chooses the step, the rate and the batch."""

    rates: Common[Different[Rate]] = (1e-5,)
    """Learning rates of the language model (and of a head); several are tried and dev chooses."""
    prompt_rate: Rate = 1e-4
    """Learning rate of the vectors' or the prefix's encoder."""
    batches: Common[Different[Positive]] = (16,)
    """Examples per step; several are tried and dev chooses."""
    micro_batch: Count = 0
    """Examples in one pass, whose gradients are added up to a step's; 0 takes them all at once."""
    steps: Common[Positive] = 3500
    """Most steps; the rates fall linearly to zero over them."""
    epochs: Common[Count] = 0
    """Most passes over the training examples instead of steps; 0 counts steps."""
    weight_decay: Amount = 0.1
    """AdamW's, of the language model without biases and norms; the encoder has none."""
    clip: Amount = 1.0
    evaluate_every: Count = 20
    """Steps between two looks at dev; 0 looks after each epoch."""
    patience: Count = 10
    """Stop after this many looks at dev without a higher accuracy; 0 never stops early."""
    model_dropout: bool = True
    """Train with the language model's own dropout on."""


@settings
class PatternRunConfig(TaskRunConfig):
    """One run through a pattern: a model, data, a method. Flags override the config file."""

    data: Common[str] = ""
    """Folder of the task, or of tasks named as SuperGLUE names them (FewGLUE_32dev)."""
    seeds: Common[Incidental[Different[Seed]]] = (42,)
    """Seeds of vectors, heads, order and dropout; each is a training of its own."""
    dtype: Literal["auto", "float32", "float64"] = "auto"
    """Weights: auto is float32, with passes in bfloat16 on a GPU; float64 is for tests."""
    save_model: Incidental[bool] = False
    """Store the trained language model of each seed as a transformers folder."""
    keep_weights: Incidental[bool] = True
    """Store the trained weights of the seed that does best on dev, which predict needs where the
    language model is trained too."""
    pattern: PatternConfig = PatternConfig()
    learning: LearningConfig = LearningConfig()

    def __post_init__(self) -> None:
        """Refuse tasks that are not known, patterns that do not serve them, and nothing to learn.

        Raises:
            ConfigError, DataError, TemplateError: naming what was got and what is allowed.
        """
        pattern = self.pattern
        task = find_task(pattern.task)
        if "[MASK" in pattern.template:
            Pattern.parse(pattern.template).check(task)
        if not pattern.train_model and METHODS[pattern.method].needs_model:
            raise ConfigError(
                f'pattern.train_model = false leaves pattern.method = "{pattern.method}" nothing '
                'to learn; with a frozen model the methods are "ptuning", "pt2" and "zero-shot".'
            )


def load_pattern_config(name: str) -> PatternRunConfig:
    """Load a shipped config by name, or a TOML file by path.

    Raises:
        ConfigError: no such config, not TOML, an unknown key or a bad value.
    """
    return load(PatternRunConfig, name)


def is_pattern_config(name: str) -> bool:
    """Return whether a shipped config or TOML file has a pattern; what cannot be read has none."""
    try:
        return "pattern" in read_toml(shipped_configs().get(name, Path(name)))
    except (OSError, ConfigError):
        return False


def make_pattern_config(table: dict[str, Any]) -> PatternRunConfig:
    """Build a config from nested plain values, refusing unknown keys and bad values."""
    return build(PatternRunConfig, table)


def trains_model(pattern: PatternConfig) -> bool:
    """Return whether a method changes the language model's own weights."""
    return pattern.train_model and METHODS[pattern.method].trains_model
