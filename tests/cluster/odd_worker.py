"""A worker for tests: jobs that die, hang or fail, the first time or always."""

from __future__ import annotations

import os
import signal
import time
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from symprompt.config import settings

HOWS = ("well", "dies", "hangs", "full", "refused", "always dies")


@settings
class Odd:
    """What becomes of a job."""

    how: str = "well"
    out: str = ""


@dataclass(frozen=True)
class OddJob:
    """A job whose folder has a file "done" when it is finished."""

    name: str
    config: Odd
    model: str = "none"
    command: str = "odd"
    source: None = None
    inputs: tuple[str, ...] = ()

    @property
    def finished(self) -> bool:
        return (Path(self.config.out) / "done").is_file()


class OddWorker:
    """Does what the config says, the first time; then it works, but where it always dies."""

    def __init__(self, tell: Callable[[Mapping[str, Any]], None]) -> None:
        self.tell = tell

    def answer(self, order: Mapping[str, str], *, patience: float = 0.0) -> bool:
        config = tomllib.loads(Path(order["config"]).read_text())
        how, out = config["how"], Path(config["out"])
        out.mkdir(exist_ok=True)
        first = not (out / "pids").is_file()
        with (out / "pids").open("a") as stream:
            stream.write(f"{os.getpid()}\n")
        self.tell({"kind": "progress", "note": "at work"})
        if how == "always dies" or (how == "dies" and first):
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "hangs" and first:
            time.sleep(600)
        told: dict[str, Any] = {"job": order["name"], "kind": "done"}
        if how == "refused" or (how == "full" and first):
            told = told | {"kind": "failed", "note": f"{how}.", "elsewhere": how == "full"}
        else:
            (out / "done").touch()
        self.tell(told)
        return True


def start(device: str, tell: Any, threads: int, memory_gib: float) -> OddWorker:
    """Make this process a worker."""
    return OddWorker(tell)
