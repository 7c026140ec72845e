"""``symprompt reproduce`` and ``symprompt sweep``: lists of jobs, and the tables they end in."""

from __future__ import annotations

from dataclasses import fields

from symprompt.cli.paper_flags import BearFlags, LabelledFlags, ReproduceFlags, SweepFlags
from symprompt.cli.parsing import refuse_given
from symprompt.files.progress import show_progress
from symprompt.papers.report import (
    make_plan,
    report_results,
    reproduce,
    show_plan,
    show_reproduction,
)
from symprompt.papers.settings import (
    BearSettings,
    FactSettings,
    TaskOptions,
    TaskPaper,
    TaskSettings,
)
from symprompt.papers.sweep import make_sweep_plan, sweep
from symprompt.report.printing import show


def run_facts(flags: ReproduceFlags | BearFlags) -> None:
    """Run ``symprompt reproduce spe --models A B --data FOLDER``, or ``bear``."""
    _run(flags, dry_run=flags.dry_run)


def run_ptuning(flags: LabelledFlags) -> None:
    """Run ``symprompt reproduce ptuning --models A B --data FOLDER``."""
    _run_tasks(flags, "ptuning")


def run_ptuning_v2(flags: LabelledFlags) -> None:
    """Run ``symprompt reproduce ptuning-v2 --models A B --data FOLDER``."""
    _run_tasks(flags, "ptuning-v2")


def _run_tasks(flags: LabelledFlags, paper: TaskPaper) -> None:
    if flags.from_results:
        why = "is about runs, and --from-results makes none; leave one of them out."
        refuse_given(flags, {"out", "from_results"}, why)
        show_reproduction(report_results(paper, flags.from_results, flags.out))
        return
    values = {entry.name: getattr(flags, entry.name) for entry in fields(TaskOptions)}
    _run(TaskSettings(paper=paper, **values), dry_run=flags.dry_run)


def _run(settings: FactSettings | BearSettings | TaskSettings, *, dry_run: bool) -> None:
    if dry_run:
        show_plan(make_plan(settings))
        return
    with show_progress() as tick:
        made = reproduce(settings, tick=tick)
    show_reproduction(made)
    if made.outcome.failed:
        raise SystemExit(1)


def run_sweep(flags: SweepFlags) -> None:
    """Run ``symprompt sweep RECIPE --grid KEY=VALUE,VALUE --seeds 1 2``."""
    if flags.dry_run:
        show_plan(make_sweep_plan(flags)[0])
        return
    with show_progress() as tick:
        made = sweep(flags, tick=tick)
    show(made.grid)
    for job, why in made.outcome.failed.items():
        show(f"  {job} failed: {why}")
    show(f"print it again: symprompt table {flags.out}/results.json")
    if made.outcome.failed:
        raise SystemExit(1)
