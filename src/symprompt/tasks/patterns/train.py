"""``symprompt tune`` for configs with a pattern: one run folder for all seeds of a method.

Beside config and manifest a folder holds ``seeds/N.json`` (what came of a seed, of its grid),
``predictions/N.jsonl``, ``prompts/N.safetensors`` (P-tuning's vectors or a prefix, with a card),
``weights.safetensors`` (where the model is trained too: its weights, and a head's, of the seed that
did best on dev) and ``models/N`` if asked for.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from symprompt.config import recipe_of
from symprompt.engine.flat_adamw import ParameterGroup
from symprompt.engine.loop import Loop, Progress, rate_share
from symprompt.errors import ConfigError, RunError, TrainingError
from symprompt.files.progress import Tick
from symprompt.runs.environment import derive_seed
from symprompt.runs.folder import STATE, Folder, Record
from symprompt.tasks.config import PatternLearningConfig, PatternRunConfig
from symprompt.tasks.patterns.data import load_verbal
from symprompt.tasks.patterns.model import ClassHead, VerbalModel, VerbalProblem
from symprompt.tasks.predict import (
    WEIGHTS,
    SeedOutcome,
    on_dev,
    prompt_file,
    seed_file,
)
from symprompt.tasks.prepare import Session
from symprompt.tasks.train import Step, Training, count_parameters, describe_run
from symprompt.tasks.trainables import Outcome

_GRAIN = 64
"""Passes are as wide as a multiple of it: fewer widths are recorded."""


@dataclass(frozen=True)
class Recipe:
    """One training: its seed, rate and batch; final."""

    seed: int
    rate: float
    batch: int


class PatternTraining(Training):
    """Trains one recipe after the other in the same places; final.

    Several seeds train one after the other through the same recordings.

    Args:
        problem: what is trained; the gradients of its language model must be on where it is.
        learning: steps, evaluations, patience, weight decay, clip, micro-batches, dropout.
        record: record CUDA graphs where there is a GPU.
        state: the checkpoint of an unfinished training; None keeps none.
        key: what the checkpoint must be of.
        checkpoint_seconds: least time between two checkpoints.

    Attributes:
        parameters: name -> parameter; those the loss does not depend on are left out.
    """

    def __init__(
        self,
        problem: VerbalProblem,
        learning: PatternLearningConfig,
        *,
        record: bool = True,
        state: Path | None = None,
        key: str = "",
        checkpoint_seconds: float = 60.0,
    ) -> None:
        self.problem = problem
        self.learning = learning
        self.state = state
        self.key = key
        self.checkpoint_seconds = checkpoint_seconds
        self.model: VerbalModel = problem.make_model(0)
        self.layout = problem.layouts["train"]
        self.parameters = self._find_parameters()
        extra = {name: own for name, own in self.parameters.items() if name.startswith("extra.")}
        model = {name: own for name, own in self.parameters.items() if name not in extra}
        plain = {name: own for name, own in model.items() if own.dim() < 2}
        decayed = {name: own for name, own in model.items() if name not in plain}
        # The model's matrices decay; its vectors and what stands beside it do not. A rate of 0 is
        # the recipe's, as is a head's.
        head = isinstance(self.model.extra, ClassHead)
        groups = [
            ParameterGroup(extra, 0.0 if head else learning.prompt_rate),
            ParameterGroup(plain, 0.0),
            ParameterGroup(decayed, 0.0, learning.weight_decay),
        ]
        backbone = problem.backbone
        wanted = record and backbone.records
        super().__init__(groups, backbone.device, clip=learning.clip, record=wanted)
        self._start = self.optimizer.values.clone()

    def _find_parameters(self) -> dict[str, nn.Parameter]:
        """Return what may be trained and the loss depends on, by a pass over one example."""
        named: dict[str, nn.Parameter] = {}
        if self.model.extra is not None:
            named |= {f"extra.{name}": own for name, own in self.model.extra.named_parameters()}
        network = self.problem.backbone.model
        named |= {f"model.{name}": own for name, own in network.named_parameters()}
        named = {name: value for name, value in named.items() if value.requires_grad}
        if not named:
            raise TrainingError("there is nothing to train; train the model or learn vectors.")
        rows = torch.zeros(1, dtype=torch.long, device=self.problem.backbone.device)
        loss = self.model.loss(self.layout, rows, self.layout.width_of(np.zeros(1, dtype=np.int64)))
        found = torch.autograd.grad(loss.sum(), list(named.values()), allow_unused=True)
        pairs = zip(named.items(), found, strict=True)
        return {name: value for (name, value), gradient in pairs if gradient is not None}

    def score(self) -> tuple[float, float, dict[str, float]]:
        """Evaluate dev as the model is now."""
        accuracy, loss = self.problem.look(self.model)
        return accuracy, loss, {"accuracy": accuracy, "loss": loss}

    @torch.no_grad()
    def begin(self, recipe: Recipe) -> None:
        """Put everything back to the start, for another recipe."""
        self.recipe = recipe
        self.optimizer.reset(self._start)
        extra = self.problem.make_extra(recipe.seed)
        if extra is not None and self.model.extra is not None:
            drawn = dict(extra.named_parameters())
            views = dict(self.optimizer.views(self.optimizer.values))
            for name, own in self.model.extra.named_parameters():
                views.get(f"extra.{name}", own).copy_(drawn[name])
            self.optimizer.refresh()
        learning, epoch = self.learning, max(1, len(self.layout) // recipe.batch)
        self._begin(
            steps=learning.epochs * epoch or learning.steps,
            interval=learning.evaluate_every or epoch,
            patience=learning.patience,
        )

    @property
    def best(self) -> dict[str, float]:
        """The best evaluation of dev so far: accuracy, loss, and after which step."""
        step = min(int(self.stopping.best[0]) * self.interval, self.steps)
        return {
            "accuracy": float(self.stopping.score[0]),
            "loss": -float(self.stopping.tie[0]),
            "step": step,
        }

    def training(self) -> AbstractContextManager[None]:
        """Return a context in which dropout is on."""
        return self.model.training(dropout=self.learning.model_dropout)

    def _passes(self, number: int) -> Iterator[tuple[Step, np.ndarray]]:
        torch.manual_seed(derive_seed(self.recipe.seed, "dropout", number))
        rows = batch_rows(number, len(self.layout), self.recipe)
        size = self.learning.micro_batch or len(rows)
        for first in range(0, len(rows), size):
            part = rows[first : first + size]
            step = Step("", self.layout.width_of(part, _GRAIN), part)
            yield step, np.full(len(part), 1 / len(rows))

    def _pass_loss(self, task: str, width: int, rows: Tensor, share: Tensor) -> Tensor:
        losses = self.model.loss(self.layout, rows, width)
        return (losses * share.to(losses.dtype)).sum()

    def _rates(self, number: int) -> list[float]:
        share = float(rate_share(number, self.steps, warmup=self.learning.warmup))
        return [share * (group.rate or self.recipe.rate) for group in self.optimizer.groups]

    def _complain(self, place: int) -> str:
        return (
            f"the loss is {float(self.losses[place])} (seed {self.recipe.seed}, rate "
            f"{self.recipe.rate}); take a lower rate."
        )

    # ------------------------------------------------------------------------------ seeds

    def train(self, recipe: Recipe) -> Progress:
        """Train one recipe from its start or its checkpoint; leave its best weights in place."""
        self.begin(recipe)
        return Loop(
            self,
            checkpoint=self.state,
            key={"run": self.key, "recipe": asdict(recipe)},
            checkpoint_seconds=self.checkpoint_seconds,
        ).run()

    def run(self, seed: int) -> tuple[dict[str, Any], Outcome]:
        """Train a seed with every setting of the grid; the one that dev chose answers val.

        Returns:
            What is stored of the seed, and its predictions.
        """
        kept = torch.empty_like(self.optimizer.values)
        tried: list[dict[str, Any]] = []
        best: dict[str, Any] = {}
        for rate, batch in product(self.learning.rates, self.learning.batches):
            recipe = Recipe(seed, rate, min(batch, len(self.layout)))
            progress = self.train(recipe)
            found: dict[str, Any] = {
                "rate": rate,
                "batch": recipe.batch,
                **self.best,
                "steps": progress.done,
            }
            found["seconds"] = round(progress.seconds, 2)
            if self.recorder.reason:
                found["not recorded"] = self.recorder.reason
            tried.append(found)
            if not best or on_dev(found) > on_dev(best):
                best = found
                kept.copy_(self.optimizer.values)
        self.optimizer.values.copy_(kept)
        self.optimizer.refresh()
        if self.state is not None:
            # What came of the training is stored elsewhere.
            self.state.unlink(missing_ok=True)
        outcome = self.problem.ask(self.model, "val")
        return _seed_row(seed, outcome, best, self.optimizer.size, tried), outcome

    @torch.no_grad()
    def prompt(self) -> dict[str, Tensor]:
        """Return what was learned beside the model and serves without training again.

        "vectors" [n, width] or the "prefix" [layers, 2, kv_heads, length, head_dim].
        """
        name, extra = self.problem.config.traits.prompt, self.model.extra
        return {} if extra is None or not name else {name: extra()[0].detach().cpu().clone()}


def batch_rows(step: int, examples: int, recipe: Recipe) -> npt.NDArray[np.int64]:
    """Return a step's examples: epochs are shuffled, and one's last, smaller batch is left out."""
    batch = min(recipe.batch, examples)
    per_epoch = examples // batch
    epoch, place = divmod(step, per_epoch)
    seed = derive_seed(recipe.seed, "order", epoch)
    order = np.random.default_rng(seed).permutation(examples).astype(np.int64)
    return order[place * batch : (place + 1) * batch]


@contextmanager
def tuning(
    problem: VerbalProblem, learning: PatternLearningConfig, **options: Any
) -> Iterator[PatternTraining]:
    """Give a training; when the block ends the language model is as it was before.

    Args:
        options: see ``PatternTraining``.
    """
    model, joint = problem.backbone.model, problem.config.joint
    before = (
        {name: value.detach().clone() for name, value in model.named_parameters()} if joint else {}
    )
    model.requires_grad_(joint)
    training: PatternTraining | None = None
    try:
        training = PatternTraining(problem, learning, **options)
        yield training
    finally:
        if training is not None:
            training.close()
        model.requires_grad_(False)
        with torch.no_grad():
            for name, value in model.named_parameters():
                value.grad = None
                if name in before:
                    value.copy_(before[name])


def ask_zero_shot(problem: VerbalProblem, seed: int = 0) -> tuple[dict[str, Any], Outcome]:
    """Return what the model answers as it is; dev is evaluated, and chooses nothing."""
    model = problem.make_model(seed)
    accuracy, loss = problem.look(model)
    outcome = problem.ask(model, "val")
    return _seed_row(seed, outcome, {"accuracy": accuracy, "loss": loss, "step": 0}), outcome


def _seed_row(
    seed: int,
    outcome: Outcome,
    best: Mapping[str, Any],
    trained: int = 0,
    tried: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """Return what is stored of a seed: val, asked once, after everything was chosen on dev."""
    return {
        "seed": seed,
        "val": outcome.metrics,
        "dev": {key: best[key] for key in ("accuracy", "loss", "step")},
        "rate": best.get("rate"),
        "batch": best.get("batch"),
        "trained": trained,
        "tried": list(tried),
    }


# ------------------------------------------------------------------------------ runs


def tune_seeds(
    folder: Folder,
    config: PatternRunConfig,
    session: Session,
    tick: Tick,
    *,
    finished: bool,
    resume: bool,
) -> None:
    """Train (or only ask) a task through a pattern for every seed, and write a run folder.

    Args:
        session: gives the model, which is as it was when this returns.
        tick: called with progress, a seed at a time.
        finished: whether the folder holds a finished run.
        resume: go on with an unfinished run, or add seeds to a finished one.

    Raises:
        SympromptError: the config, data, pattern or folder does not serve.
    """
    pattern, seeds = config.pattern, config.seeds
    if not config.data:
        raise ConfigError(
            f"--data is missing; name the folder of {pattern.task}'s files, or the one above it."
        )
    if not pattern.traits.learns:
        # Nothing is drawn, so all seeds would be the same.
        seeds = seeds[:1]
    if finished and folder.manifest.seeds == seeds:
        return
    if finished and not resume:
        made = ", ".join(map(str, folder.manifest.seeds))
        raise RunError(
            f"{folder.path} holds a run with other seeds ({made}); add seeds with --resume, or "
            "choose another --out."
        )
    data = load_verbal(
        pattern.task, config.data, held_out=pattern.held_out, split_seed=pattern.split_seed
    )
    backbone = session.backbone(config)
    tick("acceleration", 1, 1, backbone.accelerate(config.compile))
    problem = VerbalProblem(backbone, data, pattern, max_tokens=config.max_tokens)
    splits = {problem.task.name: data.splits}
    folder.start(config, describe_run(config, backbone, splits, pattern.method, seeds))
    # Seeds may have been added.
    folder.write_config(config)
    missing = [seed for seed in seeds if not folder.has(seed_file(seed))]
    tick("seeds", len(seeds) - len(missing), len(seeds), problem.task.name)
    main = problem.task.metrics[0]
    for row in _run_seeds(folder, config, problem, missing):
        done = sum(folder.has(seed_file(seed)) for seed in seeds)
        tick("seeds", done, len(seeds), f"{main} {row['val'][main]:.1f}")
    _finish(folder, problem, [folder.load(seed_file(seed), SeedOutcome) for seed in seeds])


def _run_seeds(
    folder: Folder, config: PatternRunConfig, problem: VerbalProblem, seeds: Sequence[int]
) -> Iterator[Mapping[str, Any]]:
    """Train every seed, write what came of it, and yield that."""
    if not seeds:
        return
    if not config.pattern.traits.learns:
        row, outcome = ask_zero_shot(problem, seeds[0])
        yield _write_seed(folder, row, outcome)
        return
    with tuning(
        problem,
        config.learning,
        state=folder.path / STATE,
        # All that changes what is learned.
        key=json.dumps([recipe_of(config), problem.backbone.fingerprint]),
        checkpoint_seconds=config.checkpoint_seconds,
    ) as training:
        for seed in seeds:
            row, outcome = training.run(seed)
            if config.save_model:
                saved = folder.path / "models" / str(seed)
                problem.backbone.model.save_pretrained(saved)
                problem.backbone.vocabulary.tokenizer.save_pretrained(saved)
            if config.keep_weights and config.pattern.joint:
                _keep_weights(folder, training, row)
            prompt = training.prompt()
            if prompt:
                card = {
                    "base_model": config.model,
                    "base_model_fingerprint": problem.backbone.fingerprint,
                    "model_trained": config.pattern.joint,
                    "task": problem.task.name,
                    "pattern": problem.worded.text,
                    "words": list(problem.worded.words),
                    "seed": seed,
                    "val": outcome.metrics,
                }
                folder.write_tensors(prompt_file(seed), prompt, card)
            yield _write_seed(folder, row, outcome)


def _write_seed(folder: Folder, row: Mapping[str, Any], outcome: Outcome) -> Mapping[str, Any]:
    folder.write_rows(f"predictions/{row['seed']}.jsonl", outcome.rows)
    folder.write_json(seed_file(row["seed"]), row)
    return row


def _keep_weights(folder: Folder, training: PatternTraining, row: Mapping[str, Any]) -> None:
    """Store the trained weights if no seed before did better on dev; one seed's are enough."""
    if folder.has(WEIGHTS):
        before = int(folder.read_tensors(WEIGHTS)[1]["seed"])
        # A kill may have come between a seed's weights and what came of it.
        there = folder.has(seed_file(before))
        if there and on_dev(folder.load(seed_file(before), SeedOutcome)["dev"]) >= on_dev(
            row["dev"]
        ):
            return
    # A prompt is stored by itself; a head is nothing without the model it was learned with.
    kinds = ("model.",) if training.problem.config.traits.prompt else ("model.", "extra.")
    tensors = {name: own for name, own in training.parameters.items() if name.startswith(kinds)}
    folder.write_tensors(WEIGHTS, tensors, {"seed": row["seed"]})


def _finish(folder: Folder, problem: VerbalProblem, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write what the run found: a record for each seed, split and metric."""
    data = problem.data
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
        "model_trained": problem.config.joint,
        "pattern": problem.worded.text,
        "words": list(problem.worded.words),
        "split": "val",
        "trainable_parameters": max((row["trained"] for row in rows), default=0) or None,
        "model_parameters": count_parameters(problem.backbone),
        "counts": data.counts(),
        "notes": list(data.notes),
        "cut": problem.cuts(),
    }
    seconds = sum(t["seconds"] for row in rows for t in row["tried"]) / len(rows)
    folder.finish(records=records, seconds={"training": round(seconds, 2)}, details=details)
