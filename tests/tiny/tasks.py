"""Small labelled tasks of every kind that a tiny model can learn, as files, and runs on them.

One is asked through a pattern: entailed where the premise says "old".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from symprompt.config import build
from symprompt.models import LanguageModel
from symprompt.models.vocabulary import Vocabulary
from symprompt.tasks.config import (
    PatternConfig,
    PatternLearningConfig,
    PatternRunConfig,
    TuneConfig,
)
from symprompt.tasks.data.examples import Example, LabelSet
from symprompt.tasks.features import Features, Sheet
from symprompt.tasks.kinds import KINDS as ALL_KINDS
from symprompt.tasks.kinds import Target
from symprompt.tasks.patterns.data import VerbalData, VerbalExample
from symprompt.tasks.patterns.model import VerbalProblem
from symprompt.tasks.patterns.pattern import TASKS
from symprompt.tasks.train import TaskRun, tune
from symprompt.tasks.trainables import TRAINABLES, TunedModel
from tiny.models import CITIES

KINDS = ("sequence", "pair", "tagging", "words", "roles", "question")


def tuned(backbone: LanguageModel, config: TuneConfig, *, seed: int = 1) -> TunedModel:
    """Return a model with what the config's method trains, at its start."""
    return TRAINABLES[config.method](backbone, config, (seed,))


def full_weights(backbone: LanguageModel, layers: int = -1) -> TunedModel:
    """Return a model whose weights are trained, or those of its last layers."""
    return tuned(backbone, build(TuneConfig, {"method": "ft", "weights": {"layers": layers}}))


def _table(
    data: Path, model: Path, out: Path, table: dict[str, Any], changes: dict[str, Any]
) -> dict[str, Any]:
    """Return a config's table with changes, whose keys are dotted, with __ for the dot."""
    places = {"model": str(model), "data": str(data), "out": str(out), "device": "cpu"}
    table = {**places, **table}
    for key, value in changes.items():
        outer, _, inner = key.rpartition("__")
        (table.setdefault(outer, {}) if outer else table)[inner] = value
    return table


def toy_config(data: Path, model: Path, out: Path, kind: str, **changes: Any) -> TuneConfig:
    """Return a config of a short run; changes are dotted keys with __ for the dot."""
    table: dict[str, Any] = {
        "method": "pt2",
        "task": {"kind": kind, "max_length": 32, "stride": 4},
        "prefix": {"length": 4},
        "head": {"dropout": 0.0},
        "learning": {"rate": 2e-2, "batch": 8, "epochs": 4},
    }
    return build(TuneConfig, _table(data, model, out, table, changes))


def run_toy(data: Path, model: Path, out: Path, kind: str, **changes: Any) -> TaskRun:
    return tune(toy_config(data, model, out, kind, **changes))


def tensorise(
    kind: str,
    examples: Sequence[Example],
    labels: LabelSet,
    vocabulary: Vocabulary,
    *,
    max_length: int,
    stride: int = 8,
    types: bool = False,
    **target: Any,
) -> Features:
    sheet = Sheet.make(vocabulary, max_length=max_length, stride=stride, types=types)
    return ALL_KINDS[kind].tensorise(examples, sheet, Target(labels, **target))


TEXT = "{hypothesis} is <1> {premise} <1> : [MASK] ."
LEARNING = PatternLearningConfig(
    rates=(3e-3,), prompt_rate=1e-2, batches=(4,), steps=12, evaluate_every=4, patience=0
)


PATTERNS = {
    "ptuning": "{hypothesis} <1> {premise} <1> [MASK]",
    "pt2": "{hypothesis} {premise} [MASK]",
    "mp": "{hypothesis} {premise} [MASK]",
    "zero-shot": "{hypothesis} {premise} [MASK]",
    "cls": "",
}
WORDS = ("Kenya", "Japan")


def pattern_config(
    data: Path, model: Path, out: Path, method: str = "ptuning", **changes: Any
) -> PatternRunConfig:
    """Return a config of a short run on RTE through a pattern; see ``toy_config``."""
    pattern = {"task": "rte", "method": method, "template": PATTERNS[method], "words": list(WORDS)}
    sizes = {"max_length": 40, "prefix_length": 3, "lstm_hidden": 4}
    learning = {"steps": 3, "evaluate_every": 1, "batches": [2], "rates": [1e-2]}
    table = {
        "seeds": [1, 2, 3],
        "pattern": pattern | sizes,
        "learning": learning | {"prompt_rate": 1e-2},
    }
    return build(PatternRunConfig, _table(data, model, out, table, changes))


def make_data() -> VerbalData:
    """Entailed where the premise says "old": learnt from four cities, asked of others."""

    def example(number: int) -> VerbalExample:
        city, old = CITIES[number % 8], (number // 8 + number) % 2
        fields = {"premise": "the old city" if old else "the river", "hypothesis": city}
        return VerbalExample(str(number), fields, old)

    examples = [example(number) for number in range(16)]
    splits = {
        "train": [one for one in examples if int(one.id) % 8 < 4],
        "dev": [one for one in examples if int(one.id) % 8 in (4, 5)],
        "val": [one for one in examples if int(one.id) % 8 in (6, 7)],
    }
    return VerbalData(TASKS["rte"], splits)


def make_problem(backbone: LanguageModel, **changes: object) -> VerbalProblem:
    config = PatternConfig(
        template=TEXT, words=("Kenya", "Japan"), encoder="bilstm", lstm_hidden=4, max_length=48
    )
    return VerbalProblem(backbone, make_data(), replace(config, **changes))
