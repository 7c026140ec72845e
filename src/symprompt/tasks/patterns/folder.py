"""What a run through a pattern stores, all its seeds, read back; ``patterns.train`` writes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import with_config
from typing_extensions import TypedDict

from symprompt.errors import ConfigError, DataError, RunError, TemplateError
from symprompt.runs.folder import CONFIG, Folder
from symprompt.tasks.patterns.config import PatternRunConfig, load_pattern_config

COMMAND = "tune"
WEIGHTS = "weights.safetensors"


class DevScore(TypedDict):
    """What dev, which chooses, says of a seed."""

    accuracy: float
    loss: float


@with_config(extra="allow")
class SeedOutcome(TypedDict):
    """What came of a seed."""

    seed: int
    val: dict[str, float]
    dev: DevScore


def pattern_config(folder: Folder) -> PatternRunConfig:
    """Return the config of a run through a pattern.

    Raises:
        RunError: it is not one.
    """
    try:
        return folder.read(CONFIG, lambda path: load_pattern_config(str(path)), "pattern")
    except (ConfigError, DataError, TemplateError) as error:
        raise RunError(f"{folder.path} holds another kind of run: {error}") from error


def load_metrics(folder: Folder) -> dict[str, Any]:
    """Return what a finished run states, and per metric the mean, deviation and value of seeds.

    Raises:
        RunError: the run is damaged.
    """
    manifest = folder.manifest
    rows: dict[str, dict[int, dict[str, float]]] = {}
    for record in manifest.records:
        own = rows.setdefault(record.split, {}).setdefault(record.seeds[0], {})
        own[record.metric] = record.value
    kept = ("model", "method", "device", "versions")
    return {
        "task": manifest.data,
        **{key: getattr(manifest, key) for key in kept},
        "seeds": list(manifest.seeds),
        **manifest.details,
        "metrics": summarise_seeds(list(rows[manifest.details["split"]].values())),
        "dev": summarise_seeds(list(rows["dev"].values())),
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
    return max(folder.manifest.seeds, key=lambda seed: on_dev(load_seed(folder, seed)))


def on_dev(row: Mapping[str, Any]) -> tuple[float, float]:
    """Return how well a seed did on dev: the higher, the better."""
    return float(row["dev"]["accuracy"]), -float(row["dev"]["loss"])


def seed_file(seed: int) -> str:
    """Return where what came of a seed is stored."""
    return f"seeds/{seed}.json"


def prompt_file(seed: int) -> str:
    """Return where a seed's vectors or prefix are stored."""
    return f"prompts/{seed}.safetensors"


def is_pattern_run(path: str | Path) -> bool:
    """Return whether a path is the folder of a run through a pattern."""
    folder = Folder(path)
    return folder.has(CONFIG) and "pattern.task" in folder.config_keys()
