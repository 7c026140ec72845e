"""Run folders as rows of a comparison."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from symprompt.errors import RunError
from symprompt.facts import Split
from symprompt.folders import METRICS
from symprompt.predictions import Predictions
from symprompt.report.tables import RunScores
from symprompt.runs import RunFolder

RankKind = Literal["realistic", "optimistic", "pessimistic"]
_NAMED = 5


def load_scores(
    path: str,
    *,
    split: Split = "test",
    kind: RankKind = "realistic",
    filtered: bool = False,
    forward: bool = False,
    k: int = 0,
    weight: float | None = None,
) -> RunScores:
    """Read one run's ranks from its stored predictions.

    Args:
        path: a finished run folder.
        filtered: leave other true objects of the same subject out of the ranks.
        forward: the order before asking back.
        k: ask back this many candidates instead of all that are stored.
        weight: re-rank with this weight instead of the run's.

    Raises:
        RunError: no finished run there, or it cannot be re-ranked as asked.
    """
    folder = RunFolder(path)
    folder.require_finished()
    metrics = folder.load_metrics()
    predictions, facts = folder.load_predictions(split)
    names = tuple(folder.load_card()["relations"])
    _check_options(path, predictions, k, weight)
    if forward or not predictions.asked_back:
        ranks = predictions.ranks(filtered=filtered)
    else:
        own = _weights(folder) if weight is None else torch.full((len(names),), weight)
        each = own.to(predictions.forward.dtype)[predictions.relation]
        ranks = predictions.reranked(each, k=k or None, filtered=filtered)
    suffix = " forward" if forward and predictions.asked_back else ""
    return RunScores(
        name=str(folder.path) + suffix,
        title=folder.name + suffix,
        relation_names=names,
        relation=predictions.relation.numpy(),
        rank=getattr(ranks, kind).double().numpy(),
        key=[(fact.relation, fact.subject, fact.object) for fact in facts],
        note="; ".join(
            [
                *candidate_notes(metrics),
                *unfilled_notes(metrics),
                *(f"{n} facts left out: {why}" for why, n in metrics["dropped"].items()),
            ]
        ),
    )


def candidate_notes(metrics: Mapping[str, Any]) -> list[str]:
    """Return a note if a run's ranks are among the names of candidates, not the vocabulary's."""
    # Runs of version 0.1.0 did not say.
    counts = sorted((metrics.get("candidates") or {}).values())
    if not counts:
        return []
    shown = f"{counts[0]}" if counts[0] == counts[-1] else f"{counts[0]} to {counts[-1]}"
    return [f"objects of any length: ranks are among {shown} candidates of each relation"]


def unfilled_notes(metrics: Mapping[str, Any]) -> list[str]:
    """Return a note if a search was too short to find all words of some relations' prompts."""
    # Earlier runs did not say.
    names = metrics.get("unfilled") or []
    if not names:
        return []
    shown = ", ".join(names[:_NAMED]) + (", ..." if len(names) > _NAMED else "")
    return [
        f"prompts that are not all words, as the search was too short: {len(names)} of "
        f"{len(metrics['test']['relations'])} relations ({shown}); raise training.epochs or "
        "search.steps"
    ]


def _check_options(path: str, predictions: Predictions, k: int, weight: float | None) -> None:
    """Refuse a k and weight that the stored predictions cannot be re-ranked with."""
    if k < 0 or (weight is not None and not weight >= 0):
        what = f"k is {k}" if k < 0 else f"weight is {weight}"
        raise RunError(f"{what}; it must be at least 0.")
    changed = k or weight is not None
    if changed and not predictions.asked_back:
        raise RunError(f"{path} did not ask back, so there is nothing to re-rank.")
    if k > predictions.candidates.shape[1]:
        raise RunError(
            f"k is {k}, but {path} stores {predictions.candidates.shape[1]} candidates; choose a "
            "smaller k, or train again with a larger one."
        )


def _weights(folder: RunFolder) -> Tensor:
    weights = folder.load_weights()
    if weights is None:
        raise RunError(
            f"{folder.path / METRICS} is damaged: weights is missing, and the run asked back."
        )
    return weights
