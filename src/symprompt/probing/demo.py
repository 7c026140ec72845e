"""The demo: manual prompts, P-tuning and SPE on facts about the world, in minutes on a laptop."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from symprompt.config import to_toml
from symprompt.facts import Fact
from symprompt.files.progress import Tick, silent
from symprompt.models import SHIPPED, LanguageModel
from symprompt.probing.ask import Answer, Run, rank_answers
from symprompt.probing.config import RunConfig, load_config
from symprompt.probing.prepare import load_config_facts
from symprompt.probing.results import load_asked, load_combination
from symprompt.probing.train import train
from symprompt.runs.folder import Folder

METHODS = ("manual", "ptuning", "spe")


@dataclass(frozen=True)
class DemoSize:
    """How much the demo does: facts of each relation in each split, and training.

    Without limits the country of a city, which has the most facts by far, would take most of the
    time. The defaults were set for time and by dev (docs/log.md).
    """

    relations: tuple[str, ...] = ()
    train_limit: int = 64
    dev_limit: int = 24
    test_limit: int = 40
    epochs: int = 8
    rate: float = 1e-3


@dataclass(frozen=True)
class Demo:
    """The demo's folder and its three finished runs, in the order of ``METHODS``.

    Attributes:
        made: whether anything had to be made; if not, all of it was there from before.
        earlier: folders beside this one, made with another model, other facts or settings.
    """

    folder: Path
    runs: tuple[Run, ...]
    size: DemoSize
    made: bool
    earlier: tuple[Path, ...]


def make_demo(
    folder: Path, *, model: str = SHIPPED, size: DemoSize | None = None, tick: Tick = silent
) -> Demo:
    """Train manual prompts, P-tuning and SPE on the world facts with one model.

    The runs go into a folder of their own, named after the model and a digest of the model's
    weights, the facts and the settings. So what is there already is not made again, an
    interrupted run goes on, and nothing that was made with something else is lost or mixed in.

    Args:
        folder: where that folder goes.
        model: a model as ``LanguageModel.load`` takes it.
        size: how much to do; None is what a laptop does in minutes.
        tick: called with every step of progress.
    """
    size = size or DemoSize()
    tick("loading", 0, 1, model)
    backbone = LanguageModel.load(model, device="cpu", tick=tick)
    tick("loading", 1, 1, model)
    configs = [_config(name, model, size, causal=backbone.causal) for name in METHODS]
    place = folder / f"{Path(model).name}-{_digest(backbone, configs)}"
    configs = [
        replace(config, out=str(place / name))
        for name, config in zip(METHODS, configs, strict=True)
    ]
    made = not all(Folder(config.out).finished for config in configs)
    runs = tuple(
        train(config, resume=True, tick=_named(tick, name), backbone=backbone)
        for name, config in zip(METHODS, configs, strict=True)
    )
    others = (entry for entry in sorted(folder.iterdir()) if entry.is_dir() and entry != place)
    earlier = tuple(entry for entry in others if (entry / METHODS[0] / "config.toml").is_file())
    return Demo(place, runs, size, made=made, earlier=earlier)


@dataclass(frozen=True)
class Question:
    """A test fact, where the true object stood before and after re-ranking, and the answers.

    Attributes:
        answers: every candidate that was re-ranked, by joint score.
    """

    fact: Fact
    forward_rank: float
    rank: float
    answers: list[Answer]


def demo_questions(run: Run, count: int = 3) -> list[Question]:
    """Return test facts whose true object rose to the top by re-ranking, from what is stored.

    Of each relation the one that rose most, at most ``count`` in all. Facts with another true
    object among the candidates are passed over: an answer that overtook a right one proves nothing.
    """
    asked = load_asked(run.folder, "test")
    predictions, combination = asked.predictions, load_combination(run.folder)
    if combination is None:
        return []
    before = predictions.ranks().realistic
    after = predictions.final(combination).realistic
    passed = (after != 1) | predictions.known.any(1)
    rise = np.where(passed, -math.inf, before - after)
    joint = predictions.joint(combination)
    facts, texts = asked.facts(), asked.candidates()
    questions: dict[str, Question] = {}
    for row in np.argsort(-rise, kind="stable").tolist():
        fact = facts[row]
        if fact.relation in questions or len(questions) == count or not rise[row] > 0:
            continue
        columns = (predictions.object_score[row], predictions.subject_score[row], joint[row])
        terms = {name: term[row] for name, term in predictions.terms.items()}
        answers = rank_answers(texts[row], *columns, terms, plain=True)
        questions[fact.relation] = Question(fact, float(before[row]), float(after[row]), answers)
    return list(questions.values())


@dataclass(frozen=True)
class Moves:
    """How many test facts' true objects came to the top by re-ranking, and how many left it."""

    risen: int
    fallen: int
    facts: int


def count_moves(run: Run) -> Moves:
    """Count what re-ranking did to the first place."""
    predictions, facts = run.predictions("test")
    before = predictions.ranks().realistic == 1
    after = predictions.final(load_combination(run.folder)).realistic == 1
    return Moves(int((after & ~before).sum()), int((before & ~after).sum()), len(facts))


def _config(name: str, model: str, size: DemoSize, *, causal: bool) -> RunConfig:
    config = load_config(f"lama-{name}-gpt" if causal and name != "manual" else f"lama-{name}")
    return replace(
        config,
        model=model,
        data="world",
        device="cpu",
        facts=replace(
            config.facts,
            relations=size.relations,
            train_limit=size.train_limit,
            dev_limit=size.dev_limit,
            test_limit=size.test_limit,
            copies="auto",
            words="auto",
        ),
        learning=replace(config.learning, rate=size.rate, epochs=size.epochs),
    )


def _digest(backbone: LanguageModel, configs: list[RunConfig]) -> str:
    """Return a short digest of what the numbers follow from: model, facts and settings."""
    facts = load_config_facts(configs[0].data, configs[0].facts)
    parts = (backbone.fingerprint, facts.fingerprint(), *map(to_toml, configs))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:8]


def _named(tick: Tick, name: str) -> Tick:
    """Return a tick that reports which run a stage belongs to."""
    return lambda stage, done, total, note: tick(f"{name}: {stage}", done, total, note)
