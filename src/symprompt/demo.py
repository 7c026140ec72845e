"""The demo: what symprompt does, on facts about the world, in two minutes on a laptop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from symprompt.config import RunConfig, load_config
from symprompt.experiment import Answer, Run, train
from symprompt.facts import world_facts
from symprompt.models import make_toy_model
from symprompt.models.toy import WORDINGS
from symprompt.runtime import Tick, silent

RELATIONS = tuple(WORDINGS)
QUESTIONS: tuple[tuple[str, str], ...] = (
    ("continent", "Peru"),
    ("language", "Brazil"),
    ("country-of-city", "Kyoto"),
)


def demo_runs(folder: Path, *, tick: Tick = silent) -> list[Run]:
    """Make the toy model and train manual prompts, P-tuning and SPE on the world facts.

    What is there already is not made again.

    Returns:
        The three finished runs.
    """
    model = folder / "toy-model"
    if not (model / "model.safetensors").is_file():
        make_toy_model(world_facts().select(RELATIONS), model, tick=tick)
    return [
        train(_config(name, folder, str(model)), resume=True, tick=tick)
        for name in ("lama-manual", "lama-ptuning", "lama-spe")
    ]


def demo_questions(run: Run) -> Sequence[tuple[str, str, list[Answer]]]:
    """Ask a run a few questions; each is (relation, subject, ranked answers)."""
    return [
        (relation, subject, run.ask(relation, subject=subject, top=5))
        for relation, subject in QUESTIONS
    ]


def _config(name: str, folder: Path, model: str) -> RunConfig:
    config = load_config(name)
    return replace(
        config,
        model=model,
        data="world",
        out=str(folder / name.removeprefix("lama-")),
        device="cpu",
        facts=replace(config.facts, relations=RELATIONS),
        training=replace(config.training, rate=2e-3, epochs=8),
    )
