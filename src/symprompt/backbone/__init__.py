"""The model as a function: load, embed, logits at chosen positions."""

from symprompt.backbone.inputs import Inputs
from symprompt.backbone.loading import load_vocabulary
from symprompt.backbone.model import Backbone
from symprompt.backbone.packing import LONGEST, Packing, pack
from symprompt.backbone.readout import ReadOut
from symprompt.backbone.shipped import SHIPPED, locate_model
from symprompt.backbone.stacked import StackedModel
from symprompt.backbone.tuning import FullTuning, LoraTuning, Tuning
from symprompt.backbone.vocabulary import Vocabulary

__all__ = [
    "LONGEST",
    "SHIPPED",
    "Backbone",
    "FullTuning",
    "Inputs",
    "LoraTuning",
    "Packing",
    "ReadOut",
    "StackedModel",
    "Tuning",
    "Vocabulary",
    "load_vocabulary",
    "locate_model",
    "pack",
]
