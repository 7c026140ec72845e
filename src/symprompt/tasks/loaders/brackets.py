"""Phrases in brackets, "(ARG1*", "*", "*)", as IOB2 tags."""

from __future__ import annotations

import re
from collections.abc import Sequence

from symprompt.tasks.labels import OUTSIDE

# CoNLL-2004 repeats the type at the end, "*A1)"; entities of one word may have no star.
_CELL = re.compile(r"((?:\([^()*\s]+)*)(\*?)((?:[^()*\s]*\))*)")


def tags_of_brackets(cells: Sequence[str]) -> tuple[tuple[str, ...] | None, int, str]:
    """Return IOB2 tags of one bracketed column, or None with the place and what is wrong there.

    Of phrases inside each other the outer one is taken, as a word has one tag.
    """
    tags: list[str] = []
    opened: list[str] = []
    for place, cell in enumerate(cells):
        match = _CELL.fullmatch(cell)
        if match is None or not cell:
            return None, place, f"{cell!r} is no bracketed tag"
        names = match[1].split("(")[1:]
        outer = opened[0] if opened else None
        opened += names
        if outer is not None:
            tags.append(f"I-{outer}")
        else:
            tags.append(f"B-{opened[0]}" if opened else OUTSIDE)
        closed = match[3].count(")")
        if closed > len(opened):
            return None, place, f"{cell!r} closes a bracket that was not opened"
        del opened[len(opened) - closed :]
    if opened:
        return None, len(cells) - 1, f"the bracket of {opened[0]!r} is never closed"
    return tuple(tags), 0, ""
