"""Facts, where they come from, and what to know about them before asking a model."""

from symprompt.facts.load import QUESTION_ROLES, load_facts, load_subjects, read_question
from symprompt.facts.quality import (
    CheckReport,
    RelationCheck,
    check,
    count_inverses,
    count_leakage,
)
from symprompt.facts.templates import find_prompts, load_prompts
from symprompt.facts.types import (
    NOT_ONE_TOKEN,
    SPLITS,
    Dropped,
    Fact,
    FactSet,
    Relation,
    Split,
    at_most,
    compose,
    in_word_list,
    load_word_list,
    nearest_name,
    uhn,
    with_advice,
)
from symprompt.facts.world import world_facts

__all__ = [
    "NOT_ONE_TOKEN",
    "QUESTION_ROLES",
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
    "compose",
    "count_inverses",
    "count_leakage",
    "find_prompts",
    "in_word_list",
    "load_facts",
    "load_prompts",
    "load_subjects",
    "load_word_list",
    "nearest_name",
    "read_question",
    "uhn",
    "with_advice",
    "world_facts",
]
