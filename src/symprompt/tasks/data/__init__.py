"""The standard data sets, by name: the kinds of task they can be read as, and their readers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from symprompt.tasks.data.classes import read_class_set
from symprompt.tasks.data.files import Read
from symprompt.tasks.data.questions import read_question_set
from symprompt.tasks.data.spans import read_relation_set
from symprompt.tasks.data.tags import (
    read_conll05,
    read_conll12,
    read_entity_set,
    read_entity_spans,
    read_propbank_set,
)

Reader = Callable[[str, Path, int], dict[str, Read]]
"""Reads a set by its name from a folder, its splits perhaps drawn by a seed."""

_ENTITIES: dict[str, Reader] = {"tagging": read_entity_set, "spans": read_entity_spans}

SETS: dict[str, dict[str, Reader]] = {
    "sst2": {"sequence": read_class_set},
    "rte": {"pair": read_class_set},
    "boolq": {"pair": read_class_set},
    "cb": {"pair": read_class_set},
    "mnli": {"pair": read_class_set},
    "conll2003": _ENTITIES,
    "conll2004": {**_ENTITIES, "relations": read_relation_set},
    "wikigold": _ENTITIES,
    "gum": _ENTITIES,
    "ontonotes": _ENTITIES,
    "squad": {"question": read_question_set},
    "squad2": {"question": read_question_set},
    "propbank-ewt": {"roles": read_propbank_set},
    "conll05": {"roles": read_conll05},
    "conll12": {"roles": read_conll12},
}
"""By name; a set is read as its first kind where no other is asked for."""
