"""Templates of words and learned vectors, their layout as index tensors, and prompt encoders."""

from symprompt.prompts.encoders import (
    BiLSTMEncoder,
    FreeVectors,
    MLPEncoder,
    PrefixEncoder,
    PromptEncoder,
    SoftMixture,
    TriggerTokens,
)
from symprompt.prompts.frames import Frames, Names, make_frames, make_names
from symprompt.prompts.layout import (
    EncodedFacts,
    Frame,
    Layout,
    Piece,
    Question,
    Template,
    encode_facts,
    encode_piece,
    fixed_length,
    make_layout,
    round_up,
)
from symprompt.prompts.names import NameTable, make_name_table, read_names
from symprompt.prompts.packed import PackedQuestion, join_layouts, packed_question, slot_places

__all__ = [
    "BiLSTMEncoder",
    "EncodedFacts",
    "Frame",
    "Frames",
    "FreeVectors",
    "Layout",
    "MLPEncoder",
    "NameTable",
    "Names",
    "PackedQuestion",
    "Piece",
    "PrefixEncoder",
    "PromptEncoder",
    "Question",
    "SoftMixture",
    "Template",
    "TriggerTokens",
    "encode_facts",
    "encode_piece",
    "fixed_length",
    "join_layouts",
    "make_frames",
    "make_layout",
    "make_name_table",
    "make_names",
    "packed_question",
    "read_names",
    "round_up",
    "slot_places",
]
