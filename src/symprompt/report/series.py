"""What the figures show, as plain numbers from stored predictions; drawing is in ``figures``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from symprompt.errors import RunError
from symprompt.facts.types import Split
from symprompt.probing.folder import load_predictions, load_weights
from symprompt.probing.predictions import Array, Ranks
from symprompt.report.tables import Comparison
from symprompt.runs.folder import Folder
from symprompt.runs.statistics import METRICS, OVER_RELATIONS, summarise

if TYPE_CHECKING:
    from symprompt.probing.ask import Answer

METHOD_NAMES = {
    "autoprompt": "AutoPrompt",
    "lpaqa": "LPAQA",
    "majority": "majority object",
    "manual": "manual prompts",
    "optiprompt": "OptiPrompt",
    "ptuning": "P-tuning",
    "spe": "SPE",
}
METRIC_NAMES = {"p1": "P@1", "p10": "P@10", "mrr": "MRR"}


@dataclass(frozen=True)
class Bar:
    """One run's value of one metric in percent, mean over relations, with its 95 % interval."""

    run: str
    metric: str
    value: float
    low: float
    high: float


def method_bars(found: Comparison) -> list[Bar]:
    """Return the bars of a comparison: metric after metric, the runs in their order."""
    return [
        Bar(
            METHOD_NAMES.get(run.title, run.title),
            METRIC_NAMES[metric],
            getattr(run.means[OVER_RELATIONS], metric),
            run.intervals[OVER_RELATIONS][metric].low,
            run.intervals[OVER_RELATIONS][metric].high,
        )
        for metric in METRICS
        for run in found.runs
    ]


@dataclass(frozen=True)
class KCurve:
    """The metrics (percent, mean over relations) when 1, 2, ... K candidates are asked back.

    Attributes:
        values: metric -> one value for each of ``k``.
        forward: metric -> the value without asking back.
        weights: the smallest and largest weight of the subject score among the relations.
    """

    k: tuple[int, ...]
    values: dict[str, tuple[float, ...]]
    forward: dict[str, float]
    weights: tuple[float, float]


def k_curve(folder: Folder, split: Split = "test") -> KCurve:
    """Re-rank a run's stored candidates for every K up to the stored one, realistic ranks.

    Raises:
        RunError: the run did not ask back.
    """
    predictions, weights = load_predictions(folder, split), load_weights(folder)
    if weights is None or not predictions.asked_back:
        raise RunError(f"{folder.path} did not ask back, so it has no curve over K.")
    each = weights[predictions.relation].astype(np.float32)
    numbers = tuple(range(1, predictions.candidates.shape[1] + 1))

    def means(ranks: Ranks[Array]) -> dict[str, float]:
        found = summarise(ranks.realistic, predictions.relation)[OVER_RELATIONS]
        return {METRIC_NAMES[metric]: getattr(found, metric) for metric in METRICS}

    found = [means(predictions.reranked(each, k=k)) for k in numbers]
    return KCurve(
        numbers,
        {name: tuple(entry[name] for entry in found) for name in METRIC_NAMES.values()},
        means(predictions.ranks()),
        (float(weights.min()), float(weights.max())),
    )


@dataclass(frozen=True)
class Panel:
    """One order of the candidates, best first: their texts and log-probabilities."""

    title: str
    texts: tuple[str, ...]
    scores: tuple[float, ...]


def question_panels(answers: Sequence[Answer]) -> tuple[Panel, Panel, Panel]:
    """Return a question's candidates by object, subject and joint score.

    Args:
        answers: candidates that were asked back.
    """
    return (
        _panel("object", [(answer.text, answer.object_score) for answer in answers]),
        _panel("subject", [(answer.text, answer.subject_score) for answer in answers]),
        _panel("joint", [(answer.text, answer.joint) for answer in answers]),
    )


def _panel(title: str, scored: Sequence[tuple[str, float | None]]) -> Panel:
    there = [(text, score) for text, score in scored if score is not None]
    if len(there) < len(scored) or not there:
        raise RunError(f"{len(scored) - len(there)} candidates have no {title} score to draw.")
    there.sort(key=lambda entry: -entry[1])
    texts, scores = zip(*there, strict=True)
    return Panel(title, texts, scores)
