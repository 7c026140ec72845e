"""Build, check, store and compare configs of any command: frozen dataclasses, read from TOML."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, fields
from importlib import resources
from pathlib import Path
from typing import Any, Literal, TypeVar

from symprompt.config.toml import build
from symprompt.errors import ConfigError

T = TypeVar("T")


Command = Literal["train", "pretrain", "tune"]


# The tables that tell whose config a file is; every command's are its own.
TABLES: dict[Command, frozenset[str]] = {
    "train": frozenset({"facts", "prompt", "method", "ensemble", "training", "search", "tuning"}),
    "pretrain": frozenset({"vocabulary", "corpus", "corruption", "shape", "optimizer"}),
    "tune": frozenset(
        {"task", "pattern", "prefix", "lora", "weights", "head", "span", "learning", "mixture"}
    ),
}


def shipped_configs(command: Command | None = None) -> dict[str, Path]:
    """Return the configs in the package, name -> file; those of one command, or all."""
    folder = Path(str(resources.files("symprompt") / "configs"))
    found = {path.stem: path for path in sorted(folder.glob("*.toml"))}
    if command is None:
        return found
    return {name: path for name, path in found.items() if _command_of(_read(path)) == command}


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


def differing_keys(one: T, other: T, incidental: Sequence[str]) -> list[str]:
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


def at_least(key: str, value: float, least: float) -> None:
    if not value >= least:
        raise ConfigError(f"{key} is {value}; it must be at least {least}.")
