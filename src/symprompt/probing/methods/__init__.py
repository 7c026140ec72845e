"""One file per method, all through the same contract."""

from symprompt.probing.any_length import Spelling, make_spelling
from symprompt.probing.methods.autoprompt import AutoPrompt
from symprompt.probing.methods.base import Method, Sentences
from symprompt.probing.methods.finetune import FineTune
from symprompt.probing.methods.lpaqa import LPAQA
from symprompt.probing.methods.majority import Majority
from symprompt.probing.methods.manual import Manual
from symprompt.probing.methods.optiprompt import OptiPrompt
from symprompt.probing.methods.ptuning import PTuning
from symprompt.probing.methods.softprompt import SoftPrompt
from symprompt.probing.methods.spe import SPE

__all__ = [
    "LPAQA",
    "SPE",
    "AutoPrompt",
    "FineTune",
    "Majority",
    "Manual",
    "Method",
    "OptiPrompt",
    "PTuning",
    "Sentences",
    "SoftPrompt",
    "Spelling",
    "make_spelling",
]
