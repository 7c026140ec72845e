"""Manual prompts (Petroni et al., 2019): a written template, nothing to learn."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from symprompt.models import LanguageModel
from symprompt.probing.methods.base import Method, Sentences, Vectors, object_loss


class Manual(Method):
    """Ask through each relation's written template; final."""

    def __init__(self, backbone: LanguageModel) -> None:
        super().__init__(backbone, {})

    def loss(self, sentences: Sentences, rows: np.ndarray, vectors: Vectors) -> Tensor:
        """Return the cross-entropy of the gold object, [b]; there is nothing to train with it."""
        return object_loss(self.backbone, sentences, rows, vectors)
