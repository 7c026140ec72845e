"""Query a trained model about a split: predictions, figures in percent, rows to store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from symprompt.errors import ConfigError
from symprompt.files.progress import Tick, silent
from symprompt.tasks.config import TuneConfig
from symprompt.tasks.kinds import KINDS, Target
from symprompt.tasks.model import TaskModel, ask
from symprompt.tasks.prepare import LaidTask


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
    """Queries a model about splits of tasks; final.

    Args:
        model: with its heads.
        config: how predictions are made.
        max_tokens: most tokens in one pass.
    """

    def __init__(self, model: TaskModel, config: TuneConfig, *, max_tokens: int) -> None:
        self.model = model
        self.config = config
        self.max_tokens = max_tokens

    def measure(self, task: str, laid: LaidTask, split: str) -> dict[str, float]:
        """Return a split's figures in percent, the main one first."""
        predictions = self._predictions(task, laid, split, self.threshold(laid))
        return KINDS[laid.data.kind].figures(laid.data.split(split), predictions)

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
            threshold: of the predictions, where their kind has one.
        """
        kind, examples = KINDS[laid.data.kind], laid.data.split(split)
        predictions = self._predictions(task, laid, split, threshold, tick)
        return Outcome(kind.figures(examples, predictions), kind.rows(examples, predictions))

    def threshold(self, laid: LaidTask) -> float | None:
        """Return the threshold of predictions before any is chosen; None if there is none."""
        kind = KINDS[laid.data.kind]
        return kind.threshold(laid.data.split("train"), self.config.task.unanswerable)

    def choose_threshold(self, task: str, laid: LaidTask) -> float | None:
        """Return the threshold that is best on the split that chooses epochs."""
        if self.threshold(laid) is None:
            return None
        kind = KINDS[laid.data.kind]
        predictions = self._predictions(task, laid, laid.choice, kind.loosest)
        return kind.best_threshold(laid.data.split(laid.choice), predictions)

    def _predictions(
        self,
        task: str,
        laid: LaidTask,
        split: str,
        threshold: float | None,
        tick: Tick = silent,
    ) -> list[Any]:
        data, own = laid.data, laid.splits[split]
        kind = KINDS[data.kind]
        scores = ask(
            self.model,
            task,
            kind,
            own.features,
            own.inputs,
            max_tokens=self.max_tokens,
            tick=tick,
            stage=f"asking {split}",
        )
        target = Target(data.labels, data.relations, span=self.config.span)
        return kind.decode(
            scores.numpy(), own.features, data.split(split), target, threshold=threshold
        )


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
