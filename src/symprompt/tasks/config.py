"""What a run on a labelled task is made from: a model, data, a method, how it learns.

A task is learned by a head on hidden states (``TuneConfig``), or answered through a pattern in
which words are the answers (``PatternRunConfig``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from symprompt.config import (
    Amount,
    Common,
    Count,
    Different,
    EpochLearningConfig,
    Factor,
    Incidental,
    Layers,
    ModelRunConfig,
    OwnRate,
    OwnSize,
    Positive,
    Rate,
    Seed,
    Several,
    Share,
    Size,
    load,
    read_toml,
    settings,
    shipped_configs,
)
from symprompt.config import LearningConfig as BasicLearningConfig
from symprompt.errors import ConfigError
from symprompt.tasks.patterns.pattern import Pattern, find_task

TuneMethod = Literal["ft", "pt", "pt2", "lora", "mpt2"]
Segments = Literal["auto", "on", "off"]


@settings
class ExamplesConfig:
    """Which examples are learned from, chosen by and reported on."""

    held_out: Share = 0.1
    """Share of the training examples that chooses where the data has no split of its own for
    that."""
    split_seed: Seed = 0
    """Seed of what is held out, and of what the limits draw."""
    train_limit: Count = 0
    """Most training examples; 0 takes all."""
    dev_limit: Count = 0
    """Most examples that the epoch or step is chosen on; 0 takes all."""
    test_limit: Count = 0
    """Most examples that are reported, for a trial; 0 takes all."""


@settings
class TaskConfig(ExamplesConfig):
    """Which task, and how its texts become features."""

    name: Common[str] = ""
    """A task that is known (rte, boolq, cb, mnli, sst2, conll2003, conll2004, wikigold, gum,
    ontonotes, squad, squad2, propbank-ewt, conll05, conll12); empty: files of your own."""
    kind: Literal[
        "auto", "sequence", "pair", "tagging", "words", "roles", "question", "spans", "relations"
    ] = "auto"
    """What your own files ask for: the class of a text or of two, spans by a tag for every word
    (tagging: O, B-PER, I-PER), any tag of every word (words: NOUN), every word's role to a
    predicate, the answer to a question, the spans of a sentence, or spans and how they are related;
    auto: what the columns of your files say (text and label: sequence; first, second, label: pair;
    words and tags: tagging or words, as the tags are), or as the known task is read. Entities can
    be read as spans too, conll2004 as relations, conll2003 and propbank-ewt as words: their parts
    of speech."""
    identify: bool = False
    """Only find spans: all their types are one (kind spans)."""
    columns: Common[Several[str]] = ()
    """Names of columns in your own files, as text=review or first=premise second=hypothesis
    label=relation; numbers from 0 on where a table has no line of names. Well-known names need not
    be given (sentence1 and sentence2, premise and hypothesis, gold_label, tokens, pos and others),
    and what was found is said in a line."""
    max_length: Annotated[int, Field(ge=8)] = 128
    """Most tokens of an input, special ones included, and never more than the model's trained
    positions; longer ones are split into windows that are joined again, of two texts the longer
    one."""
    stride: Count = 64
    """Tokens that two windows of a text share."""
    windows: Literal["separate", "pooled"] = "separate"
    """How the class of a text of several windows is learned: separate: each window is an input of
    its own and inherits the text's label, whether or not it shows the reason; pooled: the mean of
    its windows' scores has the label. Predictions are of the mean either way."""
    segments: Common[Segments] = "auto"
    """Whether the second of two texts stands in the model's second segment: auto: if that was
    trained; on: in any model that has two; off."""
    label_all_tokens: bool = False
    """Tags count for every token of a word, not for its first alone."""
    unanswerable: Literal["data", "always"] = "data"
    """always: every question may have no answer, also where no training question is such."""
    choose_threshold: bool = False
    """Choose how much higher no answer must score than the best one, or how much higher a span's
    class than none, on the split that chooses epochs, instead of 0."""


@settings
class PrefixConfig:
    """The prompts: of the input layer (pt) or of the layers (pt2, mpt2)."""

    length: Common[Size] = 20
    """How many vectors stand in front."""
    encoder: Literal["free", "mlp"] = "free"
    """free: the vectors are parameters; mlp: they come out of a small network (pt2)."""
    hidden: OwnSize = 0
    """Inner size of that network; 0 is the model's hidden size."""
    dropout: Share = 0.0
    """Of the prefix while training (pt2)."""
    layers: Layers = "all"
    """Which layers read the prefix (pt2, mpt2): all, first:6, last:6, or numbers from 1 on, as in
    1,3,5 or 7-12; the others attend to the tokens alone."""
    shift_positions: bool = False
    """Count the places of the prefix when tokens are numbered, as past keys and values do."""


@settings
class LoraConfig:
    """The adapters; concerns lora alone."""

    rank: Size = 8
    """Rank of the adapters."""
    alpha: Rate = 16.0
    """Adapters count alpha / rank."""
    targets: Several[str] = ()
    """Last parts of the names of the layers with adapters, as in "query"; empty takes every linear
    layer of the body."""


@settings
class WeightsConfig:
    """Which of the model's own weights are trained; concerns ft alone."""

    layers: Annotated[int, Field(ge=-1)] = -1
    """How many layers, counted from the last; -1: every weight; 0: none, the head alone."""


@settings
class HeadConfig:
    """What reads classes, tags or answers off the hidden states."""

    kind: Literal["linear", "mlp"] = "linear"
    """linear, or mlp: a layer with tanh before it."""
    dropout: Share = 0.1
    """Of the states that the head reads, while training."""
    decoder: Literal["softmax", "crf"] = "softmax"
    """What chooses tags: each word's own distribution, or a conditional random field, which
    learns which tags follow each other."""
    constrain: bool = False
    """Give only sequences of tags that IOB2 allows: the best of them, not a repaired one."""
    combine: Literal["first", "mean"] = "first"
    """Read a word's tag off its first token, or off the distributions of all its tokens."""


@settings
class SpanConfig:
    """How spans are represented, scored and chosen; concerns the kinds spans and relations."""

    length: Size = 8
    """Most words of a span."""
    boundary: Literal["plain", "ffn"] = "ffn"
    """A span's start and end: the states of its first and last token, or two networks' outputs."""
    summary: Literal["mean", "attention"] = "mean"
    """What stands for a span's tokens: the mean of their states, or attention over them."""
    hidden: Size = 256
    """Inner size of the classifiers."""
    negatives: OwnSize = 0
    """About how many spans of no class each input trains on, drawn anew at each step; 0: all."""
    candidates: OwnSize = 0
    """How many spans of an input are kept for decoding; 0: 64, and 32 with relations."""
    overlaps: Literal["flat", "nested", "all"] = "flat"
    """Which spans may stand together: flat: none share a word; nested: one may lie in another."""


@settings
class LearningConfig(EpochLearningConfig):
    """How the trained weights are learned."""

    rate: Common[Rate] = 5e-3
    head_rate: OwnRate = 0.0
    """Highest learning rate of the head; 0 takes that of prompts, adapters or weights, rate."""
    decay: Factor = 0.95
    clip: Amount = 1.0
    epochs: Common[Positive] = 20
    choose: str = "auto"
    """The dev metric that chooses the epoch; auto is the task's first. Ties take the earlier."""
    choose_every: Positive = 1
    """Epochs between two looks at dev; the last is always looked at."""
    dropout: Share = 0.0
    """Dropout of the language model while training."""


@settings
class MixtureConfig:
    """The tasks that share prefixes first; concerns mpt2 alone."""

    tasks: Several[str] = ()
    """Names of the tasks, all of one kind; their files are in folders of these names in the data's,
    or say where: wikigold=other/folder."""
    epochs: Positive = 10
    """Passes over all tasks' training inputs while the prefixes are shared."""
    rate: OwnRate = 0.0
    """Learning rate of that stage; 0 takes learning.rate."""


@settings
class TuneConfig(ModelRunConfig):
    """One run on a labelled task: a model, data, a method. Flags override the config file."""

    data: Common[str] = ""
    """Folder the task's files are in, or a file of your own."""
    method: Common[TuneMethod] = "pt2"
    """ft (the weights), pt (prompts at the input layer), pt2 (a prefix at every layer), lora, or
    mpt2 (a prefix that several tasks learned first)."""
    seed: Common[Seed] = 11
    """Seed of prompts, head and order."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of the passes: auto (bfloat16 on CUDA, else float32), float32 or bfloat16. What is learned
    is kept in float32."""
    start_from: Common[str] = ""
    """A finished run on the same model and method whose prompt training goes on from; its head
    too where labels are the same."""
    task: TaskConfig = TaskConfig()
    prefix: PrefixConfig = PrefixConfig()
    lora: LoraConfig = LoraConfig()
    weights: WeightsConfig = WeightsConfig()
    head: HeadConfig = HeadConfig()
    span: SpanConfig = SpanConfig()
    learning: LearningConfig = LearningConfig()
    mixture: MixtureConfig = MixtureConfig()

    def __post_init__(self) -> None:
        """Refuse parts that do not go together."""
        if self.task.stride > self.task.max_length // 2:
            raise ConfigError(
                f"task.stride is {self.task.stride}; it may be at most half of task.max_length "
                f"({self.task.max_length}), or windows hardly move on."
            )
        named = [name.partition("=")[0] for name in self.mixture.tasks]
        if len(named) == 1:
            raise ConfigError(
                f"mixture.tasks names {named[0]} alone; name two tasks or more, or choose "
                'method = "pt2".'
            )
        if named and self.task.name not in ("", *named):
            raise ConfigError(
                f"task.name is {self.task.name!r}, which is not one of mixture.tasks "
                f"({', '.join(named)}); leave it out, or name one of them."
            )
        if self.head.decoder == "crf" and self.head.combine == "mean":
            raise ConfigError(
                'head.combine = "mean" joins distributions of single tokens, and head.decoder = '
                '"crf" has none; use combine = "first", or decoder = "softmax".'
            )


def load_tune_config(name: str) -> TuneConfig:
    """Load a shipped config for labelled tasks by name, or a TOML file by path.

    Raises:
        ConfigError: no such config, one for another command, not TOML, an unknown key or a bad
            value.

    Example:
        >>> load_tune_config("rte-pt2").method
        'pt2'
    """
    return load(TuneConfig, name)


def check_settings(
    config: TuneConfig, what: str, own: str, known: Mapping[str, tuple[str, ...]]
) -> None:
    """Refuse settings that concern other kinds, or other methods, alone.

    Args:
        what: "task's kind" or "method".
        own: the one there is.
        known: name -> the keys that concern it, "table.key" or a whole table.

    Raises:
        ConfigError: such a key is not at its default.
    """
    plain = TuneConfig()
    for key in sorted({key for keys in known.values() for key in keys} - set(known[own])):
        users = ", ".join(name for name, keys in known.items() if key in keys)
        table, _, name = key.partition(".")
        ours, default = getattr(config, table), getattr(plain, table)
        for entry in [name] if name else vars(default):
            value = getattr(ours, entry)
            if value != getattr(default, entry):
                raise ConfigError(
                    f"{table}.{entry} is {value!r}, which is about {users} alone, and the {what} "
                    f"is {own!r}; leave it out."
                )


# ------------------------------------------------------------------------------ patterns

EncoderKind = Literal["free", "mlp", "bilstm"]
VerbalMethod = Literal["ptuning", "pt2", "mp", "zero-shot", "cls"]


@dataclass(frozen=True)
class MethodTraits:
    """What a method that answers through patterns learns; final.

    Attributes:
        learns: whether anything is trained.
        trains_model: whether the language model's weights may be trained.
        needs_model: whether nothing is left to learn if they are not.
        verbal: whether words answer; if not, a head on [CLS] does.
        prompt: what is learned beside the model and stored as its prompt: "vectors" in the pattern,
            or a "prefix" at every layer; empty for nothing.
    """

    learns: bool = True
    trains_model: bool = True
    needs_model: bool = False
    verbal: bool = True
    prompt: Literal["", "vectors", "prefix"] = ""


METHODS: dict[VerbalMethod, MethodTraits] = {
    "ptuning": MethodTraits(prompt="vectors"),
    "pt2": MethodTraits(trains_model=False, prompt="prefix"),
    "mp": MethodTraits(needs_model=True),
    "zero-shot": MethodTraits(learns=False, trains_model=False),
    "cls": MethodTraits(needs_model=True, verbal=False),
}


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
    lstm_hidden: OwnSize = 0
    """LSTM size per direction; 0 is the model's embedding width, as in P-tuning's few-shot code."""
    train_model: bool = True
    """Train the language model too, as P-tuning does on SuperGLUE; if not, the vectors alone. pt2
    never does."""
    prefix_length: Size = 20
    """How many keys and values stand before each layer's own (pt2)."""
    prefix_encoder: Literal["free", "mlp"] = "free"
    """free: the keys and values are parameters; mlp: they come out of a small network (pt2)."""
    prefix_dropout: Share = 0.0
    """Of the prefix while training (pt2)."""
    prefix_layers: Layers = "all"
    """Which layers read the prefix (pt2): all, first:6, last:6, or numbers from 1 on."""
    max_length: Annotated[int, Field(ge=8)] = 256
    """Most tokens of a sentence; longer ones lose the end of their longest field, and are counted.
    The model's trained positions are a limit too, so that [MASK] never stands beyond them."""
    spans: Literal["together", "one"] = "together"
    """Answers of several tokens, masked models: all masked at once, or one at a time
    (pseudo-likelihood)."""
    average: Literal["sum", "mean"] = "sum"
    """Score of an answer of several tokens: sum or mean of their log-likelihoods."""
    mirror: bool = True
    """Train on COPA's examples with their choices exchanged too, as PET does."""

    @property
    def traits(self) -> MethodTraits:
        """What the method learns."""
        return METHODS[self.method]

    @property
    def joint(self) -> bool:
        """Whether the language model's own weights are trained."""
        return self.train_model and self.traits.trains_model


@settings
class PatternLearningConfig(BasicLearningConfig):
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
class PatternRunConfig(ModelRunConfig):
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
    learning: PatternLearningConfig = PatternLearningConfig()

    def __post_init__(self) -> None:
        """Refuse tasks that are not known, patterns that do not serve them, and nothing to learn.

        Raises:
            ConfigError, DataError, TemplateError: naming what was got and what is allowed.
        """
        pattern = self.pattern
        task = find_task(pattern.task)
        if "[MASK" in pattern.template:
            Pattern.parse(pattern.template).check(task)
        if not pattern.train_model and pattern.traits.needs_model:
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
    except ConfigError:
        return False
