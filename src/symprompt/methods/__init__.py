"""One file per method, all through the same contract."""

from symprompt.methods.autoprompt import AutoPrompt
from symprompt.methods.base import Method, Sentences
from symprompt.methods.finetune import FineTune
from symprompt.methods.lpaqa import LPAQA
from symprompt.methods.majority import Majority
from symprompt.methods.manual import Manual
from symprompt.methods.optiprompt import OptiPrompt
from symprompt.methods.ptuning import PTuning
from symprompt.methods.softprompt import SoftPrompt
from symprompt.methods.spe import SPE
from symprompt.methods.spelling import Spelling, make_spelling

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
