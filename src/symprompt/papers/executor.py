"""Where jobs run: an interface, and worker processes on this machine.

An executor is given jobs and yields events until all have ended. A job that fails is an event and
does not stop the others. Done jobs are left out before (``run_jobs``), half-made ones go on.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from symprompt.config import to_toml
from symprompt.errors import RunError
from symprompt.files.atomic import reason, write_file
from symprompt.files.progress import Tick, silent
from symprompt.papers.jobs import Job, Outcome, Plan, hold_folder
from symprompt.papers.settings import Machine
from symprompt.report.pages import Page
from symprompt.runs.environment import choose_device

_ATTEMPTS = 2


@dataclass(frozen=True)
class Event:
    """What became of a job: it goes on, is done, or has failed.

    Attributes:
        note: the stage of a job that goes on, or why one failed.
        about: seconds, device and peak memory of a job that is done.
    """

    job: str
    kind: Literal["progress", "done", "failed"]
    note: str = ""
    about: Mapping[str, Any] = field(default_factory=dict)


class Executor(ABC):
    """Abstract: runs jobs somewhere."""

    @abstractmethod
    def run(self, jobs: Sequence[Job]) -> Generator[Event, None, None]:
        """Run jobs, each after its source; yield events until each is done or has failed.

        Closing the iterator stops what is running; what was written stays.
        """


def run_plan(
    plan: Plan[Any],
    make_page: Callable[[Outcome], Page],
    *,
    executor: Executor | None,
    tick: Tick,
) -> tuple[Outcome, list[Path]]:
    """Make the runs of a plan that are missing, then write the page of all; return its files.

    Args:
        executor: where jobs run; worker processes on this machine if it is None.
    """
    with hold_folder(Path(plan.out)) as held:
        folder = plan.begin()
        executor = executor or LocalExecutor(plan.out, plan.settings, held=held)
        outcome = run_jobs(plan.jobs, executor, tick=tick)
        tick("tables", 0, 1, "")
        page = make_page(outcome)
        files = page.write(folder.path)
        folder.finish(records=page.records)
        tick("tables", 1, 1, "")
    return outcome, files


def run_jobs(jobs: Sequence[Job], executor: Executor, *, tick: Tick = silent) -> Outcome:
    """Run every job that is not finished; return how all ended.

    Args:
        tick: is called with the number of jobs that have ended, and what is being made.
    """
    todo = [job for job in jobs if not job.finished]
    outcome = Outcome(skipped=tuple(job.name for job in jobs if job not in todo))
    total, done = len(jobs), len(outcome.skipped)
    tick("runs", done, total, f"{done} there from before" if done else "")
    if not todo:
        return outcome
    with closing(executor.run(todo)) as events:
        for event in events:
            if event.kind == "failed":
                outcome.failed[event.job] = event.note
            elif event.kind == "done":
                outcome.made[event.job] = dict(event.about)
            done += event.kind != "progress"
            shown = event.note if event.kind == "progress" else event.kind
            tick("runs", done, total, f"{event.job}: {shown}")
    return outcome


def list_devices(names: Sequence[str]) -> list[str]:
    """Return the devices to work on: those named, else every GPU, else the CPU.

    Raises:
        ConfigError: a named device is not there.
    """
    if names:
        return [str(choose_device(name)) for name in names]
    if torch.cuda.is_available():
        return [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    return [str(choose_device("auto"))]


class LocalExecutor(Executor):
    """Worker processes on this machine, one on each device or more; final.

    A worker keeps the model between jobs. One that dies is replaced once for a job.

    Args:
        folder: where jobs' configs (inputs/) and workers' logs (logs/) are written.
        held: the file descriptor of a lock, which workers inherit.
    """

    def __init__(self, folder: str | Path, machine: Machine, *, held: int | None = None) -> None:
        self.folder = Path(folder)
        self.machine = machine
        self.held = held

    def run(self, jobs: Sequence[Job]) -> Generator[Event, None, None]:
        """Run jobs in worker processes; see ``Executor.run``."""
        events = queue.Queue[Event | BaseException]()
        waiting: list[list[Job]] = []
        for job in jobs:
            # One worker makes a job and then those that query its prompts again.
            after = [own for own in waiting if job.source in own]
            if after:
                after[0].append(job)
            else:
                waiting.append([job])
        choosing = threading.Lock()

        def take(model: str) -> list[Job]:
            """Return jobs that wait, rather of this model; none when all are begun."""
            with choosing:
                if not waiting:
                    return []
                own = (place for place, one in enumerate(waiting) if one[0].model == model)
                return waiting.pop(next(own, 0))

        devices = list_devices(self.machine.devices)
        places = [device for device in devices for _ in range(self.machine.jobs)][: len(waiting)]
        slots = [
            _Slot(self, take, events, device, number)
            for number, device in enumerate(places, start=1)
        ]
        ended = 0
        try:
            for slot in slots:
                slot.start()
            while ended < len(jobs):
                event = events.get()
                if isinstance(event, BaseException):
                    raise event
                ended += event.kind != "progress"
                yield event
        finally:
            with choosing:
                waiting.clear()
            for slot in slots:
                slot.stop()
            for slot in slots:
                if slot.ident is not None:
                    slot.join()


def launch(device: str, machine: Machine, log: Path, held: int | None) -> subprocess.Popen[str]:
    """Start a worker process."""
    words = [sys.executable, "-m", "symprompt.papers.worker", "--device", device]
    words += ["--memory-gib", str(machine.memory_gib / machine.jobs)]
    words += ["--threads", str(machine.threads)]
    log.parent.mkdir(parents=True, exist_ok=True)
    # The worker finds this package also where the caller found it by its own means.
    paths = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    with log.open("a") as errors:
        return subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            encoding="utf-8",
            env=environment,
            pass_fds=() if held is None else (held,),
        )


class _Slot(threading.Thread):
    """A thread that keeps one worker process, starting another when one dies; final."""

    def __init__(
        self,
        executor: LocalExecutor,
        take: Callable[[str], list[Job]],
        events: queue.Queue[Event | BaseException],
        device: str,
        number: int,
    ) -> None:
        super().__init__(daemon=True)
        self._executor, self._take, self._events = executor, take, events
        self._device = device
        self._log = executor.folder / "logs" / f"worker-{number}.log"
        self._process: subprocess.Popen[str] | None = None
        self._stopped = False

    def run(self) -> None:
        """Make jobs until there are none left."""
        model = ""
        try:
            while jobs := self._take(model):
                model = jobs[0].model
                for job in jobs:
                    if self._stopped:
                        return
                    self._events.put(self._make(job))
        except OSError as error:  # a full disk or the like, met when a worker is started
            place = error.filename or self._log
            self._events.put(RunError(f"cannot write {place}: {reason(error)}."))
        except Exception as error:  # passed on, so that nothing waits for a thread that is gone
            self._events.put(error)
        finally:
            self._end_process(kill=True)

    def _make(self, job: Job) -> Event:
        """Have a job made; a worker that dies on it is replaced once."""
        if job.source is not None and not job.source.finished:
            return Event(job.name, "failed", f"{job.source.name} is not there to query again.")
        code = 0
        for _ in range(_ATTEMPTS):
            for event in self._order(job):
                if event.kind != "progress":
                    return event
                self._events.put(event)
            if self._stopped:
                break
            code = self._end_process()
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        return Event(job.name, "failed", f"its worker died ({how}); see {self._log}.")

    def _order(self, job: Job) -> Iterator[Event]:
        """Order a job from the worker; yield its events, up to its death if it dies."""
        executor = self._executor
        if self._process is None or self._process.poll() is not None:
            self._process = launch(self._device, executor.machine, self._log, executor.held)
        process = self._process
        if self._stopped:
            return
        assert process.stdin is not None
        assert process.stdout is not None
        path = executor.folder / "inputs" / f"{job.name}.toml"
        write_file(path, to_toml(job.config).encode())
        source = job.source.config.out if job.source else ""
        order = {"name": job.name, "command": job.command, "config": str(path), "source": source}
        with suppress(BrokenPipeError):
            process.stdin.write(json.dumps(order) + "\n")
            process.stdin.flush()
            for line in process.stdout:
                yield Event(**json.loads(line))

    def stop(self) -> None:
        """End the worker, from another thread; what it has written stays."""
        self._stopped = True
        process = self._process
        if process is not None:
            process.kill()

    def _end_process(self, *, kill: bool = False) -> int:
        """Wait for the worker's end; return its exit code."""
        process, self._process = self._process, None
        if process is None:
            return 0
        if kill:
            process.kill()
        code = process.wait()
        for stream in (process.stdin, process.stdout):
            # What could not be written to a dead worker is of no use any more.
            with suppress(OSError):
                if stream is not None:
                    stream.close()
        return code
