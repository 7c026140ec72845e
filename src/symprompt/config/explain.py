"""A value that was refused, in one sentence: the key, what was got and what is allowed."""

from __future__ import annotations

import difflib
import typing
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from pydantic import ValidationError
    from pydantic.fields import FieldInfo

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
    return f"unknown key {key}; " + (f"did you mean {near}?" if near else _list(known))


def nearest(word: str, known: Iterable[str]) -> str:
    """Return which of the known words was probably meant, or an empty text."""
    return next(iter(difflib.get_close_matches(word, list(known), n=1)), "")


def _list(known: list[str]) -> str:
    return f"known: {', '.join(known)}."


def _allowed(first: Any, field: FieldInfo) -> str:
    """Return what a field allows."""
    if first["type"] == "value_error":
        return str(first["ctx"]["error"])
    inner = item_type(field.annotation)
    which = "each must be" if len(first["loc"]) > 1 else "it must be"
    if first["type"] == "too_short":
        return f"give {first['ctx']['min_length']} or more"
    if inner is not None and len(first["loc"]) == 1:
        return f"{which} a list of {_NOUNS[plain_type(inner)]}"
    wanted = field.annotation if inner is None else inner
    if typing.get_origin(wanted) is Literal:
        return f"allowed are: {', '.join(map(str, typing.get_args(wanted)))}"
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
