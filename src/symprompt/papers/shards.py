"""Many questions or examples by several jobs: a file is cut into shards, each of which is a job.

A shard is some whole blocks of ``files.stream``, and a block is computed by itself; so what is
written is the same, to the byte, whatever number of jobs made it and wherever.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

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
    """A run, a file, the shard of it, and where its piece is written."""

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
    def shard(self) -> Shard:
        """What of the file is meant."""
        return Shard(Place(*self.start), Place(*self.end), self.rows, self.block)


@settings
class AskShard(ShardConfig):
    """Questions to a run of train; see ``ask_file``."""

    relation: str = ""
    """Of rows that name none."""
    want: Literal["", "objects", "subjects"] = ""
    """What is asked for where rows have both."""
    top: Positive = 10
    """How many answers."""

    def make(self, run: Run, *, tick: Tick = silent) -> tuple[Streamed, Outcome]:
        """Ask the shard's questions and write its piece."""
        asked = ask_file(
            run,
            self.file,
            self.out,
            relation=self.relation,
            want=self.want,
            columns=self.columns,
            top=self.top,
            model=self.model,
            device=self.device,
            overwrite=True,
            shard=self.shard,
            tick=tick,
        )
        return asked, Outcome({}, [], ())


@settings
class PredictShard(ShardConfig):
    """Examples for a run of tune; see ``TaskRun.predict_stream``."""

    dtype: str = "auto"
    """Of the passes."""
    max_tokens: Count = 0
    """Most tokens in one pass."""
    probabilities: bool = False
    """Give those of all classes."""

    def make(self, run: TaskRun, *, tick: Tick = silent) -> tuple[Streamed, Outcome]:
        """Predict for the shard's examples and write its piece."""
        return run.predict_stream(
            self.file,
            self.out,
            columns=self.columns,
            model=self.model,
            device=self.device,
            dtype=self.dtype,
            max_tokens=self.max_tokens,
            probabilities=self.probabilities,
            overwrite=True,
            shard=self.shard,
            tick=tick,
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
        return "ask" if isinstance(self.config, AskShard) else "predict"

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


def make_shard(run: Run | TaskRun, config: AnyShard, *, tick: Tick) -> None:
    """Make one piece, or go on with it; what was counted is written last."""
    made, outcome = config.make(run, tick=tick)  # type: ignore[arg-type]
    told = {name: getattr(made, name) for name in ("rows", "bad", "tally")}
    told |= {"metrics": outcome.metrics, "notes": outcome.notes}
    told |= {"device": torch.device(config.device).type, "seconds": made.seconds}
    write_json(done_file(config), told)


def ask_shards(
    config: AskShard,
    jobs: Jobs,
    *,
    overwrite: bool = False,
    executor: Executor | None = None,
    tick: Tick = silent,
) -> Streamed:
    """Ask a run the questions of a file by several jobs; the answers are those of ``ask_file``.

    Stop it as you like: called again it goes on.

    Args:
        config: the run, the file, the answers' file and what is asked; no shard of it.
        jobs: where they run.
        executor: runs them instead.

    Raises:
        SympromptError: one clear sentence.
    """
    return _asking(config, jobs).run(overwrite, executor, tick)[0]


def _asking(config: AskShard, jobs: Jobs) -> _Work:
    run = Run.load(config.run)
    asked = {name: getattr(config, name) for name in ("relation", "want", "columns", "top")}
    reader, _ = read_questions(run, config.file, config.out, **asked)
    about = {"run": run.folder.digest, "device": config.device, **asked}
    return _Work(config, jobs, reader, answer_format(), {"command": "ask", **about}, "asking")


def predict_shards(
    config: PredictShard,
    jobs: Jobs,
    *,
    overwrite: bool = False,
    executor: Executor | None = None,
    tick: Tick = silent,
) -> tuple[Streamed, Outcome]:
    """Predict for a file's examples by several jobs, as ``TaskRun.predict_stream``.

    See ``ask_shards``.
    """
    work, run = _predicting(config, jobs)
    done, pieces = work.run(overwrite, executor, tick)
    notes = dict.fromkeys(note for piece in pieces for note in piece["notes"])
    alone = pieces[0]["metrics"] if len(pieces) == 1 else {}
    metrics = alone or tallied_figures(run.stored, done.tally)
    return done, Outcome(metrics, [], tuple(notes))


def _predicting(config: PredictShard, jobs: Jobs) -> tuple[_Work, TaskRun]:
    run = TaskRun.load(config.run)
    reader = run.reader(config.file, config.columns, probabilities=config.probabilities)
    require_parquet(Path(config.out))
    names = ("device", "columns", "dtype", "max_tokens", "probabilities")
    about = {"run": run.folder.digest, **{name: getattr(config, name) for name in names}}
    form = prediction_format(config.probabilities)
    return _Work(config, jobs, reader, form, {"command": "predict", **about}, "predicting"), run


def plan_asking(config: AskShard, jobs: Jobs) -> list[ShardJob]:
    """Return the jobs that ``ask_shards`` would make or has made; nothing is written."""
    return _asking(config, jobs).plan()


def plan_predicting(config: PredictShard, jobs: Jobs) -> list[ShardJob]:
    """Return the jobs that ``predict_shards`` would make or has made; nothing is written."""
    return _predicting(config, jobs)[0].plan()


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


class _Work:
    """The shards of a file, from the first cut to the file that is written."""

    def __init__(
        self,
        config: AnyShard,
        jobs: Jobs,
        reader: Reader,
        form: Format,
        about: Mapping[str, Any],
        stage: str,
    ) -> None:
        self.config, self.reader, self.form, self.stage = config, reader, form, stage
        self.target = Path(config.out)
        self.folder = shards_of(self.target)
        self.about = {**about, "columns": list(config.columns), "block": reader.block}
        chosen = () if config.device == "auto" else (config.device,)
        self.machine = Machine(**asdict(jobs), devices=chosen)

    def run(
        self, overwrite: bool, executor: Executor | None, tick: Tick
    ) -> tuple[Streamed, list[dict[str, Any]]]:
        """Make what is missing and join it; return what was written and each piece's counts."""
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
        tally: dict[str, int] = {}
        for piece in pieces:
            for name, count in piece["tally"].items():
                tally[name] = tally.get(name, 0) + count
        bad = sum(piece["bad"] for piece in pieces)
        return (
            Streamed(
                str(self.target),
                sum(piece["rows"] for piece in pieces),
                bad,
                str(side_file(self.target)) if bad else "",
                resumed,
                time.monotonic() - begun,
                tally,
            ),
            pieces,
        )

    def plan(self) -> list[ShardJob]:
        """Return the jobs, as they were cut before or would be now."""
        path = self.folder / PLAN
        stored = read_json(path) if path.is_file() else {}
        if stored.get("about") == self.about:
            shards = stored["shards"]
        else:
            shards = [asdict(shard) for shard in self.reader.cut()]
        return [self._job(number, shard) for number, shard in enumerate(shards, 1)]

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
        path = self.folder / PLAN
        plan = read_json(path) if path.is_file() else None
        if plan is not None and plan["about"] != self.about:
            if not overwrite:
                keys = {**plan["about"], **self.about}
                differ = [key for key in keys if plan["about"].get(key) != self.about.get(key)]
                raise ConfigError(
                    f"{self.target} was begun with other settings ({', '.join(differ)}); give "
                    "those to go on, or --overwrite to start anew."
                )
            plan = None
        if plan is None:
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
            write_json(path, plan)
        size = plan["shards"][-1]["end"]["bytes"]
        if self.reader.size < size:
            raise DataError(
                f"{self.reader.path} is shorter than when it was begun; give the file of then, or "
                "start anew with --overwrite."
            )
        return [self._job(number, shard) for number, shard in enumerate(plan["shards"], 1)]

    def _job(self, number: int, shard: Mapping[str, Any]) -> ShardJob:
        name = f"{number:06d}"
        config = replace(
            self.config,
            out=str(self.folder / f"{name}{self.target.suffix.lower()}"),
            start=tuple(shard["start"].values()),
            end=tuple(shard["end"].values()),
            rows=shard["rows"],
            block=shard["block"],
        )
        return ShardJob(name, config)

    def _make(self, jobs: Sequence[ShardJob], executor: Executor, tick: Tick) -> None:
        """Make the pieces that are missing; the first that fails for good stops the others."""
        rows = {job.name: job.config.rows for job in jobs}
        todo = [job for job in jobs if not job.finished]
        total, done = sum(rows.values()), sum(rows[job.name] for job in jobs if job.finished)
        tick(self.stage, done, total, "")
        with closing(executor.run(todo)) as events:
            for event in events if todo else ():
                if event.kind == "failed":
                    raise RunError(
                        f"shard {event.job} of {self.reader.path} failed: {event.note.rstrip('.')}"
                        "; the same command goes on."
                    )
                done += rows[event.job] if event.kind == "done" else 0
                note = event.note if event.kind == "progress" else event.kind
                tick(self.stage, done, total, f"shard {event.job}: {note}")
