"""The folder of a run on a labelled task: written atomically, resumed, read back."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from symprompt.errors import ConfigError, RunError
from symprompt.runs.folder import CONFIG, METRICS, Folder
from symprompt.runs.shapes import Shape
from symprompt.tasks.config import TuneConfig, load_tune_config

CARD = "card.json"
PROMPT = "prompt.safetensors"

CARD_SHAPE: Shape = {
    "format": int,
    "method": str,
    "task": str,
    "kind": str,
    "labels": list,
    "base_model": str,
    "base_model_fingerprint": str,
    "file": str,
    "features": dict,
    "prefix": dict,
    "lora": dict,
    "head": dict,
}
METRICS_SHAPE: Shape = {
    "task": str,
    "method": str,
    "model": str,
    "seed": int,
    "trainable_parameters": int,
    "splits": dict,
    "seconds": dict,
}


class TaskFolder(Folder[TuneConfig]):
    """The files of one run on a labelled task; final."""

    def require_finished(self) -> None:
        """Refuse a folder without a finished run of ``symprompt tune``.

        Raises:
            RunError: saying what is missing and what to do.
        """
        self.require_made_by("tune")
        if not self.has(CARD):
            raise RunError(
                f"{self.path} has no {CARD}, so it is no run on one labelled task; give a folder "
                "made by tune, or one of the folders of tasks in it."
            )

    def load_config(self) -> TuneConfig:
        """Read the config back.

        Raises:
            RunError: it is not one of ``symprompt tune``.
        """
        try:
            return load_tune_config(str(self.path / CONFIG))
        except ConfigError as error:
            raise RunError(f"{self.path} holds another kind of run: {error}") from error

    def load_card(self) -> dict[str, Any]:
        """Read what the stored prompt is."""
        return self.load_checked(CARD, CARD_SHAPE)

    def load_metrics(self) -> dict[str, Any]:
        """Read the run's numbers."""
        return self.load_checked(METRICS, METRICS_SHAPE)

    def write_lines(self, name: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Write JSON lines."""
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        self.write(name, text.encode())


def is_task_run(path: str) -> bool:
    """Say whether a path is a folder that ``symprompt tune`` wrote."""
    folder = TaskFolder(path)
    if not folder.has(CONFIG):
        return False
    try:
        folder.load_config()
    except RunError:
        return False
    return True
