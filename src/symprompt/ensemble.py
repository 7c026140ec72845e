"""The settings of methods with several written prompts, a table of a run's config."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from symprompt.errors import ConfigError

SEVERAL_PROMPTS = ("lpaqa", "softprompt")
"""The methods that this table is for."""


@dataclass(frozen=True)
class EnsembleConfig:
    """Several written prompts per relation (lpaqa, softprompt), and how their answers are mixed."""

    prompts: tuple[str, ...] = ()
    """Folders (P36.jsonl, ... with a template a line) or JSONL files (relation, template) of
    written prompts; empty looks beside the data for prompts/trex_mine and trex_paraphrase."""
    with_manual: bool = True
    """The relation's manual template is one of the prompts, the first."""
    combine: Literal["top1", "uniform", "optimised"] = "optimised"
    """For lpaqa. top1: the prompt with the best P@1 on train; uniform: all weigh the same;
    optimised: the weights that make the training objects most likely."""
    mixture: Literal["log", "probability"] = "log"
    """What lpaqa averages over prompts: log-probabilities (the paper), or probabilities."""
    most: int = 0
    """Most prompts of a relation; those with the best P@1 on train are taken. 0 takes all."""
    weighing: Literal["em", "gradient"] = "em"
    """How softprompt learns its prompts' weights: em sets them to the prompts' mean share in the
    training objects' likelihood, after each epoch; gradient learns them like the vectors."""
    deep: bool = False
    """Let softprompt also move the hidden states of the prompt before every layer."""


def check_ensemble(config: EnsembleConfig) -> None:
    """Refuse values out of range.

    Raises:
        ConfigError: naming the key, what was got and what is allowed.
    """
    if config.most < 0:
        raise ConfigError(f"ensemble.most is {config.most}; it must be at least 0.")
