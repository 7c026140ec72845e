"""P-tuning (Liu et al., 2021, "GPT Understands, Too", section 3), for masked and causal models.

Deviations, each an option: the blanks stand in the order the paper prints (the authors' LAMA code
puts the object first: template "<3> [Y] <3> [X] <3>"); the language model's dropout is off unless
``lm_dropout``; the best epoch is chosen by dev MRR unless ``select`` says otherwise.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from symprompt.models import LanguageModel
from symprompt.probing.methods.base import Method, Sentences, Vectors, forth_asks, object_loss
from symprompt.probing.queries import Asks
from symprompt.prompts import PromptEncoder


class PTuning(Method):
    """Learn the template's vectors so that the gold object fills its blank (equation 3); final."""

    def __init__(self, backbone: LanguageModel, encoder: PromptEncoder) -> None:
        super().__init__(backbone, {"forth": encoder})

    def loss(self, sentences: Sentences, rows: np.ndarray, vectors: Vectors) -> Tensor:
        """Return the cross-entropy of the gold object over the full vocabulary, [b]."""
        return object_loss(self.backbone, sentences, rows, vectors)

    def asks(self, sentences: Sentences, rows: np.ndarray) -> list[Asks] | None:
        """Return the sentences that ask for the objects."""
        return forth_asks(sentences, rows)
