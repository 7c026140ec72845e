"""Fine-tuning (Liu et al., 2021, "GPT Understands, Too", section 4.1.2), one model per relation.

FT presents the subject alone with the object's mask (template "[X] [Y]"); MP+FT presents the
relation's manual template (template "manual"). The loss is P-tuning's, over the full vocabulary,
and all weights are trained, or low-rank adapters beside the linear layers (LoRA, Hu et al., 2021).
All relations are trained in one stack; each has its own copy of the weights.

The paper states no settings for the two. The configs take those of P-tuning's code (Adam, weight
decay 5e-4, exponential decay 0.98, batch 8, best epoch by dev P@1). Deviations: 10 epochs at a rate
of 3e-5, instead of up to 100 at the 5e-6 that the code has for the language model; the model's
dropout is off unless ``model_dropout``, so that a relation does not depend on its neighbours;
weights are float32, and on a GPU the products are TF32 until the best epoch is chosen.
LoRA is not in the paper; rank, rate and layers are ours.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from symprompt.errors import ConfigError, RunError
from symprompt.facts import Relation
from symprompt.models import FullTuning, LanguageModel, LoraTuning, StackedModel, Tuning
from symprompt.probing.methods.base import Method, Sentences, Vectors, object_loss
from symprompt.probing.queries import OBJECT_PART
from symprompt.prompts import Layout
from symprompt.runs.environment import send

if TYPE_CHECKING:
    from symprompt.probing.config import RunConfig
    from symprompt.probing.prepare import Problem
    from symprompt.runs.folder import Folder

_FULL = "model.safetensors"
_ADAPTER = "adapter_model.safetensors"


class RelationWeights(nn.Module):
    """Each relation's own weights as one parameter, [relation, n]; final.

    Args:
        start: [relation, n], copied.
    """

    def __init__(self, start: Tensor) -> None:
        super().__init__()
        self.rows = nn.Parameter(start.detach().clone(memory_format=torch.contiguous_format))

    def forward(self) -> Tensor:
        """Return the weights."""
        return self.rows


class FineTune(Method):
    """Learn each relation's weights so that the gold object fills its blank; final.

    Args:
        stacked: runs the model with weights of each relation.
        weights: each relation's; None asks the model as it is, see ``of``.
    """

    in_stacks: ClassVar[bool] = True

    def __init__(
        self, backbone: LanguageModel, stacked: StackedModel, weights: RelationWeights | None = None
    ) -> None:
        super().__init__(backbone, {OBJECT_PART: weights} if weights else {})
        self.stacked = stacked

    @classmethod
    def from_config(cls, config: RunConfig, problem: Problem) -> Self:
        """Build the method without weights of relations; templates must be of words alone."""
        for name, template in zip(problem.relations, problem.templates, strict=True):
            if template.vectors:
                raise ConfigError(
                    f"the template of relation {name} has learned vectors, and finetune learns "
                    f'weights instead: {template}; write --template "[X] [Y]" or --template manual.'
                )
        tuning = config.tuning

        def make_tuning(model: nn.Module) -> Tuning:
            if tuning.tune == "full":
                return FullTuning(model)
            return LoraTuning(
                model, rank=tuning.lora_rank, alpha=tuning.lora_alpha, targets=tuning.lora_targets
            )

        return cls(problem.backbone, StackedModel(problem.backbone, make_tuning))

    @classmethod
    def check_stored(cls, folder: Folder, relations: Sequence[int]) -> None:
        """Refuse a run whose weights were not stored."""
        for relation in relations:
            if not any(folder.has(_weights_file(relation, name)) for name in (_FULL, _ADAPTER)):
                raise RunError(
                    f"{folder.path} was fine-tuned and its weights were not stored, so there is no "
                    "model left to ask; train it again with --save-weights."
                )

    @classmethod
    def describe(cls, template: str, relation: Relation) -> str:
        """Return the template that the model was tuned with."""
        return f"a manual template, the model's weights learned: {template}"

    def weights_file(self, relation: int) -> str:
        """Return the file in a run folder for the weights of the relation with this index."""
        lora = isinstance(self.stacked.tuning, LoraTuning)
        return _weights_file(relation, _ADAPTER if lora else _FULL)

    def load_vectors(self, folder: Folder, relations: Sequence[int]) -> dict[str, Tensor]:
        """Read the weights of some relations, [relation, n], on the model's device.

        Raises:
            RunError: they are missing, damaged, or of another model.
        """
        rows = []
        for relation in relations:
            name = self.weights_file(relation)
            tensors, _ = folder.read_tensors(name)
            try:
                rows.append(self.stacked.tuning.to_row(tensors))
            except ValueError as error:
                raise RunError(f"{folder.path / name} is damaged: {error}.") from error
        return {OBJECT_PART: torch.stack(rows).to(self.backbone.device, self.backbone.dtype)}

    def of(self, relations: Sequence[str], seed: int) -> FineTune:
        """Return the method with weights for these relations, as training starts from."""
        start = self.stacked.tuning.start(relations, (seed,))
        return FineTune(self.backbone, self.stacked, RelationWeights(start))

    def dropout(self) -> AbstractContextManager[None]:
        """Return a context in which the stacked model's dropout is on."""
        return self.stacked.dropout()

    def loss(self, sentences: Sentences, rows: np.ndarray, vectors: Vectors) -> Tensor:
        """Return the cross-entropy of the gold object over the full vocabulary, [b]."""
        weights = vectors.get(OBJECT_PART)
        if weights is None:
            return object_loss(self.backbone, sentences, rows, vectors)
        logits = self._logits(sentences.object_prompt, rows, weights)
        index = send(rows, self.backbone.device)
        return functional.cross_entropy(logits, sentences.gold[index], reduction="none")

    def scores(self, sentences: Sentences, rows: np.ndarray, vectors: Vectors) -> Tensor:
        """Return the log-probability of every token as the object, [b, v], float32."""
        weights = vectors.get(OBJECT_PART)
        if weights is None:
            return super().scores(sentences, rows, vectors)
        layout = sentences.object_prompt
        scores, order = [], []
        for members, present in _rounds(layout.relations[rows]):
            some = len(present) < len(weights)
            chosen = weights[send(present, weights.device)] if some else weights
            logits = self._logits(layout, rows[members], chosen, present)
            scores.append(torch.log_softmax(logits, dim=-1).float())
            order.append(members)
        if len(order) == 1:
            return scores[0]
        back = send(np.argsort(np.concatenate(order)), self.backbone.device)
        return torch.cat(scores)[back]

    def _logits(
        self,
        layout: Layout,
        rows: np.ndarray,
        weights: Tensor,
        present: np.ndarray | None = None,
    ) -> Tensor:
        """Return the logits [b, v] of the object blank, each row asked of its relation's model.

        Args:
            present: the relations that the weights are of; None takes all.
        """
        device = self.backbone.device
        owner = layout.relations[rows]
        line = owner if present is None else np.searchsorted(present, owner)
        place = _places(line)
        # Lines are filled up with the first row, whose answers there nobody reads.
        grid = np.full((len(weights), int(place.max()) + 1), rows[0])
        grid[line, place] = rows
        index = send(grid.reshape(-1), device)
        question = layout.question(
            index,
            layout.object_at[index],
            width=layout.width(rows),
            mask_id=self.backbone.vocabulary.mask_id,
        )
        assert question.mask is not None  # asked for with padding
        logits = self.stacked.logits_at(
            weights,
            question.ids.view(*grid.shape, -1),
            question.mask.view(*grid.shape, -1),
            question.at.view(*grid.shape),
        )
        flat = send(line * grid.shape[1] + place, device)
        return logits.flatten(0, 1)[flat]


def _weights_file(relation: int, name: str) -> str:
    return f"weights/{relation:04d}/{name}"


def _places(line: np.ndarray) -> np.ndarray:
    """Return how many rows of the same line stand before each row."""
    order = np.argsort(line, kind="stable")
    _, starts, counts = np.unique(line[order], return_index=True, return_counts=True)
    places = np.empty_like(line)
    places[order] = np.arange(len(line)) - np.repeat(starts, counts)
    return places


def _rounds(owner: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield (members, relations) so that relations with few rows do not wait for those with many.

    Each round takes as many rows of every relation that has any left as these have on average.
    """
    places = _places(owner)
    counts = np.bincount(owner)
    start = 0
    while bool((counts > start).any()):
        present = np.flatnonzero(counts > start)
        stop = start + int(np.ceil((counts[present] - start).mean()))
        yield np.flatnonzero((places >= start) & (places < stop)), present
        start = stop
