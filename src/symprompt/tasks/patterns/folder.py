"""The folder of a run through a pattern, read back; ``patterns.train`` writes it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from symprompt.errors import ConfigError, DataError, RunError, TemplateError
from symprompt.runs.folder import CONFIG, ENVIRONMENT, METRICS, Folder
from symprompt.runs.shapes import Shape
from symprompt.tasks.patterns.config import PatternRunConfig, is_pattern_config, load_pattern_config

WEIGHTS = "weights.safetensors"

_METRICS_SHAPE: Shape = {
    "task": str,
    "method": str,
    "model": str,
    "pattern": str,
    "words": list,
    "split": str,
    "seeds": list,
    "metrics": dict,
    "dev": dict,
    "seconds": (int, float),
}
_SEED_SHAPE: Shape = {"seed": int, "dev": {"accuracy": (int, float), "loss": (int, float)}}


class PatternFolder(Folder[PatternRunConfig]):
    """The files of one run through a pattern, all its seeds; final."""

    def load_config(self) -> PatternRunConfig:
        """Read the config back.

        Raises:
            RunError: it is not one of a run through a pattern.
        """
        try:
            return load_pattern_config(str(self.path / CONFIG))
        except (ConfigError, DataError, TemplateError) as error:
            raise RunError(f"{self.path} holds another kind of run: {error}") from error

    def require_finished(self) -> None:
        """Refuse a folder without a finished run.

        Raises:
            RunError: saying what is missing and what to do.
        """
        self.require_made_by("tune")

    def load_metrics(self) -> dict[str, Any]:
        """Read the run's numbers."""
        return self.load_checked(METRICS, _METRICS_SHAPE)

    def load_fingerprint(self) -> str:
        """Read which model the run began with."""
        return str(self.load_checked(ENVIRONMENT, {"model_fingerprint": str})["model_fingerprint"])

    def load_seed(self, seed: int) -> dict[str, Any]:
        """Read what came of a seed."""
        return self.load_checked(seed_file(seed), _SEED_SHAPE)

    def best_seed(self) -> int:
        """Return the seed that did best on dev: the highest accuracy, then the lowest loss."""
        rows = [self.load_seed(int(seed)) for seed in self.load_metrics()["seeds"]]
        return int(max(rows, key=lambda row: on_dev(row))["seed"])


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
    """Say whether a path is the folder of a run through a pattern."""
    place = Path(path) / CONFIG
    return place.is_file() and is_pattern_config(str(place))
