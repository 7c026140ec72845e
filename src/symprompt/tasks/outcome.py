"""Ask a trained model about a split: scores, predictions, figures in percent, rows to store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from torch import Tensor

from symprompt.errors import ConfigError
from symprompt.files.progress import Tick, silent
from symprompt.tasks.data.examples import Example, LabelSet, QuestionExample, SpanExample, TaskKind
from symprompt.tasks.decoding import (
    LOWEST,
    AnswerPrediction,
    Overlaps,
    Prediction,
    SpanPrediction,
    best_span_threshold,
    class_scores,
    decode_answers,
    decode_classes,
    decode_spans,
    decode_tags,
)
from symprompt.tasks.metrics import MAIN_METRIC, best_threshold, evaluate_examples
from symprompt.tasks.model import TaskModel, ask
from symprompt.tasks.prepare import LaidTask
from symprompt.tasks.tensorise import Features

_KEPT = 3
"""Candidate answers that are stored with each question."""


@dataclass(frozen=True)
class Outcome:
    """What was found for a split: figures in percent, and one row for each example.

    Attributes:
        notes: what a reader should know, such as texts that were cut to fit.
    """

    metrics: dict[str, float]
    rows: list[dict[str, Any]]
    notes: tuple[str, ...] = ()


class Asker:
    """Asks a model about splits of laid-out tasks; final.

    Args:
        model: with its heads.
        max_tokens: most tokens in one pass.
        unanswerable: whether questions may have no answer: as training says, or always.
        overlaps: which spans may stand together.
    """

    def __init__(
        self,
        model: TaskModel,
        *,
        max_tokens: int,
        unanswerable: Literal["data", "always"] = "data",
        overlaps: Overlaps = "flat",
    ) -> None:
        self.model = model
        self.max_tokens = max_tokens
        self.unanswerable = unanswerable
        self.overlaps = overlaps

    def measure(self, task: str, laid: LaidTask, split: str) -> dict[str, float]:
        """Return a split's figures in percent, the main one first."""
        predictions = self._predictions(task, laid, split, self.threshold(laid))[0]
        return measure(laid.data.kind, laid.data.split(split), predictions)

    def ask(
        self,
        task: str,
        laid: LaidTask,
        split: str,
        *,
        threshold: float | None,
        tick: Tick = silent,
    ) -> Outcome:
        """Return a split's figures and predictions.

        Args:
            threshold: how much higher no answer must score than the best answer to be taken; None
                always answers.
        """
        predictions, scores = self._predictions(task, laid, split, threshold, tick)
        examples, features = laid.data.split(split), laid.splits[split].features
        rows = to_rows(laid.data.kind, examples, predictions, features, scores)
        return Outcome(measure(laid.data.kind, examples, predictions), rows)

    def threshold(self, laid: LaidTask) -> float | None:
        """Return the threshold on no answer, or on spans, before any is chosen: 0, or None."""
        if laid.data.kind in ("spans", "relations"):
            return 0.0
        train = laid.data.split("train")
        asked = [entry for entry in train if isinstance(entry, QuestionExample)]
        may = self.unanswerable == "always" or any(entry.impossible for entry in asked)
        return 0.0 if asked and may else None

    def choose_threshold(self, task: str, laid: LaidTask) -> float | None:
        """Return the threshold that is best on the split that chooses epochs."""
        if self.threshold(laid) is None:
            return None
        if laid.data.kind in ("spans", "relations"):
            given = self._predictions(task, laid, laid.choice, LOWEST)[0]
            spans = [entry for entry in given if isinstance(entry, SpanPrediction)]
            own = [e for e in laid.data.split(laid.choice) if isinstance(e, SpanExample)]
            return best_span_threshold(own, spans)[0]
        predictions = self._predictions(task, laid, laid.choice, 0.0)[0]
        examples = [e for e in laid.data.split(laid.choice) if isinstance(e, QuestionExample)]
        answers = [entry for entry in predictions if isinstance(entry, AnswerPrediction)]
        return best_threshold(examples, answers)[0]

    def _predictions(
        self,
        task: str,
        laid: LaidTask,
        split: str,
        threshold: float | None,
        tick: Tick = silent,
    ) -> tuple[list[Prediction], Tensor]:
        data, own = laid.data, laid.splits[split]
        scores = ask(
            self.model,
            task,
            own.features,
            own.inputs,
            max_tokens=self.max_tokens,
            tick=tick,
            stage=f"asking {split}",
        )
        examples = data.split(split)
        found = decode(
            data.kind,
            examples,
            data.labels,
            own.features,
            scores,
            threshold,
            overlaps=self.overlaps,
            relations=data.relations,
        )
        return found, scores


def decode(
    kind: TaskKind,
    examples: Sequence[Example],
    labels: LabelSet,
    features: Features,
    scores: Tensor,
    threshold: float | None,
    *,
    overlaps: Overlaps = "flat",
    relations: LabelSet | None = None,
) -> list[Prediction]:
    """Return one prediction for each example from the scores of all rows."""
    values = scores.numpy()
    if kind in ("spans", "relations"):
        return list(
            decode_spans(
                features,
                values,
                labels,
                threshold=threshold or 0.0,
                overlaps=overlaps,
                relations=relations,
            )
        )
    if kind == "question":
        questions = [entry for entry in examples if isinstance(entry, QuestionExample)]
        return list(decode_answers(features, values, questions, threshold=threshold))
    if kind in ("tagging", "roles"):
        return list(decode_tags(features, values, labels))
    return list(decode_classes(features, values, labels))


def measure(
    kind: TaskKind, examples: Sequence[Example], predictions: Sequence[Prediction]
) -> dict[str, float]:
    """Return the figures of predictions in percent, the one that chooses first."""
    found = evaluate_examples(kind, examples, predictions)
    first = MAIN_METRIC[kind]
    ordered = {first: found[first], **found}
    return {
        name: value if name.endswith("threshold") else 100 * value
        for name, value in ordered.items()
    }


def choosing_metric(name: str, found: Mapping[str, float]) -> float:
    """Return the number that chooses an epoch: the named one, or the first.

    Raises:
        ConfigError: there is none of that name.
    """
    if name == "auto":
        return next(iter(found.values()))
    if name not in found:
        raise ConfigError(
            f"learning.choose is {name!r}, and this task measures: {', '.join(found)}."
        )
    return found[name]


def to_rows(
    kind: TaskKind,
    examples: Sequence[Example],
    predictions: Sequence[Prediction],
    features: Features,
    scores: Tensor,
) -> list[dict[str, Any]]:
    """Return predictions as plain values, with the right answer where it is known."""
    sure: np.ndarray | None = None
    if kind in ("sequence", "pair"):
        sure = np.exp(class_scores(features, scores.numpy()).max(1))
    rows = []
    for place, (example, prediction) in enumerate(zip(examples, predictions, strict=True)):
        row: dict[str, Any] = {"id": example.id}
        if isinstance(prediction, AnswerPrediction):
            row["prediction"] = prediction.text
            row["null_score"] = round(prediction.null_score, 4)
            row["candidates"] = [
                {"text": entry.text, "score": round(entry.score, 4)}
                for entry in prediction.candidates[:_KEPT]
            ]
        elif isinstance(prediction, SpanPrediction) and isinstance(example, SpanExample):
            row |= _span_row(example, prediction)
        else:
            row["prediction"] = list(prediction) if isinstance(prediction, tuple) else prediction
        if sure is not None:
            row["probability"] = round(float(sure[place]), 6)
        gold = _gold(example)
        if gold is not None:
            row["gold"] = gold
        rows.append(row)
    return rows


def _span_row(example: SpanExample, prediction: SpanPrediction) -> dict[str, Any]:
    """Return spans, in the order of the sentence, and relations as plain values."""
    order = sorted(
        zip(prediction.spans, prediction.odds, strict=True), key=lambda pair: pair[0][1:]
    )
    place = {span: number for number, (span, _) in enumerate(order)}
    row: dict[str, Any] = {
        "prediction": [list(span) for span, _ in order],
        "texts": [" ".join(example.words[start:end]) for (_, start, end), _ in order],
        "odds": [round(odds, 4) for _, odds in order],
    }
    if prediction.relations or example.relations is not None:
        row["relations"] = [
            [name, place[one], place[other]] for name, one, other in prediction.relations
        ]
    if example.relations is not None:
        row["gold_relations"] = [
            [entry.name, entry.one, entry.other] for entry in example.relations
        ]
    return row


def _gold(example: Example) -> Any:
    if isinstance(example, SpanExample):
        return None if example.spans is None else [list(span) for span in example.spans]
    if isinstance(example, QuestionExample):
        texts = [answer.text for answer in example.answers]
        return texts if texts or example.impossible else None
    label = getattr(example, "label", None)
    tags = getattr(example, "tags", None)
    return label if label is not None else (None if tags is None else list(tags))
