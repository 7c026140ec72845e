"""What a run on a labelled task is made from: frozen dataclasses, read from TOML."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from symprompt.config.build import build_config, read_config
from symprompt.errors import ConfigError

Kind = Literal["sequence", "pair", "tagging", "roles", "question", "spans", "relations"]
TuneMethod = Literal["ft", "pt", "pt2", "lora", "mpt2"]
METHODS: dict[str, str] = {
    "ft": "fine-tuning of every weight",
    "pt": "prompts at the input layer",
    "pt2": "P-tuning v2: a prefix at every layer",
    "lora": "low-rank adapters",
    "mpt2": "multi-task P-tuning v2",
}


@dataclass(frozen=True)
class TaskConfig:
    """Which task, and how its texts become features."""

    name: str = ""
    """A task that is known (rte, boolq, cb, mnli, sst2, conll2003, conll2004, wikigold, gum,
    ontonotes, squad, squad2, propbank-ewt, conll05, conll12); empty: files of your own."""
    kind: Literal[
        "auto", "sequence", "pair", "tagging", "roles", "question", "spans", "relations"
    ] = "auto"
    """What your own files ask for: the class of a text or of two, the tag of every word, every
    word's role to a predicate, the answer to a question, the spans of a sentence, or spans and how
    they are related; auto: a known task says it itself. Entities can be read as spans too, and
    conll2004 as relations."""
    identify: bool = False
    """Only find spans: all their types are one (kind spans)."""
    columns: tuple[str, ...] = ()
    """Names of columns in your own files, as text=review or label=stars."""
    max_length: int = 128
    """Most tokens of an input, special ones included; longer ones are split into windows that are
    joined again, of two texts the longer one."""
    stride: int = 64
    """Tokens that two windows of a text share."""
    label_all_tokens: bool = False
    """Tags count for every token of a word, not for its first alone."""
    held_out: float = 0.1
    """Share of the training examples that chooses the epoch where the data has no split of its own
    for that."""
    split_seed: int = 0
    """Seed of what is held out, and of what the limits draw."""
    train_limit: int = 0
    """Most training examples; 0 takes all."""
    dev_limit: int = 0
    """Most examples that the epoch is chosen on; 0 takes all."""
    test_limit: int = 0
    """Most test examples, for a trial; 0 takes all."""
    unanswerable: Literal["data", "always"] = "data"
    """always: every question may have no answer, also where no training question is such."""
    choose_threshold: bool = False
    """Choose how much higher no answer must score than the best one, or how much higher a span's
    class than none, on the split that chooses epochs, instead of 0."""


@dataclass(frozen=True)
class PrefixConfig:
    """The prompts: of the input layer (pt) or of every layer (pt2, mpt2)."""

    length: int = 20
    """How many vectors stand in front."""
    encoder: Literal["free", "mlp"] = "free"
    """free: the vectors are parameters; mlp: they come out of a small network (pt2)."""
    hidden: int = 0
    """Inner size of that network; 0 is the model's hidden size."""
    dropout: float = 0.0
    """Of the prefix while training (pt2)."""
    shift_positions: bool = False
    """Count the places of the prefix when tokens are numbered, as past keys and values do."""


@dataclass(frozen=True)
class LoraConfig:
    """The adapters; concerns lora alone."""

    rank: int = 8
    """Rank of the adapters."""
    alpha: float = 16.0
    """Adapters count alpha / rank."""
    targets: tuple[str, ...] = ()
    """Last parts of the names of the layers with adapters, as in "query"; empty takes every linear
    layer of the body."""


@dataclass(frozen=True)
class WeightsConfig:
    """Which of the model's own weights are trained; concerns ft alone."""

    layers: int = -1
    """How many layers, counted from the last; -1: every weight; 0: none, the head alone."""


@dataclass(frozen=True)
class HeadConfig:
    """What reads classes, tags or answers off the hidden states."""

    kind: Literal["linear", "mlp"] = "linear"
    """linear, or mlp: a layer with tanh before it."""
    dropout: float = 0.1
    """Of the states that the head reads, while training."""
    decoder: Literal["softmax", "crf"] = "softmax"
    """What chooses tags: each word's own distribution, or a conditional random field, which
    learns which tags follow each other."""
    constrain: bool = False
    """Give only sequences of tags that IOB2 allows: the best of them, not a repaired one."""
    combine: Literal["first", "mean"] = "first"
    """Read a word's tag off its first token, or off the distributions of all its tokens."""


@dataclass(frozen=True)
class SpanConfig:
    """How spans are represented, scored and chosen; concerns the kinds spans and relations."""

    length: int = 8
    """Most words of a span."""
    boundary: Literal["plain", "ffn"] = "ffn"
    """A span's start and end: the states of its first and last token, or two networks' outputs."""
    summary: Literal["mean", "attention"] = "mean"
    """What stands for a span's tokens: the mean of their states, or attention over them."""
    hidden: int = 256
    """Inner size of the classifiers."""
    negatives: int = 0
    """About how many spans of no class each input trains on, drawn anew at each step; 0: all."""
    candidates: int = 0
    """How many spans of an input are kept for decoding; 0: 64, and 32 with relations."""
    overlaps: Literal["flat", "nested", "all"] = "flat"
    """Which spans may stand together: flat: none share a word; nested: one may lie in another."""


@dataclass(frozen=True)
class LearningConfig:
    """How the trained numbers are learned."""

    rate: float = 5e-3
    """Highest learning rate."""
    head_rate: float = 0.0
    """The head's, if another."""
    weight_decay: float = 0.0
    """AdamW's; biases, norms and prompts are not decayed."""
    schedule: Literal["linear", "exponential", "constant"] = "linear"
    """linear: to zero at the last step; exponential: times decay after each epoch."""
    decay: float = 0.95
    """Factor per epoch of the exponential schedule."""
    warmup: float = 0.0
    """Share of all steps over which the rate rises from zero."""
    clip: float = 1.0
    """Largest gradient norm; 0 does not clip."""
    batch: int = 32
    """Inputs per step."""
    epochs: int = 20
    """Most passes over the training inputs."""
    patience: int = 0
    """Stop after this many epochs without a better dev score; 0 never stops early."""
    choose: str = "auto"
    """The dev metric that chooses the epoch; auto is the task's first. Ties take the earlier."""
    choose_every: int = 1
    """Epochs between two looks at dev; the last is always looked at."""
    dropout: float = 0.0
    """Dropout of the language model while training."""


@dataclass(frozen=True)
class MixtureConfig:
    """The tasks that share prefixes first; concerns mpt2 alone."""

    tasks: tuple[str, ...] = ()
    """Names of the tasks, all of one kind; their files are in folders of these names in the data's,
    or say where: wikigold=other/folder."""
    epochs: int = 10
    """Passes over all tasks' training inputs while the prefixes are shared."""
    rate: float = 0.0
    """Learning rate of that stage; 0 takes learning.rate."""


@dataclass(frozen=True)
class TuneConfig:
    """One run on a labelled task: a model, data, a method. Flags override the config file."""

    model: str = "shipped"
    """Folder or hub name of a masked or causal language model; "shipped" is the one in the
    package."""
    data: str = ""
    """Folder the task's files are in, or a file of your own."""
    out: str = ""
    """Run folder to write."""
    method: TuneMethod = "pt2"
    """ft (the weights), pt (prompts at the input layer), pt2 (a prefix at every layer), lora, or
    mpt2 (a prefix that several tasks learned first)."""
    seed: int = 11
    """Seed of prompts, head and order."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:N or mps."""
    dtype: str = "auto"
    """Of the passes: auto (bfloat16 on CUDA, else float32), float32 or bfloat16. What is learned
    is kept in float32."""
    max_tokens: int = 0
    """Most tokens in one pass when asking; 0 chooses by device."""
    checkpoint_seconds: float = 60.0
    """Least time between two checkpoints of an unfinished run."""
    record: bool = True
    """Record steps as CUDA graphs on a GPU."""
    start_from: str = ""
    """A finished run on the same model and method whose prompt training goes on from; its head
    too where labels are the same."""
    task: TaskConfig = field(default_factory=TaskConfig)
    prefix: PrefixConfig = field(default_factory=PrefixConfig)
    lora: LoraConfig = field(default_factory=LoraConfig)
    weights: WeightsConfig = field(default_factory=WeightsConfig)
    head: HeadConfig = field(default_factory=HeadConfig)
    span: SpanConfig = field(default_factory=SpanConfig)
    learning: LearningConfig = field(default_factory=LearningConfig)
    mixture: MixtureConfig = field(default_factory=MixtureConfig)


# What may differ between the two halves of a resumed run: none of it changes the numbers' recipe.
INCIDENTAL = ("out", "device", "max_tokens", "checkpoint_seconds", "record")


def load_tune_config(name: str) -> TuneConfig:
    """Load a shipped config for labelled tasks by name, or a TOML file by path.

    Raises:
        ConfigError: no such config, one for another command, not TOML, an unknown key or a bad
            value.
    """
    return read_config(TuneConfig, name, check_tune_config)


def make_tune_config(table: dict[str, Any], *, where: str = "config") -> TuneConfig:
    """Build a config from nested plain values, refusing unknown keys and bad values."""
    return build_config(TuneConfig, table, check_tune_config, where=where)


def check_tune_config(config: TuneConfig) -> None:
    """Refuse values out of range, and parts that do not go together.

    Raises:
        ConfigError: naming the key, what was got and what is allowed.
    """
    learning, task = config.learning, config.task
    least = {
        "task.max_length": (task.max_length, 8),
        "task.stride": (task.stride, 0),
        "task.train_limit": (task.train_limit, 0),
        "task.dev_limit": (task.dev_limit, 0),
        "task.test_limit": (task.test_limit, 0),
        "prefix.length": (config.prefix.length, 1),
        "prefix.hidden": (config.prefix.hidden, 0),
        "lora.rank": (config.lora.rank, 1),
        "weights.layers": (config.weights.layers, -1),
        "span.length": (config.span.length, 1),
        "span.hidden": (config.span.hidden, 1),
        "span.negatives": (config.span.negatives, 0),
        "span.candidates": (config.span.candidates, 0),
        "learning.weight_decay": (learning.weight_decay, 0),
        "learning.head_rate": (learning.head_rate, 0),
        "learning.clip": (learning.clip, 0),
        "learning.batch": (learning.batch, 1),
        "learning.epochs": (learning.epochs, 1),
        "learning.patience": (learning.patience, 0),
        "learning.choose_every": (learning.choose_every, 1),
        "mixture.epochs": (config.mixture.epochs, 1),
        "mixture.rate": (config.mixture.rate, 0),
        "max_tokens": (config.max_tokens, 0),
    }
    for key, (value, bound) in least.items():
        if not value >= bound:
            raise ConfigError(f"{key} is {value}; it must be at least {bound}.")
    inside = {
        "prefix.dropout": config.prefix.dropout,
        "head.dropout": config.head.dropout,
        "learning.dropout": learning.dropout,
        "learning.warmup": learning.warmup,
        "task.held_out": task.held_out,
    }
    for key, share in inside.items():
        if not 0 <= share < 1:
            raise ConfigError(f"{key} is {share}; it must be in [0, 1).")
    for key, number in {"learning.rate": learning.rate, "lora.alpha": config.lora.alpha}.items():
        if not number > 0:
            raise ConfigError(f"{key} is {number}; it must be above 0.")
    if not 0 < learning.decay <= 1:
        raise ConfigError(f"learning.decay is {learning.decay}; it must be in (0, 1].")
    _check_together(config)


def _check_together(config: TuneConfig) -> None:
    """Refuse parts that do not go together."""
    if config.dtype not in ("auto", "float32", "bfloat16"):
        raise ConfigError(f"dtype is {config.dtype!r}; allowed are: auto, float32, bfloat16.")
    if config.task.stride > config.task.max_length // 2:
        raise ConfigError(
            f"task.stride is {config.task.stride}; it may be at most half of task.max_length "
            f"({config.task.max_length}), or windows hardly move on."
        )
    if (config.method == "mpt2") != bool(config.mixture.tasks):
        raise ConfigError(
            'method = "mpt2" and mixture.tasks need each other; name the tasks that share a '
            'prefix, or choose method = "pt2".'
        )
    named = [name.partition("=")[0] for name in config.mixture.tasks]
    if len(named) == 1:
        raise ConfigError(
            f"mixture.tasks names {named[0]} alone; name two tasks or more, or choose "
            'method = "pt2".'
        )
    if config.method == "mpt2" and config.task.name not in ("", *named):
        raise ConfigError(
            f"task.name is {config.task.name!r}, which is not one of mixture.tasks "
            f"({', '.join(named)}); leave it out, or name one of them."
        )
    if config.weights.layers != -1 and config.method != "ft":
        raise ConfigError(
            f"weights.layers is {config.weights.layers}, and method is {config.method!r}, which "
            'trains none of the model\'s weights; use method = "ft", or leave it out.'
        )
    if config.head.decoder == "crf" and config.head.combine == "mean":
        raise ConfigError(
            'head.combine = "mean" joins distributions of single tokens, and head.decoder = "crf" '
            'has none; use combine = "first", or decoder = "softmax".'
        )
    if config.start_from and config.method in ("ft", "lora", "mpt2"):
        raise ConfigError(
            f'start_from goes on from a prompt, and method = "{config.method}" does not begin '
            'with one; use "pt" or "pt2".'
        )
