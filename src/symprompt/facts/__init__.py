"""Facts, where they come from, and what to know about them before asking a model."""

from symprompt.facts.load import load_facts, load_subjects
from symprompt.facts.quality import CheckReport, RelationCheck, check
from symprompt.facts.templates import find_prompts, load_prompts
from symprompt.facts.types import (
    SPLITS,
    Dropped,
    Fact,
    FactSet,
    Relation,
    Split,
    at_most,
    in_word_list,
    load_word_list,
    nearest_name,
    uhn,
)
from symprompt.facts.world import world_facts

__all__ = [
    "SPLITS",
    "CheckReport",
    "Dropped",
    "Fact",
    "FactSet",
    "Relation",
    "RelationCheck",
    "Split",
    "at_most",
    "check",
    "find_prompts",
    "in_word_list",
    "load_facts",
    "load_prompts",
    "load_subjects",
    "load_word_list",
    "nearest_name",
    "uhn",
    "world_facts",
]
