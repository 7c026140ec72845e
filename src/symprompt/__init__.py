"""symprompt: ask a frozen language model what it knows, both ways, through learned prompts."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from symprompt.config import override as override
    from symprompt.config import shipped_configs as shipped_configs
    from symprompt.embeddings import embed as embed
    from symprompt.errors import SympromptError as SympromptError
    from symprompt.facts import Fact as Fact
    from symprompt.facts import FactSet as FactSet
    from symprompt.facts import Relation as Relation
    from symprompt.facts import check as check
    from symprompt.facts import load_facts as load_facts
    from symprompt.facts import world_facts as world_facts
    from symprompt.files.progress import show_progress as show_progress
    from symprompt.models import LanguageModel as LanguageModel
    from symprompt.opening import export_run as export_run
    from symprompt.opening import export_tables as export_tables
    from symprompt.opening import import_run as import_run
    from symprompt.opening import load as load
    from symprompt.opening import push_run as push_run
    from symprompt.opening import upgrade_run as upgrade_run
    from symprompt.papers.report import reproduce as reproduce
    from symprompt.papers.settings import FactSettings as FactSettings
    from symprompt.papers.settings import TaskSettings as TaskSettings
    from symprompt.pretraining.config import PretrainConfig as PretrainConfig
    from symprompt.pretraining.config import load_pretrain_config as load_pretrain_config
    from symprompt.pretraining.folder import prepare_pretraining as prepare_pretraining
    from symprompt.pretraining.train import pretrain as pretrain
    from symprompt.probing.ask import Answer as Answer
    from symprompt.probing.ask import Answers as Answers
    from symprompt.probing.ask import Run as Run
    from symprompt.probing.ask import ask_template as ask_template
    from symprompt.probing.config import RunConfig as RunConfig
    from symprompt.probing.config import load_config as load_config
    from symprompt.probing.config import make_config as make_config
    from symprompt.probing.many import ask_file as ask_file
    from symprompt.probing.rerank import rerank_run as rerank_run
    from symprompt.probing.train import train as train
    from symprompt.prompts import Template as Template
    from symprompt.prompts.exchange import read_peft as read_peft
    from symprompt.prompts.exchange import write_peft as write_peft
    from symprompt.report.diff import diff_runs as diff_runs
    from symprompt.report.tables import compare_runs as compare_runs
    from symprompt.tasks.config import TuneConfig as TuneConfig
    from symprompt.tasks.config import load_tune_config as load_tune_config
    from symprompt.tasks.predict import StoredPrompt as StoredPrompt
    from symprompt.tasks.predict import TaskRun as TaskRun
    from symprompt.tasks.predict import predict_file as predict_file
    from symprompt.tasks.serve import Server as Server
    from symprompt.tasks.train import tune as tune

__version__ = "0.2.0"

# What is public, by the module it stands in; loaded when it is first used.
_PUBLIC = {
    "symprompt.config": (
        "override",
        "shipped_configs",
    ),
    "symprompt.embeddings": ("embed",),
    "symprompt.errors": ("SympromptError",),
    "symprompt.facts": (
        "Fact",
        "FactSet",
        "Relation",
        "check",
        "load_facts",
        "world_facts",
    ),
    "symprompt.files.progress": ("show_progress",),
    "symprompt.models": ("LanguageModel",),
    "symprompt.opening": (
        "export_run",
        "export_tables",
        "import_run",
        "load",
        "push_run",
        "upgrade_run",
    ),
    "symprompt.papers.report": ("reproduce",),
    "symprompt.papers.settings": ("FactSettings", "TaskSettings"),
    "symprompt.pretraining.config": (
        "PretrainConfig",
        "load_pretrain_config",
    ),
    "symprompt.pretraining.folder": ("prepare_pretraining",),
    "symprompt.pretraining.train": ("pretrain",),
    "symprompt.probing.ask": (
        "Answer",
        "Answers",
        "Run",
        "ask_template",
    ),
    "symprompt.probing.config": (
        "RunConfig",
        "load_config",
        "make_config",
    ),
    "symprompt.probing.many": ("ask_file",),
    "symprompt.probing.rerank": ("rerank_run",),
    "symprompt.probing.train": ("train",),
    "symprompt.prompts": ("Template",),
    "symprompt.prompts.exchange": (
        "read_peft",
        "write_peft",
    ),
    "symprompt.report.diff": ("diff_runs",),
    "symprompt.report.tables": ("compare_runs",),
    "symprompt.tasks.config": (
        "TuneConfig",
        "load_tune_config",
    ),
    "symprompt.tasks.predict": ("StoredPrompt", "TaskRun", "predict_file"),
    "symprompt.tasks.serve": ("Server",),
    "symprompt.tasks.train": ("tune",),
}
_MODULE_OF = {name: module for module, names in _PUBLIC.items() for name in names}

__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_MODULE_OF[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
