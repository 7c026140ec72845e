"""Make a plan's runs with one worker process per device or more; what is done is skipped."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from symprompt.config import to_toml
from symprompt.files.atomic import write_file
from symprompt.files.progress import Tick, silent
from symprompt.papers.plan import Plan, PlannedRun
from symprompt.papers.settings import ReproduceSettings
from symprompt.runs.environment import choose_device

_ATTEMPTS = 2


@dataclass
class Outcome:
    """How the runs of a plan ended.

    Attributes:
        failed: run -> why.
        made: run -> seconds, device and peak memory, of those made by this call.
        skipped: runs that were there from before.
    """

    failed: dict[str, str] = field(default_factory=dict)
    made: dict[str, dict[str, Any]] = field(default_factory=dict)
    skipped: tuple[str, ...] = ()


def list_devices(settings: ReproduceSettings) -> list[str]:
    """Return the devices to work on: those named, else every GPU, else the CPU.

    Raises:
        ConfigError: a named device is not there.
    """
    if settings.devices:
        return [str(choose_device(name)) for name in settings.devices]
    if torch.cuda.is_available():
        return [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    return [str(choose_device("auto"))]


def launch(
    device: str, settings: ReproduceSettings, workers: int, log: Path, held: int | None
) -> subprocess.Popen[str]:
    """Start a worker process."""
    memory = settings.memory_gib / settings.jobs
    words = [sys.executable, "-m", "symprompt.papers.worker", "--device", device]
    words += ["--memory-gib", str(memory), "--threads", str(_threads(device, workers))]
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


def _threads(device: str, workers: int) -> int:
    """Return the threads of one of several workers on the CPU; 0 leaves them as they are."""
    if workers == 1 or torch.device(device).type != "cpu":
        return 0
    return max(1, (os.cpu_count() or 1) // workers)


class _Queue:
    """The runs that are to be made, handed out to workers; safe between threads; final."""

    def __init__(self, runs: list[PlannedRun]) -> None:
        self._waiting = list(runs)
        self._running: set[str] = set()
        self._failed: set[str] = set()
        self._changed = threading.Condition()
        self._closed = False

    def take(self, model: str) -> PlannedRun | None:
        """Wait for a run whose source is there, rather of this model; None when all are begun."""
        with self._changed:
            while not self._closed and self._waiting:
                ready = [run for run in self._waiting if self._ready(run)]
                if ready:
                    run = next((run for run in ready if run.model == model), ready[0])
                    self._waiting.remove(run)
                    self._running.add(run.name)
                    return run
                self._changed.wait()
            return None

    def _ready(self, run: PlannedRun) -> bool:
        pending = {other.name for other in self._waiting} | self._running
        return run.source not in pending

    def finish(self, run: PlannedRun) -> None:
        """Say that a run has ended, well or not."""
        with self._changed:
            self._running.discard(run.name)
            self._changed.notify_all()

    def close(self) -> None:
        """Hand out nothing more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


class _Slot(threading.Thread):
    """One place on a device: keeps a worker process, starting another when one dies; final."""

    def __init__(
        self,
        plan: Plan,
        runs: _Queue,
        events: queue.Queue[dict[str, Any]],
        device: str,
        number: int,
        workers: int,
        held: int | None,
    ) -> None:
        super().__init__(daemon=True)
        self._plan, self._runs, self._events = plan, runs, events
        self._device, self._workers, self._held = device, workers, held
        self._log = Path(plan.settings.out) / "logs" / f"worker-{number}.log"
        self._process: subprocess.Popen[str] | None = None
        self._folders = {run.name: run.config.out for run in plan.runs}
        self._stopped = False

    def run(self) -> None:
        """Make runs until there are none left."""
        model = ""
        try:
            while (run := self._runs.take(model)) is not None:
                model = run.model
                self._events.put(self._make(run))
                self._runs.finish(run)
        except Exception as error:  # told, so that nothing waits for a thread that is gone
            self._events.put({"broken": f"{type(error).__name__}: {error}"})
        finally:
            self._end_process(kill=True)

    def _make(self, run: PlannedRun) -> dict[str, Any]:
        """Have a run made; a worker that dies on it is replaced once."""
        if run.source and not self._source_done(run):
            return {"failed": run.name, "why": f"{run.source} is not there to ask again."}
        code = 0
        for _ in range(_ATTEMPTS):
            for answer in self._ask(run):
                if "tick" not in answer:
                    return answer
                self._events.put(answer)
            if self._stopped:
                break
            code = self._end_process()
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        return {"failed": run.name, "why": f"its worker died ({how}); see {self._log}."}

    def _source_done(self, run: PlannedRun) -> bool:
        return (Path(self._folders[run.source]) / "metrics.json").is_file()

    def _ask(self, run: PlannedRun) -> Iterator[dict[str, Any]]:
        """Tell the worker to make a run; yield its answers, up to its death if it dies."""
        if self._process is None or self._process.poll() is not None:
            settings = self._plan.settings
            self._process = launch(self._device, settings, self._workers, self._log, self._held)
        process = self._process
        if self._stopped:
            return
        assert process.stdin is not None
        assert process.stdout is not None
        path = Path(self._plan.settings.out) / "inputs" / f"{run.name}.toml"
        write_file(path, to_toml(run.config).encode())
        source = self._folders.get(run.source, "")
        order = {"name": run.name, "config": str(path), "source": source}
        with suppress(BrokenPipeError):
            process.stdin.write(json.dumps(order) + "\n")
            process.stdin.flush()
            for line in process.stdout:
                yield json.loads(line)

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


def make_runs(plan: Plan, *, held: int | None = None, tick: Tick = silent) -> Outcome:
    """Make every run of a plan that is not there; a run that fails does not stop the others.

    Args:
        held: the file descriptor of the folder's lock, which workers inherit.
        tick: told of progress: how many runs are done, and what is being made.
    """
    todo = [run for run in plan.runs if not run.folder.finished]
    outcome = Outcome(skipped=tuple(run.name for run in plan.runs if run.folder.finished))
    total, done = len(plan.runs), len(outcome.skipped)
    tick("runs", done, total, f"{done} there from before" if done else "")
    if not todo:
        return outcome
    runs, events = _Queue(todo), queue.Queue[dict[str, Any]]()
    places = [device for device in list_devices(plan.settings) for _ in range(plan.settings.jobs)]
    places = places[: len(todo)]
    slots = [
        _Slot(plan, runs, events, device, number, len(places), held)
        for number, device in enumerate(places, start=1)
    ]
    try:
        for slot in slots:
            slot.start()
        while done < total:
            event = events.get()
            done += _take_event(event, outcome)
            name = event.get("tick") or event.get("done") or event.get("failed") or ""
            tick("runs", done, total, _note(event, name))
    finally:
        runs.close()
        for slot in slots:
            slot.stop()
        for slot in slots:
            if slot.ident is not None:
                slot.join()
    return outcome


def _take_event(event: dict[str, Any], outcome: Outcome) -> int:
    """Put what a worker said where it belongs; return how many runs ended."""
    if "broken" in event:
        raise RuntimeError(f"a worker's thread broke: {event['broken']}")
    if "failed" in event:
        outcome.failed[event["failed"]] = event["why"]
    elif "done" in event:
        about = {key: event[key] for key in ("seconds", "device", "peak_gib")}
        outcome.made[event["done"]] = about
    return 0 if "tick" in event else 1


def _note(event: dict[str, Any], name: str) -> str:
    if "tick" in event:
        return f"{name}: {event['stage']} {event['at']}/{event['of']}"
    return f"{name}: failed" if "failed" in event else f"{name}: done"
