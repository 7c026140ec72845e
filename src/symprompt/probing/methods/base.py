"""What a method is: what it needs, encoders to train, a loss per fact, scores per answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from importlib import import_module
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from symprompt.errors import ConfigError
from symprompt.facts import SPLITS, FactSet, Relation, Split
from symprompt.files.progress import Tick
from symprompt.models import LanguageModel
from symprompt.probing.any_length import Asking, ask_backbone, name_likelihoods, score_names
from symprompt.probing.config import RunConfig
from symprompt.probing.methods import METHODS
from symprompt.probing.problem import Problem, Prompts, Sentences, manual_template, words_to_vectors
from symprompt.probing.queries import (
    OBJECT_PART,
    Queries,
    exact_dtype,
    object_logits,
    object_queries,
)
from symprompt.probing.results import SUBJECT, Predictions, load_card, load_prompts
from symprompt.prompts import (
    BiLSTMEncoder,
    FreeVectors,
    MLPEncoder,
    PromptEncoder,
)
from symprompt.runs.folder import Folder

Vectors = Mapping[str, Tensor]


class Method:
    """Asks a model for objects; every method is a subclass.

    ``encoders`` maps a part (``OBJECT_PART``, ``SUBJECT_PART``) to what makes its vectors: a prompt
    encoder, or for fine-tuning each relation's weights. Every parameter and every output has a
    leading relation axis. Parts share no parameter, so each relation's best epoch is chosen for
    each part by itself.

    Attributes:
        has_subject_prompt: it also asks for the subject given a candidate, to re-rank.
        subject_terms: the subject prompts' scores, terms of the fit.
        manual_templates: it asks by each relation's manual template, whatever the config has.
        several_prompts: it asks by several manual templates of each relation, or where it has
            ``manual_templates`` too by that one as a whole sentence, of causal models too.
        has_prompt: it asks the model at all.
        in_stacks: its weights are too large to hold for all relations, so these are trained and
            asked in stacks, one after the other.
        epoch_state: what ``after_epoch`` will need of the epoch's steps so far, for a checkpoint.
        object_parts: the parts that ask for the object, whose answers are averaged.
    """

    has_subject_prompt: ClassVar[bool] = False
    subject_terms: tuple[str, ...] = (SUBJECT,)
    manual_templates: ClassVar[bool] = False
    several_prompts: ClassVar[bool] = False
    has_prompt: ClassVar[bool] = True
    in_stacks: ClassVar[bool] = False
    object_parts: tuple[str, ...] = (OBJECT_PART,)

    def __init__(
        self,
        config: RunConfig,
        problem: Problem,
        encoders: Mapping[str, nn.Module] | None = None,
    ) -> None:
        self.backbone = problem.backbone
        self.encoders = dict(encoders or {})
        self.epoch_state: dict[str, Tensor] = {}

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

    def trainable(self, config: RunConfig, problem: Problem) -> Any:
        """Return the engine's Trainable that a run trains; None for gradient steps."""
        return None

    def train_in_stacks(
        self,
        folder: Folder,
        config: RunConfig,
        problem: Problem,
        tick: Tick,
        seconds: dict[str, float],
    ) -> dict[Split, Predictions]:
        """Train and ask stack after stack; only where ``in_stacks``."""
        raise TypeError(f"{type(self).__name__} is not trained in stacks")

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
            return np.full_like(rows, len(self.object_parts))
        lengths: np.ndarray = sentences.object_prompt.object_lengths[rows]
        return len(self.object_parts) * lengths

    def found_prompts(self) -> list[dict[str, Any]] | None:
        """Return each relation's prompt for people to read, where it is made of words."""
        return None

    def loss(self, sentences: Sentences, rows: np.ndarray, vectors: Vectors) -> Tensor:
        """Return each row's training loss [b]: the gold object's cross-entropy, if nothing else.

        It is over the full vocabulary; of an object of several tokens it is the mean over them,
        each queried as candidates are. Object prompts learn apart: their losses are added.
        """
        found = [self._object_loss(sentences, rows, own) for own in self._object_vectors(vectors)]
        return torch.stack(found).sum(0)

    def _object_loss(self, sentences: Sentences, rows: np.ndarray, own: Tensor | None) -> Tensor:
        layout = sentences.object_prompt
        if sentences.spelling is not None:
            return -name_likelihoods(
                self._asking(own),
                layout,
                rows,
                sentences.spelling,
                sentences.gold,
                causal=self.backbone.causal,
            ).mean_log()
        logits = object_logits(self.backbone, layout, rows, own)
        index = torch.from_numpy(rows).to(self.backbone.device)
        return functional.cross_entropy(logits, sentences.gold[index], reduction="none")

    def _object_vectors(self, vectors: Vectors) -> list[Tensor | None]:
        """Return the vectors of those object prompts that are there; None asks without vectors."""
        return [vectors[part] for part in self.object_parts if part in vectors] or [None]

    def _asking(self, learned: Tensor | None) -> Asking:
        """Return what asks sentences of the model with what was learned."""
        return ask_backbone(self.backbone, learned)

    def after_epoch(self) -> None:
        """Update what is learned once an epoch without gradients; most methods learn no such."""
        return

    def queries(self, sentences: Sentences, rows: np.ndarray) -> list[Queries] | None:
        """Return the loss of the rows as queries of one token each, to be recorded.

        None where the loss is not of that form.
        """
        return None

    def scores(self, sentences: Sentences, rows: np.ndarray, vectors: Vectors) -> Tensor:
        """Return the log-probability of every token as the object, [b, v], float32.

        Where answers are names of any length, that of every name, [b, n], as it is averaged. Of
        several object prompts the mean.
        """
        found = [self._object_scores(sentences, rows, own) for own in self._object_vectors(vectors)]
        return found[0] if len(found) == 1 else torch.stack(found).mean(0)

    def _object_scores(self, sentences: Sentences, rows: np.ndarray, own: Tensor | None) -> Tensor:
        layout = sentences.object_prompt
        if sentences.spelling is not None:
            causal = self.backbone.causal
            return score_names(self._asking(own), layout, rows, sentences.spelling, causal=causal)
        logits = object_logits(self.backbone, layout, rows, own)
        return torch.log_softmax(logits, dim=-1).float()

    def subject_scores(
        self,
        sentences: Sentences,
        rows: np.ndarray,
        candidates: Tensor,
        vectors: Vectors,
        *,
        max_tokens: int,
        prompts: Sequence[str] = (SUBJECT,),
        done: Callable[[float], None] | None = None,
    ) -> dict[str, Tensor]:
        """Return how likely the subject is given each candidate, [b, k]; 0 where one is -1.

        Only where ``has_subject_prompt``.

        Args:
            prompts: by which subject prompts, some of ``subject_terms``.
            done: called with the share that is done.
        """
        raise TypeError(f"{type(self).__name__} has no subject prompt")

    def dev_losses(
        self, sentences: Sentences, rows: np.ndarray, vectors: Vectors
    ) -> dict[str, Tensor]:
        """Return losses [b] by which parts other than ``OBJECT_PART`` choose their best epoch."""
        return {}


def one_token_queries(
    sentences: Sentences, rows: np.ndarray, parts: Sequence[str] = (OBJECT_PART,)
) -> list[Queries] | None:
    """Return ``Method.loss`` as queries of one token each, None if it is no such.

    Args:
        parts: the object prompts.
    """
    spelling = sentences.spelling
    if spelling is not None and not spelling.one_mask and not spelling.to_end:
        return None
    chain = spelling is not None and spelling.to_end
    layout = sentences.object_prompt
    return [object_queries(layout, rows, part=part, chain=chain) for part in parts]


def make_encoder(config: RunConfig, problem: Problem, part: str) -> PromptEncoder:
    """Build one part's prompt encoder on the model's device, in float32 (float64 for float64).

    Raises:
        ConfigError: no template has a vector, or an LSTM is to read templates of several lengths.
    """
    backbone, prompt = problem.backbone, config.prompt
    count = count_vectors(config, problem)
    names, width, seed = problem.relations, backbone.width, (config.seed, part)
    encoder: PromptEncoder
    if prompt.encoder == "bilstm":
        if {template.vectors for template in problem.templates} != {count}:
            raise ConfigError(
                'prompt.encoder = "bilstm" reads the vectors as one sequence, so every template '
                'must have as many; use "free" or "mlp" with templates of different lengths.'
            )
        hidden = width if prompt.lstm_hidden == -1 else prompt.lstm_hidden or None
        encoder = BiLSTMEncoder(names, count, width, seed=seed, lstm_hidden=hidden)
    elif prompt.encoder == "mlp":
        encoder = MLPEncoder(names, count, width, seed=seed)
    elif prompt.start == "random":
        # As the model reads them: Gemma's kind multiplies the rows of its table.
        every = torch.arange(backbone.vocabulary_size, device=backbone.device)
        scale = float(backbone.embed(every).detach().float().std())
        encoder = FreeVectors(names, count, width, seed=seed, scale=scale)
    else:
        start = torch.zeros(len(names), count, width)
        for index, tokens in enumerate(manual_tokens(problem)):
            words = backbone.embed(torch.tensor(tokens, dtype=torch.long, device=backbone.device))
            start[index, : len(tokens)] = words.detach().float().cpu()
        encoder = FreeVectors(names, count, width, seed=seed, start=start)
    return encoder.to(device=backbone.device, dtype=exact_dtype(backbone))


def require_words(problem: Problem, refusal: str) -> None:
    """Refuse templates with learned vectors, for a method that has none.

    Args:
        refusal: what to say of a relation's ``{name}`` and its ``{template}``.
    """
    for name, template in zip(problem.relations, problem.templates, strict=True):
        if template.vectors:
            raise ConfigError(refusal.format(name=name, template=template))


def count_vectors(config: RunConfig, problem: Problem) -> int:
    """Return how many vectors the longest template has, refusing templates without."""
    count = max(template.vectors for template in problem.templates)
    if count == 0:
        raise ConfigError(
            f"template {config.prompt.template!r} has no learned vector, so {config.method.name} "
            'has nothing to train; write some, as in "<3> [X] <3> [Y] <3>".'
        )
    return count


def manual_tokens(problem: Problem) -> list[list[int]]:
    """Return the tokens of the words of each relation's manual template."""
    vocabulary = problem.backbone.vocabulary
    manual = [manual_template(vocabulary, relation) for relation in problem.facts.relations]
    return [words_to_vectors(vocabulary, template)[1] for template in manual]


def method_class(name: str) -> type[Method]:
    """Return the class of a method."""
    file, _, found = METHODS[name].where.partition(":")
    loaded: type[Method] = getattr(import_module(f"symprompt.probing.methods.{file}"), found)
    return loaded
