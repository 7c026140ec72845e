"""The folder of a run on a labelled task: written atomically, resumed, read back."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from symprompt.config import differing_keys, to_toml
from symprompt.errors import ConfigError, RunError
from symprompt.files import part_of, read_json, read_tensors, to_json, write_file, write_tensors
from symprompt.shapes import Shape, require
from symprompt.tasks.settings import INCIDENTAL, TuneConfig, load_tune_config

CONFIG = "config.toml"
CARD = "card.json"
ENVIRONMENT = "environment.json"
HISTORY = "history.json"
METRICS = "metrics.json"
STATE = "state.safetensors"
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


class TaskFolder:
    """The files of one run; final. It is finished when its metrics are written, which is last.

    Args:
        path: the folder; need not exist yet.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def has(self, name: str) -> bool:
        """Say whether a file is there."""
        return (self.path / name).is_file()

    @property
    def finished(self) -> bool:
        """Whether the run came to its end."""
        return self.has(METRICS)

    def start(self, config: TuneConfig, *, resume: bool) -> bool:
        """Make the folder for a run, or check that the one there is the same run.

        Returns:
            True if the run is finished already.

        Raises:
            RunError: the folder holds another run, an unfinished one and ``resume`` is false, or
                files of something else.
        """
        if self.has(CONFIG):
            changed = differing_keys(self.load_config(), config, INCIDENTAL)
            if changed:
                raise RunError(
                    f"{self.path} holds a run with another {changed[0]} ({len(changed)} keys "
                    "differ); choose another --out, or delete the folder."
                )
            if not self.finished and not resume:
                raise RunError(
                    f"{self.path} holds an unfinished run; go on with --resume, or delete the "
                    "folder."
                )
            return self.finished
        if self._holds_something_else():
            raise RunError(f"{self.path} exists and is not a run folder; choose another --out.")
        self.write(CONFIG, to_toml(config).encode())
        return False

    def _holds_something_else(self) -> bool:
        try:
            if not self.path.is_dir():
                return self.path.exists()
            return any(entry != part_of(self.path / CONFIG) for entry in self.path.iterdir())
        except OSError as error:
            raise RunError(f"cannot read {self.path}: {error.strerror or error}.") from error

    def require_finished(self) -> None:
        """Refuse a folder without a finished run of ``symprompt tune``.

        Raises:
            RunError: saying what is missing and what to do.
        """
        if not self.has(CONFIG):
            raise RunError(f"{self.path} is not a run folder (no {CONFIG}); give one made by tune.")
        if not self.finished:
            raise RunError(f"{self.path} holds an unfinished run; finish it with tune --resume.")
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
        return self._load_checked(CARD, CARD_SHAPE)

    def load_metrics(self) -> dict[str, Any]:
        """Read the run's numbers."""
        return self._load_checked(METRICS, METRICS_SHAPE)

    def write(self, name: str, content: bytes) -> None:
        """Write a file so that a kill at any moment leaves the old one or the new one."""
        write_file(self.path / name, content)

    def write_json(self, name: str, value: Any) -> None:
        """Write a value as readable JSON."""
        self.write(name, to_json(value))

    def read_json(self, name: str) -> Any:
        """Read a JSON file back."""
        return read_json(self.path / name)

    def write_lines(self, name: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Write JSON lines."""
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        self.write(name, text.encode())

    def write_tensors(self, name: str, tensors: Mapping[str, Tensor], about: Any) -> None:
        """Write tensors and a JSON note about them."""
        write_tensors(self.path / name, tensors, about)

    def read_tensors(self, name: str) -> tuple[dict[str, Tensor], Any]:
        """Read tensors and the note about them back."""
        return read_tensors(self.path / name)

    def remove(self, name: str) -> None:
        """Remove a file if it is there."""
        (self.path / name).unlink(missing_ok=True)

    def _load_checked(self, name: str, shape: Shape) -> dict[str, Any]:
        value = self.read_json(name)
        try:
            require(value, shape)
        except (TypeError, ValueError) as error:
            raise RunError(f"{self.path / name} is damaged: {error}.") from error
        return value  # type: ignore[no-any-return]


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
