"""The model as a function: load, embed, logits at chosen positions."""

from symprompt.accel.packing import Packing, pack
from symprompt.models.language_model import Inputs, LanguageModel
from symprompt.models.loading import SHIPPED, load_vocabulary, locate_model
from symprompt.models.prefix import Prefix, PrefixShape
from symprompt.models.readout import ReadOut
from symprompt.models.stacked import FullTuning, LoraTuning, StackedModel, Tuning
from symprompt.models.vocabulary import Vocabulary

__all__ = [
    "SHIPPED",
    "FullTuning",
    "Inputs",
    "LanguageModel",
    "LoraTuning",
    "Packing",
    "Prefix",
    "PrefixShape",
    "ReadOut",
    "StackedModel",
    "Tuning",
    "Vocabulary",
    "load_vocabulary",
    "locate_model",
    "pack",
]
