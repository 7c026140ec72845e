"""What a probing run is made from: facts, a prompt, a method, how it learns."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

from symprompt.config.build import at_least, build_config, read_config
from symprompt.errors import ConfigError
from symprompt.probing.methods import METHODS, MethodName


@dataclass(frozen=True)
class FactsConfig:
    """Which facts, and which answers are allowed."""

    layout: Literal["auto", "lama", "table", "world"] = "auto"
    """How the data is laid out; auto looks."""
    relations: tuple[str, ...] = ()
    """Only these relations; empty takes all."""
    templates: str = ""
    """File or folder of manual templates; empty looks beside the data."""
    vocabulary: str = "full"
    """Allowed answers: full (every token), objects (those seen in the relation's training facts),
    or the path of a word list, one word a line."""
    objects: Literal["one-token", "any-length"] = "one-token"
    """any-length: objects may be several tokens, and are ranked among the relation's training
    objects (vocabulary = "objects") and the names of a list, if one is given; a line of it is a
    name, or a relation, a tab and a name."""
    uhn: bool = False
    """Leave out test facts whose object is named in the subject (LAMA-UHN's string filter)."""
    strict: bool = False
    """Stop at a fact whose object is not one allowed token, instead of counting it as dropped."""
    split_seed: int = 0
    """Seed of the split where the data has none, and of what the three limits below draw."""
    train_limit: int = 0
    """Most training facts of a relation; those beyond are left out and counted. 0 takes all."""
    dev_limit: int = 0
    """Most dev facts of a relation; 0 takes all."""
    test_limit: int = 0
    """Most test facts of a relation; 0 takes all."""


@dataclass(frozen=True)
class PromptConfig:
    """The template and what makes its vectors."""

    template: str = "<3> [X] <3> [Y] <3>"
    """<n> learned vectors, [X] the subject, [Y] the object, words are anchors; "manual" takes each
    relation's manual template. For causal models [Y] is last, and manual ones are cut after it."""
    encoder: Literal["free", "mlp", "bilstm"] = "bilstm"
    """free: the vectors are parameters; mlp, bilstm: they come out of a small network."""
    start: Literal["random", "manual"] = "random"
    """manual: free vectors in the shape of the relation's manual template, which takes the place of
    the template above, start from its words' embeddings. A search starts from its words, or from
    masks (random)."""
    lstm_hidden: int = 0
    """LSTM size per direction; 0 is half the model's embedding width, -1 all of it."""


@dataclass(frozen=True)
class MethodConfig:
    """The method; what follows the name concerns asking back (SPE), the last two long objects."""

    name: MethodName = "spe"
    """The method; lpaqa, majority and manual learn no vectors, autoprompt searches for words,
    finetune learns weights."""
    k: int = 15
    """How many candidates are asked back (equation 8); also how many are stored."""
    weight: float = 0.8
    """Weight of the backward score when re-ranking (lambda in equation 10)."""
    train_weight: float = 0.8
    """Weight of the backward loss in training (lambda in equation 7)."""
    masking: Literal["one", "whole"] = "one"
    """Mask the subject one token at a time, or all of it at once; causal models mask nothing, for
    them "one" is each token given those before it."""
    average: Literal["log", "probability", "sum"] = "log"
    """Subject score: mean of its tokens' log-likelihoods, log of their mean likelihood, or sum of
    log-likelihoods (longer subjects then weigh more)."""
    blanks: Literal["swapped", "kept"] = "swapped"
    """swapped: on the way back the object fills the first blank (equation 4)."""
    vectors: Literal["shared", "separate"] = "shared"
    """One set of vectors for both directions (the paper), or one for each."""
    choose_weight: Literal["fixed", "dev", "dev-relation", "dev-fit"] = "fixed"
    """Where the re-ranking weight comes from: as given, best dev MRR for all or per relation, or a
    fit on dev that also weighs how frequent an object is in training."""
    object_masking: Literal["name", "word", "one"] = "name"
    """Objects of several tokens: mask the token asked for and what follows it in the name, what
    follows it in its word, or it alone; causal models mask nothing."""
    object_average: Literal["mean", "sum"] = "mean"
    """Score of an object of several tokens: mean or sum of their log-likelihoods."""


@dataclass(frozen=True)
class TrainingConfig:
    """How the vectors are learned. Every relation keeps its own clock, clip and best epoch."""

    optimizer: Literal["adam", "adamw"] = "adam"
    """adam adds weight decay to the gradient (L2); adamw shrinks the weights."""
    rate: float = 5e-4
    """Learning rate."""
    weight_decay: float = 0.0
    """Weight decay."""
    schedule: Literal["constant", "exponential", "linear"] = "exponential"
    """exponential: times decay after each epoch; linear: to zero at the last step."""
    decay: float = 0.98
    """Factor per epoch of the exponential schedule."""
    warmup: float = 0.0
    """Share of all steps over which the rate rises from zero."""
    clip: float = 0.0
    """Largest gradient norm per relation; 0 does not clip."""
    batch: int = 8
    """Facts per relation and step."""
    drop_last: bool = True
    """Leave out an epoch's last, smaller batch (unless it is the only one)."""
    epochs: int = 20
    """Most passes over the training facts; of a search, see search.steps."""
    patience: int = 0
    """Stop a relation after this many epochs without a better dev score; 0 never stops early."""
    select: Literal["p@1", "mrr", "loss"] = "mrr"
    """Dev score of the forward order that chooses each relation's best epoch; ties take the later
    epoch. Separate vectors for the way back are chosen by their own dev loss."""
    lm_dropout: bool = False
    """Train with the language model's own dropout on, as the P-tuning code does."""


@dataclass(frozen=True)
class SearchConfig:
    """How words are searched (autoprompt); batch, epochs, patience and select stand in training."""

    steps: int = 5
    """Replacements tried in each relation's prompt in one epoch; dev is scored after an epoch."""
    candidates: int = 10
    """Words tried in the place of one, the best by the gradient."""
    filters: bool = True
    """Never take capitalised words or the relation's training objects; special tokens never are."""


@dataclass(frozen=True)
class EnsembleConfig:
    """Several written prompts per relation (lpaqa, softprompt), and how their answers are mixed."""

    prompts: tuple[str, ...] = ()
    """Folders (P36.jsonl, ... with a template a line) or JSONL files (relation, template) of
    written prompts; empty looks beside the data for prompts/trex_mine and trex_paraphrase."""
    with_manual: bool = True
    """The relation's manual template is one of the prompts, the first."""
    combine: Literal["top1", "uniform", "optimised"] = "optimised"
    """For lpaqa. top1: the prompt with the best P@1 on train; uniform: all weigh the same;
    optimised: the weights that make the training objects most likely."""
    mixture: Literal["log", "probability"] = "log"
    """What lpaqa averages over prompts: log-probabilities (the paper), or probabilities."""
    most: int = 0
    """Most prompts of a relation; those with the best P@1 on train are taken. 0 takes all."""
    weighing: Literal["em", "gradient"] = "em"
    """How softprompt learns its prompts' weights: em sets them to the prompts' mean share in the
    training objects' likelihood, after each epoch; gradient learns them like the vectors."""
    deep: bool = False
    """Let softprompt also move the hidden states of the prompt before every layer."""


def check_ensemble(config: EnsembleConfig) -> None:
    """Refuse values out of range.

    Raises:
        ConfigError: naming the key, what was got and what is allowed.
    """
    if config.most < 0:
        raise ConfigError(f"ensemble.most is {config.most}; it must be at least 0.")


@dataclass(frozen=True)
class TuningConfig:
    """Which weights are learned; concerns finetune alone."""

    tune: Literal["full", "lora"] = "full"
    """full: every weight, a copy for each relation; lora: low-rank adapters of linear layers."""
    lora_rank: int = 8
    """Rank of the adapters."""
    lora_alpha: float = 16.0
    """Adapters count alpha / rank."""
    lora_targets: tuple[str, ...] = ()
    """Last parts of the names of the layers with adapters, as in "query"; empty takes every linear
    layer but the one onto the vocabulary."""
    save_weights: bool = False
    """Store each relation's weights, so that the run can be asked; adapters are always stored."""
    at_once: int = 0
    """Relations trained in one stack; 0 takes as many as half of a GPU's memory, or 2 GiB, hold."""


def check_tuning(tuning: TuningConfig) -> None:
    """Refuse values out of range.

    Raises:
        ConfigError: naming the key, what was got and what is allowed.
    """
    for key, least in (("lora_rank", 1), ("at_once", 0)):
        if getattr(tuning, key) < least:
            raise ConfigError(
                f"tuning.{key} is {getattr(tuning, key)}; it must be at least {least}."
            )
    if not tuning.lora_alpha > 0:
        raise ConfigError(f"tuning.lora_alpha is {tuning.lora_alpha}; it must be above 0.")


def model_dtype(method: str, dtype: str) -> str:
    """Return the dtype a run's model is loaded in: some methods want one on any device."""
    return METHODS[method].dtype or dtype if dtype == "auto" else dtype


@dataclass(frozen=True)
class RunConfig:
    """One run: a model, facts, a method. Flags override the config file."""

    model: str = "shipped"
    """Folder or hub name of a masked or causal language model, or a GGUF file; "shipped" is the
    one in the package."""
    data: str = "world"
    """Folder or file of facts, or "world" for the facts about countries and cities."""
    out: str = ""
    """Run folder to write."""
    seed: int = 34
    """Seed of vectors and shuffling."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:N or mps."""
    dtype: str = "auto"
    """auto (bfloat16 on CUDA, else float32), float32, bfloat16, float16 or float64."""
    max_tokens: int = 0
    """Most tokens in one pass through the model; 0 chooses by device. Bounds memory."""
    checkpoint_seconds: float = 60.0
    """Least time between two checkpoints of an unfinished run."""
    compile: bool = False
    """Compile the model's layers: faster passes on a GPU after a slower start."""
    keep_encoder: bool = True
    """Store the prompt encoder too, so that training can go on from the run."""
    start_from: str = ""
    """A finished run whose prompts training goes on from."""
    rerank: str = ""
    """A finished SPE run on the same model and facts, whose way back re-ranks the candidates;
    masking, average, blanks, vectors, weight and choose_weight are then that run's."""
    facts: FactsConfig = field(default_factory=FactsConfig)
    prompt: PromptConfig = field(default_factory=PromptConfig)
    method: MethodConfig = field(default_factory=MethodConfig)
    ensemble: EnsembleConfig = field(default_factory=EnsembleConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    search: SearchConfig = field(default_factory=SearchConfig)
    tuning: TuningConfig = field(default_factory=TuningConfig)


# What may differ between the two halves of a resumed run: none of it changes the numbers' recipe.
INCIDENTAL = (
    "out",
    "device",
    "max_tokens",
    "checkpoint_seconds",
    "compile",
    "keep_encoder",
    "tuning.at_once",
)


def load_config(name: str) -> RunConfig:
    """Load a shipped config by name, or a TOML file by path.

    Raises:
        ConfigError: no such config, not TOML, an unknown key or a bad value.
    """
    return read_config(RunConfig, name, check_config)


def make_config(table: dict[str, Any], *, where: str = "config") -> RunConfig:
    """Build a config from nested plain values, refusing unknown keys and bad values."""
    return build_config(RunConfig, table, check_config, where=where)


def check_config(config: RunConfig) -> None:
    """Refuse values out of range.

    Raises:
        ConfigError: naming the key, what was got and what is allowed.
    """
    training, method = config.training, config.method
    check_ensemble(config.ensemble)
    at_least("method.k", method.k, 1)
    at_least("method.weight", method.weight, 0)
    at_least("method.train_weight", method.train_weight, 0)
    at_least("training.batch", training.batch, 1)
    at_least("training.epochs", training.epochs, 0)
    at_least("training.patience", training.patience, 0)
    at_least("training.weight_decay", training.weight_decay, 0)
    at_least("training.clip", training.clip, 0)
    at_least("search.steps", config.search.steps, 1)
    at_least("search.candidates", config.search.candidates, 1)
    at_least("prompt.lstm_hidden", config.prompt.lstm_hidden, -1)
    at_least("max_tokens", config.max_tokens, 0)
    for split in ("train", "dev", "test"):
        at_least(f"facts.{split}_limit", getattr(config.facts, f"{split}_limit"), 0)
    if not training.rate > 0:
        raise ConfigError(f"training.rate is {training.rate}; it must be above 0.")
    if not 0 < training.decay <= 1:
        raise ConfigError(f"training.decay is {training.decay}; it must be in (0, 1].")
    if not 0 <= training.warmup < 1:
        raise ConfigError(f"training.warmup is {training.warmup}; it must be in [0, 1).")
    if config.facts.objects == "any-length":
        _check_any_length(config)
    check_tuning(config.tuning)
    _check_method(config)
    if config.prompt.start == "manual" and config.prompt.encoder != "free":
        raise ConfigError(
            f'prompt.start = "manual" goes with prompt.encoder = "free", not '
            f'"{config.prompt.encoder}".'
        )


def _check_method(config: RunConfig) -> None:
    """Refuse what does not go with the method, by its traits."""
    name, traits = config.method.name, METHODS[config.method.name]
    if config.prompt.start == "manual" and not traits.vectors:
        raise ConfigError(
            'prompt.start = "manual" makes learned vectors of a manual template, and method.name = '
            f'"{name}" learns none; drop one of the two.'
        )
    if traits.dtype and config.dtype in ("bfloat16", "float16"):
        raise ConfigError(
            f"dtype is {config.dtype}, in which small changes of weights vanish; method.name = "
            f'"{name}" goes with float32, float64 or auto.'
        )
    if config.start_from and not traits.vectors:
        raise ConfigError(
            f'start_from goes on from learned vectors, and method.name = "{name}" has none; drop '
            "one of the two."
        )
    if traits.encoder and config.prompt.encoder != traits.encoder:
        raise ConfigError(
            f'method.name = "{name}" goes with prompt.encoder = "{traits.encoder}", not '
            f'"{config.prompt.encoder}"; with that encoder the method is "ptuning".'
        )


def _check_any_length(config: RunConfig) -> None:
    """Refuse objects of any length without a set of candidates, or from methods of one token."""
    if config.facts.vocabulary == "full":
        raise ConfigError(
            'facts.objects = "any-length" ranks names among candidates, and facts.vocabulary = '
            '"full" has single tokens only; use "objects" (the training objects of each relation), '
            "or name a file of further candidates."
        )
    if not METHODS[config.method.name].any_length:
        able = ", ".join(name for name, traits in METHODS.items() if traits.any_length)
        raise ConfigError(
            f'method.name = "{config.method.name}" asks for objects of one token; with '
            f'facts.objects = "any-length" use one of: {able}.'
        )


def override(config: RunConfig, **changes: Any) -> RunConfig:
    """Return the config with top-level values replaced, checked again."""
    changed = replace(config, **changes)
    check_config(changed)
    return changed
