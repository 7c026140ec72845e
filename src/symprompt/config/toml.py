"""Configs written as TOML."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any


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
