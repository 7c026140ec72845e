"""The two folders of a pretraining run: the model folder OUT, whole or not there, and its work."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from symprompt.config import differing_keys, to_toml
from symprompt.errors import ConfigError, RunError
from symprompt.files.atomic import part_of, read_json, reason, write_file, write_json
from symprompt.pretraining.config import PretrainConfig, load_pretrain_config

CONFIG = "pretrain.toml"
PREPARED = "prepared.toml"
TRAINING = "training.json"
INPUTS = "inputs.json"
STATE = "state.safetensors"
TOKENIZER = "tokenizer"
VOCABULARY = "vocabulary.json"
CORPUS = "corpus"
_WORK = (INPUTS, STATE, VOCABULARY, PREPARED, CONFIG)
_WORK_FOLDERS = (TOKENIZER, CORPUS)


class RunFolders:
    """Where a run's model goes and where it works; final.

    The work folder begins with the config and the fingerprints of what the run is made from; the
    model folder is written beside its place and put there whole, so it is finished if it exists.
    """

    def __init__(self, config: PretrainConfig) -> None:
        self.config = config
        self.out = Path(config.out)
        self.work = Path(config.work or f"{config.out.rstrip('/')}.work")
        # Where tokenizer and corpus are: made by another run, or in this one's work folder.
        self.text = Path(config.prepared) if config.prepared else self.work

    def check_out(self) -> bool:
        """Say whether the finished model of this very config is there already.

        Raises:
            RunError: what is there is a model of another config, or something else.
        """
        if not (self.out / TRAINING).is_file() or not (self.out / CONFIG).is_file():
            if _is_occupied(self.out):
                raise RunError(
                    f"{self.out} exists and holds no model of this command; choose another --out."
                )
            return False
        self._refuse_change(self.out, "holds a model made with another")
        return True

    def check_work(self, *, resume: bool) -> bool:
        """Say whether there is an unfinished run of this config to go on with.

        One that has not yet trained has nothing to lose: with the same config it is gone on with,
        with another it is removed.

        Raises:
            RunError: there is one and ``resume`` is false, one of another config, or something
                else.
        """
        if not (self.work / CONFIG).is_file():
            # A run that was killed in its very first writes has left no more than these.
            first = (INPUTS, part_of(Path(INPUTS)).name, part_of(Path(CONFIG)).name)
            if _is_occupied(self.work, but=first):
                raise RunError(
                    f"{self.work} exists and is not the work folder of a run; choose another "
                    "--work."
                )
            return False
        if not self.has_trained:
            if not self._changes(self.work):
                return True
            self.clear_work()
            return False
        self._refuse_change(self.work, "holds an unfinished run with another")
        if not resume:
            raise RunError(
                f"{self.work} holds an unfinished run; go on with --resume, choose another --out, "
                "or delete it."
            )
        return True

    @property
    def has_trained(self) -> bool:
        """Whether the unfinished run has got to a checkpoint."""
        return (self.work / STATE).is_file()

    def check_inputs(self, stored: dict[str, Any], inputs: dict[str, Any], place: Path) -> None:
        """Refuse to go on with other text, words or tokenizer than a run was begun with.

        Raises:
            RunError: naming which.
        """
        for key, value in inputs.items():
            if stored.get(key) != value:
                raise RunError(
                    f"{place} was made with another {key} than is there now; give the same {key}, "
                    "or choose another --out."
                )

    def begin(self, inputs: dict[str, Any]) -> None:
        """Make the work folder of a new run."""
        write_json(self.work / INPUTS, inputs)
        write_file(self.work / CONFIG, to_toml(portable(self.config)).encode())

    def renew(self, inputs: dict[str, Any], *, going_on: bool) -> None:
        """Begin anew, unless what is there was begun with the same."""
        if not going_on or self.load_inputs() != inputs:
            self.clear_work()
            self.begin(inputs)

    def load_inputs(self) -> dict[str, Any]:
        """Read what the unfinished run was begun with."""
        found: dict[str, Any] = read_json(self.work / INPUTS)
        return found

    def load_training(self) -> dict[str, Any]:
        """Read the finished run's record."""
        found = read_json(self.out / TRAINING)
        if not isinstance(found, dict) or not isinstance(found.get("inputs"), dict):
            raise RunError(f"{self.out / TRAINING} is damaged; choose another --out.")
        return found

    @contextmanager
    def finishing(self) -> Iterator[Path]:
        """Give a folder to write the model to; it becomes OUT when the block ends well.

        Raises:
            RunError: it cannot be written, for example because the disk is full; what was written
                is removed again and the work folder is kept.
        """
        part = part_of(self.out)
        try:
            if part.exists():
                shutil.rmtree(part)
            part.mkdir(parents=True)
            yield part
            for path in part.iterdir():
                with path.open("rb") as stream:
                    os.fsync(stream.fileno())
            if self.out.exists():
                self.out.rmdir()
            part.rename(self.out)
        except (OSError, SafetensorError) as error:
            raise RunError(
                f"cannot write {self.out}: {reason(error)}; the training is kept in {self.work}, "
                "go on with --resume."
            ) from error
        finally:
            shutil.rmtree(part, ignore_errors=True)

    def keep_prepared(self) -> None:
        """Make OUT of the work folder, which holds prepared text and no training.

        Raises:
            RunError: that cannot be written; the work folder is kept.
        """
        write_file(self.work / PREPARED, to_toml(portable(self.config)).encode())
        try:
            if self.out.exists():
                self.out.rmdir()
            self.work.rename(self.out)
            # From here on it is no work folder, which a run may clear.
            (self.out / CONFIG).unlink()
        except OSError as error:
            raise RunError(f"cannot write {self.out}: {reason(error)}.") from error

    def clear_work(self) -> None:
        """Remove what the finished run no longer needs, and nothing else."""
        for name in _WORK_FOLDERS:
            shutil.rmtree(self.work / name, ignore_errors=True)
        with suppress(OSError):
            for name in _WORK:
                (self.work / name).unlink(missing_ok=True)
            self.work.rmdir()

    def _refuse_change(self, place: Path, what: str) -> None:
        changed = self._changes(place)
        if changed:
            more = f" (and {len(changed) - 1} more keys)" if len(changed) > 1 else ""
            raise RunError(
                f"{place} {what} {changed[0]}{more}; choose another --out, or delete the folder."
            )

    def _changes(self, place: Path) -> list[str]:
        """Return the keys in which the config of a folder differs from this run's."""
        try:
            stored = load_pretrain_config(str(place / CONFIG))
        except ConfigError as error:
            raise RunError(f"{place} holds no readable run: {error}") from error
        return differing_keys(stored, portable(self.config))


def portable(config: PretrainConfig) -> PretrainConfig:
    """Return the config without the paths of one machine: what is stored with a model."""
    words, tokenizer = config.vocabulary.whole_words, config.vocabulary.tokenizer
    return replace(
        config,
        out="",
        work="",
        prepared=Path(config.prepared).name if config.prepared else "",
        vocabulary=replace(
            config.vocabulary,
            whole_words=Path(words).name if words else "",
            tokenizer=Path(tokenizer).name if tokenizer else "",
        ),
    )


def _is_occupied(path: Path, *, but: Sequence[str] = ()) -> bool:
    try:
        if not path.is_dir():
            return path.exists()
        return any(entry.name not in but for entry in path.iterdir())
    except OSError as error:
        raise RunError(f"cannot read {path}: {reason(error)}.") from error
