"""Configs written as TOML, and built from the plain values that TOML reads back as."""

from __future__ import annotations

import difflib
import types
import typing
from dataclasses import MISSING, Field, asdict, fields, is_dataclass
from typing import Any, Literal, TypeVar, Union

from symprompt.errors import ConfigError

T = TypeVar("T")


def to_toml(config: object) -> str:
    """Write a whole config of any kind as TOML that reads back to an equal config."""
    lines: list[str] = []
    tables: list[str] = []
    for key, value in asdict(config).items():  # type: ignore[call-overload]
        if isinstance(value, dict):
            tables.append(f"\n[{key}]")
            tables.extend(f"{inner} = {_toml(entry)}" for inner, entry in value.items())
        else:
            lines.append(f"{key} = {_toml(value)}")
    return "\n".join(lines + tables) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return '"' + "".join(_escape(character) for character in value) + '"'
    if isinstance(value, tuple | list):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    return repr(value)


def _escape(character: str) -> str:
    if character in '"\\':
        return "\\" + character
    if ord(character) < 0x20 or ord(character) == 0x7F:
        return f"\\u{ord(character):04x}"
    return character


def build(kind: type[T], table: dict[str, Any], where: str, prefix: str = "") -> T:
    """Build a dataclass from nested plain values, refusing unknown keys and bad values."""
    known: dict[str, Field[Any]] = {entry.name: entry for entry in fields(kind)}  # type: ignore[arg-type]
    hints = typing.get_type_hints(kind)
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {prefix}{near[0]}?" if near else f"known: {', '.join(known)}."
            raise ConfigError(f"{where}: unknown key {prefix}{key}; {hint}")
        wanted = hints[key]
        if is_dataclass(wanted):
            if not isinstance(value, dict):
                raise ConfigError(f"{where}: {prefix}{key} is a table ([{key}]), got {value!r}.")
            values[key] = build(wanted, value, where, f"{prefix}{key}.")  # type: ignore[arg-type]
        else:
            values[key] = _convert(value, wanted, f"{where}: {prefix}{key}")
    for name, entry in known.items():
        required = entry.default is MISSING and entry.default_factory is MISSING
        if required and name not in values:
            raise ConfigError(f"{where}: {prefix}{name} is missing.")
    return kind(**values)


def _convert(value: Any, wanted: Any, key: str) -> Any:
    origin = typing.get_origin(wanted)
    if origin is Literal:
        allowed = typing.get_args(wanted)
        if value not in allowed:
            raise ConfigError(f"{key} is {value!r}; allowed are: {', '.join(map(str, allowed))}.")
        return value
    if origin in (Union, types.UnionType):
        raise TypeError(f"{key}: unions are not used in configs")
    if origin is tuple:
        if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
            raise ConfigError(f"{key} is {value!r}; it must be a list of strings.")
        return tuple(value)
    if wanted is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, wanted) or (wanted is not bool and isinstance(value, bool)):
        raise ConfigError(f"{key} is {value!r}; it must be of type {wanted.__name__}.")
    return value
