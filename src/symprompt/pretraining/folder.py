"""The two folders of a pretraining run: the model folder OUT, whole or not there, and its work."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from symprompt.errors import RunError
from symprompt.files.atomic import part_of, reason
from symprompt.pretraining.config import PretrainConfig
from symprompt.runs.folder import CONFIG, HISTORY, LOCK, MANIFEST, STATE, Folder, Manifest

COMMAND, PREPARE = "pretrain", "prepare"
TOKENIZER = "tokenizer"
VOCABULARY = "vocabulary.json"
CORPUS = "corpus"
_WORK = (STATE, VOCABULARY, MANIFEST, CONFIG, LOCK)
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
        self._work = Folder(self.work)

    def check_out(self) -> bool:
        """Return whether the finished model of this very config is there already.

        Raises:
            RunError: what is there is a model of another config, or something else.
        """
        return Folder(self.out).check(COMMAND, portable(self.config), resume=True)

    def check_work(self, *, resume: bool) -> bool:
        """Return whether there is an unfinished run of this config to go on with.

        One that has not yet trained has nothing to lose: with the same config it is gone on with,
        with another it is removed.

        Raises:
            RunError: there is one and ``resume`` is false, one of another config, or something
                else.
        """
        config = portable(self.config)
        if self.has_trained or not self._work.holds_run:
            self._work.check(COMMAND, config, resume=resume)
            return self.has_trained
        if not self._work.has(CONFIG) or self._work.differing_keys(config):
            self.clear_work()
            return False
        return True

    @property
    def has_trained(self) -> bool:
        """Whether the unfinished run has got to a checkpoint."""
        return self._work.has(STATE)

    def check_inputs(self, inputs: Mapping[str, Any], place: Path) -> None:
        """Refuse to go on with other text, words or tokenizer than a run was begun with.

        Raises:
            RunError: naming which.
        """
        stored = load_inputs(place)
        for key, value in inputs.items():
            if stored.get(key) != value:
                raise RunError(
                    f"{place} was made with another {key} than is there now; give the same {key}, "
                    "or choose another --out."
                )

    def begin(self, inputs: Mapping[str, Any], *, going_on: bool) -> None:
        """Make the work folder of a run, or go on with one that was begun with the same."""
        if not self.has_trained and not (going_on and load_inputs(self.work) == inputs):
            self.clear_work()
        text = json.dumps(inputs, sort_keys=True)
        manifest = Manifest(
            command=COMMAND,
            data=", ".join(row["name"] for row in inputs["text"]),
            data_fingerprint=hashlib.sha256(text.encode()).hexdigest(),
            method=self.config.objective,
            seeds=(self.config.seed,),
            details={"inputs": inputs},
        )
        self._work.start(portable(self.config), manifest)

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
        # From here on it is no work folder, which a run may clear.
        self._work.finish(command=PREPARE)
        try:
            if self.out.exists():
                self.out.rmdir()
            self.work.rename(self.out)
        except OSError as error:
            raise RunError(f"cannot write {self.out}: {reason(error)}.") from error

    def clear_work(self) -> None:
        """Remove what the finished run no longer needs, and nothing else."""
        self._work.release()
        for name in _WORK_FOLDERS:
            shutil.rmtree(self.work / name, ignore_errors=True)
        with suppress(OSError):
            for name in _WORK:
                (self.work / name).unlink(missing_ok=True)
            self.work.rmdir()


def load_inputs(place: Path) -> dict[str, Any]:
    """Return the fingerprints of what a run, or prepared text, was made from.

    Raises:
        RunError: the manifest is damaged.
    """
    folder = Folder(place)
    found = folder.manifest.details.get("inputs")
    if not isinstance(found, dict):
        raise RunError(f"{place / MANIFEST} is damaged: inputs is missing; choose another --out.")
    return found


def load_training(place: str | Path) -> dict[str, Any]:
    """Return what a finished run states: text, vocabulary, losses, speed, the loss curve.

    Raises:
        RunError: there is no finished run, or it is damaged.
    """
    folder = Folder(place)
    manifest = folder.require_finished(COMMAND)
    load_inputs(folder.path)
    return {
        **manifest.details,
        "seconds": manifest.seconds["training"],
        "seed": manifest.seeds[0],
        "dtype": manifest.dtype,
        "environment": {"device": manifest.device, **manifest.versions},
        "history": folder.read_json(HISTORY),
    }


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
