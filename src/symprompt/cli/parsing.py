"""The words of a command line, read into a config and a command's own flags."""

from __future__ import annotations

import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo

from symprompt.cli.help import flag_of, help_text, short_name
from symprompt.config import (
    POSITIONAL,
    build,
    flat_fields,
    item_type,
    load,
    nearest,
    override,
    plain_type,
    read_tables,
    shipped_configs,
    tables_of,
)
from symprompt.errors import ConfigError


def parse(
    name: str, flags: type[Any], words: Sequence[str], kinds: Sequence[type[Any]] = ()
) -> list[Any]:
    """Read a command's words: its flags and, if it takes one, its config with flags over the file.

    A flag is --table.name, or --name where only one table has it; --no-name turns a switch off. A
    list is parted by spaces or commas. Of a flag given twice the last counts.

    Args:
        name: the command.
        flags: the class of its flags.
        words: what follows the command; with ``kinds`` the first is the config.
        kinds: the classes that the config may be of.

    Returns:
        The flags, and the config if there are kinds.

    Raises:
        ConfigError: what was got and what is allowed.
        SystemExit: help was asked for and is printed.
    """
    config = None
    if kinds:
        named = next((word for word in words[:1] if not word.startswith("-")), "")
        kind = _kind_of(named, kinds)
        config = load(kind, named) if named else kind()
    own = flat_fields(flags)
    fields = own | (flat_fields(type(config)) if config is not None else {})
    if {"-h", "--help"} & set(words):
        print(help_text(name, flags, config))
        raise SystemExit(0)
    values = _read(name, fields, words)
    changes = {key: value for key, value in values.items() if key not in own}
    made = build(flags, _nested({key: values[key] for key in values if key in own}))
    return [made] if config is None else [made, override(config, **changes)]


def _kind_of(name: str, kinds: Sequence[type[Any]]) -> type[Any]:
    """Return the class of a config by its tables; the first where nothing tells."""
    path = shipped_configs().get(name, Path(name))
    tables = set(read_tables(path)) - {"published"} if path.is_file() else set()
    return next((kind for kind in kinds if tables <= set(tables_of(kind))), kinds[0])


def _read(name: str, fields: Mapping[str, FieldInfo], words: Sequence[str]) -> dict[str, Any]:
    """Return dotted key -> value of what the words give."""
    values: dict[str, Any] = {}
    places = [key for key, field in fields.items() if POSITIONAL in field.metadata]
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--"):
            if not places:
                raise ConfigError(f"symprompt {name} got {word!r} beside its flags; leave it out.")
            key = places[0]
            if item_type(fields[key].annotation) is None:
                values[places.pop(0)] = word
            else:
                values[key] = (*values.get(key, ()), word)
            continue
        flag, given, text = word.partition("=")
        key, switched_off = _key_of(flag.replace("_", "-"), fields)
        values[key] = _value(fields[key].annotation, word, [text] if given else None, rest)
        if switched_off:
            values[key] = False
    for key, field in fields.items():
        if field.is_required() and key not in values:
            raise ConfigError(_missing(name, key, field))
    return values


def _key_of(flag: str, fields: Mapping[str, FieldInfo]) -> tuple[str, bool]:
    """Return the key that a flag names, and whether it turns a switch off.

    Raises:
        ConfigError: it names none, or several.
    """
    found = _named(flag, fields)
    if len(found) > 1:
        raise ConfigError(f"{flag} may be {' or '.join(map(flag_of, found))}; say which.")
    if found:
        return found[0], False
    for key in _named(flag.replace(".no-", ".").replace("--no-", "--"), fields):
        if plain_type(fields[key].annotation) is bool:
            return key, True
    known = [key for key, field in fields.items() if POSITIONAL not in field.metadata]
    near = nearest(flag, {flag_of(name) for key in known for name in (key, short_name(key))})
    hint = f"did you mean {near}?" if near else "--help shows those there are."
    raise ConfigError(f"unknown flag {flag}; {hint}")


def _named(flag: str, fields: Mapping[str, FieldInfo]) -> list[str]:
    """Return the keys that a flag may mean: the one of this name, or those of all tables."""
    known = [key for key, field in fields.items() if POSITIONAL not in field.metadata]
    whole = [key for key in known if flag_of(key) == flag]
    return whole or [key for key in known if flag_of(short_name(key)) == flag]


def _value(annotation: Any, word: str, given: list[str] | None, rest: list[str]) -> Any:
    """Return a flag's value, taking its words from ``rest``."""
    item = item_type(annotation)
    if item is not None:
        texts = list(given or ())
        while given is None and rest and not rest[0].startswith("--"):
            texts.append(rest.pop(0))
        parts = [part.strip() for text in texts for part in text.split(",")]
        return tuple(_convert(item, part) for part in parts if part)
    if plain_type(annotation) is bool:
        return _convert(annotation, given[0]) if given else True
    if given is None and (not rest or rest[0].startswith("--")):
        raise ConfigError(f"{word} needs a value.")
    return _convert(annotation, given[0] if given is not None else rest.pop(0))


def _convert(annotation: Any, text: str) -> Any:
    """Return a text as what a field wants, or as it is: the field then says what is wrong."""
    wanted = plain_type(annotation)
    if wanted is bool:
        return {"true": True, "false": False}.get(text.lower(), text)
    if wanted in (int, float):
        try:
            return wanted(text)
        except ValueError:
            return text
    return text


def _missing(name: str, key: str, field: FieldInfo) -> str:
    if key == "config":
        shipped = ", ".join(shipped_configs(typing.cast(Any, name)))
        return f"no config was named; give a TOML file, or one of: {shipped}."
    what = key.upper() if POSITIONAL in field.metadata else flag_of(key)
    return f"{what} is missing: symprompt {name} --help shows what it is."


def _nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return dotted keys as tables."""
    table: dict[str, Any] = {}
    for key, value in values.items():
        outer, _, inner = key.rpartition(".")
        (table.setdefault(outer, {}) if outer else table)[inner] = value
    return table
