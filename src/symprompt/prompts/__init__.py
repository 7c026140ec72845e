"""Templates of words and learned vectors, their layout as index tensors, and prompt encoders."""

from symprompt.prompts.encoders import (
    BiLSTMEncoder,
    FreeVectors,
    MLPEncoder,
    PromptEncoder,
    TriggerTokens,
)
from symprompt.prompts.layout import (
    EncodedFacts,
    Layout,
    Question,
    encode_facts,
    encode_piece,
    fixed_length,
    make_layout,
    round_up,
)
from symprompt.prompts.names import Names, make_names, read_names
from symprompt.prompts.template import Piece, Template

__all__ = [
    "BiLSTMEncoder",
    "EncodedFacts",
    "FreeVectors",
    "Layout",
    "MLPEncoder",
    "Names",
    "Piece",
    "PromptEncoder",
    "Question",
    "Template",
    "TriggerTokens",
    "encode_facts",
    "encode_piece",
    "fixed_length",
    "make_layout",
    "make_names",
    "read_names",
    "round_up",
]
