"""symprompt: ask a frozen language model what it knows, both ways, through learned prompts."""

from typing import TYPE_CHECKING

from symprompt.config import override, shipped_configs
from symprompt.embeddings import embed
from symprompt.errors import SympromptError
from symprompt.facts import Fact, FactSet, Relation, check, load_facts, world_facts
from symprompt.models import LanguageModel
from symprompt.pretraining.config import PretrainConfig, load_pretrain_config
from symprompt.pretraining.prepare import prepare_pretraining
from symprompt.pretraining.train import pretrain
from symprompt.probing.ask import Answer, Run
from symprompt.probing.config import RunConfig, load_config, make_config
from symprompt.probing.rerank import rerank_run
from symprompt.probing.train import train
from symprompt.prompts import Template
from symprompt.prompts.exchange import read_peft, write_peft
from symprompt.tasks.config import TuneConfig, load_tune_config
from symprompt.tasks.multitask import tune_mixture
from symprompt.tasks.predict import predict_file
from symprompt.tasks.serve import Server
from symprompt.tasks.stored import StoredPrompt
from symprompt.tasks.train import tune

if TYPE_CHECKING:
    from symprompt.papers import reproduce
    from symprompt.papers.settings import ReproduceSettings
    from symprompt.report import show_progress
else:

    def __getattr__(name: str) -> object:
        """Load what belongs to reports when it is first asked for: the core needs no rich."""
        if name == "show_progress":
            from symprompt.report import show_progress

            return show_progress
        if name == "reproduce":
            from symprompt.papers import reproduce

            return reproduce
        if name == "ReproduceSettings":
            from symprompt.papers.settings import ReproduceSettings

            return ReproduceSettings
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__version__ = "0.1.0"

__all__ = [
    "Answer",
    "Fact",
    "FactSet",
    "LanguageModel",
    "PretrainConfig",
    "Relation",
    "ReproduceSettings",
    "Run",
    "RunConfig",
    "Server",
    "StoredPrompt",
    "SympromptError",
    "Template",
    "TuneConfig",
    "check",
    "embed",
    "load_config",
    "load_facts",
    "load_pretrain_config",
    "load_tune_config",
    "make_config",
    "override",
    "predict_file",
    "prepare_pretraining",
    "pretrain",
    "read_peft",
    "reproduce",
    "rerank_run",
    "shipped_configs",
    "show_progress",
    "train",
    "tune",
    "tune_mixture",
    "world_facts",
    "write_peft",
]
