"""What a language model reads."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from symprompt.accel.packing import Packing
from symprompt.models.layers import Added
from symprompt.models.prefix import Prefix


@dataclass(frozen=True)
class Inputs:
    """What the model reads: embeddings [b, t, width] and a mask [b, t], true on real tokens.

    Real tokens come first, padding after them; without a mask there is none.

    Attributes:
        added: layer, from 1 on -> [b, t, h], added to the hidden states that layer reads.
        types: [b, t] int64, 0 for a pair's first text and 1 for its second; models that know no
            such types (RoBERTa, DistilBERT, causal models) do not read them.
        prefix: keys and values that every layer reads before the tokens' own; not of packed rows.
        packing: where sentences stand one after the other in a single row, b = 1, without mask.
    """

    embeddings: Tensor
    mask: Tensor | None
    added: Added | None = None
    types: Tensor | None = None
    prefix: Prefix | None = None
    packing: Packing | None = None
