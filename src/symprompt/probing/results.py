"""The results of a run on facts: every kind of rank, both means, raw and filtered, all relations.

What a run writes in the end: predictions, the card with its figures, and the manifest's records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from torch import Tensor

from symprompt.errors import DataError
from symprompt.facts.types import FactSet, Split
from symprompt.models import LanguageModel
from symprompt.probing.config import RunConfig
from symprompt.probing.folder import (
    CARD,
    PROMPTS,
    about_run,
    load_asked,
    load_card,
    load_prompts,
    load_weights,
    predictions_file,
    write_predictions,
)
from symprompt.probing.predictions import Array, Predictions, Ranks
from symprompt.probing.score_weights import (
    add_frequencies,
    choose_weights,
    fit_combination,
    log_frequencies,
)
from symprompt.runs.environment import made_with
from symprompt.runs.folder import Folder, Manifest, Record
from symprompt.runs.statistics import by_relation, summarise

ASKED: tuple[Split, ...] = ("dev", "test")
ORDERS = ("raw", "filtered", "forward")
"""The final ranks, those without other true objects, and those by object score alone."""


def measure(
    predictions: Predictions, relations: Sequence[str], weights: Array | None
) -> dict[str, Any]:
    """Return P@1, P@10 and MRR in percent, as plain values for JSON.

    "raw" and "filtered" are the run's final ranks, each optimistic, realistic and pessimistic;
    "forward" is the order by object score alone; "relations" has realistic raw ranks.
    """
    raw = predictions.final(weights)
    table = by_relation(raw.realistic, predictions.relation)
    counts = np.bincount(predictions.relation, minlength=len(relations)).tolist()
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


def _kinds(ranks: Ranks[Array], predictions: Predictions) -> dict[str, Any]:
    return {
        kind: {
            mean: asdict(summary)
            for mean, summary in summarise(getattr(ranks, kind), predictions.relation).items()
        }
        for kind in ("realistic", "optimistic", "pessimistic")
    }


def to_records(measured: Mapping[Split, Mapping[str, Any]]) -> Iterator[Record]:
    """Yield what was measured on each split as records: realistic ranks, in every order."""
    for split, figures in measured.items():
        for order in ORDERS:
            for mean, values in figures[order]["realistic"].items():
                for metric, value in values.items():
                    yield Record(
                        metric=metric,
                        value=value,
                        n=figures["facts"],
                        split=split,
                        settings={"order": order, "mean": mean},
                    )


def load_metrics(folder: Folder) -> dict[str, Any]:
    """Return what a finished run states and all its figures, these from stored predictions."""
    names = list(load_card(folder)["relations"])
    weights = load_weights(folder)
    measured = {
        split: measure(load_asked(folder, split).predictions, names, weights)
        for split in ASKED
        if folder.has(predictions_file(split))
    }
    return about_run(folder.manifest) | measured


def require_dev(config: RunConfig, splits: Mapping[Split, Any]) -> None:
    """Refuse to choose a re-ranking weight on dev facts that are not there."""
    if config.method.choose_weight != "fixed" and "dev" not in splits:
        raise DataError(
            f'method.choose_weight = "{config.method.choose_weight}" needs dev facts, and there '
            "are none; add some, or choose fixed."
        )


def write_results(
    folder: Folder,
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
    """Choose the weights, write predictions, the card with its figures, and last the manifest.

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
    relations, names = len(facts.relations), facts.names
    asked_back = all(predictions.asked_back for predictions in found.values())
    weights: Array | None = np.full(relations, config.method.weight, dtype=np.float64)
    choose = config.method.choose_weight
    shares: Array | None = None
    if not asked_back:
        weights = None
    elif choose == "dev-fit":
        frequencies = log_frequencies(counts().cpu())
        fitted = fit_combination(found["dev"], frequencies, relations)
        weights, shares = fitted.weights, fitted.shares
        found = {
            split: add_frequencies(predictions, frequencies, shares)
            for split, predictions in found.items()
        }
    elif choose != "fixed":
        weights = choose_weights(found["dev"], relations, per_relation=choose == "dev-relation")
    for split, predictions in found.items():
        texts = {answer: text(answer) for answer in np.unique(predictions.candidates).tolist()}
        write_predictions(folder, split, predictions, facts.facts(split), names, texts)
    measured = {split: measure(own, names, weights) for split, own in found.items()}
    # The card says what the prompts are worth, for who gets no more than the prompts.
    summary = {split: figures["raw"]["realistic"] for split, figures in measured.items()}
    folder.write_json(CARD, {**load_card(folder), "metrics": summary})
    stored = found["test"].candidates.shape[1] if config.rerank else config.method.k
    details = {
        "vocabulary": config.facts.vocabulary,
        "objects": config.facts.objects,
        "candidates": None if candidates is None else dict(candidates),
        "k": stored if asked_back else None,
        "weights": _by_name(names, weights),
        "frequency_shares": _by_name(names, shares),
        "dropped": dict(dropped),
        "unfilled": list(unfilled),
    }
    folder.finish(records=to_records(measured), seconds=seconds, details=details)


def _by_name(names: Sequence[str], values: Array | None) -> dict[str, float] | None:
    return None if values is None else dict(zip(names, values.tolist(), strict=True))


def describe_run(
    command: str, config: RunConfig, facts: FactSet, backbone: LanguageModel
) -> Manifest:
    """Return what a run on facts states about itself when it begins."""
    return Manifest(
        command=command,
        model=config.model,
        model_fingerprint=backbone.fingerprint,
        data=config.data,
        data_fingerprint=facts.fingerprint(),
        method=method_name(config),
        seeds=(config.seed,),
        acceleration=backbone.acceleration,
        **made_with(backbone.device, backbone.dtype),
    )


def method_name(config: RunConfig) -> str:
    """Return what made a run's answers: its method, and whether another run asked back."""
    return f"{config.method.name} + asking back" if config.rerank else config.method.name


def add_wordings(folder: Folder, relations: Mapping[str, Any]) -> None:
    """Put the words that were found into the card, as they are stored with the prompts."""
    _, note = folder.read_tensors(PROMPTS)
    with folder.refuse_damage(PROMPTS):
        for about, wording in zip(relations.values(), note["wordings"], strict=True):
            about |= {"words": wording["words"], "prompt": wording["prompt"]}


def add_prompt_weights(folder: Folder) -> None:
    """Put the weights of a relation's manual templates into the card."""
    card = load_card(folder)
    if any("prompts" in about for about in card["relations"].values()):
        stored = load_prompts(folder, ["weights"])["weights"]
        for index, about in enumerate(card["relations"].values()):
            own = stored[index, : len(about["prompts"]), 0]
            about["prompt_weights"] = [round(weight, 6) for weight in own.tolist()]
        folder.write_json(CARD, card)
