"""The public API is what ``tests/api.txt`` lists; a change there is a change for users.

``python tests/test_api.py`` writes the list anew. What goes or changes needs a line in the
changelog, and the policy of ``docs/versions.md``.
"""

from __future__ import annotations

import dataclasses
import inspect
from pathlib import Path
from typing import Any

import symprompt

LIST = Path(__file__).with_name("api.txt")


def signature(value: Any) -> str:
    """Return a signature, the same in every version of Python."""
    try:
        found = inspect.signature(value)
    except (TypeError, ValueError):
        return "(...)"
    parts, marked = [], False
    for own in found.parameters.values():
        if own.kind is own.KEYWORD_ONLY and not marked:
            parts.append("*")
        marked |= own.kind in (own.KEYWORD_ONLY, own.VAR_POSITIONAL)
        stars = {own.VAR_POSITIONAL: "*", own.VAR_KEYWORD: "**"}.get(own.kind, "")
        told = stars + own.name
        if own.annotation is not own.empty:
            told += f": {named(own.annotation)}"
        if own.default is not own.empty:
            plain = own.default is None or isinstance(own.default, str | int | float | tuple)
            told += f" = {own.default!r}" if plain else " = ..."
        parts.append(told)
    end = "" if found.return_annotation is found.empty else f" -> {named(found.return_annotation)}"
    return f"({', '.join(parts)}){end}"


def named(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "None")


def describe(name: str, value: Any) -> list[str]:
    """Return a line for a function, and for a class one more for each public member of its own."""
    if not inspect.isclass(value):
        return [f"{name}{signature(value)}"]
    kind = "error " if issubclass(value, BaseException) else ""
    lines = [f"{kind}class {name}{signature(value)}"]
    members: dict[str, Any] = {}
    for base in reversed(value.__mro__):
        if base.__module__.startswith("symprompt"):
            members |= vars(base)
    fields = (
        {own.name for own in dataclasses.fields(value)} if dataclasses.is_dataclass(value) else ()
    )
    for own in sorted(set(members) | set(fields)):
        if own.startswith("_"):
            continue
        found = members.get(own)
        if own in fields:
            continue  # in the signature
        if isinstance(found, classmethod | staticmethod):
            lines.append(f"  {name}.{own}{signature(getattr(value, own))}")
        elif inspect.isfunction(found):
            lines.append(f"  {name}.{own}{signature(found)}")
        else:
            lines.append(f"  {name}.{own}")
    return lines


def api() -> str:
    """Return the whole API as text."""
    lines = [
        line for name in symprompt.__all__ for line in describe(name, getattr(symprompt, name))
    ]
    return "\n".join(lines) + "\n"


def test_the_public_api_is_as_listed() -> None:
    wanted, found = LIST.read_text("utf-8").splitlines(), api().splitlines()
    gone = sorted(set(wanted) - set(found))
    new = sorted(set(found) - set(wanted))
    assert (gone, new) == ([], []), (
        "the public API has changed; see docs/versions.md, tell it in the changelog and write the "
        "list anew: python tests/test_api.py"
    )


if __name__ == "__main__":
    LIST.write_text(api(), "utf-8")
