"""One worker: a process that runs the jobs it is sent, one after the other, on one device.

It reads a JSON object a line from standard input, {"name", "command", "config", "source"}, and
answers with events, a JSON object a line, on standard output. It ends when its input does, in the
middle of a job too: run folders are whole at every moment, and whoever started it may be gone.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import torch
from transformers.utils import logging as transformers_logging

from symprompt.config import load
from symprompt.errors import BusyError, SympromptError, is_of_machine, is_out_of_memory
from symprompt.files.progress import Tick
from symprompt.models import LanguageModel
from symprompt.papers.jobs import Config
from symprompt.papers.shards import AnyShard, AskShard, PredictShard, ShardConfig, make_shard
from symprompt.probing.ask import Run
from symprompt.probing.config import RunConfig, load_config, model_dtype
from symprompt.probing.results import PROMPTS
from symprompt.probing.train import train
from symprompt.runs.folder import HISTORY, Folder
from symprompt.tasks.config import load_pattern_config, load_tune_config
from symprompt.tasks.predict import TaskRun
from symprompt.tasks.train import Session, tune

try:
    import resource
except ImportError:  # no POSIX
    resource = None  # type: ignore[assignment]

Tell = Callable[[Mapping[str, Any]], None]
LOADERS: dict[str, Callable[[str], Config | AnyShard]] = {
    "train": load_config,
    "tune": load_tune_config,
    "patterns": load_pattern_config,
    "ask": partial(load, AskShard),
    "predict": partial(load, PredictShard),
}
_TICK_SECONDS = 0.2
_BUSY_SECONDS = 1.0
_GIB = 1 << 30


class Worker:
    """Runs jobs on one device and keeps the last model and its tasks; final."""

    def __init__(self, device: str, tell: Tell) -> None:
        self.device = device
        self.tell = tell
        self._kept: tuple[type[Any], str] | None = None
        self.forget()

    def forget(self) -> None:
        """Let go of models and tasks: two models may not fit, and a failed job may change one."""
        self._backbone: LanguageModel | None = None
        self._loaded: tuple[object, ...] = ()
        self._session = Session()
        self._run: Run | TaskRun | None = None
        gc.collect()
        if torch.device(self.device).type == "cuda":
            torch.cuda.empty_cache()

    def make(self, name: str, config: Config | AnyShard, source: str = "") -> None:
        """Run one job, or go on with it, and tell how it ended.

        Args:
            source: a finished run whose prompts are queried again, or "".
        """
        kept = (type(config), config.run if isinstance(config, ShardConfig) else config.model)
        if self._kept not in (None, kept):
            self.forget()
        self._kept = kept
        begun = time.perf_counter()
        tick = self._ticks(name)
        config = replace(config, device=self.device)
        if isinstance(config, ShardConfig):
            self._run = self._run or config.kind.load(config.run)
            make_shard(self._run, config, tick=tick)
        elif isinstance(config, RunConfig):
            if source:
                borrow_prompts(source, config)
            if not Folder(config.out).finished:
                train(config, resume=True, tick=tick, backbone=self.load(config))
        else:
            tune(config, resume=True, tick=tick, session=self._session)
        about: dict[str, Any] = {
            "seconds": round(time.perf_counter() - begun, 2),
            "device": self.device,
        }
        # The next shard needs the same memory.
        release = not isinstance(config, ShardConfig)
        about |= {"peak_gib": _peak_gib(self.device, release=release), "host_gib": _host_gib()}
        self.tell({"job": name, "kind": "done", "about": about})

    def answer(self, order: Mapping[str, str], *, patience: float = 0.0) -> bool:
        """Run the job of an order and tell how it ended, whatever happens.

        Args:
            patience: seconds to wait for another process that is at work in the run folder.

        Returns:
            False after an error that is not the input's: jobs to come need a fresh process.
        """
        told: dict[str, Any] = {"job": order["name"], "kind": "failed"}
        until = time.monotonic() + patience
        try:
            config = LOADERS[order["command"]](order["config"])
            while True:
                try:
                    self.make(order["name"], config, order["source"])
                    return True
                except BusyError:
                    if time.monotonic() >= until:
                        raise
                    time.sleep(_BUSY_SECONDS)
        except SympromptError as error:
            told |= {"note": str(error), "elsewhere": is_of_machine(error)}
            sound = True
        except Exception as error:  # whatever it is, the other jobs go on in a fresh process
            sound = False
            told["elsewhere"] = is_of_machine(error)
            if is_out_of_memory(error):
                told["note"] = "there is not enough memory; raise --memory-gib, or lower --jobs."
            else:
                traceback.print_exc()
                first = str(error).strip().splitlines()[:1] or [""]
                told["note"] = f"{type(error).__name__}: {first[0]}"
        self.tell(told)
        self.forget()
        return sound

    def load(self, config: RunConfig) -> LanguageModel:
        """Return the model, loaded anew if it is another one or a method has changed its weights.

        Methods that tune the model might leave it so, and the next job must not see that.
        """
        dtype = model_dtype(config.method.name, config.dtype)
        key = (config.model, dtype)
        backbone = self._backbone
        if backbone is None or self._loaded != (*key, _weights(backbone)):
            # The old one goes first: two may not fit.
            self._backbone = backbone = None
            backbone = LanguageModel.load(config.model, device=config.device, dtype=dtype)
            self._backbone, self._loaded = backbone, (*key, _weights(backbone))
        return backbone

    def _ticks(self, name: str) -> Tick:
        last = 0.0

        def tick(stage: str, done: int, total: int, note: str) -> None:
            nonlocal last
            now = time.monotonic()
            if now - last >= _TICK_SECONDS or done == total:
                last = now
                far = f"{stage} {done}/{total}" if total else stage
                self.tell({"job": name, "kind": "progress", "note": far})

        return tick


def borrow_prompts(source: str, config: RunConfig) -> None:
    """Begin a run with the prompts that another one learned, so that it only queries."""
    folder = Folder(config.out)
    if folder.check("train", config, resume=True):
        return
    folder.write_config(config)
    # The prompts last: a run that has them is taken to have learned.
    for name in (HISTORY, PROMPTS):
        if not folder.has(name):
            folder.write(name, (Path(source) / name).read_bytes())


def bound_memory(device: str, gib: float) -> None:
    """Let this process take at most so much of a GPU's memory; passes are planned to fit."""
    place = torch.device(device)
    if gib <= 0 or place.type != "cuda":
        return
    total = torch.cuda.get_device_properties(place).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, gib * _GIB / total), place)


def _weights(backbone: LanguageModel) -> dict[str, float]:
    """Return a sum over every weight tensor, by which a change is seen."""
    with torch.no_grad():
        names, sums = [], []
        for name, value in backbone.model.named_parameters():
            names.append(name)
            sums.append(value.sum(dtype=torch.float64))
        return dict(zip(names, torch.stack(sums).tolist(), strict=True))


def _peak_gib(device: str, *, release: bool) -> float:
    """Return the most GPU memory held since the last call; ``release`` what is not in use."""
    if torch.device(device).type != "cuda":
        return 0.0
    peak = torch.cuda.max_memory_reserved(device) / _GIB
    if release:
        # What refers to itself is freed by nothing else, and may hold recorded graphs.
        gc.collect()
        torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    return round(peak, 2)


def _host_gib() -> float:
    """Return the most memory that this process has held; 0 where the system does not say."""
    if resource is None:
        return 0.0
    unit = 1 if sys.platform == "darwin" else 1024
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / _GIB, 2)


def serve(worker: Worker, inbox: queue.Queue[str]) -> None:
    """Run every job that comes in; end the process after an error that is not the input's."""
    while True:
        if not worker.answer(json.loads(inbox.get())):
            os._exit(1)


def listen(stream: TextIO, inbox: queue.Queue[str]) -> None:
    """Pass lines on; end the process with the input, whatever it is doing."""
    for line in stream:
        inbox.put(line)
    os._exit(0)


def main() -> None:
    """Serve until the input ends."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", required=True)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--memory-gib", type=float, default=0.0)
    flags = parser.parse_args()
    # Ctrl-C is for whoever started this process; its end closes the input.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # What libraries print must not come between the answers.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    run_worker(sys.stdin, answers, flags.device, flags.threads, flags.memory_gib)


def run_worker(
    orders: TextIO, answers: TextIO, device: str, threads: int, memory_gib: float
) -> None:
    """Serve orders from one stream, answering on another, until the orders end."""
    inbox: queue.Queue[str] = queue.Queue()
    threading.Thread(target=listen, args=(orders, inbox), daemon=True).start()

    def tell(answer: Mapping[str, Any]) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    serve(start(device, tell, threads, memory_gib), inbox)


def start(device: str, tell: Tell, threads: int, memory_gib: float) -> Worker:
    """Make this process a worker on a device; threads are torch's own if they are 0."""
    transformers_logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    if threads:
        torch.set_num_threads(threads)
    bound_memory(device, memory_gib)
    return Worker(device, tell)


if __name__ == "__main__":
    main()
