"""symprompt: ask a frozen language model what it knows, both ways, through learned prompts."""

from symprompt.backbone import Backbone
from symprompt.config import RunConfig, load_config, make_config, override, shipped_configs
from symprompt.errors import SympromptError
from symprompt.experiment import Answer, Run, train
from symprompt.facts import Fact, FactSet, Relation, check, load_facts, world_facts
from symprompt.prompts import Template
from symprompt.report import show_progress

__version__ = "0.1.0"

__all__ = [
    "Answer",
    "Backbone",
    "Fact",
    "FactSet",
    "Relation",
    "Run",
    "RunConfig",
    "SympromptError",
    "Template",
    "check",
    "load_config",
    "load_facts",
    "make_config",
    "override",
    "shipped_configs",
    "show_progress",
    "train",
    "world_facts",
]
