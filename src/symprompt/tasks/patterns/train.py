"""``symprompt tune`` for configs with a pattern: one run folder for all seeds of a method.

Beside config and manifest a folder holds ``seeds/N.json`` (what came of a seed, of its grid),
``predictions/N.jsonl``, ``prompts/N.safetensors`` (P-tuning's vectors or a prefix, with a card),
``weights.safetensors`` (where the model is trained too: its weights, and a head's, of the seed that
did best on dev) and ``models/N`` if asked for.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from symprompt.config import recipe_of
from symprompt.engine.loop import Loop, Progress
from symprompt.errors import ConfigError, RunError
from symprompt.files.progress import Tick, silent
from symprompt.models import LanguageModel
from symprompt.runs.environment import made_with
from symprompt.runs.folder import STATE, Folder, Manifest, Record
from symprompt.tasks.folder import (
    COMMAND,
    WEIGHTS,
    load_metrics,
    load_seed,
    on_dev,
    prompt_file,
    seed_file,
)
from symprompt.tasks.patterns.config import LearningConfig, PatternRunConfig, trains_model
from symprompt.tasks.patterns.data import load_verbal
from symprompt.tasks.patterns.methods import METHODS
from symprompt.tasks.patterns.model import VerbalModel
from symprompt.tasks.patterns.prepare import Answers, VerbalProblem
from symprompt.tasks.patterns.superglue import VerbalData
from symprompt.tasks.patterns.training import Evaluation, PatternTraining, Recipe


@dataclass(frozen=True, eq=False)
class Outcome:
    """What came of one seed; final.

    Attributes:
        metrics: on the validation set, asked once, after everything was chosen on dev.
        recipe: the rate and batch that dev chose; None where nothing was trained.
        tried: every setting of the grid: rate, batch, best evaluation of dev, steps made, seconds.
        trained: how many parameters were trained.
        prompt: what was learned beside the model and serves without training again: "vectors"
            [n, width] or the "prefix" [layers, 2, kv_heads, length, head_dim].
    """

    seed: int
    metrics: dict[str, float]
    dev: Evaluation
    recipe: Recipe | None
    tried: tuple[dict[str, Any], ...]
    answers: Answers
    trained: int = 0
    prompt: Mapping[str, Tensor] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return what is stored of it, as plain values."""
        chosen = self.recipe
        return {
            "seed": self.seed,
            "val": self.metrics,
            "dev": {"accuracy": self.dev.accuracy, "loss": self.dev.loss, "step": self.dev.step},
            "rate": None if chosen is None else chosen.rate,
            "batch": None if chosen is None else chosen.batch,
            "trained": self.trained,
            "tried": list(self.tried),
        }


def ask_zero_shot(problem: VerbalProblem, seed: int = 0) -> Outcome:
    """Return what the model answers as it is; dev is evaluated, and chooses nothing."""
    model = problem.make_model(seed)
    accuracy, loss = problem.look(model)
    answers = problem.answer(model, "val")
    metrics = problem.measure("val", answers)
    return Outcome(seed, metrics, Evaluation(0, accuracy, loss), None, (), answers)


class VerbalTuner:
    """Trains one problem, seed after seed, through the same recordings; final.

    Use ``tuning`` to make one: it puts the language model's weights back at the end.

    Args:
        problem: what is trained.
        learning: the grid, steps, evaluations of dev.
        record: record CUDA graphs where there is a GPU.
        state: the checkpoint of an unfinished training; None keeps none.
        key: what the checkpoint must be of.
        checkpoint_seconds: least time between two checkpoints.
    """

    def __init__(
        self,
        problem: VerbalProblem,
        learning: LearningConfig,
        *,
        record: bool = True,
        state: Path | None = None,
        key: str = "",
        checkpoint_seconds: float = 60.0,
    ) -> None:
        self.problem = problem
        self.learning = learning
        self.model: VerbalModel = problem.make_model(0)
        self.training = PatternTraining(
            self.model,
            problem.layouts["train"],
            learning,
            partial(problem.look, self.model),
            record=record,
        )
        self.state = state
        self.key = key
        self.checkpoint_seconds = checkpoint_seconds

    def run(self, seed: int) -> Outcome:
        """Train a seed with every setting of the grid; the one that dev chose answers val."""
        training = self.training
        kept = torch.empty_like(training.optimizer.values)
        best: Evaluation | None = None
        chosen: Recipe | None = None
        tried: list[dict[str, Any]] = []
        for recipe in self._grid(seed):
            progress = self.train(recipe)
            found = training.best
            tried.append(
                {
                    "rate": recipe.rate,
                    "batch": recipe.batch,
                    "accuracy": found.accuracy,
                    "loss": found.loss,
                    "step": found.step,
                    "steps": progress.done,
                    "seconds": round(progress.seconds, 2),
                }
            )
            if training.recorder.reason:
                tried[-1]["not recorded"] = training.recorder.reason
            if found.better_than(best):
                best, chosen = found, recipe
                kept.copy_(training.optimizer.values)
        assert best is not None
        training.load_weights(kept)
        if self.state is not None:
            # What came of the training is stored elsewhere.
            self.state.unlink(missing_ok=True)
        answers = self.problem.answer(self.model, "val")
        metrics = self.problem.measure("val", answers)
        learned = (best, chosen, tuple(tried), answers, training.optimizer.size, self._prompt())
        return Outcome(seed, metrics, *learned)

    def train(self, recipe: Recipe) -> Progress:
        """Train one recipe from its start or its checkpoint; leave its best weights in place."""
        self.training.begin(
            recipe, self.problem.method.make(self.problem, self.problem.config, recipe.seed)
        )
        return Loop(
            self.training,
            checkpoint=self.state,
            key={"run": self.key, "recipe": asdict(recipe)},
            checkpoint_seconds=self.checkpoint_seconds,
        ).run()

    def _grid(self, seed: int) -> Iterator[Recipe]:
        for rate in self.learning.rates:
            for batch in self.learning.batches:
                yield Recipe(seed, rate, min(batch, len(self.problem.layouts["train"])))

    @torch.no_grad()
    def _prompt(self) -> dict[str, Tensor]:
        name, extra = self.problem.method.prompt, self.model.extra
        return {} if extra is None or not name else {name: extra()[0].detach().cpu().clone()}


@contextmanager
def tuning(
    problem: VerbalProblem,
    learning: LearningConfig,
    *,
    record: bool = True,
    state: Path | None = None,
    key: str = "",
    checkpoint_seconds: float = 60.0,
) -> Iterator[VerbalTuner]:
    """Give a tuner; when the block ends the language model is as it was before."""
    model = problem.backbone.model
    joint = trains_model(problem.config)
    before = (
        {name: value.detach().clone() for name, value in model.named_parameters()} if joint else {}
    )
    model.requires_grad_(joint)
    tuner: VerbalTuner | None = None
    try:
        tuner = VerbalTuner(
            problem,
            learning,
            record=record,
            state=state,
            key=key,
            checkpoint_seconds=checkpoint_seconds,
        )
        yield tuner
    finally:
        if tuner is not None:
            tuner.training.close()
        model.requires_grad_(False)
        with torch.no_grad():
            for name, value in model.named_parameters():
                value.grad = None
                if name in before:
                    value.copy_(before[name])


def tune_pattern(
    config: PatternRunConfig,
    *,
    resume: bool = False,
    backbone: LanguageModel | None = None,
    tick: Tick = silent,
) -> dict[str, Any]:
    """Train (or only ask) a task through a pattern for every seed, and write a run folder.

    Args:
        config: the model, data, pattern and how it is learned.
        resume: go on with an unfinished run, or add seeds to a finished one.
        backbone: the model, if it is loaded already; it is as it was when this returns.
        tick: called with progress, a seed at a time.

    Returns:
        What the run states, and per metric the mean over seeds, their deviation and each one's
        value, in percent.

    Raises:
        SympromptError: the config, data, pattern or folder does not serve.
    """
    if not config.data:
        raise ConfigError(
            f"--data is missing; name the folder of {config.pattern.task}'s files, or the one "
            "above it."
        )
    if not config.out:
        raise ConfigError("no run folder is given; say where with --out.")
    seeds = config.seeds
    if not METHODS[config.pattern.method].learns:
        # Nothing is drawn, so all seeds would be the same.
        seeds = seeds[:1]
    folder = Folder(config.out)
    if folder.check(COMMAND, config, resume=resume):
        if folder.manifest.seeds == seeds:
            return load_metrics(folder)
        if not resume:
            made = ", ".join(map(str, folder.manifest.seeds))
            raise RunError(
                f"{folder.path} holds a run with other seeds ({made}); add seeds with --resume, or "
                "choose another --out."
            )
    data = load_verbal(
        config.pattern.task,
        config.data,
        held_out=config.pattern.held_out,
        split_seed=config.pattern.split_seed,
    )
    backbone = backbone or load_for_tuning(config)
    tick("acceleration", 1, 1, backbone.accelerate(config.compile))
    problem = VerbalProblem(backbone, data, config.pattern, max_tokens=config.max_tokens)
    folder.start(config, _describe(config, problem, seeds))
    # Seeds may have been added.
    folder.write_config(config)
    missing = [seed for seed in seeds if not folder.has(seed_file(seed))]
    tick("seeds", len(seeds) - len(missing), len(seeds), problem.task.name)
    for outcome in _outcomes(problem, config, missing, folder):
        _write_outcome(folder, config, problem, outcome)
        done = sum(folder.has(seed_file(seed)) for seed in seeds)
        main = problem.task.metrics[0]
        tick("seeds", done, len(seeds), f"{main} {outcome.metrics[main]:.1f}")
    _finish(folder, problem, config, [load_seed(folder, seed) for seed in seeds])
    return load_metrics(folder)


def _describe(config: PatternRunConfig, problem: VerbalProblem, seeds: tuple[int, ...]) -> Manifest:
    backbone = problem.backbone
    digest = hashlib.sha256()
    for split, examples in problem.data.splits.items():
        digest.update(f"{split} {[repr(example) for example in examples]}".encode())
    return Manifest(
        command=COMMAND,
        model=config.model,
        model_fingerprint=backbone.fingerprint,
        data=problem.task.name,
        data_fingerprint=digest.hexdigest(),
        method=config.pattern.method,
        seeds=seeds,
        acceleration=backbone.acceleration,
        **made_with(backbone.device, backbone.dtype),
    )


def load_for_tuning(config: PatternRunConfig) -> LanguageModel:
    """Load a model with weights that can be trained: float32, whatever the device."""
    dtype = "float32" if config.dtype == "auto" else config.dtype
    return LanguageModel.load(config.model, device=config.device, dtype=dtype)


def _outcomes(
    problem: VerbalProblem, config: PatternRunConfig, seeds: Sequence[int], folder: Folder
) -> Any:
    """Give each seed's outcome while the model is as the seed left it."""
    if not seeds:
        return
    if not METHODS[config.pattern.method].learns:
        yield ask_zero_shot(problem, seeds[0])
        return
    with tuning(
        problem,
        config.learning,
        state=folder.path / STATE,
        # All that changes what is learned.
        key=json.dumps([recipe_of(config), problem.backbone.fingerprint]),
        checkpoint_seconds=config.checkpoint_seconds,
    ) as tuner:
        for seed in seeds:
            outcome = tuner.run(seed)
            if config.save_model:
                saved = folder.path / "models" / str(seed)
                problem.backbone.model.save_pretrained(saved)
                problem.backbone.vocabulary.tokenizer.save_pretrained(saved)
            if config.keep_weights and trains_model(config.pattern):
                _keep_weights(tuner, outcome, folder)
            yield outcome


def _keep_weights(tuner: VerbalTuner, outcome: Outcome, folder: Folder) -> None:
    """Store the trained weights if no seed before did better on dev; one seed's are enough."""
    if folder.has(WEIGHTS):
        before = int(folder.read_tensors(WEIGHTS)[1]["seed"])
        # A kill may have come between a seed's weights and what came of it.
        there = folder.has(seed_file(before))
        if there and on_dev(load_seed(folder, before)) >= on_dev(outcome.to_json()):
            return
    # A prompt is stored by itself; a head is nothing without the model it was learned with.
    kinds = ("model.",) if tuner.problem.method.prompt else ("model.", "extra.")
    tensors = {
        name: value for name, value in tuner.training.parameters.items() if name.startswith(kinds)
    }
    folder.write_tensors(WEIGHTS, tensors, {"seed": outcome.seed})


def _write_outcome(
    folder: Folder, config: PatternRunConfig, problem: VerbalProblem, outcome: Outcome
) -> None:
    folder.write_rows(f"predictions/{outcome.seed}.jsonl", problem.rows("val", outcome.answers))
    if outcome.prompt:
        card = {
            "base_model": config.model,
            "base_model_fingerprint": problem.backbone.fingerprint,
            "model_trained": trains_model(config.pattern),
            "task": problem.task.name,
            "pattern": problem.worded.text,
            "words": list(problem.worded.words),
            "seed": outcome.seed,
            "val": outcome.metrics,
        }
        folder.write_tensors(prompt_file(outcome.seed), outcome.prompt, card)
    folder.write_json(seed_file(outcome.seed), outcome.to_json())


def _finish(
    folder: Folder,
    problem: VerbalProblem,
    config: PatternRunConfig,
    rows: Sequence[Mapping[str, Any]],
) -> None:
    """Write what the run found: a record for each seed, split and metric."""
    data: VerbalData = problem.data
    body = problem.backbone.model.base_model
    records = [
        Record(
            metric=name,
            value=value,
            n=len(data.splits[split]),
            split=split,
            seeds=(row["seed"],),
        )
        for row in rows
        for split, own in (("val", row["val"]), ("dev", {"accuracy": row["dev"]["accuracy"]}))
        for name, value in own.items()
    ]
    details = {
        "model_trained": trains_model(config.pattern),
        "pattern": problem.worded.text,
        "words": list(problem.worded.words),
        "split": "val",
        "trainable_parameters": max((row["trained"] for row in rows), default=0) or None,
        "model_parameters": sum(value.numel() for value in body.parameters()),
        "counts": data.counts(),
        "notes": list(data.notes),
        "cut": problem.cuts(),
    }
    seconds = sum(t["seconds"] for row in rows for t in row["tried"]) / len(rows)
    folder.finish(records=records, seconds={"training": round(seconds, 2)}, details=details)
