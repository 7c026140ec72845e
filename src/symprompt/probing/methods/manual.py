"""Manual prompts (Petroni et al., 2019): a manual template, nothing to learn."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from symprompt.facts import Split
from symprompt.probing.methods.base import Method, require_words

if TYPE_CHECKING:
    from symprompt.probing.config import RunConfig
    from symprompt.probing.problem import Problem


class Manual(Method):
    """Ask through each relation's manual template; final."""

    manual_templates: ClassVar[bool] = True

    def __init__(self, config: RunConfig, problem: Problem) -> None:
        super().__init__(config, problem)
        require_words(
            problem,
            "the manual template of relation {name} has learned vectors, and manual prompts learn "
            "none: {template}.",
        )

    @classmethod
    def needed_splits(cls, config: RunConfig) -> tuple[Split, ...]:
        """Return test alone."""
        return ("test",)
