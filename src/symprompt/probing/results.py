"""The numbers of a run: every kind of rank, both means, raw and filtered, all relations.

What a run folder says in the end: predictions, the card with its numbers, and the metrics.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import Tensor

from symprompt.errors import DataError, RunError
from symprompt.facts import FactSet, Split
from symprompt.probing.config import RunConfig
from symprompt.probing.folder import CARD, PROMPTS, RunFolder
from symprompt.probing.predictions import (
    Predictions,
    add_frequencies,
    choose_weights,
    fit_combination,
    log_frequencies,
)
from symprompt.probing.rank import Ranks
from symprompt.runs.folder import METRICS
from symprompt.runs.shapes import require
from symprompt.runs.statistics import by_relation, summarise


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


def require_dev(config: RunConfig, splits: Mapping[Split, Any]) -> None:
    """Refuse to choose a re-ranking weight on dev facts that are not there."""
    if config.method.choose_weight != "fixed" and "dev" not in splits:
        raise DataError(
            f'method.choose_weight = "{config.method.choose_weight}" needs dev facts, and there '
            "are none; add some, or choose fixed."
        )


def write_results(
    folder: RunFolder,
    config: RunConfig,
    facts: FactSet,
    found: Mapping[Split, Predictions],
    text: Callable[[int], str],
    counts: Callable[[], Tensor],
    *,
    candidates: Mapping[str, int] | None,
    dropped: Mapping[str, int],
    seconds: Mapping[str, float],
    unfilled: Sequence[str] = (),
) -> None:
    """Choose the weights, write predictions, the card with its numbers, and last the metrics.

    Args:
        facts: what was asked, in the order of the predictions.
        found: what was found for each split.
        text: an answer's id as people read it.
        counts: how often each answer is a training object, [relation, v].
        candidates: how many names each relation's ranks are among; None for the allowed tokens.
        dropped: how many facts each reason cost.
        seconds: how long each stage took.
        unfilled: relations whose prompts lack words that a search should have found.
    """
    relations = len(facts.relations)
    asked_back = all(predictions.asked_back for predictions in found.values())
    weights = torch.full((relations,), config.method.weight, dtype=torch.float64)
    choose = config.method.choose_weight
    shares = None
    if asked_back and choose == "dev-fit":
        frequencies = log_frequencies(counts().cpu())
        fitted = fit_combination(found["dev"], frequencies, relations)
        weights, shares = fitted.weights, fitted.shares
        found = {
            split: add_frequencies(predictions, frequencies, shares)
            for split, predictions in found.items()
        }
    elif asked_back and choose != "fixed":
        weights = choose_weights(found["dev"], relations, per_relation=choose == "dev-relation")
    for split, predictions in found.items():
        shown = np.unique(predictions.candidates.numpy()).tolist()
        texts = {answer: text(answer) for answer in shown}
        folder.write_predictions(split, predictions, facts.facts(split), weights, texts)
    measured = {
        split: measure(predictions, facts.names, weights) for split, predictions in found.items()
    }
    # The card says what the prompts are worth, for who gets no more than the prompts.
    summary = {split: numbers["raw"]["realistic"] for split, numbers in measured.items()}
    folder.write_json(CARD, folder.load_card() | {"metrics": summary})
    environment = folder.load_environment()
    report = {
        "model": config.model,
        "method": method_name(config),
        "data": config.data,
        "seed": config.seed,
        "device": environment["device"],
        "dtype": environment["dtype"],
        "vocabulary": config.facts.vocabulary,
        "objects": config.facts.objects,
        "candidates": None if candidates is None else dict(candidates),
        "k": found["test"].candidates.shape[1] if config.rerank else config.method.k,
        "weights": dict(zip(facts.names, weights.tolist(), strict=True)),
        "frequency_shares": None
        if shares is None
        else dict(zip(facts.names, shares.tolist(), strict=True)),
        "dropped": dict(dropped),
        "unfilled": list(unfilled),
        "seconds": {stage: round(value, 2) for stage, value in seconds.items()},
    }
    if not asked_back:
        report |= {"k": None, "weights": None}
    folder.write_json(METRICS, report | measured)


def method_name(config: RunConfig) -> str:
    """Return what made a run's answers: its method, and whether another run asked back."""
    return f"{config.method.name} + asking back" if config.rerank else config.method.name


def add_wordings(folder: RunFolder, relations: dict[str, dict[str, Any]]) -> None:
    """Put the words that were found into the card, as they are stored with the prompts."""
    _, note = folder.read_tensors(PROMPTS)
    try:
        require(note, {"wordings": list})
        for about, wording in zip(relations.values(), note["wordings"], strict=True):
            about |= {"words": wording["words"], "prompt": wording["prompt"]}
    except (KeyError, TypeError, ValueError) as error:
        raise RunError(f"{folder.path / PROMPTS} is damaged: {error}.") from error


def add_prompt_weights(folder: RunFolder) -> None:
    """Put the weights of a relation's written prompts into the card."""
    card = folder.load_card()
    if any("prompts" in about for about in card["relations"].values()):
        stored = folder.load_prompts(["weights"])["weights"]
        for index, about in enumerate(card["relations"].values()):
            own = stored[index, : len(about["prompts"]), 0]
            about["prompt_weights"] = [round(weight, 6) for weight in own.tolist()]
        folder.write_json(CARD, card)
