"""The model as a function: load, embed, logits at chosen positions."""

from symprompt.backbone.loading import load_vocabulary
from symprompt.backbone.model import Backbone, Inputs
from symprompt.backbone.readout import ReadOut
from symprompt.backbone.shipped import SHIPPED, locate_model
from symprompt.backbone.stacked import StackedModel
from symprompt.backbone.tuning import FullTuning, LoraTuning, Tuning
from symprompt.backbone.vocabulary import Vocabulary

__all__ = [
    "SHIPPED",
    "Backbone",
    "FullTuning",
    "Inputs",
    "LoraTuning",
    "ReadOut",
    "StackedModel",
    "Tuning",
    "Vocabulary",
    "load_vocabulary",
    "locate_model",
]
