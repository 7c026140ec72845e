"""What every folder of a run has: files written atomically, a config, numbers written last."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Generic, TypeVar

from torch import Tensor

from symprompt.config import differing_keys, to_toml
from symprompt.errors import RunError, SympromptError
from symprompt.files.atomic import (
    part_of,
    read_json,
    read_tensors,
    to_json,
    write_file,
    write_tensors,
)
from symprompt.runs.shapes import Shape, require

CONFIG = "config.toml"
ENVIRONMENT = "environment.json"
HISTORY = "history.json"
METRICS = "metrics.json"
STATE = "state.safetensors"

Config = TypeVar("Config")


class Folder(ABC, Generic[Config]):
    """Abstract: the files of one run. It is finished when its metrics are written, which is last.

    Args:
        path: the folder; need not exist yet.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.path.resolve().name

    def has(self, name: str) -> bool:
        """Say whether a file is there."""
        return (self.path / name).is_file()

    @property
    def finished(self) -> bool:
        """Whether the run came to its end."""
        return self.has(METRICS)

    @abstractmethod
    def load_config(self) -> Config:
        """Read the run's config back.

        Raises:
            RunError: it is not one of this kind of run.
        """

    def start(self, config: Config, *, resume: bool) -> bool:
        """Make the folder for a run, or check that the one there is the same run.

        Returns:
            True if the run is finished already.

        Raises:
            RunError: the folder holds another run, an unfinished one and ``resume`` is false, or
                files of something else.
        """
        if self.has(CONFIG):
            changed = differing_keys(self.load_config(), config)
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
        self.require_own()
        self.write(CONFIG, to_toml(config).encode())
        return False

    def require_own(self) -> None:
        """Refuse a folder with files of something else, as long as it holds no run.

        Raises:
            RunError: there are such files.
        """
        if not self.has(CONFIG) and self._holds_something_else():
            raise RunError(f"{self.path} exists and is not a run folder; choose another --out.")

    @contextmanager
    def taken_back(self) -> Iterator[None]:
        """Take a start back that is refused before anything is learned.

        So a mistake that shows late, such as a figure to choose by that the task does not have, can
        be mended without deleting the folder first.
        """
        try:
            yield
        except SympromptError:
            there = list(self.path.iterdir()) if self.path.is_dir() else []
            if there and {own.name for own in there} <= {CONFIG, ENVIRONMENT}:
                for own in there:
                    own.unlink()
                self.path.rmdir()
            raise

    def _holds_something_else(self) -> bool:
        """Say whether what is there is neither nothing nor a run killed in its first write."""
        try:
            if not self.path.is_dir():
                return self.path.exists()
            return any(entry != part_of(self.path / CONFIG) for entry in self.path.iterdir())
        except OSError as error:
            raise RunError(f"cannot read {self.path}: {error.strerror or error}.") from error

    def require_made_by(self, command: str) -> None:
        """Refuse a folder without a finished run of a command.

        Raises:
            RunError: saying what is missing and what to do.
        """
        if not self.has(CONFIG):
            raise RunError(
                f"{self.path} is not a run folder (no {CONFIG}); give one made by {command}."
            )
        if not self.finished:
            raise RunError(
                f"{self.path} holds an unfinished run; finish it with {command} --resume."
            )

    def write(self, name: str, content: bytes) -> None:
        """Write a file so that a kill at any moment leaves the old one or the new one."""
        write_file(self.path / name, content)

    def write_json(self, name: str, value: Any) -> None:
        """Write a value as readable JSON."""
        self.write(name, to_json(value))

    def read_json(self, name: str) -> Any:
        """Read a JSON file back."""
        return read_json(self.path / name)

    def write_tensors(
        self, name: str, tensors: Mapping[str, Tensor], about: Mapping[str, Any]
    ) -> None:
        """Write tensors and a JSON note about them, in one file."""
        write_tensors(self.path / name, tensors, about)

    def read_tensors(self, name: str) -> tuple[dict[str, Tensor], Any]:
        """Read tensors and the note about them back.

        Raises:
            RunError: the file is missing or damaged.
        """
        return read_tensors(self.path / name)

    def remove(self, name: str) -> None:
        """Remove a file that is no longer needed."""
        (self.path / name).unlink(missing_ok=True)

    def load_checked(self, name: str, shape: Shape) -> dict[str, Any]:
        """Read a JSON file that must have a shape.

        Raises:
            RunError: the file is missing or lacks what is relied on.
        """
        value = self.read_json(name)
        with self.refuse_damage(name):
            require(value, shape)
        found: dict[str, Any] = value
        return found

    @contextmanager
    def refuse_damage(self, name: str) -> Iterator[None]:
        """Turn what a file with missing, misshapen or odd values causes into one sentence."""
        try:
            yield
        except KeyError as error:
            raise RunError(f"{self.path / name} is damaged: {error} is missing.") from error
        except (TypeError, ValueError, AttributeError) as error:
            raise RunError(f"{self.path / name} is damaged: {error}.") from error
