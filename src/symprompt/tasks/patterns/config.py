"""What a run through a pattern is made from: frozen dataclasses, read from TOML."""

from __future__ import annotations

import math
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from symprompt.config.build import build_config, read_config, shipped_configs
from symprompt.errors import ConfigError
from symprompt.prompts.prefixes import PrefixKind
from symprompt.tasks.patterns.pattern import Pattern
from symprompt.tasks.patterns.superglue import find_task

EncoderKind = Literal["free", "mlp", "bilstm"]
VerbalMethod = Literal["ptuning", "pt2", "mp", "zero-shot", "cls"]


@dataclass(frozen=True)
class PatternConfig:
    """The task, its pattern and what answers in it."""

    task: str = "rte"
    """boolq, cb, wic, rte, multirc, wsc or copa."""
    method: VerbalMethod = "ptuning"
    """ptuning: learned vectors in the pattern; pt2: a manual pattern and a prefix at every layer of
    a frozen model (P-tuning v2 with a verbalizer); mp: a manual pattern, the model fine-tuned;
    zero-shot: a manual pattern and the model as it is; cls: a head on [CLS], no pattern."""
    template: str = ""
    """The pattern: {field}, <n> vectors, [MASK], [SEP], words; or the name of a published one, such
    as pet-0. Empty takes P-tuning's own, for pt2, mp and zero-shot with its words alone."""
    words: tuple[str, ...] = ()
    """The verbalizer: one text for each label, in the task's order; empty takes the published."""
    encoder: EncoderKind = "bilstm"
    """free: the vectors are parameters; mlp, bilstm: they come out of a small network."""
    lstm_hidden: int = 0
    """LSTM size per direction; 0 is the model's embedding width, as in P-tuning's few-shot code."""
    train_model: bool = True
    """Train the language model too, as P-tuning does on SuperGLUE; if not, the vectors alone. pt2
    never does."""
    prefix_length: int = 20
    """How many keys and values stand before each layer's own (pt2)."""
    prefix_encoder: PrefixKind = "free"
    """free: the keys and values are parameters; mlp: they come out of a small network (pt2)."""
    prefix_dropout: float = 0.0
    """Of the prefix while training (pt2)."""
    max_length: int = 256
    """Most tokens of a sentence; longer ones lose the end of their longest field, and are counted.
    The model's own limit holds too."""
    spans: Literal["together", "one"] = "together"
    """Answers of several tokens, masked models: all masked at once, or one at a time
    (pseudo-likelihood)."""
    average: Literal["sum", "mean"] = "sum"
    """Score of an answer of several tokens: sum or mean of their log-likelihoods."""
    mirror: bool = True
    """Train on COPA's examples with their choices exchanged too, as PET does."""
    held_out: float = 0.1
    """Share of the training examples that chooses, where the data has no dev32 file."""
    train_limit: int = 0
    """Most training examples, the first ones; 0 takes all."""
    val_limit: int = 0
    """Most validation examples, the first ones, for a trial; 0 takes all."""


@dataclass(frozen=True)
class LearningConfig:
    """How model and vectors are learned; dev32 chooses the step, the rate and the batch."""

    rates: tuple[str, ...] = ("1e-5",)
    """Learning rates of the language model (and of a head); several are tried and dev chooses."""
    prompt_rate: float = 1e-4
    """Learning rate of the vectors' or the prefix's encoder."""
    batches: tuple[str, ...] = ("16",)
    """Examples per step; several are tried and dev chooses."""
    micro_batch: int = 0
    """Examples in one pass, whose gradients are added up to a step's; 0 takes them all at once."""
    steps: int = 3500
    """Most steps; the rates fall linearly to zero over them."""
    epochs: int = 0
    """Most passes over the training examples instead of steps; 0 counts steps."""
    warmup: int = 0
    """Steps over which the rates rise from zero."""
    weight_decay: float = 0.1
    """AdamW's, of the language model without biases and norms; the encoder has none."""
    clip: float = 1.0
    """Largest gradient norm; 0 does not clip."""
    evaluate_every: int = 20
    """Steps between two looks at dev; 0 looks after each epoch."""
    patience: int = 10
    """Stop after this many looks at dev without a higher accuracy; 0 never stops early."""
    dropout: bool = True
    """Train with the language model's own dropout on."""


@dataclass(frozen=True)
class PatternRunConfig:
    """One run through a pattern: a model, data, a method. Flags override the config file."""

    model: str = "shipped"
    """Folder or hub name of a masked or causal language model, or a GGUF file; "shipped" is the
    one in the package."""
    data: str = ""
    """Folder of the task, or of tasks named as SuperGLUE names them (FewGLUE_32dev)."""
    out: str = ""
    """Run folder to write."""
    seeds: tuple[str, ...] = ("42",)
    """Seeds of vectors, heads, order and dropout; each is a training of its own."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:N or mps."""
    dtype: str = "auto"
    """Weights: auto is float32, with passes in bfloat16 on a GPU; float64 is for tests."""
    max_tokens: int = 0
    """Most tokens in one pass while asking; 0 chooses by device."""
    checkpoint_seconds: float = 60.0
    """Least time between two checkpoints of an unfinished training."""
    save_model: bool = False
    """Store the trained language model of each seed as a transformers folder."""
    keep_weights: bool = True
    """Store the trained weights of the seed that does best on dev, which predict needs where the
    language model is trained too."""
    pattern: PatternConfig = field(default_factory=PatternConfig)
    learning: LearningConfig = field(default_factory=LearningConfig)


def load_pattern_config(name: str) -> PatternRunConfig:
    """Load a shipped config by name, or a TOML file by path.

    Raises:
        ConfigError: no such config, not TOML, an unknown key or a bad value.
    """
    return read_config(PatternRunConfig, name, check_pattern_config)


def is_pattern_config(name: str) -> bool:
    """Say whether a shipped config or TOML file has a pattern; what cannot be read has none."""
    path = shipped_configs().get(name, Path(name))
    try:
        return "pattern" in tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False


def make_pattern_config(table: dict[str, Any], *, where: str = "config") -> PatternRunConfig:
    """Build a config from nested plain values, refusing unknown keys and bad values."""
    return build_config(PatternRunConfig, table, check_pattern_config, where=where)


def check_pattern_config(config: PatternRunConfig) -> None:
    """Refuse values out of range, tasks that are not known and patterns that do not serve them.

    Raises:
        ConfigError, DataError, TemplateError: naming what was got and what is allowed.
    """
    pattern, learning = config.pattern, config.learning
    task = find_task(pattern.task)
    if "[MASK" in pattern.template:
        Pattern.parse(pattern.template).check(task)
    rates_of(learning)
    batches_of(learning)
    seeds_of(config)
    for key, value, least in (
        ("pattern.max_length", pattern.max_length, 8),
        ("pattern.lstm_hidden", pattern.lstm_hidden, 0),
        ("pattern.prefix_length", pattern.prefix_length, 1),
        ("pattern.train_limit", pattern.train_limit, 0),
        ("pattern.val_limit", pattern.val_limit, 0),
        ("learning.micro_batch", learning.micro_batch, 0),
        ("learning.steps", learning.steps, 1),
        ("learning.epochs", learning.epochs, 0),
        ("learning.warmup", learning.warmup, 0),
        ("learning.weight_decay", learning.weight_decay, 0),
        ("learning.clip", learning.clip, 0),
        ("learning.evaluate_every", learning.evaluate_every, 0),
        ("learning.patience", learning.patience, 0),
        ("max_tokens", config.max_tokens, 0),
    ):
        if not value >= least:
            raise ConfigError(f"{key} is {value}; it must be at least {least}.")
    if not learning.prompt_rate > 0:
        raise ConfigError(f"learning.prompt_rate is {learning.prompt_rate}; it must be above 0.")
    if not 0 <= pattern.prefix_dropout < 1:
        raise ConfigError(
            f"pattern.prefix_dropout is {pattern.prefix_dropout}; it must be in [0, 1)."
        )
    if not pattern.train_model and pattern.method in ("mp", "cls"):
        raise ConfigError(
            f'pattern.train_model = false leaves pattern.method = "{pattern.method}" nothing to '
            'learn; with a frozen model the methods are "ptuning", "pt2" and "zero-shot".'
        )
    if config.dtype not in ("auto", "float32", "float64"):
        raise ConfigError(
            f'dtype is "{config.dtype}"; weights that are trained are float32 (or float64), and '
            "passes are bfloat16 on a GPU by themselves: use auto."
        )


def trains_model(pattern: PatternConfig) -> bool:
    """Say whether a method changes the language model's own weights."""
    return pattern.train_model and pattern.method not in ("pt2", "zero-shot")


def rates_of(learning: LearningConfig) -> tuple[float, ...]:
    """Return the learning rates as numbers."""
    rates = _numbers("learning.rates", learning.rates, float)
    if not all(math.isfinite(rate) and rate > 0 for rate in rates):
        raise ConfigError(f"learning.rates is {list(learning.rates)}; each must be above 0.")
    return tuple(float(rate) for rate in rates)


def batches_of(learning: LearningConfig) -> tuple[int, ...]:
    """Return the batch sizes as numbers."""
    batches = _numbers("learning.batches", learning.batches, int)
    if not all(batch >= 1 for batch in batches):
        raise ConfigError(f"learning.batches is {list(learning.batches)}; each must be 1 or more.")
    return tuple(int(batch) for batch in batches)


def seeds_of(config: PatternRunConfig) -> tuple[int, ...]:
    """Return the seeds as numbers."""
    return tuple(int(seed) for seed in _numbers("seeds", config.seeds, int))


def _numbers(key: str, texts: tuple[str, ...], kind: type[int] | type[float]) -> list[float]:
    try:
        found: list[float] = [kind(text) for text in texts]
    except ValueError:
        found = []
    if not found or len(set(found)) != len(found):
        raise ConfigError(
            f'{key} is {list(texts)}; give one or more different numbers, each as text: ["1"].'
        )
    return found
