"""The model as a function: load, embed, logits at chosen positions."""

from symprompt.backbone.model import Backbone, Inputs, load_vocabulary
from symprompt.backbone.shipped import SHIPPED, locate_model
from symprompt.backbone.vocabulary import Vocabulary

__all__ = ["SHIPPED", "Backbone", "Inputs", "Vocabulary", "load_vocabulary", "locate_model"]
