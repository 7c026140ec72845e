"""Many questions or examples by several jobs: a file is cut into shards, each of which is a job.

A shard is some whole blocks of ``files.stream``, and a block is computed by itself; so what is
written is the same, to the byte, whatever number of jobs made it and wherever.
"""

from __future__ import annotations

import os
import shutil
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch

from symprompt.cluster.executor import Executor, make_executor
from symprompt.cluster.machine import Jobs, Machine
from symprompt.config import Count, Positive, Several, settings
from symprompt.errors import ConfigError, DataError, RunError, counted
from symprompt.files.atomic import part_of, read_json, write_json
from symprompt.files.progress import Tick, duration, silent
from symprompt.files.stream import (
    BLOCK,
    Format,
    Place,
    Reader,
    Shard,
    Streamed,
    forget,
    join,
    require_parquet,
    shards_of,
    side_file,
)
from symprompt.papers.jobs import WORKER, hold_folder
from symprompt.probing.ask import Run
from symprompt.probing.many import answer_format, ask_file, read_questions
from symprompt.runs.folder import LOCK, Folder
from symprompt.tasks.predict import TaskRun, prediction_format, tallied_figures
from symprompt.tasks.trainables import Outcome

PLAN = "plan.json"
_DONE = ".done.json"
_NOTHING = (0, 0, 0)


@settings
class ShardConfig:
    """A run, a file, the shard of it, and where its piece is written; without rows all of it."""

    run: str = ""
    """Run folder."""
    model: str = ""
    """Where the model is now, if it moved since the run was made."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:N or mps."""
    file: str = ""
    """The questions or examples."""
    columns: Several[str] = ()
    """What the file calls its columns, as subject=company."""
    out: str = ""
    """The piece to write."""
    start: Several[Count] = _NOTHING
    """Where the reader stands before the shard: bytes, lines, check sum."""
    end: Several[Count] = _NOTHING
    """Where it stands after it."""
    rows: Count = 0
    """How many rows the shard has."""
    block: Positive = BLOCK
    """Rows of a block."""

    @property
    def shard(self) -> Shard | None:
        """What of the file is meant; None is all of it."""
        whole = Shard(Place(*self.start), Place(*self.end), self.rows, self.block)
        return whole if self.rows else None

    @property
    def asked(self) -> dict[str, Any]:
        """What is asked, wherever the run, the file and the model are."""
        return {key: value for key, value in asdict(self).items() if key not in _PLACES}


_PLACES = ("run", "model", "file", "out", "start", "end", "rows", "block")


@settings
class AskShard(ShardConfig):
    """Questions to a run of train; see ``ask_file``."""

    kind: ClassVar[type[Run]] = Run
    command: ClassVar[str] = "ask"
    relation: str = ""
    """Of rows that name none."""
    want: Literal["", "objects", "subjects"] = ""
    """What is asked for where rows have both."""
    top: Positive = 10
    """How many answers."""

    def read(self, run: Run) -> tuple[Reader, Format]:
        """Return what reads the file, and how answers are written."""
        asked = {key: value for key, value in self.asked.items() if key != "device"}
        return read_questions(run, self.file, self.out, **asked)[0], answer_format()

    def make(self, run: Run, *, overwrite: bool, tick: Tick) -> tuple[Streamed, Outcome]:
        """Ask the questions and write the answers."""
        places: Any = {"model": self.model, "shard": self.shard}
        found = ask_file(
            run, self.file, self.out, **self.asked, **places, overwrite=overwrite, tick=tick
        )
        return found, Outcome({}, [], ())


@settings
class PredictShard(ShardConfig):
    """Examples for a run of tune; see ``TaskRun.predict_stream``."""

    kind: ClassVar[type[TaskRun]] = TaskRun
    command: ClassVar[str] = "predict"
    dtype: str = "auto"
    """Of the passes."""
    max_tokens: Count = 0
    """Most tokens in one pass."""
    probabilities: bool = False
    """Give those of all classes."""

    def read(self, run: TaskRun) -> tuple[Reader, Format]:
        """Return what reads the file, and how predictions are written."""
        require_parquet(Path(self.out))
        reader = run.reader(self.file, self.columns, probabilities=self.probabilities)
        return reader, prediction_format(self.probabilities)

    def make(self, run: TaskRun, *, overwrite: bool, tick: Tick) -> tuple[Streamed, Outcome]:
        """Predict for the examples and write the predictions."""
        places: Any = {"model": self.model, "shard": self.shard}
        return run.predict_stream(
            self.file, self.out, **self.asked, **places, overwrite=overwrite, tick=tick
        )


AnyShard = AskShard | PredictShard


@dataclass(frozen=True)
class ShardJob:
    """One shard to be made; final."""

    name: str
    config: AnyShard
    source: None = None

    @property
    def model(self) -> str:
        """The run, which a worker keeps between shards with its model."""
        return self.config.run

    @property
    def command(self) -> str:
        """What makes the piece."""
        return self.config.command

    @property
    def inputs(self) -> tuple[str, ...]:
        """The run, the file and, where it is a folder or file, the model."""
        config = self.config
        model = config.model or Folder(config.run).manifest.model
        return (config.run, config.file, *([model] if os.path.exists(model) else ()))

    @property
    def finished(self) -> bool:
        """Whether the piece is there, with what was counted."""
        return done_file(self.config).is_file()


def done_file(config: ShardConfig) -> Path:
    """Return the file that says that a piece is there, and what was counted."""
    path = Path(config.out)
    return path.with_name(path.name + _DONE)


def make_shard(run: Any, config: AnyShard, *, tick: Tick) -> None:
    """Make one piece, or go on with it; what was counted is written last."""
    made, outcome = config.make(run, overwrite=True, tick=tick)
    told = {name: getattr(made, name) for name in ("rows", "bad", "tally")}
    told |= {"metrics": outcome.metrics, "notes": outcome.notes}
    told |= {"device": torch.device(config.device).type, "seconds": made.seconds}
    write_json(done_file(config), told)


def describe_shards(jobs: Sequence[ShardJob]) -> list[str]:
    """Return the shards in a few lines, and how long those to come may take by those done."""
    done = [read_json(done_file(job.config)) for job in jobs if job.finished]
    rows, left = (
        sum(job.config.rows for job in jobs if job.finished == finished)
        for finished in (True, False)
    )
    lines = [f"{counted(len(jobs), 'shard')} of {counted(rows + left, 'row')}, {len(done)} done:"]
    rate = sum(piece["seconds"] for piece in done) / rows if rows else 0.0
    for job in jobs:
        state = "done" if job.finished else ""
        guess = f"about {duration(rate * job.config.rows)}" if rate and not state else state
        lines.append(f"  {job.name} {job.config.rows:>9,} rows  {guess}".rstrip())
    if rate and left:
        lines.append(f"about {duration(rate * left)} of work, one by one.")
    elif left:
        lines.append("no estimate: no shard is done.")
    return lines


class ShardedFile:
    """A file that several jobs answer, from the first cut to the file that is written; final.

    What is written is that of ``ask_file`` or ``predict_stream``.

    Args:
        config: the run, the file, the file to write and what is asked; no shard of it.
        jobs: where they run.

    Raises:
        SympromptError: the run cannot be asked so.
    """

    def __init__(self, config: AnyShard, jobs: Jobs) -> None:
        self.config, self.opened = config, config.kind.load(config.run)
        self.reader, self.form = config.read(self.opened)  # type: ignore[arg-type]
        self.target = Path(config.out)
        self.folder = shards_of(self.target)
        about = {"command": config.command, "run": self.opened.folder.digest, **config.asked}
        self.about = {**about, "columns": list(config.columns), "block": self.reader.block}
        chosen = () if config.device == "auto" else (config.device,)
        self.machine = Machine(**asdict(jobs), devices=chosen)

    def make(
        self, *, overwrite: bool = False, executor: Executor | None = None, tick: Tick = silent
    ) -> tuple[Streamed, Outcome]:
        """Make what is missing and join it; return what was written, and its figures.

        Stop it as you like: called again it goes on.

        Args:
            executor: runs the jobs in the place of what the settings say.

        Raises:
            SympromptError: one clear sentence.
        """
        begun = time.monotonic()
        executor = executor or make_executor(self.folder, self.machine, WORKER)
        self._check(overwrite)
        there = self.folder.exists()
        with hold_folder(self.folder) as executor.held:
            try:
                jobs = self._jobs(overwrite, tick)
            except BaseException:
                if not there:
                    shutil.rmtree(self.folder)
                raise
            resumed = sum(read_json(done_file(job.config))["rows"] for job in jobs if job.finished)
            self._make(jobs, executor, tick)
            pieces = [read_json(done_file(job.config)) for job in jobs]
            kinds = sorted({piece["device"] for piece in pieces})
            if len(kinds) > 1:
                raise RunError(
                    f"{self.target} was made partly on {' and partly on '.join(kinds)}, and "
                    "numbers differ; name one with --device, and start anew with --overwrite."
                )
            join([Path(job.config.out) for job in jobs], self.target, self.form)
            shutil.rmtree(self.folder)
        tally: Counter[str] = Counter()
        for piece in pieces:
            tally.update(piece["tally"])
        rows, bad = (sum(piece[name] for piece in pieces) for name in ("rows", "bad"))
        aside = str(side_file(self.target)) if bad else ""
        seconds = time.monotonic() - begun
        done = Streamed(str(self.target), rows, bad, aside, resumed, seconds, tally)
        alone = pieces[0]["metrics"] if len(pieces) == 1 else {}
        if not alone and isinstance(self.opened, TaskRun):
            alone = tallied_figures(self.opened.stored, tally)
        notes = dict.fromkeys(note for piece in pieces for note in piece["notes"])
        return done, Outcome(alone, [], tuple(notes))

    def plan(self) -> list[ShardJob]:
        """Return the jobs, as they were cut before or would be now; nothing is written."""
        stored = self._stored()
        if stored.get("about") != self.about:
            stored = {"shards": [asdict(shard) for shard in self.reader.cut()]}
        return self._list(stored)

    def _stored(self) -> dict[str, Any]:
        path = self.folder / PLAN
        return dict(read_json(path)) if path.is_file() else {}

    def _check(self, overwrite: bool) -> None:
        """Refuse a file that is there, or was begun in another way; write nothing."""
        if overwrite:
            return
        if part_of(self.target).exists():
            raise ConfigError(
                f"{self.target} was begun without --jobs and --on; leave them out to go on, or "
                "give --overwrite to start anew."
            )
        if self.target.exists() and not (self.folder / PLAN).exists():
            raise ConfigError(f"{self.target} exists; choose another --out, or give --overwrite.")

    def _jobs(self, overwrite: bool, tick: Tick) -> list[ShardJob]:
        """Return the jobs of the file, as they were cut when it was begun."""
        plan = self._stored()
        if plan and plan["about"] != self.about:
            if not overwrite:
                keys = {**plan["about"], **self.about}
                differ = [key for key in keys if plan["about"].get(key) != self.about.get(key)]
                raise ConfigError(
                    f"{self.target} was begun with other settings ({', '.join(differ)}); give "
                    "those to go on, or --overwrite to start anew."
                )
            plan = {}
        if not plan:
            for old in self.folder.iterdir():
                if old.name != LOCK:
                    shutil.rmtree(old) if old.is_dir() else old.unlink()
            forget(self.target)
            tick("cutting", 0, 1, str(self.reader.path))
            shards = self.reader.cut()
            if not shards:
                raise DataError(
                    f"{self.reader.path} is empty; give a file with at least one entry."
                )
            plan = {"about": self.about, "shards": [asdict(shard) for shard in shards]}
            write_json(self.folder / PLAN, plan)
        if self.reader.size < plan["shards"][-1]["end"]["bytes"]:
            raise DataError(
                f"{self.reader.path} is shorter than when it was begun; give the file of then, or "
                "start anew with --overwrite."
            )
        return self._list(plan)

    def _list(self, plan: Mapping[str, Any]) -> list[ShardJob]:
        jobs = []
        for number, shard in enumerate(plan["shards"], 1):
            name = f"{number:06d}"
            place = {key: tuple(shard[key].values()) for key in ("start", "end")}
            out = str(self.folder / f"{name}{self.target.suffix.lower()}")
            jobs.append(ShardJob(name, replace(self.config, **shard | place, out=out)))
        return jobs

    def _make(self, jobs: Sequence[ShardJob], executor: Executor, tick: Tick) -> None:
        """Make the pieces that are missing; the first that fails for good stops the others."""
        rows = {job.name: job.config.rows for job in jobs}
        todo = [job for job in jobs if not job.finished]
        total, done = sum(rows.values()), sum(rows[job.name] for job in jobs if job.finished)
        stage = f"{self.config.command}ing"
        tick(stage, done, total, "")
        with closing(executor.run(todo)) as events:
            for event in events if todo else ():
                if event.kind == "failed":
                    raise RunError(
                        f"shard {event.job} of {self.reader.path} failed: {event.note.rstrip('.')}"
                        "; the same command goes on."
                    )
                done += rows[event.job] if event.kind == "done" else 0
                note = event.note if event.kind == "progress" else event.kind
                tick(stage, done, total, f"shard {event.job}: {note}")
