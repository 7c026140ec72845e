"""What a method is: what it needs, encoders to train, a loss per fact, scores per answer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from symprompt.facts import SPLITS, FactSet, Relation, Split
from symprompt.models import LanguageModel
from symprompt.probing.any_length import Spelling, name_likelihoods, score_names
from symprompt.probing.folder import load_card, load_prompts
from symprompt.probing.queries import OBJECT_PART, Queries, object_logits, object_queries
from symprompt.prompts import Layout, Names, Template

if TYPE_CHECKING:
    from symprompt.probing.config import RunConfig
    from symprompt.probing.prepare import Problem
    from symprompt.runs.folder import Folder

Prompts = tuple[tuple[Template, ...], ...]
"""Each relation's manual templates, where a method reads several."""
Vectors = Mapping[str, Tensor]


@dataclass(frozen=True)
class Sentences:
    """One split, tensorised.

    Attributes:
        object_prompt: the facts in the prompt that asks for the object.
        subject_prompt: the facts in the prompt that asks for the subject.
        gold: [n] int64, the true objects: their tokens, or ids of names.
        known: [n, m] int64 padded with -1, every known true object of each fact's subject.
        names: the subjects as tokens, for methods with several prompts.
        spelling: how names of any length are asked for; None where tokens are the answers.
    """

    object_prompt: Layout
    subject_prompt: Layout
    gold: Tensor
    known: Tensor
    names: Names | None = None
    spelling: Spelling | None = None

    def __len__(self) -> int:
        return len(self.object_prompt)

    def take(self, rows: np.ndarray, relations: np.ndarray) -> Sentences:
        """Return some facts, as facts of the relations with these indices."""
        index = torch.from_numpy(rows).to(self.gold.device)
        first = second = self.object_prompt.take(rows, relations)
        if self.subject_prompt is not self.object_prompt:
            second = self.subject_prompt.take(rows, relations)
        return Sentences(first, second, self.gold[index], self.known[index])

    @cached_property
    def relations(self) -> np.ndarray:
        """Each fact's relation, [n] on the CPU."""
        found: np.ndarray = self.object_prompt.relation.cpu().numpy()
        return found


class Method(ABC):
    """Abstract: asks a model for objects.

    ``encoders`` maps a part (``OBJECT_PART``, ``SUBJECT_PART``) to what makes its vectors: a prompt
    encoder, or for fine-tuning each relation's weights. Every parameter and every output has a
    leading relation axis. Parts share no parameter, so each relation's best epoch is chosen for
    each part by itself.

    Attributes:
        has_subject_prompt: it also asks for the subject given a candidate, to re-rank.
        manual_templates: it asks by each relation's manual template, whatever the config has.
        several_prompts: it asks by several manual templates of each relation.
        in_stacks: its weights are too large to hold for all relations, so these are trained and
            asked in stacks, one after the other.
        learner: "module:class" of the Trainable that a run trains, imported when training begins.
    """

    has_subject_prompt: ClassVar[bool] = False
    manual_templates: ClassVar[bool] = False
    several_prompts: ClassVar[bool] = False
    in_stacks: ClassVar[bool] = False
    learner: ClassVar[str] = "symprompt.probing.training:PromptTraining"

    def __init__(self, backbone: LanguageModel, encoders: Mapping[str, nn.Module]) -> None:
        self.backbone = backbone
        self.encoders = dict(encoders)

    @classmethod
    @abstractmethod
    def from_config(cls, config: RunConfig, problem: Problem) -> Self:
        """Build the method for a problem, its encoders drawn from the config's seed.

        Raises:
            ConfigError: the templates do not suit the method.
        """

    @classmethod
    def needed_splits(cls, config: RunConfig) -> tuple[Split, ...]:
        """Return the splits that every relation must have facts in."""
        return SPLITS if config.learning.epochs > 0 else ("test",)

    @classmethod
    def check_model(cls, config: RunConfig, backbone: LanguageModel) -> None:
        """Refuse settings that this kind of model cannot be asked with; most methods have none.

        Raises:
            ConfigError: naming the key and what to do.
        """
        return

    @classmethod
    def choose_prompts(
        cls, config: RunConfig, backbone: LanguageModel, facts: FactSet, prompts: Prompts
    ) -> Prompts:
        """Return those of each relation's manual templates that a run asks by; most take all."""
        return prompts

    @classmethod
    def check_stored(cls, folder: Folder, relations: Sequence[int]) -> None:
        """Refuse a finished run that lacks what asking these relations needs.

        Raises:
            RunError: saying what is missing; no model was needed to find it.
        """
        load_prompts(folder, load_card(folder)["parts"])

    @classmethod
    def describe(cls, template: str, relation: Relation) -> str:
        """Return what asks a relation's facts, where no vectors were learned."""
        return f"a manual template, nothing learned: {template}"

    def check_learning(self, config: RunConfig) -> None:
        """Refuse training that cannot end well, before a run folder is made; most have no need.

        Raises:
            ConfigError: naming the key and what to do.
        """
        return

    def load_vectors(self, folder: Folder, relations: Sequence[int]) -> dict[str, Tensor]:
        """Read what a finished run learned for some of its relations, on the model's device."""
        stored = load_prompts(folder, load_card(folder)["parts"])
        rows = list(relations)
        return {part: value[rows].to(self.backbone.device) for part, value in stored.items()}

    def unfilled_relations(self) -> list[str]:
        """Return the relations whose prompts lack words that a search should have found."""
        return []

    @property
    def parts(self) -> tuple[str, ...]:
        """The names of what the method learns and a run stores."""
        return tuple(self.encoders)

    def vectors(self) -> dict[str, Tensor]:
        """Return every part's vectors, [relation, n, width]; of weights [relation, n]."""
        return {part: encoder() for part, encoder in self.encoders.items()}

    def dropout(self) -> AbstractContextManager[None]:
        """Return a context in which the model's own dropout is on."""
        return self.backbone.dropout()

    def sentences_per_fact(self, sentences: Sentences, rows: np.ndarray) -> np.ndarray:
        """Return how many sentences the loss of each row reads, to plan passes."""
        if sentences.spelling is None or self.backbone.causal:
            return np.ones_like(rows)
        lengths: np.ndarray = sentences.object_prompt.object_lengths[rows]
        return lengths

    def found_prompts(self) -> list[dict[str, Any]] | None:
        """Return each relation's prompt for people to read, where it is made of words."""
        return None

    @abstractmethod
    def loss(self, sentences: Sentences, rows: np.ndarray, vectors: Vectors) -> Tensor:
        """Return the training loss of each row, [b]."""

    def after_epoch(self) -> None:
        """Update what is learned once an epoch without gradients; most methods learn no such."""
        return

    def epoch_state(self) -> dict[str, Tensor]:
        """Return what ``after_epoch`` will need of the epoch's steps so far, for a checkpoint."""
        return {}

    def load_epoch_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on in the middle of an epoch."""
        return

    def queries(self, sentences: Sentences, rows: np.ndarray) -> list[Queries] | None:
        """Return the loss of the rows as queries of one token each, to be recorded.

        None where the loss is not of that form.
        """
        return None

    def scores(self, sentences: Sentences, rows: np.ndarray, vectors: Vectors) -> Tensor:
        """Return the log-probability of every token as the object, [b, v], float32.

        Where answers are names of any length, that of every name, [b, n], as it is averaged.
        """
        if sentences.spelling is not None:
            return score_names(
                self.backbone,
                sentences.object_prompt,
                rows,
                vectors.get(OBJECT_PART),
                sentences.spelling,
            )
        logits = object_logits(
            self.backbone, sentences.object_prompt, rows, vectors.get(OBJECT_PART)
        )
        return torch.log_softmax(logits, dim=-1).float()

    def subject_scores(
        self,
        sentences: Sentences,
        rows: np.ndarray,
        candidates: Tensor,
        vectors: Vectors,
        *,
        max_tokens: int,
    ) -> Tensor:
        """Return how likely the subject is given each candidate, [b, k].

        Only where ``has_subject_prompt``.
        """
        raise TypeError(f"{type(self).__name__} has no subject prompt")

    def dev_losses(
        self, sentences: Sentences, rows: np.ndarray, vectors: Vectors
    ) -> dict[str, Tensor]:
        """Return losses [b] by which parts other than ``OBJECT_PART`` choose their best epoch."""
        return {}


def exact_dtype(backbone: LanguageModel) -> torch.dtype:
    """Return the dtype of what is learned and summed up: float32, or float64 as the model's."""
    return torch.float64 if backbone.dtype == torch.float64 else torch.float32


def object_loss(
    backbone: LanguageModel, sentences: Sentences, rows: np.ndarray, vectors: Vectors
) -> Tensor:
    """Return the cross-entropy of the gold object over the full vocabulary, [b].

    Of an object of several tokens it is the mean over them, each queried as candidates are.
    """
    if sentences.spelling is not None:
        return -name_likelihoods(
            backbone,
            sentences.object_prompt,
            rows,
            vectors.get(OBJECT_PART),
            sentences.spelling,
            sentences.gold,
        ).mean_log()
    logits = object_logits(backbone, sentences.object_prompt, rows, vectors.get(OBJECT_PART))
    index = torch.from_numpy(rows).to(backbone.device)
    return functional.cross_entropy(logits, sentences.gold[index], reduction="none")


def one_token_queries(sentences: Sentences, rows: np.ndarray) -> list[Queries] | None:
    """Return the loss of ``object_loss`` as queries of one token each, None if it is no such."""
    if sentences.spelling is not None and not sentences.spelling.one_mask:
        return None
    return [object_queries(sentences.object_prompt, rows)]
