"""What a run is made from: frozen dataclasses, read from TOML, unknown keys refused by name."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from importlib import resources
from pathlib import Path
from typing import Any, Literal, TypeVar

from symprompt.ensemble import EnsembleConfig, check_ensemble
from symprompt.errors import ConfigError
from symprompt.toml import build
from symprompt.toml import to_toml as to_toml
from symprompt.tuning import TuningConfig, check_tuning

T = TypeVar("T")


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

    name: Literal[
        "autoprompt",
        "finetune",
        "lpaqa",
        "majority",
        "manual",
        "optiprompt",
        "ptuning",
        "softprompt",
        "spe",
    ] = "spe"
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

LEARN_NO_VECTORS = ("lpaqa", "majority", "manual", "finetune")

# The methods that can ask for objects of several tokens.
ANY_LENGTH = ("majority", "manual", "optiprompt", "ptuning", "spe")

Command = Literal["train", "pretrain", "tune"]

# The tables that tell whose config a file is; every command's are its own.
TABLES: dict[Command, frozenset[str]] = {
    "train": frozenset({"facts", "prompt", "method", "ensemble", "training", "search", "tuning"}),
    "pretrain": frozenset({"vocabulary", "corpus", "corruption", "shape", "optimizer"}),
    "tune": frozenset({"task", "pattern", "prefix", "lora", "head", "learning", "mixture"}),
}


def shipped_configs(command: Command | None = None) -> dict[str, Path]:
    """Return the configs in the package, name -> file; those of one command, or all."""
    folder = Path(str(resources.files("symprompt") / "configs"))
    found = {path.stem: path for path in sorted(folder.glob("*.toml"))}
    if command is None:
        return found
    return {name: path for name, path in found.items() if _command_of(_read(path)) == command}


def load_config(name: str) -> RunConfig:
    """Load a shipped config by name, or a TOML file by path.

    Raises:
        ConfigError: no such config, not TOML, an unknown key or a bad value.
    """
    return read_config(RunConfig, name, check_config)


def read_config(kind: type[T], name: str, check: Callable[[T], None]) -> T:
    """Load a config of any kind by its shipped name or its path, and check it.

    Args:
        kind: a frozen dataclass; dataclasses within it are tables.
        name: the name of a shipped config, or a TOML file.
        check: refuses values out of range.

    Raises:
        ConfigError: no such config, one for another command, not TOML, an unknown key or a bad
            value.
    """
    command = _command_of([entry.name for entry in fields(kind)])  # type: ignore[arg-type]
    path = shipped_configs().get(name, Path(name))
    if not path.is_file():
        shipped = shipped_configs(command)
        near = difflib.get_close_matches(name, shipped, n=1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise ConfigError(
            f"config {name!r} is neither a file nor shipped{hint}; shipped are: "
            f"{', '.join(shipped)}."
        )
    table = _read(path)
    theirs = _command_of(key for key, value in table.items() if isinstance(value, dict))
    if theirs is not None and theirs != command:
        raise ConfigError(
            f"{name} is a config for symprompt {theirs}, not for symprompt {command}; its tables "
            f"are {', '.join(key for key in table if key in TABLES[theirs])}."
        )
    table.pop("expected", None)
    return build_config(kind, table, check, where=str(path))


def build_config(
    kind: type[T], table: dict[str, Any], check: Callable[[T], None], *, where: str = "config"
) -> T:
    """Build a config of any kind from nested plain values, refusing unknown keys and bad values."""
    config = build(kind, table, where)
    check(config)
    return config


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
    _at_least("method.k", method.k, 1)
    _at_least("method.weight", method.weight, 0)
    _at_least("method.train_weight", method.train_weight, 0)
    _at_least("training.batch", training.batch, 1)
    _at_least("training.epochs", training.epochs, 0)
    _at_least("training.patience", training.patience, 0)
    _at_least("training.weight_decay", training.weight_decay, 0)
    _at_least("training.clip", training.clip, 0)
    _at_least("search.steps", config.search.steps, 1)
    _at_least("search.candidates", config.search.candidates, 1)
    _at_least("prompt.lstm_hidden", config.prompt.lstm_hidden, -1)
    _at_least("max_tokens", config.max_tokens, 0)
    for split in ("train", "dev", "test"):
        _at_least(f"facts.{split}_limit", getattr(config.facts, f"{split}_limit"), 0)
    if not training.rate > 0:
        raise ConfigError(f"training.rate is {training.rate}; it must be above 0.")
    if not 0 < training.decay <= 1:
        raise ConfigError(f"training.decay is {training.decay}; it must be in (0, 1].")
    if not 0 <= training.warmup < 1:
        raise ConfigError(f"training.warmup is {training.warmup}; it must be in [0, 1).")
    if config.facts.objects == "any-length":
        _check_any_length(config)
    if config.prompt.start == "manual" and method.name in LEARN_NO_VECTORS:
        raise ConfigError(
            'prompt.start = "manual" makes learned vectors of a manual template, and method.name = '
            f'"{method.name}" learns none; drop one of the two.'
        )
    if method.name == "finetune":
        check_tuning(config.tuning, dtype=config.dtype, start_from=config.start_from)
    if (
        method.name in ("autoprompt", "optiprompt", "softprompt")
        and config.prompt.encoder != "free"
    ):
        raise ConfigError(
            f'method.name = "{method.name}" goes with prompt.encoder = "free", not '
            f'"{config.prompt.encoder}"; with that encoder the method is "ptuning".'
        )
    if config.prompt.start == "manual" and config.prompt.encoder != "free":
        raise ConfigError(
            f'prompt.start = "manual" goes with prompt.encoder = "free", not '
            f'"{config.prompt.encoder}".'
        )


def _check_any_length(config: RunConfig) -> None:
    """Refuse objects of any length without a set of candidates, or from methods of one token."""
    if config.facts.vocabulary == "full":
        raise ConfigError(
            'facts.objects = "any-length" ranks names among candidates, and facts.vocabulary = '
            '"full" has single tokens only; use "objects" (the training objects of each relation), '
            "or name a file of further candidates."
        )
    if config.method.name not in ANY_LENGTH:
        raise ConfigError(
            f'method.name = "{config.method.name}" asks for objects of one token; with '
            f'facts.objects = "any-length" use one of: {", ".join(ANY_LENGTH)}.'
        )


def differing_keys(one: T, other: T, incidental: Sequence[str] = INCIDENTAL) -> list[str]:
    """Return the dotted keys in which two configs of a kind differ, incidental ones left out."""
    left, right = flatten(one), flatten(other)
    return [key for key in left if left[key] != right[key] and key not in incidental]


def flatten(config: object) -> dict[str, Any]:
    """Return a config of any kind as dotted key -> value."""
    flat: dict[str, Any] = {}
    for key, value in asdict(config).items():  # type: ignore[call-overload]
        if isinstance(value, dict):
            flat |= {f"{key}.{inner}": entry for inner, entry in value.items()}
        else:
            flat[key] = value
    return flat


def override(config: RunConfig, **changes: Any) -> RunConfig:
    """Return the config with top-level values replaced, checked again."""
    changed = replace(config, **changes)
    check_config(changed)
    return changed


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}.") from error


def _command_of(keys: Iterable[str]) -> Command | None:
    """Return the command that a config with these keys is for; None if nothing tells."""
    given = set(keys)
    # "method" is a table of train and a plain key of tune, whose tables are its own.
    for command in ("tune", "pretrain", "train"):
        if given & TABLES[command]:
            return command
    return None


def _at_least(key: str, value: float, least: float) -> None:
    if not value >= least:
        raise ConfigError(f"{key} is {value}; it must be at least {least}.")
