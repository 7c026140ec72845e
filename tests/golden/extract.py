"""What a golden run keeps of a flow: its metrics and predictions as plain values.

This is the one place that knows how run folders and printed JSON are laid out. Quantities are
named by their meaning, so that a stored golden run outlives a change of the layout.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import load_file

from symprompt.pretraining.folder import load_training
from symprompt.probing.results import load_asked, load_combination, load_metrics, to_records
from symprompt.runs.folder import Folder
from symprompt.tasks import predict as tasks

# Times, versions and places: they say how a run was made, not what came of it.
_LEFT_OUT = {"seconds", "versions", "recording", "recorded", "environment", "speed", "inputs"}
Plain = dict[str, Any]


def numbers(tree: Any) -> Any:
    """Return the numbers of nested values under their names; what holds none is left out."""
    if isinstance(tree, Mapping):
        found = {
            str(key): numbers(value)
            for key, value in tree.items()
            if key not in _LEFT_OUT and "per_second" not in str(key)
        }
        return {key: value for key, value in found.items() if value not in (None, {}, [])}
    if isinstance(tree, list | tuple):
        listed = [numbers(value) for value in tree]
        return listed if any(value not in (None, {}, []) for value in listed) else None
    if isinstance(tree, bool) or not isinstance(tree, int | float):
        return None
    return tree if math.isfinite(tree) else repr(tree)


def learned(files: Iterable[Path]) -> Plain:
    """Return how many numbers were learned, their sum and the sum of their sizes, exactly rounded.

    The sums do not depend on the names or the order of the stored tensors.
    """
    values: list[float] = []
    for file in files:
        for tensor in load_file(file).values():
            values += tensor.double().flatten().tolist()
    return {"count": len(values), "sum": math.fsum(values), "size": math.fsum(map(abs, values))}


# ------------------------------------------------------------------------------ runs on facts


def facts_run(folder: Path) -> Plain:
    """Return a run of train or rerank: per fact its ranks, candidates and their scores."""
    run = Folder(folder)
    combination = load_combination(run)
    items = []
    for split in ("dev", "test"):
        asked = load_asked(run, split)  # type: ignore[arg-type]
        predictions, facts, candidates = asked.predictions, asked.facts(), asked.candidates()
        joint = None
        if combination is not None:
            joint = predictions.joint(combination)
        ranks = {
            "by object score": predictions.ranks(),
            "by object score, filtered": predictions.ranks(filtered=True),
            "final": predictions.final(combination),
            "final, filtered": predictions.final(combination, filtered=True),
        }
        for place, fact in enumerate(facts):
            item = {
                "split": split,
                "relation": fact.relation,
                "subject": fact.subject,
                "object": fact.object,
                "ranks": {name: float(found.realistic[place]) for name, found in ranks.items()},
                "own score": _shortest(predictions.gold_score[place]),
                "candidates": candidates[place],
                "object scores": [_shortest(value) for value in predictions.object_score[place]],
            }
            if joint is not None:
                asked_back = predictions.subject_score[place]
                item["subject scores"] = [_shortest(value) for value in asked_back]
                item["joint scores"] = [_shortest(value) for value in joint[place]]
            items.append(item)
    metrics = load_metrics(run)
    weights = metrics["weights"] or {}
    measured = {split: metrics[split] for split in ("dev", "test")}
    assert run.manifest.records == tuple(to_records(measured))
    found: Plain = {
        "metrics": {split: numbers(metrics[split]) for split in ("dev", "test")},
        "weights": numbers(weights.get("subject")),
        "frequency shares": numbers(weights.get("frequency")),
        "counts": numbers({key: metrics.get(key) for key in ("candidates", "dropped", "k")}),
        "items": items,
    }
    if run.has("history.json"):
        history = run.read_json("history.json")
        found["curve"] = numbers(history["epochs"])
        found["best epoch"] = numbers(history.get("best_epoch"))
    if run.has("prompts.safetensors"):
        found["learned"] = learned([folder / "prompts.safetensors"])
    return found


def _shortest(value: Any) -> float:
    """Return a float32 as the shortest decimal that reads back to it."""
    return float(str(np.float32(value)))


def answers(said: str) -> Plain:
    """Return what ``ask --json`` printed: every answer with its scores."""
    names = {"text": "text", "object_score": "object score", "subject_score": "subject score"}
    names |= {"joint": "joint score"}
    rows = json.loads(said)["answers"]
    return {"items": [{own: row[key] for key, own in names.items() if key in row} for row in rows]}


# ------------------------------------------------------------------------------ labelled tasks


def task_run(folder: Path) -> Plain:
    """Return a run of tune on one labelled task."""
    metrics = tasks.load_metrics(Folder(folder))
    history = json.loads((folder / "history.json").read_text())
    card = json.loads((folder / "card.json").read_text())
    items = [
        {"split": split} | row
        for split in metrics["splits"]
        for row in _lines(folder / f"predictions/{split}.jsonl")
    ]
    return {
        "metrics": numbers(metrics["splits"]),
        "counts": numbers(
            {
                key: metrics.get(key)
                for key in ("trainable_parameters", "model_parameters", "counts", "cut", "dropped")
            }
        ),
        "threshold": metrics.get("threshold"),
        "best epoch": metrics["best_epoch"],
        "curve": numbers(history["epochs"]),
        "learned": learned([folder / card["file"]]),
        "items": items,
    }


def mixture_run(folder: Path) -> Plain:
    """Return a run of tune on several tasks that shared a prefix: each task's."""
    metrics = tasks.load_metrics(Folder(folder))
    return {"tasks": {name: task_run(folder / name) for name in metrics["tasks"]}}


def pattern_run(folder: Path, predicted: str) -> Plain:
    """Return a run through a pattern, with the probabilities that predict printed for its data."""
    metrics = tasks.load_metrics(Folder(folder))
    seeds, again = metrics["seeds"], predictions(predicted)
    # One seed each, so what predict says is about the same training.
    shares = {row["id"]: row.get("probability") for row in again["items"]}
    stored = [folder / f"prompts/{seed}.safetensors" for seed in seeds]
    stored.append(folder / "weights.safetensors")
    return {
        "metrics": numbers(metrics["metrics"]),
        "dev": numbers(metrics["dev"]),
        "counts": numbers(
            {
                key: metrics.get(key)
                for key in ("trainable_parameters", "model_parameters", "counts", "cut")
            }
        ),
        "seeds": {
            str(seed): numbers(json.loads((folder / f"seeds/{seed}.json").read_text()))
            for seed in seeds
        },
        "learned": learned(path for path in stored if path.is_file()),
        "items": [
            {
                "seed": seed,
                "id": row["id"],
                "prediction": row["prediction"],
                "gold": row.get("gold"),
                "probability": shares[row["id"]],
                "written": row.get("written"),
            }
            for seed in seeds
            for row in _lines(folder / f"predictions/{seed}.jsonl")
        ],
        "predicted": again,
    }


def predictions(said: str) -> Plain:
    """Return what ``predict --json`` printed, less the texts that it was given."""
    found = json.loads(said)
    items = [
        {key: own for key, own in row.items() if key != "text"} for row in found["predictions"]
    ]
    return {"metrics": numbers(found["metrics"]), "items": items}


def _lines(path: Path) -> list[Plain]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


# ------------------------------------------------------------------------------ all others


def pretrained(folder: Path) -> Plain:
    """Return a pretraining: losses, their curve, counts and the sums of the weights."""
    training = load_training(folder)
    return {
        "losses": numbers({key: training[key] for key in ("loss", "validation")}),
        "curve": numbers(training["history"]),
        "counts": numbers(
            {key: training.get(key) for key in ("tokens", "passes", "corpus", "vocabulary")}
        ),
        "learned": learned([folder / "model.safetensors"]),
    }


def embedded(folder: Path) -> Plain:
    """Return every word's place, and the sum and the size of its vector."""
    vectors = np.load(folder / "vectors.npy").astype(np.float64)
    return {
        "shape": list(vectors.shape),
        "sums": [math.fsum(row) for row in vectors],
        "sizes": [math.fsum(np.abs(row)) for row in vectors],
    }


def sense_vectors(folder: Path) -> Plain:
    """Return the sums of the stored sense vectors."""
    return {"learned": learned(sorted(folder.glob("*.safetensors")))}


def printed(said: str) -> Plain:
    """Return the numbers of printed JSON."""
    return {"metrics": numbers(json.loads(said))}


def tagged(said: str) -> Plain:
    """Return what ``senses tag --json`` printed: each word's sense and how sure it is."""
    return {"items": [word for text in json.loads(said) for word in text["words"]]}


def reproduced(folder: Path) -> Plain:
    """Return the numbers of a reproduction's tables, and the facts behind them."""
    runs = sorted(path.parent for path in folder.rglob("predictions"))
    return {
        "metrics": numbers(_fact_results(json.loads((folder / "results.json").read_text()))),
        "runs": {path.name: {"items": facts_run(path)["items"]} for path in runs},
    }


def _fact_results(stored: Plain) -> Plain:
    """Return results on facts by group: what it is made of, its figures and differences."""
    found: Plain = {"draws": stored["about"]["bootstrap draws"]}
    for label, about in stored["about"]["runs"].items():
        figures: Plain = {}
        changes: dict[str, Plain] = {}
        for record in stored["records"]:
            if record["label"] != label:
                continue
            value = {key: record[key] for key in ("low", "high", "p") if key in record}
            where, name = figures, "value"
            if "versus" in record:
                where, name = changes.setdefault(f"minus {record['versus']}", {}), "difference"
            by_metric = where.setdefault(record["settings"]["mean"], {})
            by_metric[record["metric"]] = {name: record["value"]} | value
        kept = {key: about[key] for key in ("facts", "relations", "seeds", "weights")}
        found[label] = {**kept, "metrics": figures, "by_seed": about["by_seed"], **changes}
    return found
