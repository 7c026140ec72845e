"""Fine-tuning (Liu et al., 2021, "GPT Understands, Too", section 4.1.2), one model per relation.

FT presents the subject alone with the object's mask (template "[X] [Y]"); MP+FT presents the
relation's manual template (template "manual"). A causal model reads what stands before the object,
so its manual templates are cut after it. The loss is P-tuning's, over the full vocabulary,
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

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from copy import copy
from dataclasses import replace
from typing import Any, ClassVar, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import TypedDict

from symprompt.accel.compiling import quick_products
from symprompt.engine.loop import Loop
from symprompt.errors import RunError
from symprompt.facts import Relation, Split
from symprompt.files.progress import Tick
from symprompt.models import FullTuning, LoraTuning, StackedModel, Tuning
from symprompt.probing.any_length import Asking
from symprompt.probing.config import RunConfig
from symprompt.probing.evaluate import predict_splits
from symprompt.probing.methods.base import Method, Vectors, require_words
from symprompt.probing.problem import Problem, Sentences
from symprompt.probing.queries import OBJECT_PART
from symprompt.probing.results import ASKED, Predictions
from symprompt.probing.train import PromptTraining, within
from symprompt.prompts import Layout, Question
from symprompt.prompts.exchange import lora_config
from symprompt.runs.environment import send
from symprompt.runs.folder import HISTORY, PARTS, Folder, validated

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

    As it is made it has no weights of relations and asks the model as it is, see ``of``; its
    templates must be of words alone.

    Attributes:
        stacked: runs the model with weights of each relation.
    """

    in_stacks: ClassVar[bool] = True

    def __init__(self, config: RunConfig, problem: Problem) -> None:
        super().__init__(config, problem)
        require_words(
            problem,
            "the template of relation {name} has learned vectors, and finetune learns weights "
            'instead: {template}; write --template "[X] [Y]" or --template manual.',
        )
        tuning = config.tuning

        def make_tuning(model: nn.Module) -> Tuning:
            if tuning.tune == "full":
                return FullTuning(model)
            return LoraTuning(
                model, rank=tuning.lora_rank, alpha=tuning.lora_alpha, targets=tuning.lora_targets
            )

        self.stacked = StackedModel(self.backbone, make_tuning)

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
        made = copy(self)
        made.encoders = {OBJECT_PART: RelationWeights(start)}
        return made

    def train_in_stacks(
        self,
        folder: Folder,
        config: RunConfig,
        problem: Problem,
        tick: Tick,
        seconds: dict[str, float],
    ) -> dict[Split, Predictions]:
        """Train and ask every relation that no stored stack is about yet; return all answers.

        Weights are too large to keep for every relation, let alone four times as a training state.
        So a stack is trained, asked about dev and test, and its answers are stored; a killed run
        starts the stack it was in from its beginning, and ends with the numbers of an unbroken one.

        Raises:
            RunError: a stored stack is damaged.
            TrainingError: a loss is not finite.
        """
        size = config.tuning.at_once or self.stacked.relations_at_once()
        # As many for every stack: their answers are put together.
        k = problem.candidates(config.method.k)
        parts: dict[Split, list[Predictions]] = {}
        epochs: list[Any] = []
        best: list[Any] = []
        first, count = 0, len(problem.relations)
        while first < count:
            name = f"{PARTS}/{first:04d}.safetensors"
            if folder.has(name):
                found, note = _load_stack(folder, name, problem.relations[first:])
            else:
                last = min(first + size, count)
                part, own_tick = problem.part(first, last), tick
                if len(part.relations) < count:
                    own_tick = within(tick, f"relations {first + 1}-{last} of {count}")
                found, note = _run_stack(folder, config, part, self, own_tick, first, k)
                arrays = {
                    f"{split}/{key}": value
                    for split, predictions in found.items()
                    for key, value in predictions.columns().items()
                }
                folder.write_arrays(name, arrays, note)
            for split, own in found.items():
                parts.setdefault(split, []).append(replace(own, relation=own.relation + first))
            alone = len(note["relations"]) == count
            about = {} if alone else {"relations": note["relations"]}
            epochs += [entry | about for entry in note["epochs"]]
            best += note["best_epoch"]
            for stage, value in note["seconds"].items():
                seconds[stage] = seconds.get(stage, 0.0) + float(value)
            first += len(note["relations"])
        history = {
            "epochs": epochs,
            "best_epoch": {OBJECT_PART: best},
            "seconds": round(seconds.get("training", 0.0), 2),
        }
        folder.write_json(HISTORY, history)
        return {split: Predictions.concatenate(parts[split]) for split in ASKED if split in parts}

    def dropout(self) -> AbstractContextManager[None]:
        """Return a context in which the stacked model's dropout is on."""
        return self.stacked.dropout()

    def loss(self, sentences: Sentences, rows: np.ndarray, vectors: Vectors) -> Tensor:
        """Return the cross-entropy of the gold object over the full vocabulary, [b]."""
        weights = vectors.get(OBJECT_PART)
        if weights is None or sentences.spelling is not None:
            return super().loss(sentences, rows, vectors)
        layout = sentences.object_prompt
        logits = self._logits(self._question(layout, rows), layout, rows, weights, at_once=True)
        gold = sentences.gold[send(rows, self.backbone.device)]
        return functional.cross_entropy(logits, gold, reduction="none")

    def scores(self, sentences: Sentences, rows: np.ndarray, vectors: Vectors) -> Tensor:
        """Return the log-probability of every token as the object, [b, v], float32."""
        weights = vectors.get(OBJECT_PART)
        if weights is None or sentences.spelling is not None:
            return super().scores(sentences, rows, vectors)
        layout = sentences.object_prompt
        logits = self._logits(self._question(layout, rows), layout, rows, weights, at_once=False)
        return torch.log_softmax(logits, dim=-1).float()

    def _question(self, layout: Layout, rows: np.ndarray) -> Question:
        """Return the sentences that ask for the objects of some facts."""
        index = send(rows, self.backbone.device)
        return layout.question(
            index,
            layout.object_at[index],
            width=layout.width(rows),
            mask_id=self.backbone.vocabulary.mask_id,
        )

    def _asking(self, learned: Tensor | None) -> Asking:
        """Return what asks sentences, at any positions, of their relations' models."""
        if learned is None:
            return super()._asking(None)
        weights = learned

        def ask(layout: Layout, at: Tensor, of: np.ndarray | None) -> Tensor:
            rows, learning = np.arange(len(layout)), weights.requires_grad
            if of is None:
                given = layout.sentences(at)
                return self._logits(given, layout, rows, weights, at_once=learning)
            # A sentence's positions, one after the other; lines are filled up with the first token.
            sentence, place = send(of, at.device), send(_places(of), at.device)
            places = at.new_zeros(len(layout), int(_places(of).max(initial=0)) + 1)
            places[sentence, place] = at
            given = layout.sentences(places)
            logits = self._logits(given, layout, rows, weights, at_once=learning)
            return logits[sentence, place]

        return ask

    def _logits(
        self,
        question: Question,
        layout: Layout,
        rows: np.ndarray,
        weights: Tensor,
        *,
        at_once: bool,
    ) -> Tensor:
        """Return the logits at a question's positions, each sentence asked of its relation's model.

        Args:
            layout, rows: where the question's sentences come from.
            at_once: in one pass; if not, relations with few sentences do not wait for others.

        Returns:
            [b, v], or [b, m, v] where the question has m positions in each sentence.
        """
        assert question.mask is not None  # asked for with padding
        device, owner = self.backbone.device, layout.relations[rows]
        everything = np.arange(len(owner)), np.arange(len(weights))
        found, order = [], []
        for members, present in [everything] if at_once else _rounds(owner):
            line = np.searchsorted(present, owner[members])
            place = _places(line)
            # Lines are filled up with the first sentence, whose answers there nobody reads.
            grid = np.full((len(present), int(place.max()) + 1), members[0])
            grid[line, place] = members
            index = send(grid, device)
            some, width = len(present) < len(weights), layout.width(rows[members])
            logits = self.stacked.logits_at(
                weights[send(present, device)] if some else weights,
                question.ids[index, :width],
                question.mask[index, :width],
                question.at[index],
            )
            flat = send(line * grid.shape[1] + place, device)
            found.append(logits.flatten(0, 1)[flat])
            order.append(members)
        if len(order) == 1:
            return found[0]
        back = send(np.argsort(np.concatenate(order)), device)
        return torch.cat(found)[back]


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


# ------------------------------------------------------------------------------ stacks


class _Note(TypedDict):
    relations: list[str]
    epochs: list[Any]
    best_epoch: list[Any]
    seconds: dict[str, float]


_Stack = tuple[dict[Split, Predictions], _Note]
"""A finished stack's answers, relations counted within it, and how it was trained."""


def _run_stack(
    folder: Folder,
    config: RunConfig,
    part: Problem,
    base: FineTune,
    tick: Tick,
    first: int,
    k: int,
) -> _Stack:
    """Train the relations of a part, ask them, and store their weights where that is wanted."""
    method = base.of(part.relations, config.seed)
    note: _Note = {"relations": list(part.relations), "epochs": [], "best_epoch": [], "seconds": {}}
    begun = time.perf_counter()
    if config.learning.epochs:
        training = PromptTraining(config, part, method)
        if part.backbone.records:
            # The update reads and writes every weight of every relation, and is bound by just that.
            for optimizer in training.optimizers.values():
                optimizer.compile()
        with quick_products(part.backbone.device):
            progress = Loop(training, tick=tick).run()
        note["epochs"], note["best_epoch"] = progress.history, training.best_epochs[OBJECT_PART]
    note["seconds"]["training"] = time.perf_counter() - begun
    weights = {name: value.detach() for name, value in method.vectors().items()}
    prior, near = config.method.weighs_prior, config.method.within
    found = predict_splits(
        method, part, weights, k, tick, note["seconds"], prior=prior, within=near
    )
    tuning = method.stacked.tuning
    lora = isinstance(tuning, LoraTuning)
    if lora or config.tuning.save_weights:
        named = zip(part.relations, weights[OBJECT_PART], strict=True)
        for place, (relation, row) in enumerate(named, start=first):
            about = {"relation": relation}
            folder.write_tensors(method.weights_file(place), tuning.to_tensors(row.cpu()), about)
            if isinstance(tuning, LoraTuning):
                card = lora_config(tuning, config.model)
                folder.write_json(f"weights/{place:04d}/adapter_config.json", card)
    return found, note


def _load_stack(folder: Folder, name: str, left: tuple[str, ...]) -> _Stack:
    """Read a stored stack, whose relations must be the next ones that are left."""
    arrays, stored = folder.read_arrays(name)
    try:
        note = validated(_Note, stored, folder.path / name)
        if not note["relations"] or note["relations"] != list(left[: len(note["relations"])]):
            raise ValueError("it is about other relations")
        columns: dict[Split, dict[str, np.ndarray]] = {}
        for key, value in arrays.items():
            split, _, column = key.partition("/")
            columns.setdefault(cast(Split, split), {})[column] = value
        found = {split: Predictions.from_columns(own) for split, own in columns.items()}
    except (KeyError, ValueError, RunError) as error:
        raise RunError(
            f"{folder.path / name} is damaged: {error}; delete that file to train these relations "
            "again."
        ) from error
    return found, note
