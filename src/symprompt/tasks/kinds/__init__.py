"""The kinds of task, by name: one line each, and one file for each family of them."""

from __future__ import annotations

from typing import Any

from symprompt.tasks.kinds.base import Kind, Target
from symprompt.tasks.kinds.classes import PairClasses, TextClasses
from symprompt.tasks.kinds.questions import Questions
from symprompt.tasks.kinds.spans import Relations, Spans
from symprompt.tasks.kinds.tags import Roles, Tagging

__all__ = ["KINDS", "Kind", "Target"]

KINDS: dict[str, Kind[Any, Any]] = {
    "sequence": TextClasses(),
    "pair": PairClasses(),
    "tagging": Tagging(),
    "roles": Roles(),
    "question": Questions(),
    "spans": Spans(),
    "relations": Relations(),
}
