"""A command's words, read into its flags and config, and its help; both from the fields."""

from __future__ import annotations

import inspect
import shutil
import textwrap
import typing
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic.fields import FieldInfo

from symprompt.config import (
    COMMON,
    POSITIONAL,
    build,
    flat_fields,
    flatten,
    item_type,
    load,
    meant,
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

    A flag is --table.name, or --name where only one table has it, or [learning] or [shape] does;
    --no-name turns a switch off. A list is parted by spaces or commas, and grows where its flag is
    given again; of other flags given twice the last counts.

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
        value = _value(fields[key].annotation, word, [text] if given else None, rest)
        several = item_type(fields[key].annotation) is not None
        values[key] = (*values.get(key, ()), *value) if several else value
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
    return whole or meant(key for key in known if flag_of(short_name(key)) == flag)


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


def refuse_given(flags: Any, allowed: Set[str], why: str) -> None:
    """Refuse flags that were given, but for some.

    Raises:
        ConfigError: naming the first of them.
    """
    for key, field in flat_fields(type(flags)).items():
        if key not in allowed and getattr(flags, key) != field.get_default():
            raise ConfigError(f"{flag_of(key)} {why}")


_INDENT = 26
ABOUT_FLAGS = "Every setting of the config is a flag: --table.name, or --name if one table has it."


@dataclass(frozen=True)
class Help:
    """What is known of a command's words, to be printed or put on a page; final.

    Attributes:
        usage: the command line in one line.
        about: what the command does, in paragraphs.
        places: name and text of what is given without a flag.
        configs: names of the configs that ship for it.
        sections: heading -> flag and text, the default in it.
    """

    usage: str
    about: str
    places: tuple[tuple[str, str], ...]
    configs: tuple[str, ...]
    sections: Mapping[str, tuple[tuple[str, str], ...]]


def describe(name: str, flags: type[Any], config: Any = None) -> Help:
    """Return what is known of a command's words.

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
    defaults = flatten(config) if config is not None else {}
    return Help(
        " ".join(["symprompt", name, *shown, *needed, "[flags]"]),
        inspect.getdoc(flags) or "",
        tuple((_place(key, f), _joined(f.description)) for key, f in places.items()),
        tuple(shipped_configs(typing.cast(Any, name))) if config is not None else (),
        {
            title: tuple(_flag_entry(key, options, defaults) for key in keys)
            for title, keys in _sections(flags, config, options).items()
        },
    )


def help_text(name: str, flags: type[Any], config: Any = None) -> str:
    """Return the help of a command; see ``describe``."""
    found = describe(name, flags, config)
    parts = [f"usage: {found.usage}", found.about]
    parts.append("\n".join(_entry(*place) for place in found.places))
    if found.configs:
        parts.append(_fill(f"Configs that ship: {', '.join(found.configs)}", ""))
        parts.append(ABOUT_FLAGS)
    for title, entries in found.sections.items():
        parts.append("\n".join([f"{title}:", *(_entry(*entry) for entry in entries)]))
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


def _flag_entry(
    key: str, options: Mapping[str, FieldInfo], defaults: Mapping[str, Any]
) -> tuple[str, str]:
    field = options[key]
    alike = meant(name for name in options if short_name(name) == short_name(key))
    flag = flag_of(short_name(key) if alike == [key] else key)
    if plain_type(field.annotation) is bool:
        table, dot, last = flag.removeprefix("--").rpartition(".")
        flag = f"{flag}, --{table}{dot}no-{last}"
    else:
        flag = f"{flag} {_metavar(field)}"
    text = _joined(field.description)
    if not field.is_required():
        text += _default(defaults.get(key, field.get_default(call_default_factory=True)))
    return flag, text


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


def _joined(text: str | None) -> str:
    return " ".join((text or "").split())


def _entry(name: str, text: str) -> str:
    body = _fill(text, " " * _INDENT)
    if len(name) + 4 <= _INDENT:
        return f"  {name}".ljust(_INDENT) + body.lstrip()
    return f"  {name}\n{body}"


def _fill(text: str, indent: str) -> str:
    width = min(shutil.get_terminal_size().columns, 110)
    return textwrap.fill(
        text, width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False
    )
