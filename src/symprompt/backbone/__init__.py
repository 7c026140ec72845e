"""The model as a function: load, embed, logits at chosen positions."""

from symprompt.backbone.hidden import body_states, prefix_shape
from symprompt.backbone.inputs import Inputs
from symprompt.backbone.loading import load_vocabulary
from symprompt.backbone.model import Backbone
from symprompt.backbone.packing import Packing, pack
from symprompt.backbone.prefix import Prefix, PrefixShape
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
    "Packing",
    "Prefix",
    "PrefixShape",
    "ReadOut",
    "StackedModel",
    "Tuning",
    "Vocabulary",
    "body_states",
    "load_vocabulary",
    "locate_model",
    "pack",
    "prefix_shape",
]
