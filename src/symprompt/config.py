"""One way to build, check, override, store and compare any config.

A config is a frozen dataclass that pydantic checks (``settings``); its fields' types state ranges
and choices. It is loaded from TOML, flags override it, and what is refused is explained in one
sentence.
"""

from __future__ import annotations

import difflib
import functools
import json
import re
import tomllib
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, is_dataclass
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, cast, dataclass_transform

from pydantic import AfterValidator, ConfigDict, Field, Strict, ValidationError
from pydantic.dataclasses import dataclass
from pydantic.fields import FieldInfo

from symprompt.errors import ConfigError

T = TypeVar("T")

# ---- types

Count = Annotated[int, Field(ge=0)]
"""A whole number from 0."""
Positive = Annotated[int, Field(ge=1)]
"""A whole number from 1."""
Size = Annotated[int, Field(ge=1, le=65_536)]
"""How many vectors, ranks or units something learned has."""
OwnSize = Annotated[int, Field(ge=0, le=65_536)]
"""A size that may be 0, which takes another one."""
Seed = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]
"""Any whole number that TOML can hold."""
Amount = Annotated[float, Field(ge=0)]
"""A number from 0."""
Rate = Annotated[float, Field(gt=0, le=1e30)]
"""A number above 0, within what optimisers can hold."""
OwnRate = Annotated[float, Field(ge=0, le=1e30)]
"""A rate that may be 0, which takes another one."""
Share = Annotated[float, Field(ge=0, lt=1)]
"""A share or probability that is never all: in [0, 1)."""
Portion = Annotated[float, Field(ge=0, le=1)]
"""A share from none to all."""
Factor = Annotated[float, Field(gt=0, le=1)]
"""What something shrinks by: in (0, 1]."""
Compile = Literal["auto", "on", "off", "max-autotune"]
"""Whether a run compiles and records; ``accel.compiling.choose`` states the rule."""


def _different(values: tuple[T, ...]) -> tuple[T, ...]:
    if len(set(values)) != len(values):
        raise ValueError("each may be there only once")
    return values


def _layers(text: str) -> str:
    part = r"[1-9]\d{0,4}"
    known = re.fullmatch(rf"all|(first|last):{part}|{part}(-{part})?(,{part}(-{part})?)*", text)
    falling = any(int(one) > int(other) for one, other in re.findall(r"(\d+)-(\d+)", text))
    if known is None or falling:
        raise ValueError("use all, first:6, last:6, or numbers from 1 on as in 1,3,5 or 7-12")
    return text


Layers = Annotated[str, AfterValidator(_layers)]
"""Which layers of a model: all, first:6, last:6, or their numbers from 1 on, as in 1,3,7-12."""


def layers_of(text: str, count: int) -> tuple[int, ...]:
    """Return the places, from 0 on, of the layers that a text names in a model of ``count``.

    Raises:
        ConfigError: the model has not that many.
    """
    which, _, number = text.partition(":")
    if which == "all":
        return tuple(range(count))
    if number:
        found = set(range(int(number)))
        if which == "last":
            found = {count - 1 - place for place in found}
    else:
        ends = [part.partition("-") for part in text.split(",")]
        found = {
            place for one, _, other in ends for place in range(int(one) - 1, int(other or one))
        }
    if not found or min(found) < 0 or max(found) >= count:
        raise ConfigError(
            f"the layers {text} were asked for, and the model has {count}, counted from 1; name "
            "some of these."
        )
    return tuple(sorted(found))


Several = Annotated[tuple[T, ...], Strict(False)]
"""A list, kept as a tuple."""
Different = Annotated[tuple[T, ...], Strict(False), Field(min_length=1), AfterValidator(_different)]
"""A list of one or more values, no two the same."""

# ---- marks

INCIDENTAL, COMMON, POSITIONAL, RUN = "incidental", "common", "positional", "run"
Incidental = Annotated[T, INCIDENTAL]
"""A setting in which two halves of the same run may differ: it does not change the recipe."""
Common = Annotated[T, COMMON]
"""A setting that the short part of a command's help shows."""
Positional = Annotated[T, POSITIONAL]
"""An argument of a command that has no flag: its place says what it is."""
OfRun = Annotated[T, RUN]
"""A run folder, or the name of a run on the hub."""


# ---- classes


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(Field,))
def settings(kind: type[T]) -> type[T]:
    """Make a class a frozen dataclass whose values are checked whenever one is made.

    A field's type says which values are allowed; its docstring is the help text. Checks that
    concern several fields go to ``__post_init__``. A field that is such a class itself is a table.
    ``dataclasses.replace`` and ``asdict`` work as they do with any dataclass.

    Raises (when one is made):
        ConfigError: one sentence that names the key, what was got and what is allowed.
    """
    checks = ConfigDict(
        extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )
    made: Any = dataclass(kind, frozen=True, kw_only=True, config=checks)
    made.__table__ = ""
    for name, entry in fields_of(made).items():
        if is_dataclass(entry.annotation):
            cast(Any, entry.annotation).__table__ = f"{name}."
        elif entry.description is None:
            # A field with another default than its base class's keeps the help text.
            bases = [base for base in kind.__bases__ if hasattr(base, "__pydantic_fields__")]
            texts = [fields_of(base)[name].description for base in bases if name in fields_of(base)]
            entry.description = next(iter(texts), None)
    made.__init__ = _explaining(made.__init__)
    return cast("type[T]", made)


def _explaining(check: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(check)
    def __init__(self: Any, **values: Any) -> None:  # noqa: N807
        try:
            check(self, **values)
        except ValidationError as error:
            raise ConfigError(explain(error, fields_of(type(self)), self.__table__)) from None

    return __init__


def fields_of(kind: type[Any]) -> dict[str, FieldInfo]:
    """Return the fields of a class of settings: type, range, default and help text by name."""
    return cast("dict[str, FieldInfo]", kind.__pydantic_fields__)


def tables_of(kind: type[Any]) -> dict[str, type[Any]]:
    """Return the tables of a config: those of its fields that are settings themselves."""
    return {
        name: cast("type[Any]", entry.annotation)
        for name, entry in fields_of(kind).items()
        if is_dataclass(entry.annotation)
    }


def flat_fields(kind: type[Any]) -> dict[str, FieldInfo]:
    """Return the fields of a config and of its tables: dotted key -> field."""
    found: dict[str, FieldInfo] = {}
    tables = tables_of(kind)
    for name, entry in fields_of(kind).items():
        if name in tables:
            found |= {f"{name}.{key}": own for key, own in fields_of(tables[name]).items()}
        else:
            found[name] = entry
    return found


# ---- what is learned


@settings
class LearningConfig:
    """What every kind of training takes."""

    weight_decay: Amount = 0.0
    """Weight decay, AdamW's; biases, norms and prompts are not decayed."""
    warmup: Share = 0.0
    """Share of all steps over which the rate rises from zero."""
    clip: Amount = 0.0
    """Largest gradient norm; 0 does not clip."""


@settings
class EpochLearningConfig(LearningConfig):
    """What training takes that goes over its examples again and again, and dev chooses from."""

    rate: Common[Rate] = 5e-4
    """Highest learning rate."""
    schedule: Literal["constant", "exponential", "linear"] = "linear"
    """linear: to zero at the last step; exponential: times decay after each epoch."""
    decay: Factor = 0.98
    """Factor per epoch of the exponential schedule."""
    batch: Common[Positive] = 32
    """Examples per step; of facts, examples of each relation."""
    epochs: Common[Count] = 20
    """Most passes over the training examples."""
    patience: Count = 0
    """Stop after this many epochs without a better dev score; 0 never stops early."""


@settings
class ModelRunConfig:
    """What every run on a language model takes."""

    model: Common[str] = "shipped"
    """Folder or hub name of a masked or causal language model, or a GGUF file; "shipped" is the
    one in the package."""
    data: Common[str] = ""
    """Folder or file of the data."""
    out: Common[Incidental[str]] = ""
    """Run folder to write."""
    device: Common[Incidental[str]] = "auto"
    """auto, cpu, cuda, cuda:N or mps."""
    max_tokens: Incidental[Count] = 0
    """Most tokens in one pass of queries; 0 chooses by device."""
    checkpoint_seconds: Incidental[Amount] = 60.0
    """Least time between two checkpoints of an unfinished run; ten times as long as writing one
    takes, if that is longer."""
    compile: Common[Incidental[Compile]] = "auto"
    """Compile layers and record training steps as CUDA graphs. auto records on CUDA, and compiles
    there where training is long enough to pay for it; off does neither; max-autotune tries more
    kernels first (minutes)."""


# ---- loading and comparing

Command = Literal["train", "pretrain", "tune"]

# The table of papers' numbers, which is no part of a config.
PUBLISHED = "published"

# The tables that tell whose config a file is; several commands have [learning] and [weights].
TABLES: dict[Command, frozenset[str]] = {
    "train": frozenset({"facts", "prompt", "method", "ensemble", "search", "tuning"}),
    "pretrain": frozenset({"vocabulary", "corpus", "corruption", "shape"}),
    "tune": frozenset({"task", "pattern", "prefix", "lora", "head", "span", "mixture"}),
}


def shipped_configs(command: Command | None = None) -> dict[str, Path]:
    """Return the configs in the package, name -> file; those of one command, or all.

    Example:
        >>> "lama-spe" in shipped_configs("train")
        True
    """
    folder = Path(str(resources.files("symprompt") / "configs"))
    found = {path.stem: path for path in sorted(folder.glob("*.toml"))}
    if command is None:
        return found
    return {name: path for name, path in found.items() if _shipped_for(path) == command}


@functools.cache
def _shipped_for(path: Path) -> Command | None:
    return command_of(read_tables(path))


def find_config(name: str, command: Command | None = None) -> Path:
    """Return the file of a shipped config, or the file of this path.

    Args:
        command: offers its configs where there is no such file.

    Raises:
        ConfigError: there is none.
    """
    path = shipped_configs().get(name, Path(name))
    if path.is_file():
        return path
    shipped = shipped_configs(command)
    near = nearest(name, shipped)
    raise ConfigError(
        f"config {name!r} is neither a file nor shipped"
        f"{f' (did you mean {near}?)' if near else ''}; shipped are: {', '.join(shipped)}."
    )


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file.

    Raises:
        ConfigError: it is missing, not TOML, or nested without end.
    """
    if path.exists() and not path.is_file():
        raise ConfigError(f"{path} is a folder, a pipe or a device; give a TOML file on disk.")
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
        repr(found)  # fails as the rest would if tables are nested without end
    except RecursionError:
        raise ConfigError(f"{path} is nested too deeply to be a config.") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}.") from error
    return found


GONE: Mapping[str, Any] = {
    "method.negatives": 0,
    "method.negatives_weight": 1.0,
    "method.negatives_every": 1,
    "inverse_from": "",
    "inverses": [],
}
"""Keys that configs once had, and their defaults: the configs of stored runs may hold them."""


def load(kind: type[T], name: str | Path, *, stored: bool = False) -> T:
    """Load a config of any kind by its shipped name or its path.

    The block ``published`` holds papers' numbers and is no part of the config.

    Args:
        stored: it is that of a run, and may hold keys that are gone.

    Raises:
        ConfigError: no such config, one for another command, not TOML, an unknown key or a bad
            value.
    """
    command = command_of(tables_of(kind))
    path = find_config(str(name), command)
    table = read_toml(path)
    theirs = command_of(read_tables(path))
    if theirs is not None and theirs != command:
        raise ConfigError(
            f"{name} is a config for symprompt {theirs}, not for symprompt {command}; its tables "
            f"are {', '.join(key for key in table if key in TABLES[theirs])}."
        )
    table.pop(PUBLISHED, None)
    for outer, _, inner in (key.partition(".") for key in GONE if stored):
        if not inner:
            table.pop(outer, None)
        elif isinstance(table.get(outer), dict):
            table[outer].pop(inner, None)
    try:
        return build(kind, table)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def build(kind: type[T], table: Mapping[str, Any]) -> T:
    """Build a config of any kind from nested plain values.

    Raises:
        ConfigError: an unknown key, a missing or a bad value.
    """
    tables = tables_of(kind)
    values = {
        key: build(tables[key], value) if key in tables and isinstance(value, dict) else value
        for key, value in table.items()
    }
    return kind(**values)


def override(config: T, **changes: Any) -> T:
    """Return a config of any kind with values replaced, checked again.

    Args:
        changes: by key, as ``override(config, seed=3, **{"learning.epochs": 3})``; a table's name
            may be left out where only one table has such a key, or where it is [learning].

    Raises:
        ConfigError: an unknown or ambiguous key, or a bad value.

    Example:
        >>> override(load_config("lama-spe"), seed=3, epochs=2).learning.epochs
        2
    """
    table = asdict(config)  # type: ignore[call-overload]
    for name, value in changes.items():
        outer, _, inner = full_key(type(config), name).rpartition(".")
        (table[outer] if outer else table)[inner] = value
    return build(type(config), table)


def full_key(kind: type[Any], name: str) -> str:
    """Return the dotted key of a config that a name means: epochs is learning.epochs.

    Raises:
        ConfigError: no table has such a key, or several have.
    """
    known = flat_fields(kind)
    if name in known or name in fields_of(kind):
        return name
    found = meant(key for key in known if key.partition(".")[2] == name)
    if not found:
        raise ConfigError(unknown_key(name, [*known, *(key.split(".")[-1] for key in known)]))
    if len(found) > 1:
        raise ConfigError(f"{name} may be {' or '.join(found)}; say which.")
    return found[0]


def meant(keys: Iterable[str]) -> list[str]:
    """Return which of the keys that end alike a short name means.

    [learning]'s or the one of the [shape] of a model to make, or else all.
    """
    found = list(keys)
    return [key for key in found if key.startswith(("learning.", "shape."))] or found


def incidental_keys(kind: type[Any]) -> list[str]:
    """Return the dotted keys in which two halves of the same run may differ."""
    return [key for key, entry in flat_fields(kind).items() if INCIDENTAL in entry.metadata]


def recipe_of(config: object) -> dict[str, Any]:
    """Return what makes a run's results: dotted key -> value, incidental ones left out."""
    left_out = incidental_keys(type(config))
    return {key: value for key, value in flatten(config).items() if key not in left_out}


def flatten(config: object) -> dict[str, Any]:
    """Return a config of any kind as dotted key -> value."""
    return flat_table(asdict(config))  # type: ignore[call-overload]


def flat_table(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config that was read as plain tables as dotted key -> value."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, dict):
            flat |= {f"{key}.{inner}": entry for inner, entry in value.items()}
        else:
            flat[key] = value
    return flat


def read_tables(path: Path) -> list[str]:
    """Return the names of the tables that a TOML file has of a config."""
    table = read_toml(path)
    return [key for key in table if isinstance(table[key], dict) and key != PUBLISHED]


def command_of(tables: Iterable[str]) -> Command | None:
    """Return the command that a config with these tables is for; None if nothing tells."""
    given = set(tables)
    return next((command for command, own in TABLES.items() if given & own), None)


def to_toml(config: object) -> str:
    """Write a whole config of any kind as TOML that reads back to an equal config."""
    return tables_to_toml(asdict(config))  # type: ignore[call-overload]


def tables_to_toml(config: Mapping[str, Any]) -> str:
    """Write a config that was read as plain tables as TOML."""
    lines: list[str] = []
    tables: list[str] = []
    for key, value in config.items():
        if isinstance(value, dict):
            tables.append(f"\n[{key}]")
            tables.extend(f"{inner} = {_toml(entry)}" for inner, entry in value.items())
        else:
            lines.append(f"{key} = {_toml(value)}")
    return "\n".join(lines + tables) + "\n"


def _toml(value: Any) -> str:
    # TOML writes these values as JSON does, but for one more character that must be escaped.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


# ---- refusals

_NOUNS = {int: "whole numbers", float: "numbers", str: "strings", bool: "true or false"}


def explain(error: ValidationError, fields: Mapping[str, FieldInfo], table: str = "") -> str:
    """Return the first thing that is wrong with a config, as a sentence.

    Args:
        fields: those of the class that was to be made.
        table: what stands before its keys, as "learning.".
    """
    first = error.errors(include_url=False)[0]
    kind, name, got = first["type"], str(first["loc"][0]), first["input"]
    key = table + name
    if kind in ("unexpected_keyword_argument", "extra_forbidden"):
        return unknown_key(key, [table + own for own in fields])
    if kind in ("missing", "missing_argument"):
        return f"{key} is missing."
    if kind == "dataclass_exact_type":
        return f"{key} is a table ([{key}]), got {got!r}."
    has = "has" if len(first["loc"]) > 1 else "is"
    return f"{key} {has} {got!r}; {_allowed(first, fields[name])}."


def unknown_key(key: str, known: Iterable[str]) -> str:
    """Return the sentence about a key that no config has, with the nearest one that it has."""
    known = list(known)
    near = nearest(key, known)
    return f"unknown key {key}; " + (
        f"did you mean {near}?" if near else f"known: {', '.join(known)}."
    )


def nearest(word: str, known: Iterable[str]) -> str:
    """Return which of the known words was probably meant, or an empty text."""
    return next(iter(difflib.get_close_matches(word, list(known), n=1)), "")


def _allowed(first: Any, field: FieldInfo) -> str:
    """Return what a field allows."""
    if first["type"] == "value_error":
        return str(first["ctx"]["error"])
    inner = item_type(field.annotation)
    which = "each must be" if len(first["loc"]) > 1 else "it must be"
    if first["type"] == "too_short":
        return f"give {first['ctx']['min_length']} or more"
    wanted = field.annotation if inner is None else inner
    listed = inner is not None and len(first["loc"]) == 1
    if typing.get_origin(wanted) is Literal:
        allowed = ", ".join(map(str, typing.get_args(wanted)))
        return f"{which} a list of some of: {allowed}" if listed else f"allowed are: {allowed}"
    if listed:
        return f"{which} a list of {_NOUNS[plain_type(wanted)]}"
    if first["type"].endswith("_type"):
        return f"{which} of type {plain_type(wanted).__name__}"
    return f"{which} {allowed_range(field) or 'finite'}"


def allowed_range(field: FieldInfo) -> str:
    """Return a field's range in words; empty if it has none."""
    bounds = {
        name: getattr(mark, name)
        for mark in [*field.metadata, *_metadata(field.annotation)]
        for name in ("ge", "gt", "le", "lt")
        if getattr(mark, name, None) is not None
    }
    match bounds:
        case {"ge": low, "le": high}:
            return f"from {low} to {high}"
        case {"ge": low, "lt": high}:
            return f"in [{low}, {high})"
        case {"gt": low, "le": high}:
            return f"in ({low}, {high}]"
        case {"gt": low, "lt": high}:
            return f"between {low} and {high}"
        case {"ge": low}:
            return f"at least {low}"
        case {"gt": low}:
            return f"above {low}"
    return ""


def item_type(annotation: Any) -> Any:
    """Return the type of a list's items; None if the type is not a list."""
    return typing.get_args(annotation)[0] if typing.get_origin(annotation) is tuple else None


def _metadata(annotation: Any) -> list[Any]:
    """Return the ranges that a type states, also within a list or an option."""
    found: list[Any] = []
    for mark in getattr(annotation, "__metadata__", ()):
        found += getattr(mark, "metadata", [mark])
    for inner in typing.get_args(annotation):
        found += _metadata(inner)
    return found


def plain_type(annotation: Any) -> type:
    """Return a type without marks: int of Annotated[int, ...], float of float | None."""
    while args := typing.get_args(annotation):
        annotation = args[0]
    return typing.cast(type, annotation)
