"""Make a plan's runs on labelled tasks one after the other in this process; skip what is done.

A model is loaded once and its tasks are laid out once for all runs, which is what costs time here;
runs of one model on one GPU would only share it.
"""

from __future__ import annotations

import gc
import time
import traceback
from pathlib import Path
from typing import Any

import torch

from symprompt.errors import SympromptError
from symprompt.files.atomic import write_file
from symprompt.files.progress import Tick, silent
from symprompt.models import LanguageModel
from symprompt.papers.labelled.plan import Job, LabelledPlan
from symprompt.papers.pool import Outcome
from symprompt.tasks.config import TuneConfig
from symprompt.tasks.multitask import tune_mixture
from symprompt.tasks.patterns.train import load_for_tuning, tune_pattern
from symprompt.tasks.prepare import Session
from symprompt.tasks.train import tune


class _Maker:
    """Makes the runs of one model; final."""

    def __init__(self) -> None:
        self._session = Session()
        self._backbone: LanguageModel | None = None

    def make(self, job: Job, tick: Tick) -> None:
        """Make a run, or go on with it."""
        if isinstance(job.config, TuneConfig):
            train = tune_mixture if job.config.mixture.tasks else tune
            train(job.config, resume=True, tick=tick, session=self._session)
            return
        if self._backbone is None:
            self._backbone = load_for_tuning(job.config)
        tune_pattern(job.config, resume=True, backbone=self._backbone, tick=tick)


def make_jobs(plan: LabelledPlan, *, tick: Tick = silent) -> Outcome:
    """Make every run of a plan that is not there; a run that fails does not stop the others.

    Args:
        tick: told of progress: how many runs are done, and what is being made.
    """
    todo = [job for job in plan.jobs if not job.finished]
    outcome = Outcome(skipped=tuple(job.name for job in plan.jobs if job not in todo))
    done, total = len(outcome.skipped), len(plan.jobs)
    tick("runs", done, total, f"{done} there from before" if done else "")
    maker, model = _Maker(), ""
    for job in todo:
        if job.model != model:
            # The old model and its tasks go first: two may not fit.
            maker, model = _Maker(), job.model
            _let_go()
        begun = time.perf_counter()
        why = _attempt(plan, maker, job, _inner(tick, job, done, total))
        done += 1
        if why:
            outcome.failed[job.name] = why
            # What a failure left in the model is not known.
            maker = _Maker()
            _let_go()
        else:
            about: dict[str, Any] = {"seconds": round(time.perf_counter() - begun, 2)}
            outcome.made[job.name] = about
        tick("runs", done, total, f"{job.name}: {'failed' if why else 'done'}")
    return outcome


def _attempt(plan: LabelledPlan, maker: _Maker, job: Job, tick: Tick) -> str:
    """Make a run; return why it failed, or nothing."""
    try:
        maker.make(job, tick)
    except SympromptError as error:
        return str(error)
    except torch.OutOfMemoryError:
        return "the device ran out of memory."
    except Exception as error:  # whatever it is, the other runs go on
        log = Path(plan.settings.out) / "logs" / f"{job.name.replace('/', '-')}.log"
        write_file(log, traceback.format_exc().encode())
        first = str(error).strip().splitlines()[:1] or [""]
        return f"{type(error).__name__}: {first[0]} (see {log})"
    return ""


def _inner(tick: Tick, job: Job, done: int, total: int) -> Tick:
    def told(stage: str, at: int, of: int, note: str) -> None:
        tick("runs", done, total, f"{job.name}: {stage} {at}/{of}")

    return told


def _let_go() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
