"""Where jobs run: an interface, and worker processes on this machine.

An executor is given jobs and yields events until all have ended. A job that fails is an event and
does not stop the others. What a job is, its worker's module knows: it has ``Worker`` and, for this
machine, is run as a program. Run folders are the truth: jobs that are done are not given to an
executor, half-made ones go on.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol

import torch

from symprompt.cluster.machine import Machine
from symprompt.config import to_toml
from symprompt.errors import ConfigError, RunError
from symprompt.files.atomic import reason, write_file
from symprompt.runs.environment import choose_device

_WAIT_SECONDS = 1.0


class Job(Protocol):
    """One run folder to be made, as far as an executor sees it."""

    @property
    def name(self) -> str:
        """What it is called; also a path for its files."""

    @property
    def model(self) -> str:
        """The model, which a worker keeps between jobs."""

    @property
    def command(self) -> str:
        """What makes the run."""

    @property
    def config(self) -> Any:
        """The run's config, with its folder ``out``."""

    @property
    def source(self) -> Job | None:
        """A job that is made first."""

    @property
    def inputs(self) -> Sequence[str]:
        """The files and folders that it reads, but for its config."""

    @property
    def finished(self) -> bool:
        """Whether there is nothing left to make."""


@dataclass(frozen=True)
class Event:
    """What became of a job: it goes on, is done, or has failed.

    Attributes:
        note: the stage of a job that goes on, or why one failed.
        about: seconds, device and peak memory of a job that is done.
        elsewhere: whether a job that failed may succeed on another machine.
    """

    job: str
    kind: Literal["progress", "done", "failed"]
    note: str = ""
    about: Mapping[str, Any] = field(default_factory=dict)
    elsewhere: bool = False


class Executor(ABC):
    """Abstract: runs jobs somewhere.

    Attributes:
        held: the file descriptor of a lock, which workers on this machine inherit.
    """

    held: int | None = None

    @abstractmethod
    def run(self, jobs: Sequence[Job]) -> Generator[Event, None, None]:
        """Run jobs, each after its source; yield events until each is done or has failed.

        Closing the iterator stops what is running; what was written stays.
        """


def make_executor(folder: str | Path, machine: Machine, work: str) -> Executor:
    """Return what runs jobs where the settings say.

    Args:
        folder: where jobs' configs (inputs/) and workers' logs (logs/) are written.
        work: the workers' module, such as ``symprompt.papers.worker``.

    Raises:
        ConfigError: no such place, or Ray is not installed.
    """
    if machine.on == "here":
        if machine.disk == "own":
            raise ConfigError("--disk own is about a cluster; name one with --on, or leave it out.")
        return LocalExecutor(folder, machine, work)
    from symprompt.cluster.nodes import RayExecutor

    return RayExecutor(folder, machine, work)


def write_order(job: Job, folder: Path) -> dict[str, str]:
    """Write a job's config into a folder of inputs; return what a worker is told of the job."""
    path = folder / "inputs" / f"{job.name}.toml"
    write_file(path, to_toml(job.config).encode())
    source = job.source.config.out if job.source else ""
    return {"name": job.name, "command": job.command, "config": str(path), "source": source}


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

    A worker keeps the model between jobs. One that dies or hangs is replaced, for one job at most
    as often as the settings say. See ``make_executor``.
    """

    def __init__(self, folder: str | Path, machine: Machine, work: str) -> None:
        self.folder = Path(folder)
        self.machine = machine
        self.work = work

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
                try:
                    event = events.get(timeout=_WAIT_SECONDS)
                except queue.Empty:
                    for slot in slots:
                        slot.end_hung()
                    continue
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


def launch(
    device: str, machine: Machine, log: Path, held: int | None, work: str
) -> subprocess.Popen[str]:
    """Start a worker process."""
    words = [sys.executable, "-m", work, "--device", device]
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
        self._last = time.monotonic()
        self._why = ""

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
        """Have a job made; a worker that dies on it is replaced, not too often."""
        if job.source is not None and not job.source.finished:
            return Event(job.name, "failed", f"{job.source.name} is not there to query again.")
        again: list[str] = []
        for _ in range(self._executor.machine.retries + 1):
            self._why = ""
            for event in self._order(job):
                if event.kind == "progress":
                    self._events.put(event)
                    continue
                return replace(event, about={**event.about, "again": again}) if again else event
            if self._stopped:
                break
            code = self._end_process()
            died = f"its worker died ({f'signal {-code}' if code < 0 else f'exit code {code}'})"
            again.append(self._why or died)
            self._events.put(Event(job.name, "progress", f"{again[-1]}; it is tried again"))
        why = again[-1] if again else "it was stopped"
        return Event(job.name, "failed", f"{why}; see {self._log}.")

    def _order(self, job: Job) -> Iterator[Event]:
        """Order a job from the worker; yield its events, up to its death if it dies."""
        executor = self._executor
        if self._process is None or self._process.poll() is not None:
            self._process = launch(
                self._device, executor.machine, self._log, executor.held, executor.work
            )
        process = self._process
        if self._stopped:
            return
        assert process.stdin is not None
        assert process.stdout is not None
        order = write_order(job, executor.folder)
        self._last = time.monotonic()
        with suppress(BrokenPipeError):
            process.stdin.write(json.dumps(order) + "\n")
            process.stdin.flush()
            for line in process.stdout:
                self._last = time.monotonic()
                yield Event(**json.loads(line))

    def end_hung(self) -> None:
        """End the worker if it has told nothing for too long, from another thread."""
        process, patience = self._process, self._executor.machine.patience
        if process is not None and time.monotonic() - self._last > patience:
            self._why = f"it showed no progress for {patience} s"
            process.kill()

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
