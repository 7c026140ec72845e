"""A toy task asked through a pattern: entailed where the premise says "old"."""

from __future__ import annotations

from dataclasses import replace

from symprompt.models import LanguageModel
from symprompt.tasks.patterns.config import LearningConfig, PatternConfig
from symprompt.tasks.patterns.prepare import VerbalProblem
from symprompt.tasks.patterns.superglue import TASKS, VerbalData, VerbalExample
from tiny.models import CITIES

TEXT = "{hypothesis} is <1> {premise} <1> : [MASK] ."
LEARNING = LearningConfig(
    rates=(3e-3,), prompt_rate=1e-2, batches=(4,), steps=12, evaluate_every=4, patience=0
)


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
    return VerbalProblem(backbone, make_data(), replace(config, **changes))  # type: ignore[arg-type]
