"""symprompt: ask a frozen language model what it knows, both ways, through learned prompts."""

from typing import TYPE_CHECKING

from symprompt.answering import Answer, Run
from symprompt.backbone import Backbone
from symprompt.config import RunConfig, load_config, make_config, override, shipped_configs
from symprompt.embeddings import embed
from symprompt.errors import SympromptError
from symprompt.experiment import train
from symprompt.facts import Fact, FactSet, Relation, check, load_facts, world_facts
from symprompt.pretrain.reuse import prepare_pretraining
from symprompt.pretrain.run import pretrain
from symprompt.pretrain.settings import PretrainConfig, load_pretrain_config
from symprompt.prompts import Template
from symprompt.prompts.exchange import read_peft, write_peft
from symprompt.reproduction import ReproduceSettings
from symprompt.reranking import rerank_run
from symprompt.tasks.multitask import tune_mixture
from symprompt.tasks.predicting import predict_file
from symprompt.tasks.run import tune
from symprompt.tasks.serving import Server
from symprompt.tasks.settings import TuneConfig, load_tune_config
from symprompt.tasks.stored import StoredPrompt

if TYPE_CHECKING:
    from symprompt.report import show_progress
    from symprompt.report.paper import reproduce
else:

    def __getattr__(name: str) -> object:
        """Load what belongs to reports when it is first asked for: the core needs no rich."""
        if name == "show_progress":
            from symprompt.report import show_progress

            return show_progress
        if name == "reproduce":
            from symprompt.report.paper import reproduce

            return reproduce
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__version__ = "0.1.0"

__all__ = [
    "Answer",
    "Backbone",
    "Fact",
    "FactSet",
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
