"""Training a problem for any number of seeds, over a grid of rates and batches that dev chooses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from symprompt.engine.loop import Loop, Progress
from symprompt.tasks.patterns.config import LearningConfig, trains_model
from symprompt.tasks.patterns.model import VerbalModel
from symprompt.tasks.patterns.prepare import Answers, VerbalProblem
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
        self.training.begin(recipe, self.problem.make_extra(recipe.seed))
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
