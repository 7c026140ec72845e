"""A run folder, the same for every command: config, manifest and files, each whole or not there.

Its manifest, ``symprompt.json``, states how the run was made, which files it has and its results as
records. Tables are made from these records, so they need neither torch nor the code that made the
run.

folder = Folder(out)
if folder.check("train", config, resume=resume,     # reads only; refuses another run
                data_fingerprint=digest):
    return                                          # finished before
...                                                 # load the model and the data
folder.start(config, Manifest(command="train", ...))
...                                                 # write files, a checkpoint now and then
folder.finish(records=..., seconds=...)             # last: now the run is finished
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from symprompt.config import GONE, flat_fields, flat_table, incidental_keys, read_toml, to_toml
from symprompt.errors import BusyError, ConfigError, RunError, SympromptError
from symprompt.files import atomic

try:
    import fcntl
except ImportError:  # no such locks on Windows; files are still written whole there
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

T = TypeVar("T")
MANIFEST = "symprompt.json"
CONFIG = "config.toml"
HISTORY = "history.json"
STATE = "state.safetensors"
PROGRESS = "progress.json"
"""How far an unfinished run is, for who looks on; removed in the end."""
PARTS = "parts"
"""Where an unfinished run may keep what it has finished; removed in the end."""
PREDICTIONS = "predictions"
EXPORTED = "exported"
"""The entry that the file of an exported folder has, in the place of a manifest."""
LOCK = ".running"
FORMAT = 2
"""The format of run folders that is written; ``symprompt runs upgrade`` converts earlier ones."""
JOBS = "logs/jobs.json"
"""In a folder of runs that jobs make: each job's run and what becomes of it, but of those done."""
_OWN = (MANIFEST, CONFIG, LOCK)
_SAME = {"model_fingerprint": "weights", "data_fingerprint": "data"}
"""What a run must be made from to be the same run, and what its message calls it."""


_IDENTITY = ("command", "model", "data", "method", "seeds")


def is_held(folder: Path) -> bool:
    """Return whether a process is at work on a folder of runs."""
    if fcntl is None or not (folder / LOCK).is_file():
        return False
    with (folder / LOCK).open() as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            pass  # a file system without locks
    return False


class _Plain(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


class Record(_Plain):
    """One figure: what was asked, the metric's name and its value.

    In a manifest the run's own command, model, data, method and seeds are left out.

    Attributes:
        metric: its name; figures in percent unless the name says otherwise.
        n: the items that the value is a mean over.
        seeds: whose mean the value is; usually one.
        label: what a table calls the row; "" for the method.
        settings: in which ways of measuring or configuring the records of a file differ.
        low, high: the 95 % interval.
        versus: the method whose value was subtracted, "" where the value is no difference.
        p: of the difference, two-sided.
    """

    metric: str
    value: float
    n: int | None = None
    split: str = ""
    command: str = ""
    model: str = ""
    data: str = ""
    method: str = ""
    seeds: tuple[int, ...] = ()
    label: str = ""
    settings: dict[str, Any] = {}
    low: float | None = None
    high: float | None = None
    versus: str = ""
    p: float | None = None


class FileEntry(_Plain):
    """A file of a run: its size, and the digest of one that holds predictions."""

    bytes: int
    sha256: str = ""


class Manifest(_Plain):
    """How a run was made and what came of it; final.

    Attributes:
        command: the command that made it: train, rerank, tune, pretrain, embed, senses, ...
        state: "finished" is written last.
        format: of the folder; 1 where none is stated, as before formats had numbers.
        data: what the run is about: facts, a task, texts.
        data_fingerprint: digest of the data; "" where the config and the files say it all.
        seeds: of all random draws; none where nothing is drawn.
        positions: most positions of the model that an input may take, trained ones alone; None
            where that is not known.
        segments: whether second texts stand in the model's second segment; None where there are
            none of them, as with facts.
        acceleration: what was chosen to be faster, and why not more.
        versions: of this package and those it computes with.
        incidental: config keys in which the same run may differ.
        seconds: time by stage.
        files: all but the manifest and the config, by path within the folder.
        details: what this command alone states, such as counts of what was left out.
    """

    command: str
    state: Literal["begun", "finished"] = "begun"
    format: int = 1
    model: str = ""
    model_fingerprint: str = ""
    data: str = ""
    data_fingerprint: str = ""
    method: str = ""
    seeds: tuple[int, ...] = ()
    device: str = ""
    dtype: str = ""
    positions: int | None = None
    segments: bool | None = None
    acceleration: str = ""
    versions: dict[str, str] = {}
    incidental: tuple[str, ...] = ()
    seconds: dict[str, float] = {}
    files: dict[str, FileEntry] = {}
    details: dict[str, Any] = {}
    records: tuple[Record, ...] = ()

    @property
    def finished(self) -> bool:
        """Whether the run came to its end."""
        return self.state == "finished"

    @property
    def size(self) -> int:
        """Bytes of all its files."""
        return sum(entry.bytes for entry in self.files.values())

    def full_records(self) -> list[Record]:
        """Return the records with the run's own command, model, data, method and seeds."""
        own = {key: getattr(self, key) for key in _IDENTITY}
        return [
            record.model_copy(
                update={key: value for key, value in own.items() if not getattr(record, key)}
            )
            for record in self.records
        ]

    def to_json(self) -> bytes:
        """Return the manifest as JSON, a record a line."""
        plain = self.model_dump(mode="json", exclude={"records"}, exclude_defaults=True)
        return records_to_json({"command": self.command, "state": self.state} | plain, self.records)


def records_to_json(head: Mapping[str, Any], records: Sequence[Record]) -> bytes:
    """Return a JSON object whose last entry is a list of records, each on one line."""
    plain = (record.model_dump(mode="json", exclude_defaults=True) for record in records)
    lines = ",\n".join("  " + json.dumps(record, ensure_ascii=False) for record in plain)
    text = json.dumps({**head, "records": []}, indent=1, ensure_ascii=False)
    listed = f"[\n{lines}\n ]" if lines else "[]"
    return (text.removesuffix("[]\n}") + f"{listed}\n}}\n").encode()


def validated(kind: type[T], value: Any, where: object) -> T:
    """Return a value read from a file as the type it must have: a model or a typed dictionary.

    Raises:
        RunError: a key is missing or has another type; one sentence that names it.
    """
    try:
        return TypeAdapter(kind).validate_python(value)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        if first["type"] == "missing":
            raise RunError(f"{where} is damaged: {key} is missing.") from error
        got = repr(first["input"])
        got = got if len(got) <= 60 else got[:57] + "..."
        raise RunError(
            f"{where} is damaged: {key or 'it'} is {got} ({first['msg'].rstrip('.')})."
        ) from error


class Folder:
    """The files of one run; final. What was read or written is not read again.

    Args:
        path: the folder; need not exist yet.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._read: dict[tuple[str, str], tuple[tuple[int, int, int] | None, Any]] = {}
        self._lock: int | None = None

    def __del__(self) -> None:
        if self._lock is not None:
            os.close(self._lock)

    # ------------------------------------------------------------------ what the run is

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.path.resolve().name

    @property
    def about(self) -> str:
        """The run in a few words: command, method, model, data and state."""
        try:
            own = self.manifest
        except RunError:
            return "no run"
        data = f", data {Path(own.data).name}" if own.data else ""
        model = f" on {Path(own.model).name}" if own.model else ""
        return f"{own.command} {own.method}".strip() + f"{model}{data}, {own.state}"

    def __repr__(self) -> str:
        return f"Folder({str(self.path)!r}, {self.about})"

    @property
    def manifest(self) -> Manifest:
        """What the run states about itself.

        Raises:
            RunError: there is none, it is damaged, or a newer version of symprompt wrote it.
        """
        if self.exported:
            raise RunError(
                f"{self.path} holds {self.exported} and is no run; make one of it: symprompt "
                f"import {self.path} --out RUN."
            )
        said = self.read_json(MANIFEST)
        stated = said.get("format") if isinstance(said, dict) else None
        if isinstance(stated, int) and stated > FORMAT:
            raise RunError(
                f"{self.path} has format {stated}, of a newer version of symprompt; this one reads "
                f"formats up to {FORMAT}: pip install --upgrade symprompt."
            )
        return self.load(MANIFEST, Manifest)

    @property
    def digest(self) -> str:
        """The digest of the manifest, which tells the run from others."""
        return hashlib.sha256((self.path / MANIFEST).read_bytes()).hexdigest()

    @property
    def exported(self) -> str:
        """What an exported folder says that it holds; "" for a run."""
        said = self.read_json(MANIFEST)
        return str(said.get(EXPORTED, "")) if isinstance(said, dict) else ""

    @property
    def finished(self) -> bool:
        """Whether the run came to its end."""
        return self.has(MANIFEST) and self.manifest.finished

    @property
    def holds_run(self) -> bool:
        """Whether a run was begun here."""
        return self.has(CONFIG) or self.has(MANIFEST)

    def config_keys(self) -> dict[str, Any]:
        """Return the stored config as dotted key -> value.

        Raises:
            RunError: the config is missing or no TOML.
        """

        def parse(path: Path) -> dict[str, Any]:
            try:
                return flat_table(read_toml(path))
            except ConfigError as error:
                raise RunError(f"{self.path} holds no readable run: {error}") from error

        return self.read(CONFIG, parse, "flat")

    def differing_keys(self, config: object) -> list[str]:
        """Return the keys in which a config differs from the stored one; not incidental ones.

        A key that one of them does not know, as another version has it, has its default there.
        """
        left_out, fields = incidental_keys(type(config)), flat_fields(type(config))
        stored, wanted = self.config_keys(), flat_table(tomllib.loads(to_toml(config)))

        def default(key: str) -> Any:
            if key not in fields:
                return GONE.get(key)
            value = fields[key].get_default(call_default_factory=True)
            return list(value) if isinstance(value, tuple) else value

        keys = [*wanted, *(key for key in stored if key not in wanted)]
        return [
            key
            for key in keys
            if key not in left_out
            and (stored[key] if key in stored else default(key))
            != (wanted[key] if key in wanted else default(key))
        ]

    def settings(self) -> dict[str, Any]:
        """Return the stored config without the keys in which the same run may differ."""
        left_out = self.manifest.incidental if self.has(MANIFEST) else ()
        return {key: value for key, value in self.config_keys().items() if key not in left_out}

    def require_finished(self, *commands: str) -> Manifest:
        """Return the manifest of a finished run of one of these commands; of any, if none is named.

        Raises:
            RunError: saying what is missing and what to do.
        """
        made_by = " or ".join(commands) or "a command of symprompt"
        if not self.holds_run:
            raise RunError(
                f"{self.path} is not a run folder (no {MANIFEST}); give one made by {made_by}."
            )
        command = self.manifest.command if self.has(MANIFEST) else made_by
        if commands and command not in (*commands, made_by):
            raise RunError(f"{self.path} holds a run of {command}; give one made by {made_by}.")
        if not self.finished:
            raise RunError(
                f"{self.path} holds an unfinished run; finish it with {command} --resume."
            )
        return self.manifest

    # ------------------------------------------------------------------ from start to finish

    def check(self, command: str, config: object, *, resume: bool, **now: str) -> bool:
        """Refuse a folder that holds another run, or files of something else; write nothing.

        Args:
            config: of the run that is to be made.
            resume: whether to go on with an unfinished run.
            now: fingerprints of data and model as they are now, as the manifest names them; an
                empty one is not compared.

        Returns:
            True if this very run is finished already.

        Raises:
            RunError: the folder holds another run, one of other data, an unfinished one and
                ``resume`` is false, or files of something else.
        """
        if not self.holds_run:
            if self._holds_something_else():
                raise RunError(f"{self.path} exists and is not a run folder; choose another --out.")
            return False
        if self.has(MANIFEST) and self.manifest.command != command:
            raise RunError(
                f"{self.path} holds a run of {self.manifest.command}, not of {command}; choose "
                "another --out."
            )
        if self.has(CONFIG):
            self._refuse_change(config)
        if self.has(MANIFEST):
            known = {key: value for key, value in now.items() if value}
            self._refuse_other(self.manifest.model_copy(update=known))
        if not self.finished and not resume:
            raise RunError(
                f"{self.path} holds an unfinished run; go on with --resume, or delete the folder."
            )
        return self.finished

    def start(self, config: object | None, manifest: Manifest) -> None:
        """Begin a run, or go on with one that was begun with the same model, data and dtype.

        The folder is held until the run is finished or the process ends.

        Args:
            config: None for a command whose settings are the manifest's details.

        Raises:
            RunError: the run was begun with something else, another process is at work here, or
                the folder cannot be written.
        """
        if self.has(MANIFEST):
            self._refuse_other(manifest)
        self._hold()
        changes: dict[str, Any] = {"state": "begun", "format": FORMAT}
        if config is not None:
            changes["incidental"] = tuple(incidental_keys(type(config)))
            if not self.has(CONFIG):
                self.write_config(config)
        self._write_manifest(manifest.model_copy(update=changes))

    def write_config(self, config: object) -> None:
        """Store the config as TOML."""
        self.write(CONFIG, to_toml(config).encode())

    def finish(
        self,
        *,
        records: Iterable[Record] = (),
        seconds: Mapping[str, float] | None = None,
        **changes: Any,
    ) -> Manifest:
        """Write the manifest of the finished run, with its files and records; return it.

        Checkpoints are removed.

        Args:
            seconds: time by stage.
            changes: further fields of the manifest, such as ``details``.
        """
        atomic.follow_umask(self.path)
        manifest = self.manifest.model_copy(
            update={
                "state": "finished",
                "records": tuple(records),
                "seconds": {key: round(value, 3) for key, value in (seconds or {}).items()},
                "files": self._files(),
                **changes,
            }
        )
        self._write_manifest(manifest)
        self.remove_checkpoint()
        shutil.rmtree(self.path / PARTS, ignore_errors=True)
        self.release()
        return manifest

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep other processes from writing here as long as the block lasts.

        Raises:
            RunError: another process is at work here, or the folder cannot be written.
        """
        self._hold()
        try:
            yield
        finally:
            self.release()

    def restate(self, **changes: Any) -> Manifest:
        """Write the manifest of a run whose files were converted, with some fields changed."""
        manifest = self.manifest.model_copy(update={"files": self._files(), **changes})
        self._write_manifest(manifest)
        return manifest

    @contextmanager
    def undone_if_refused(self) -> Iterator[None]:
        """Take a start back that is refused before anything is learned.

        So a mistake that shows late, such as a figure to choose by that the task does not have, can
        be mended without deleting the folder first.
        """
        try:
            yield
        except SympromptError:
            there = list(self.path.iterdir()) if self.path.is_dir() else []
            if there and {entry.name for entry in there} <= set(_OWN):
                self.release()
                for entry in there:
                    self.remove(entry.name)
                self.path.rmdir()
            raise

    def release(self) -> None:
        """Let another process work here."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
            self.remove(LOCK)

    # ------------------------------------------------------------------ files

    def has(self, name: str) -> bool:
        """Return whether a file is there."""
        return (self.path / name).is_file()

    def write(self, name: str, content: bytes) -> None:
        """Write a file so that a kill at any moment leaves the old one or the new one."""
        atomic.write_file(self.path / name, content)

    def write_json(self, name: str, value: Any) -> None:
        """Write a value as readable JSON."""
        self.write(name, atomic.to_json(value))

    def read_json(self, name: str) -> Any:
        """Read a JSON file; the value is shared by all who read it, so do not change it.

        Raises:
            RunError: the file is missing or not JSON.
        """
        return self.read(name, atomic.read_json)

    def write_rows(self, name: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Write rows as JSON lines."""
        atomic.write_json_lines(self.path / name, rows)

    def read_rows(self, name: str) -> list[dict[str, Any]]:
        """Read JSON lines.

        Raises:
            RunError: the file is missing or damaged.
        """
        return self.read(name, atomic.read_json_lines)

    def write_arrays(
        self, name: str, arrays: Mapping[str, np.ndarray], about: Mapping[str, Any]
    ) -> None:
        """Write numpy arrays and a JSON note about them, in one file."""
        atomic.write_arrays(self.path / name, arrays, about)

    def read_arrays(self, name: str) -> tuple[dict[str, np.ndarray], Any]:
        """Read numpy arrays and the note about them back.

        Raises:
            RunError: the file is missing or damaged.
        """
        return self.read(name, atomic.read_arrays)

    def write_tensors(
        self, name: str, tensors: Mapping[str, Tensor], about: Mapping[str, Any]
    ) -> None:
        """Write tensors and a JSON note about them, in one file."""
        atomic.write_tensors(self.path / name, tensors, about)

    def read_tensors(self, name: str) -> tuple[dict[str, Tensor], Any]:
        """Read what was learned and the note about it back; it is not kept in memory.

        Raises:
            RunError: the file is missing or damaged, or holds NaN or infinity.
        """
        self._refuse_changed_file(name)
        tensors, about = atomic.read_tensors(self.path / name)
        for key, value in tensors.items():
            if not bool(value.isfinite().all()):
                raise RunError(
                    f"{self.path / name} holds a value that is not finite (NaN or infinity) in "
                    f"{key}; make the run again, with a lower learning rate if it diverged."
                )
        return tensors, about

    def remove(self, name: str) -> None:
        """Remove a file that is no longer needed."""
        (self.path / name).unlink(missing_ok=True)

    def remove_checkpoint(self) -> None:
        """Remove what a training has written to go on with, and how far it was."""
        for name in (STATE, PROGRESS):
            self.remove(name)

    def read(self, name: str, reader: Callable[[Path], T], kind: str = "") -> T:
        """Return what a reader makes of a file; a file that is as it was is not read again.

        Args:
            kind: tells the readers of one file apart.
        """
        seen, found = self._read.get((name, kind), (None, None))
        now = self._stamp(name)
        if seen is None or seen != now:
            self._refuse_changed_file(name)
            found = reader(self.path / name)
            self._read[name, kind] = (now, found)
        kept: T = found
        return kept

    def load(self, name: str, kind: type[T]) -> T:
        """Read a JSON file that must have the shape of a model or a typed dictionary.

        Raises:
            RunError: the file is missing or lacks what is relied on.
        """
        return self.read(
            name, lambda path: validated(kind, atomic.read_json(path), path), kind.__name__
        )

    @contextmanager
    def refuse_damage(self, name: str) -> Iterator[None]:
        """Turn what a file with missing, misshapen or odd values causes into one sentence."""
        try:
            yield
        except KeyError as error:
            raise RunError(f"{self.path / name} is damaged: {error} is missing.") from error
        except (TypeError, ValueError, AttributeError, IndexError) as error:
            why = str(error).partition("\n")[0]
            raise RunError(f"{self.path / name} is damaged: {why}.") from error

    # ------------------------------------------------------------------ within

    def _write_manifest(self, manifest: Manifest) -> None:
        self.write(MANIFEST, manifest.to_json())
        self._read[MANIFEST, Manifest.__name__] = (self._stamp(MANIFEST), manifest)

    def _stamp(self, name: str) -> tuple[int, int, int] | None:
        """Return what tells one state of a file from another; None where there is none."""
        try:
            found = (self.path / name).stat()
        except OSError:
            return None
        return found.st_ino, found.st_size, found.st_mtime_ns

    def _refuse_changed_file(self, name: str) -> None:
        """Refuse a file of a finished run that is not as the run wrote it."""
        if name in _OWN or not self.has(name) or not self.finished:
            return
        entry, path = self.manifest.files.get(name), self.path / name
        if entry is None:
            return
        size = path.stat().st_size
        if size != entry.bytes:
            raise RunError(
                f"{path} is damaged: it has {size} bytes, and the run wrote {entry.bytes}; make "
                "the run again, or take the file from a copy."
            )
        if entry.sha256 and hashlib.sha256(path.read_bytes()).hexdigest() != entry.sha256:
            raise RunError(
                f"{path} is damaged: it is not what the run wrote (its checksum differs); make the "
                "run again, or take the file from a copy."
            )

    def _refuse_change(self, config: object) -> None:
        changed = self.differing_keys(config)
        if changed:
            raise RunError(
                f"{self.path} holds a run with another {changed[0]} ({len(changed)} keys differ); "
                "choose another --out, or delete the folder."
            )

    def _refuse_other(self, manifest: Manifest) -> None:
        """Refuse other weights, data or dtype than the run was begun with."""
        stored = self.manifest
        for key, what in _SAME.items():
            if getattr(stored, key) != getattr(manifest, key):
                raise RunError(
                    f"{self.path} was begun with other {what} than are there now; give the same "
                    f"{what}, or choose another --out."
                )
        if stored.dtype != manifest.dtype:
            raise RunError(
                f"{self.path} was begun in {stored.dtype} and would go on in {manifest.dtype}; "
                "resume on the same kind of device, or choose another --out."
            )

    def _holds_something_else(self) -> bool:
        """Return whether what is there is neither nothing nor a run killed in its first write."""
        try:
            if not self.path.is_dir():
                return self.path.exists()
            return not all(
                entry.name == LOCK or atomic.is_leftover(entry) for entry in self.path.iterdir()
            )
        except OSError as error:
            raise RunError(f"cannot read {self.path}: {atomic.reason(error)}.") from error

    def _hold(self) -> None:
        """Keep other processes from writing here."""
        if fcntl is None or self._lock is not None:
            return
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            held = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise RunError(f"cannot write {self.path}: {atomic.reason(error)}.") from error
        try:
            fcntl.lockf(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            os.close(held)
            raise BusyError(
                f"another process is at work in {self.path}; wait for it, or choose another --out."
            ) from None
        except OSError:
            pass  # a file system without locks
        self._lock = held
        for path in filter(atomic.is_leftover, list(self.path.rglob("*.part"))):
            path.unlink(missing_ok=True)

    def _files(self) -> dict[str, FileEntry]:
        """Return the run's files; those of runs within it are theirs."""
        inner = {path.parent for path in self.path.glob(f"*/**/{MANIFEST}")}
        found = {}
        for path in sorted(self.path.rglob("*")):
            name = path.relative_to(self.path).as_posix()
            own = path.is_file() and inner.isdisjoint(path.parents)
            if own and name not in (*_OWN, STATE, PROGRESS) and path.parts[-2] != PARTS:
                digest = ""
                if name.startswith(PREDICTIONS + "/"):
                    digest = hashlib.sha256(path.read_bytes()).hexdigest()
                found[name] = FileEntry(bytes=path.stat().st_size, sha256=digest)
        return found
