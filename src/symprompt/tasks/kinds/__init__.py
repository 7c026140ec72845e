"""The kinds of task, by name: one line each, and one file for each family of them."""

from __future__ import annotations

from typing import Any

from symprompt.tasks.kinds.base import Kind, Target
from symprompt.tasks.kinds.classes import Classes
from symprompt.tasks.kinds.questions import Questions
from symprompt.tasks.kinds.spans import Spans
from symprompt.tasks.kinds.tags import Tags, WordTags

__all__ = ["KINDS", "Kind", "Target"]

KINDS: dict[str, Kind[Any, Any]] = {
    "sequence": Classes(pair=False),
    "pair": Classes(pair=True),
    "tagging": Tags(roles=False),
    "words": WordTags(),
    "roles": Tags(roles=True),
    "question": Questions(),
    "spans": Spans(related=False),
    "relations": Spans(related=True),
}
