"""What a run on a labelled task stores: its card, and its figures as plain values."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NotRequired

from pydantic import with_config
from typing_extensions import TypedDict

from symprompt.errors import ConfigError, RunError
from symprompt.runs.folder import CONFIG, Folder
from symprompt.runs.manifest import Manifest
from symprompt.tasks.config import TuneConfig, load_tune_config

COMMAND = "tune"
CARD = "card.json"
PROMPT = "prompt.safetensors"


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


def open_task(path: str | Path) -> Folder:
    """Return the folder of a finished run on one labelled task.

    Raises:
        RunError: there is none; what to do is said.
    """
    folder = Folder(path)
    folder.require_finished(COMMAND)
    if not folder.has(CARD):
        raise RunError(
            f"{folder.path} has no {CARD}, so it is no run on one labelled task; give a folder "
            "made by tune, or one of the folders of tasks in it."
        )
    return folder


def tune_config(folder: Folder) -> TuneConfig:
    """Return the config of a run on a labelled task.

    Raises:
        RunError: it is not one.
    """
    try:
        return folder.read(CONFIG, lambda path: load_tune_config(str(path)), COMMAND)
    except ConfigError as error:
        raise RunError(f"{folder.path} holds another kind of run: {error}") from error


def load_card(folder: Folder) -> Card:
    """Return what the stored prompt is.

    Raises:
        RunError: the card is missing or lacks what is relied on.
    """
    return folder.load(CARD, Card)


def splits_of(manifest: Manifest) -> dict[str, dict[str, float]]:
    """Return a run's figures by split and metric, the metric that chooses first."""
    found: dict[str, dict[str, float]] = {}
    for record in manifest.records:
        found.setdefault(record.split, {})[record.metric] = record.value
    return found


def load_metrics(folder: Folder) -> dict[str, Any]:
    """Return what a finished run states and its figures; of a mixture those of each task.

    Raises:
        RunError: the run is damaged.
    """
    manifest = folder.manifest
    kept = ("method", "model", "model_fingerprint", "device", "dtype", "versions", "seconds")
    found = {
        "task": manifest.data,
        **{key: getattr(manifest, key) for key in kept},
        "seed": manifest.seeds[0],
        **manifest.details,
    }
    if "tasks" in found:
        inner = {name: load_metrics(Folder(folder.path / name)) for name in found["tasks"]}
        return found | {"splits": {}, "tasks": inner}
    return found | {"splits": splits_of(manifest)}
