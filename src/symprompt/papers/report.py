"""One call for a paper's tables: make the runs that are missing, then read tables off them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from symprompt.cluster.executor import Executor
from symprompt.errors import RunError, counted
from symprompt.files.atomic import to_json, write_file
from symprompt.files.progress import Tick, duration, silent
from symprompt.papers.bear import bear_page, make_bear_plan
from symprompt.papers.fact_jobs import make_fact_plan
from symprompt.papers.jobs import (
    TIMES,
    Job,
    Outcome,
    Plan,
    load_metrics,
    load_times,
    run_plan,
)
from symprompt.papers.ptuning import draw_ptuning, ptuning_sections
from symprompt.papers.ptuning_v2 import draw_v2, v2_sections
from symprompt.papers.records import Entries, describe_plan, load_entries, load_results
from symprompt.papers.settings import (
    PTUNING_V2,
    BearSettings,
    FactSettings,
    TaskPaper,
    TaskSettings,
)
from symprompt.papers.spe import fact_page
from symprompt.papers.task_jobs import make_task_plan
from symprompt.report.figures import NEED, can_draw
from symprompt.report.pages import Page, Section
from symprompt.report.printing import show
from symprompt.runs.folder import CONFIG, LOCK, Folder

AnySettings = FactSettings | BearSettings | TaskSettings
AnyPlan = Plan[FactSettings] | Plan[BearSettings] | Plan[TaskSettings]
TITLES = {
    "ptuning": "P-tuning on SuperGLUE: the paper's Tables 3 to 6",
    "ptuning-v2": "P-tuning v2: the paper's Tables 1 to 4",
}
_COLUMNS = (
    'Columns headed "published" are the paper\'s own figures, printed for other models; all '
    "others are our measurements."
)
_PAGES = ("report.md", "report.html", "results.json", "figures", LOCK)


@dataclass(frozen=True)
class Reproduction:
    """What came of it; final.

    Attributes:
        outcome: of the runs, those that failed too; nothing was made for stored results.
        files: the pages, tables and figures that were written.
    """

    out: str
    outcome: Outcome
    files: tuple[Path, ...]


def reproduce(
    settings: AnySettings,
    *,
    executor: Executor | None = None,
    tick: Tick = silent,
) -> Reproduction:
    """Make every run of a paper's tables that is not there yet, and write the tables.

    Runs go to OUT/runs/MODEL and are ordinary run folders. Stop it as you like: called again with
    the same settings it goes on, and the tables are those of an undisturbed one. A run that fails
    is named in the tables and does not stop the others; a task whose data is not there reads "not
    measured".

    Args:
        settings: models, data, and how much of it all.
        executor: where jobs run; where the settings say if it is None.
        tick: is called with progress.

    Raises:
        SympromptError: bad settings, models or data, a folder made with other ones, or no run
            that came to its end.

    Example:
        >>> settings = FactSettings(data="lama", models=("shipped",))         # doctest: +SKIP
        >>> reproduce(settings).files                                         # doctest: +SKIP
    """
    plan = make_plan(settings)  # what is wrong is found before a folder is made
    pages = partial(make_page, plan)
    outcome, files = run_plan(plan, pages, executor=executor, tick=tick)
    if not isinstance(settings, TaskSettings):
        files.append(_write_times(plan, outcome))
    return Reproduction(settings.out, outcome, tuple(files))


def task_page(plan: Plan[TaskSettings], outcome: Outcome) -> Page:
    """Return the tables of labelled tasks, their figures drawn into the plan's folder.

    Raises:
        SympromptError: no run came to its end, or one is damaged.
    """
    entries = load_entries(plan, outcome.failed, describe_plan(plan, "examples"))
    outcome.require_some(bool(entries.records))
    return _task_page(plan.settings.paper, entries, outcome, Path(plan.out))


# What makes a paper's plan, and the page of its finished runs.
_PAPERS: dict[type[Any], tuple[Callable[[Any], AnyPlan], Callable[[Any, Outcome], Page]]] = {
    FactSettings: (make_fact_plan, fact_page),
    BearSettings: (make_bear_plan, bear_page),
    TaskSettings: (make_task_plan, task_page),
}


def _find_paper(settings: AnySettings) -> tuple[Callable[[Any], AnyPlan], Callable[..., Page]]:
    return next(own for kind, own in _PAPERS.items() if isinstance(settings, kind))


def make_plan(settings: AnySettings) -> AnyPlan:
    """Look at models and data, and list the jobs; nothing is written.

    Raises:
        SympromptError: bad settings, models or data, or a folder that was made with other ones.
    """
    return _find_paper(settings)[0](settings)


def make_page(plan: AnyPlan, outcome: Outcome) -> Page:
    """Return the tables of a plan's finished runs, their figures drawn into the plan's folder.

    Raises:
        SympromptError: no run came to its end, or one is damaged.
    """
    return _find_paper(plan.settings)[1](plan, outcome)


def report_results(paper: TaskPaper, paths: Sequence[str], out: str) -> Reproduction:
    """Write a paper's tables from stored files of results, without any run folder.

    Args:
        paths: JSON files such as those of experiments/results, or folders of them.
        out: folder for the tables; another report of stored results there is written anew.

    Raises:
        SympromptError: a file holds no results, none is of the paper's tables, or the folder holds
            something else.
    """
    entries = load_results(paths, paper)
    folder, outcome = Path(out), Outcome()
    others = folder.exists() and (
        not folder.is_dir() or any(entry.name not in _PAGES for entry in folder.iterdir())
    )
    if others:
        raise RunError(f"{out} exists and holds other things; choose another --out.")
    files = _task_page(paper, entries, outcome, folder).write(folder)
    return Reproduction(out, outcome, tuple(files))


def _task_page(paper: TaskPaper, entries: Entries, outcome: Outcome, out: Path) -> Page:
    """Return the tables of labelled tasks, their figures drawn into the folder."""
    of_v2 = paper == PTUNING_V2
    sections = v2_sections(entries) if of_v2 else ptuning_sections(entries)
    if can_draw():
        folder = out / "figures"
        groups = draw_v2(entries, folder) if of_v2 else {"average": draw_ptuning(entries, folder)}
        sections[0] = replace(sections[0], pictures=tuple(groups["average"]))
        if groups.get("tasks"):
            sections.append(Section("Methods by task", pictures=tuple(groups["tasks"])))
    if outcome.failed:
        notes = tuple(f"{name}: {why}" for name, why in outcome.failed.items())
        sections.append(Section("Runs that failed", notes=notes))
    text = tuple(part for part in (entries.note, _COLUMNS) if part)
    sizes = {model: entries.sizes.get(model, 0) for model in entries.models}
    about = {"note": entries.note, "paper": paper, "model parameters": sizes}
    records = [record for own in entries.records.values() for record in own]
    return Page(TITLES[paper], text, tuple(sections), about, records)


def _write_times(plan: AnyPlan, outcome: Outcome) -> Path:
    """Write how long every run took, apart from the tables, which are the same whenever made."""
    path = Path(plan.out) / TIMES
    times = load_times(Path(plan.out))
    for job in plan.jobs:
        if job.finished:
            stages = {"stages": load_metrics(job.config)["seconds"]}
            times[job.name] = times.get(job.name, {}) | stages | outcome.made.get(job.name, {})
    write_file(path, to_json(times))
    return path


def show_plan(plan: Plan[Any]) -> None:
    """Print every job of a plan, whether it is there, how long it may take, what is not measured.

    Time and memory are those of finished runs of the same row and model; others have no estimate.
    """
    done = [job for job in plan.jobs if job.finished]
    show(f"{counted(len(plan.jobs), 'run')}, {len(done)} of them done, in {plan.out}:")
    known = _measured(plan, done)
    left, unknown = 0.0, 0
    for job in plan.jobs:
        begun = "begun" if Folder(job.config.out).has(CONFIG) else ""
        state, guess = "done" if job.finished else begun, ""
        if not job.finished and (job.model, job.row) in known:
            seconds, host, gib = known[job.model, job.row]
            left += seconds
            guess = f"about {duration(seconds)}" + (f", {host:.1f} GiB of memory" if host else "")
            guess += f", {gib:.1f} GiB of a GPU" if gib else ""
        unknown += not (job.finished or guess)
        show(f"  {job.name:<48} {state:<6}{guess}".rstrip())
    for name, why in plan.missing.items():
        show(f"  {name}: not measured: {why}")
    if left:
        show(f"about {duration(left)} of work in runs like those that are done, one by one.")
    if unknown:
        show(f"no estimate for {counted(unknown, 'run')}: no run of the row on its model is done.")


def _measured(
    plan: Plan[Any], done: Sequence[Job]
) -> dict[tuple[str, str], tuple[float, float, float]]:
    """Return mean seconds and peak memory, the machine's and a GPU's, of finished runs by row."""
    times = load_times(Path(plan.out))
    found: dict[tuple[str, str], list[tuple[float, float, float]]] = {}
    for job in done:
        about = times.get(job.name, {})
        stages = sum(Folder(job.config.out).manifest.seconds.values())
        seconds = about.get("seconds", stages)
        peaks = about.get("host_gib", 0.0), about.get("peak_gib", 0.0)
        found.setdefault((job.model, job.row), []).append((seconds, *peaks))
    return {
        key: (fmean(seconds), max(hosts), max(gpus))
        for key, own in found.items()
        for seconds, hosts, gpus in [tuple(zip(*own, strict=True))]
    }


def show_reproduction(made: Reproduction) -> None:
    """Print where the tables are, what failed, and how to look at the results again."""
    outcome = made.outcome
    if outcome.made or outcome.skipped or outcome.failed:
        counts = (
            f"{counted(len(outcome.made), 'run')} made, {len(outcome.skipped)} there from before"
        )
        show(f"{counts}, {len(outcome.failed)} failed.")
    for run, about in outcome.made.items():
        for why in about.get("again", ()):
            show(f"  {run} was tried again: {why}")
    for run, why in outcome.failed.items():
        show(f"  {run} failed: {why}")
    for path in made.files:
        show(f"  {path}")
    if not can_draw():
        show(f"no figures: {NEED}.")
    show(f"print the results again: symprompt table {made.out}/results.json")
