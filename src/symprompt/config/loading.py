"""Configs of any command: loaded from TOML, built, overridden and compared."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import Any, Literal, TypeVar

from symprompt.config.explain import nearest, unknown_key
from symprompt.config.fields import INCIDENTAL, fields_of, flat_fields, tables_of
from symprompt.errors import ConfigError

T = TypeVar("T")

Command = Literal["train", "pretrain", "tune"]

# The table of papers' numbers, which is no part of a config.
PUBLISHED = "published"

# The tables that tell whose config a file is; every command's are its own.
TABLES: dict[Command, frozenset[str]] = {
    "train": frozenset({"facts", "prompt", "method", "ensemble", "search", "tuning"}),
    "pretrain": frozenset({"vocabulary", "corpus", "corruption", "shape"}),
    "tune": frozenset({"task", "pattern", "prefix", "lora", "weights", "head", "span", "mixture"}),
}


def shipped_configs(command: Command | None = None) -> dict[str, Path]:
    """Return the configs in the package, name -> file; those of one command, or all."""
    folder = Path(str(resources.files("symprompt") / "configs"))
    found = {path.stem: path for path in sorted(folder.glob("*.toml"))}
    if command is None:
        return found
    return {name: path for name, path in found.items() if command_of(read_tables(path)) == command}


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
        ConfigError: it is not TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}.") from error


def load(kind: type[T], name: str) -> T:
    """Load a config of any kind by its shipped name or its path.

    The block ``published`` holds papers' numbers and is no part of the config.

    Raises:
        ConfigError: no such config, one for another command, not TOML, an unknown key or a bad
            value.
    """
    command = command_of(tables_of(kind))
    path = find_config(name, command)
    table = read_toml(path)
    theirs = command_of(read_tables(path))
    if theirs is not None and theirs != command:
        raise ConfigError(
            f"{name} is a config for symprompt {theirs}, not for symprompt {command}; its tables "
            f"are {', '.join(key for key in table if key in TABLES[theirs])}."
        )
    table.pop(PUBLISHED, None)
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
            may be left out where only one table has such a key.

    Raises:
        ConfigError: an unknown or ambiguous key, or a bad value.
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
    found = [key for key in known if key.partition(".")[2] == name]
    if not found:
        raise ConfigError(unknown_key(name, [*known, *(key.split(".")[-1] for key in known)]))
    if len(found) > 1:
        raise ConfigError(f"{name} may be {' or '.join(found)}; say which.")
    return found[0]


def incidental_keys(kind: type[Any]) -> list[str]:
    """Return the dotted keys in which two halves of the same run may differ."""
    return [key for key, entry in flat_fields(kind).items() if INCIDENTAL in entry.metadata]


def recipe_of(config: object) -> dict[str, Any]:
    """Return what makes a run's results: dotted key -> value, incidental ones left out."""
    left_out = incidental_keys(type(config))
    return {key: value for key, value in flatten(config).items() if key not in left_out}


def differing_keys(one: T, other: T) -> list[str]:
    """Return the dotted keys in which two configs of a kind differ, incidental ones left out."""
    left, right = recipe_of(one), recipe_of(other)
    return [key for key in left if left[key] != right[key]]


def flatten(config: object) -> dict[str, Any]:
    """Return a config of any kind as dotted key -> value."""
    flat: dict[str, Any] = {}
    for key, value in asdict(config).items():  # type: ignore[call-overload]
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
