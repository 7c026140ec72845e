"""The numbers of a run: every kind of rank, both means, raw and filtered, all relations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from torch import Tensor

from symprompt.averages import by_relation, summarise
from symprompt.predictions import Predictions
from symprompt.ranking import Ranks


def measure(
    predictions: Predictions, relations: Sequence[str], weights: Tensor | None
) -> dict[str, Any]:
    """Return P@1, P@10 and MRR in percent, as plain values for JSON.

    "raw" and "filtered" are the run's final ranks, each optimistic, realistic and pessimistic;
    "forward" is the order before asking back; "relations" has realistic raw ranks.
    """
    owner = predictions.relation.numpy()
    raw = predictions.final(weights)
    table = by_relation(raw.realistic.numpy(), owner)
    counts = predictions.relation.bincount(minlength=len(relations)).tolist()
    return {
        "facts": len(predictions),
        "raw": _kinds(raw, predictions),
        "filtered": _kinds(predictions.final(weights, filtered=True), predictions),
        "forward": _kinds(predictions.ranks(), predictions),
        "relations": {
            name: {"facts": counts[index], **asdict(table[index])}
            for index, name in enumerate(relations)
            if counts[index]
        },
    }


def _kinds(ranks: Ranks, predictions: Predictions) -> dict[str, Any]:
    owner = predictions.relation.numpy()
    return {
        kind: {
            mean: asdict(summary)
            for mean, summary in summarise(getattr(ranks, kind).numpy(), owner).items()
        }
        for kind in ("realistic", "optimistic", "pessimistic")
    }
