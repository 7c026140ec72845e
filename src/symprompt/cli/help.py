"""The help of a command: the flags used most first, the others by table."""

from __future__ import annotations

import inspect
import shutil
import textwrap
import typing
from collections.abc import Mapping
from typing import Any, Literal

from pydantic.fields import FieldInfo

from symprompt.config import (
    COMMON,
    POSITIONAL,
    flat_fields,
    flatten,
    item_type,
    plain_type,
    shipped_configs,
    tables_of,
)

_INDENT = 26


def help_text(name: str, flags: type[Any], config: Any = None) -> str:
    """Return the help of a command.

    Args:
        name: the command.
        flags: the class of its flags.
        config: the config that flags override, whose values are shown as defaults.
    """
    own = flat_fields(flags)
    fields = own | (flat_fields(type(config)) if config is not None else {})
    places = {key: field for key, field in fields.items() if POSITIONAL in field.metadata}
    options = {key: field for key, field in fields.items() if key not in places}
    shown = [_place(key, field) for key, field in places.items()]
    needed = [f"{flag_of(key)} {_metavar(f)}" for key, f in options.items() if f.is_required()]
    parts = [" ".join(["usage: symprompt", name, *shown, *needed, "[flags]"])]
    parts.append(inspect.getdoc(flags) or "")
    parts.append("\n".join(_entry(_place(key, f), f.description) for key, f in places.items()))
    if config is not None:
        shipped = ", ".join(shipped_configs(typing.cast(Any, name)))
        parts.append(_fill(f"Configs that ship: {shipped}", ""))
        parts.append(
            "Every setting of the config is a flag: --table.name, or --name if one table has it."
        )
    defaults = flatten(config) if config is not None else {}
    for title, keys in _sections(flags, config, options).items():
        lines = [_flag_entry(key, options, defaults) for key in keys]
        parts.append("\n".join([f"{title}:", *lines]))
    return "\n\n".join(part for part in parts if part)


def flag_of(key: str) -> str:
    """Return a key as a flag: learning.head_rate is --learning.head-rate, with_ is --with."""
    return "--" + key.rstrip("_").replace("_", "-")


def short_name(key: str) -> str:
    """Return a key without its table."""
    return key.rpartition(".")[2]


def _sections(
    flags: type[Any], config: Any, options: Mapping[str, FieldInfo]
) -> dict[str, list[str]]:
    """Return heading -> keys: those used most, those of no table, then table by table."""
    tables = tables_of(flags) | (tables_of(type(config)) if config is not None else {})
    common = [key for key, field in options.items() if COMMON in field.metadata]
    rest = [key for key in options if key not in common]
    found = {"flags used most": common}
    found["others" if common else "flags"] = [key for key in rest if "." not in key]
    for table, kind in tables.items():
        about = (inspect.getdoc(kind) or "").splitlines()[0]
        title = f"{table} ({about.rstrip('.')})"
        found[title] = [key for key in rest if key.startswith(f"{table}.")]
    return {title: keys for title, keys in found.items() if keys}


def _flag_entry(key: str, options: Mapping[str, FieldInfo], defaults: Mapping[str, Any]) -> str:
    field = options[key]
    alone = sum(short_name(other) == short_name(key) for other in options) == 1
    flag = flag_of(short_name(key) if alone else key)
    if plain_type(field.annotation) is bool:
        table, dot, last = flag.removeprefix("--").rpartition(".")
        flag = f"{flag}, --{table}{dot}no-{last}"
    else:
        flag = f"{flag} {_metavar(field)}"
    text = field.description or ""
    if not field.is_required():
        text += _default(defaults.get(key, field.get_default(call_default_factory=True)))
    return _entry(flag, text)


def _default(value: Any) -> str:
    if isinstance(value, bool):
        return f" (default: {'yes' if value else 'no'})"
    if isinstance(value, tuple):
        value = " ".join(map(str, value))
    return "" if value in ("", None) else f" (default: {value})"


def _metavar(field: FieldInfo) -> str:
    item = item_type(field.annotation)
    wanted = field.annotation if item is None else item
    if typing.get_origin(wanted) is Literal:
        name = "{" + ",".join(filter(None, map(str, typing.get_args(wanted)))) + "}"
    else:
        name = {int: "INT", float: "NUMBER"}.get(plain_type(wanted), "TEXT")
    return name if item is None else f"{name} ..."


def _place(key: str, field: FieldInfo) -> str:
    name = key.upper() if item_type(field.annotation) is None else f"{key.upper()} ..."
    return name if field.is_required() else f"[{name}]"


def _entry(name: str, text: str | None) -> str:
    body = _fill(" ".join((text or "").split()), " " * _INDENT)
    if len(name) + 4 <= _INDENT:
        return f"  {name}".ljust(_INDENT) + body.lstrip()
    return f"  {name}\n{body}"


def _fill(text: str, indent: str) -> str:
    width = min(shutil.get_terminal_size().columns, 110)
    return textwrap.fill(
        text, width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False
    )
