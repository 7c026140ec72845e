"""Fine-tune relation after relation in stacks, keeping what each finished stack answered.

Weights are too large to keep for every relation, let alone four times as a training state. So a
stack is trained, asked about dev and test, and its answers are stored; a killed run starts the
stack it was in from its beginning, and ends with the numbers of an unbroken one.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor
from typing_extensions import TypedDict

from symprompt.accel.compiling import quick_products
from symprompt.engine.loop import Loop
from symprompt.errors import RunError
from symprompt.facts import Split
from symprompt.files.progress import Tick
from symprompt.models import LoraTuning
from symprompt.probing.config import RunConfig
from symprompt.probing.evaluate import predict
from symprompt.probing.methods.finetune import FineTune
from symprompt.probing.predictions import Predictions
from symprompt.probing.prepare import Problem
from symprompt.probing.queries import OBJECT_PART
from symprompt.probing.training import PromptTraining
from symprompt.runs.folder import PARTS, Folder, validated

_ASKED: tuple[Split, ...] = ("dev", "test")


class _Note(TypedDict):
    relations: list[str]
    epochs: list[Any]
    best_epoch: list[Any]
    seconds: dict[str, float]


@dataclass(frozen=True)
class Stack:
    """What a finished stack of relations leaves: its answers, and how it was trained.

    Attributes:
        found: each split's predictions, relations counted within the stack.
        note: relations, epochs, best_epoch (one per relation) and seconds by stage.
    """

    found: dict[Split, Predictions]
    note: dict[str, Any]


@dataclass(frozen=True)
class Tuned:
    """All stacks together: predictions in the order of the facts, history, seconds by stage."""

    found: dict[Split, Predictions]
    history: dict[str, Any]
    seconds: dict[str, float]


def fine_tune(
    folder: Folder, config: RunConfig, problem: Problem, method: FineTune, tick: Tick
) -> Tuned:
    """Train and ask every relation that no stored stack is about yet; return all answers.

    Raises:
        RunError: a stored stack is damaged.
        TrainingError: a loss is not finite.
    """
    size = config.tuning.at_once or method.stacked.relations_at_once()
    # As many for every stack: their answers are put together.
    candidates = problem.candidates(config.method.k)
    stacks: list[Stack] = []
    first, count = 0, len(problem.relations)
    while first < count:
        name = f"{PARTS}/{first:04d}.safetensors"
        if folder.has(name):
            stacks.append(_load_stack(folder, name, problem.relations[first:]))
        else:
            part = problem.part(first, min(first + size, count))
            told = tick if len(part.relations) == count else _within(tick, first, part, problem)
            stacks.append(_run_stack(folder, config, part, method, told, first, candidates))
            _store_stack(folder, name, stacks[-1])
        first += len(stacks[-1].note["relations"])
    return _together(stacks)


def _within(tick: Tick, first: int, part: Problem, whole: Problem) -> Tick:
    """Return a tick that also tells which relations are being trained."""
    last, count = first + len(part.relations), len(whole.relations)

    def told(stage: str, done: int, total: int, note: str) -> None:
        which = f"relations {first + 1}-{last} of {count}"
        tick(stage, done, total, f"{note}, {which}" if note else which)

    return told


def _run_stack(
    folder: Folder,
    config: RunConfig,
    part: Problem,
    base: FineTune,
    tick: Tick,
    first: int,
    candidates: int,
) -> Stack:
    """Train the relations of a part, ask them, and store their weights where that is wanted."""
    method = base.of(part.relations, config.seed)
    note: dict[str, Any] = {"relations": list(part.relations), "epochs": [], "best_epoch": []}
    seconds: dict[str, float] = {}
    begun = time.perf_counter()
    if config.learning.epochs:
        note |= _train(config, part, method, tick)
    seconds["training"] = time.perf_counter() - begun
    weights = {name: value.detach() for name, value in method.vectors().items()}
    found: dict[Split, Predictions] = {}
    for split in _ASKED:
        if split in part.sentences:
            begun = time.perf_counter()
            found[split] = predict(
                method,
                part.sentences[split],
                weights,
                allowed=part.allowed,
                k=candidates,
                max_tokens=config.max_tokens or part.backbone.token_budget(),
                tick=tick,
                stage=f"asking {split}",
            )
            seconds[f"asking {split}"] = time.perf_counter() - begun
    _store_weights(folder, config, method, weights[OBJECT_PART], first, part.relations)
    return Stack(found, note | {"seconds": seconds})


def _train(config: RunConfig, part: Problem, method: FineTune, tick: Tick) -> dict[str, Any]:
    """Train a stack's weights in place; return its history."""
    training = PromptTraining.of_run(config, part, method)
    if part.backbone.records:
        # The update reads and writes every weight of every relation, and is bound by just that.
        for optimizer in training.optimizers.values():
            optimizer.compile()
    with quick_products(part.backbone.device):
        progress = Loop(training, tick=tick).run()
    return {"epochs": progress.history, "best_epoch": training.best_epochs[OBJECT_PART]}


def _store_weights(
    folder: Folder,
    config: RunConfig,
    method: FineTune,
    weights: Tensor,
    first: int,
    relations: tuple[str, ...],
) -> None:
    tuning = method.stacked.tuning
    if not isinstance(tuning, LoraTuning) and not config.tuning.save_weights:
        return
    for place, (relation, row) in enumerate(zip(relations, weights, strict=True), start=first):
        tensors = tuning.to_tensors(row.cpu())
        folder.write_tensors(method.weights_file(place), tensors, {"relation": relation})
        if isinstance(tuning, LoraTuning):
            card = _adapter_card(config, tuning)
            folder.write_json(f"weights/{place:04d}/adapter_config.json", card)


def _adapter_card(config: RunConfig, tuning: LoraTuning) -> dict[str, Any]:
    """Return what the peft library must know to load an adapter."""
    return {
        "peft_type": "LORA",
        "base_model_name_or_path": config.model,
        "task_type": None,
        "inference_mode": True,
        "r": tuning.rank,
        "lora_alpha": tuning.alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": tuning.transposed,
        "target_modules": tuning.targets,
    }


def _store_stack(folder: Folder, name: str, stack: Stack) -> None:
    arrays = {
        f"{split}/{key}": value
        for split, predictions in stack.found.items()
        for key, value in predictions.columns().items()
    }
    folder.write_arrays(name, arrays, stack.note)


def _load_stack(folder: Folder, name: str, left: tuple[str, ...]) -> Stack:
    """Read a stored stack, whose relations must be the next ones that are left."""
    arrays, stored = folder.read_arrays(name)
    try:
        note = validated(_Note, stored, folder.path / name)
        if not note["relations"] or note["relations"] != list(left[: len(note["relations"])]):
            raise ValueError("it is about other relations")
        found: dict[Split, Predictions] = {}
        for split in _ASKED:
            columns = {
                key.removeprefix(f"{split}/"): value
                for key, value in arrays.items()
                if key.startswith(f"{split}/")
            }
            if columns:
                found[split] = Predictions.from_columns(columns)
    except (KeyError, ValueError, RunError) as error:
        raise RunError(
            f"{folder.path / name} is damaged: {error}; delete that file to train these relations "
            "again."
        ) from error
    return Stack(found, dict(note))


def _together(stacks: list[Stack]) -> Tuned:
    found: dict[Split, Predictions] = {}
    for split in _ASKED:
        parts, first = [], 0
        for stack in stacks:
            if split in stack.found:
                here = stack.found[split]
                parts.append(replace(here, relation=here.relation + first))
            first += len(stack.note["relations"])
        if parts:
            found[split] = Predictions.concatenate(parts)
    seconds: dict[str, float] = {}
    for stack in stacks:
        for stage, value in stack.note["seconds"].items():
            seconds[stage] = seconds.get(stage, 0.0) + float(value)
    history = {
        "epochs": [
            entry if len(stacks) == 1 else entry | {"relations": stack.note["relations"]}
            for stack in stacks
            for entry in stack.note["epochs"]
        ],
        "best_epoch": {
            OBJECT_PART: [epoch for stack in stacks for epoch in stack.note["best_epoch"]]
        },
        "seconds": round(seconds.get("training", 0.0), 2),
    }
    return Tuned(found, history, seconds)
