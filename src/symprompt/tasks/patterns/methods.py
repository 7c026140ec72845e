"""The methods of tasks with patterns, by name: what each learns beside the language model.

Nothing here imports torch before a module is made, so configs can read what a method needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from torch import Tensor

    from symprompt.prompts import PromptEncoder
    from symprompt.tasks.patterns.config import PatternConfig
    from symprompt.tasks.patterns.model import ClassHead
    from symprompt.tasks.patterns.prepare import VerbalProblem


class VerbalMethod:
    """A manual pattern, and nothing beside the model; the base of the others.

    Attributes:
        learns: whether anything is trained.
        trains_model: whether the language model's weights may be trained.
        needs_model: whether nothing is left to learn if they are not.
        vectors: whether the pattern holds learned vectors.
        verbal: whether words answer; if not, a head does.
        prompt: what its prompt is stored as; empty where it has none.
    """

    learns: ClassVar[bool] = True
    trains_model: ClassVar[bool] = True
    needs_model: ClassVar[bool] = False
    vectors: ClassVar[bool] = False
    verbal: ClassVar[bool] = True
    prompt: ClassVar[str] = ""

    def make(
        self, problem: VerbalProblem, config: PatternConfig, seed: int
    ) -> PromptEncoder | ClassHead | None:
        """Make what stands beside the model, drawn from a seed.

        Raises:
            ModelError: a prefix would not be read by every layer of this kind of model.
        """
        return None

    def load(self, extra: Any, tensors: Mapping[str, Tensor]) -> None:
        """Put stored parameters into what ``make`` gave for free vectors or a free prefix."""


class ManualPattern(VerbalMethod):
    """MP: a manual pattern, the model fine-tuned; final."""

    needs_model = True


class ZeroShot(VerbalMethod):
    """A manual pattern and the model as it is; final."""

    learns = False
    trains_model = False


class LearnedVectors(VerbalMethod):
    """P-tuning: learned vectors in the pattern; final."""

    vectors = True
    prompt = "vectors"

    def make(
        self, problem: VerbalProblem, config: PatternConfig, seed: int
    ) -> PromptEncoder | ClassHead | None:
        """Make an encoder of the vectors."""
        from symprompt.tasks.patterns.model import make_encoder

        return make_encoder(
            config.encoder,
            problem.worded.pattern.vectors,
            problem.backbone.width,
            seed=seed,
            task=problem.task.name,
            lstm_hidden=config.lstm_hidden,
        )

    def load(self, extra: Any, tensors: Mapping[str, Tensor]) -> None:
        """Put the vectors in place; a network that made them is not stored."""
        extra.vectors.data.copy_(tensors["vectors"][None])


class DeepPrefix(VerbalMethod):
    """P-tuning v2 with a verbalizer: a manual pattern, a prefix at every layer; final."""

    trains_model = False
    prompt = "prefix"

    def make(
        self, problem: VerbalProblem, config: PatternConfig, seed: int
    ) -> PromptEncoder | ClassHead | None:
        """Make an encoder of the prefix."""
        from symprompt.prompts import PrefixEncoder
        from symprompt.tasks.trainables import hidden_size

        return PrefixEncoder(
            (problem.task.name,),
            problem.backbone.prefix_shape,
            config.prefix_length,
            kind=config.prefix_encoder,
            hidden=hidden_size(problem.backbone),
            dropout=config.prefix_dropout,
            seed=(seed, "prefix"),
        )

    def load(self, extra: Any, tensors: Mapping[str, Tensor]) -> None:
        """Put the keys and values in place."""
        extra.put(tensors["prefix"])


class ClassHeadTuning(VerbalMethod):
    """A head on [CLS] and no pattern, the model fine-tuned; final."""

    needs_model = True
    verbal = False

    def make(
        self, problem: VerbalProblem, config: PatternConfig, seed: int
    ) -> PromptEncoder | ClassHead | None:
        """Make a head: a class for each label, or one score for each of an example's choices."""
        from symprompt.tasks.patterns.model import ClassHead
        from symprompt.tasks.trainables import hidden_size

        classes = 1 if problem.task.kind == "choices" else len(problem.task.labels)
        return ClassHead(hidden_size(problem.backbone), classes, seed=seed, task=problem.task.name)

    def load(self, extra: Any, tensors: Mapping[str, Tensor]) -> None:
        """Put the head's weights in place."""
        extra.load_state_dict({name: tensors[f"extra.{name}"] for name in extra.state_dict()})


METHODS: dict[str, VerbalMethod] = {
    "ptuning": LearnedVectors(),
    "pt2": DeepPrefix(),
    "mp": ManualPattern(),
    "zero-shot": ZeroShot(),
    "cls": ClassHeadTuning(),
}
