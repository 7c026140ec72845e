"""What a run on a labelled task stores, read back: its card, its seeds, its figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NotRequired

import numpy as np
from pydantic import with_config
from typing_extensions import TypedDict

from symprompt.errors import RunError
from symprompt.runs.folder import Folder

COMMAND = "tune"
CARD = "card.json"
PROMPT = "prompt.safetensors"
WEIGHTS = "weights.safetensors"


@with_config(extra="allow")
class Card(TypedDict):
    """What a stored prompt is: enough to use it on new inputs without the run's config."""

    format: int
    method: str
    task: str
    kind: str
    labels: list[str]
    base_model: str
    base_model_fingerprint: str
    file: str
    trainable_parameters: int
    features: dict[str, Any]
    prefix: dict[str, Any]
    lora: dict[str, Any]
    weights: dict[str, Any]
    head: dict[str, Any]
    span: dict[str, Any]
    relations: list[str]
    metrics: NotRequired[dict[str, dict[str, float]]]
    threshold: NotRequired[float | None]


class DevScore(TypedDict):
    """How a seed did on dev, which chooses."""

    accuracy: float
    loss: float


@with_config(extra="allow")
class SeedOutcome(TypedDict):
    """What came of a seed of a run through a pattern."""

    seed: int
    val: dict[str, float]
    dev: DevScore


def open_task(path: str | Path) -> Folder:
    """Return the folder of a finished run on one labelled task.

    Raises:
        RunError: there is none; the message names what to do.
    """
    folder = Folder(path)
    folder.require_finished(COMMAND)
    if not folder.has(CARD):
        raise RunError(
            f"{folder.path} has no {CARD}, so it is no run on one labelled task; give a folder "
            "made by tune, or one of the folders of tasks in it."
        )
    return folder


def load_metrics(folder: Folder) -> dict[str, Any]:
    """Return what a finished run states and its figures.

    Those of a mixture are each task's; those of a run through a pattern are, per metric, the mean,
    deviation and values of its seeds.

    Raises:
        RunError: the run is damaged.
    """
    manifest = folder.manifest
    kept = ("method", "model", "model_fingerprint", "device", "dtype", "versions", "seconds")
    found = {
        "task": manifest.data,
        **{key: getattr(manifest, key) for key in kept},
        **manifest.details,
    }
    if "tasks" in found:
        inner = {name: load_metrics(Folder(folder.path / name)) for name in found["tasks"]}
        return found | {"seed": manifest.seeds[0], "splits": {}, "tasks": inner}
    by_seed: dict[str, dict[int, dict[str, float]]] = {}
    for record in manifest.records:
        seed = record.seeds[0] if record.seeds else manifest.seeds[0]
        by_seed.setdefault(record.split, {}).setdefault(seed, {})[record.metric] = record.value
    if "pattern" not in found:
        splits = {split: next(iter(own.values())) for split, own in by_seed.items()}
        return found | {"seed": manifest.seeds[0], "splits": splits}
    return found | {
        "seeds": list(manifest.seeds),
        "metrics": summarise_seeds(list(by_seed[found["split"]].values())),
        "dev": summarise_seeds(list(by_seed["dev"].values())),
        "seconds": manifest.seconds["training"],
    }


def summarise_seeds(rows: Sequence[Mapping[str, float]]) -> dict[str, dict[str, Any]]:
    """Return per metric the mean over seeds, the deviation (of a sample) and the values."""
    found = {}
    for name in rows[0]:
        values = [float(row[name]) for row in rows]
        deviation = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
        found[name] = {
            "value": round(float(np.mean(values)), 3),
            "deviation": round(deviation, 3),
            "values": [round(value, 3) for value in values],
        }
    return found


def load_seed(folder: Folder, seed: int) -> SeedOutcome:
    """Return what came of a seed.

    Raises:
        RunError: the file is missing or damaged.
    """
    return folder.load(seed_file(seed), SeedOutcome)


def best_seed(folder: Folder) -> int:
    """Return the seed that did best on dev: the highest accuracy, then the lowest loss."""
    return max(folder.manifest.seeds, key=lambda seed: on_dev(load_seed(folder, seed)["dev"]))


def on_dev(found: Mapping[str, Any]) -> tuple[float, float]:
    """Return how good an evaluation of dev is: the higher, the better."""
    return float(found["accuracy"]), -float(found["loss"])


def seed_file(seed: int) -> str:
    """Return where what came of a seed is stored."""
    return f"seeds/{seed}.json"


def prompt_file(seed: int) -> str:
    """Return where a seed's vectors or prefix are stored."""
    return f"prompts/{seed}.safetensors"
