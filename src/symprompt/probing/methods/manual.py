"""Manual prompts (Petroni et al., 2019): a manual template, nothing to learn."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np
from torch import Tensor

from symprompt.errors import ConfigError
from symprompt.facts import Split
from symprompt.probing.methods.base import Method, Sentences, Vectors, object_loss

if TYPE_CHECKING:
    from symprompt.probing.config import RunConfig
    from symprompt.probing.prepare import Problem


class Manual(Method):
    """Ask through each relation's manual template; final."""

    manual_templates: ClassVar[bool] = True

    @classmethod
    def from_config(cls, config: RunConfig, problem: Problem) -> Self:
        """Build the method; templates must be of words alone."""
        for name, template in zip(problem.relations, problem.templates, strict=True):
            if template.vectors:
                raise ConfigError(
                    f"the manual template of relation {name} has learned vectors, and manual "
                    f"prompts learn none: {template}."
                )
        return cls(problem.backbone, {})

    @classmethod
    def needed_splits(cls, config: RunConfig) -> tuple[Split, ...]:
        """Return test alone."""
        return ("test",)

    def loss(self, sentences: Sentences, rows: np.ndarray, vectors: Vectors) -> Tensor:
        """Return the cross-entropy of the gold object, [b]; there is nothing to train with it."""
        return object_loss(self.backbone, sentences, rows, vectors)
