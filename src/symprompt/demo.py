"""The demo: what symprompt does, on facts about the world, in two minutes on a laptop."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from pathlib import Path

from symprompt.answering import Answer, Run
from symprompt.config import RunConfig, load_config
from symprompt.experiment import train
from symprompt.facts import Fact, world_facts
from symprompt.models import make_toy_model
from symprompt.models.toy import WORDINGS, ToySize
from symprompt.runtime import Tick, silent


@dataclass(frozen=True)
class DemoSize:
    """How much the demo does."""

    relations: tuple[str, ...] = tuple(WORDINGS)
    toy: ToySize = field(default_factory=ToySize)
    epochs: int = 8


def demo_runs(folder: Path, *, size: DemoSize | None = None, tick: Tick = silent) -> list[Run]:
    """Make the toy model and train manual prompts, P-tuning and SPE on the world facts.

    What is there already is not made again.

    Args:
        folder: where the toy model and the runs go.
        size: how much to do; None is two minutes on a laptop.
        tick: told of progress.

    Returns:
        The three finished runs.
    """
    size = size or DemoSize()
    model = folder / "toy-model"
    if not (model / "model.safetensors").is_file():
        make_toy_model(world_facts().select(size.relations), model, size=size.toy, tick=tick)
    return [
        train(_config(name, folder, str(model), size), resume=True, tick=tick)
        for name in ("lama-manual", "lama-ptuning", "lama-spe")
    ]


@dataclass(frozen=True)
class Question:
    """A test fact, where the true object stood before and after asking back, and the answers."""

    fact: Fact
    forward_rank: float
    rank: float
    answers: list[Answer]


def demo_questions(run: Run, count: int = 3) -> list[Question]:
    """Ask about the test facts whose true object rose to the top when asked back.

    Of each relation the one that rose most, at most ``count`` in all.
    """
    predictions, facts = run.predictions("test")
    before = predictions.ranks().realistic
    after = predictions.final(run.folder.load_weights()).realistic
    rise = (before - after).masked_fill(after != 1, -math.inf)
    questions: dict[str, Question] = {}
    for row in rise.argsort(descending=True, stable=True).tolist():
        fact = facts[row]
        if fact.relation not in questions and len(questions) < count and rise[row] > 0:
            answers = run.ask(fact.relation, subject=fact.subject, top=5)
            questions[fact.relation] = Question(
                fact, float(before[row]), float(after[row]), answers
            )
    return list(questions.values())


def _config(name: str, folder: Path, model: str, size: DemoSize) -> RunConfig:
    config = load_config(name)
    return replace(
        config,
        model=model,
        data="world",
        out=str(folder / name.removeprefix("lama-")),
        device="cpu",
        facts=replace(config.facts, relations=size.relations),
        training=replace(config.training, rate=2e-3, epochs=size.epochs),
    )
