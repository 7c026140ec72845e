"""One call for a paper's tables: make the runs that are missing, then read tables off them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from symprompt.errors import RunError
from symprompt.files.atomic import read_json, to_json, write_file
from symprompt.files.progress import Tick, silent
from symprompt.papers.executor import Executor, LocalExecutor, run_jobs
from symprompt.papers.fact_jobs import make_fact_plan
from symprompt.papers.folder import OWN, hold_folder
from symprompt.papers.jobs import Outcome, Plan
from symprompt.papers.ptuning import draw_ptuning, ptuning_sections
from symprompt.papers.ptuning_v2 import draw_v2, v2_sections
from symprompt.papers.records import Entries, load_entries, load_results, to_records
from symprompt.papers.settings import PTUNING_V2, FactSettings, TaskPaper, TaskSettings
from symprompt.papers.spe import fact_page, run_times
from symprompt.papers.task_jobs import make_task_plan
from symprompt.report.figures import NEED, can_draw
from symprompt.report.pages import Page, Section
from symprompt.report.records import plain_results
from symprompt.runs.folder import Folder, Manifest, Record, validated

AnyPlan = Plan[FactSettings] | Plan[TaskSettings]
TITLES = {
    "ptuning": "P-tuning on SuperGLUE: the paper's Tables 3 to 6",
    "ptuning-v2": "P-tuning v2: the paper's Tables 1 to 4",
}
_COLUMNS = (
    'Columns headed "published" are the paper\'s own figures, printed for other models; all '
    "others are our measurements."
)
_PAGES = ("report.md", "report.html", "results.json")


@dataclass(frozen=True)
class Reproduction:
    """What came of it; final.

    Attributes:
        outcome: of the runs; nothing was made for tables of stored results.
        files: the pages, tables and figures that were written.
    """

    out: str
    outcome: Outcome
    files: tuple[Path, ...]

    @property
    def failed(self) -> dict[str, str]:
        """The runs that failed, and why; the tables name them."""
        return self.outcome.failed


def make_plan(settings: FactSettings | TaskSettings) -> AnyPlan:
    """Look at models and data, and list the jobs; nothing is written.

    Raises:
        SympromptError: bad settings, models or data, or a folder that was made with other ones.
    """
    if isinstance(settings, FactSettings):
        return make_fact_plan(settings)
    return make_task_plan(settings)


def reproduce(
    settings: FactSettings | TaskSettings,
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
        executor: where jobs run; worker processes on this machine if it is None.
        tick: is called with progress.

    Raises:
        SympromptError: bad settings, models or data, a folder made with other ones, or no run
            that came to its end.

    Example:
        >>> settings = FactSettings(data="lama", models=("shipped",))         # doctest: +SKIP
        >>> reproduce(settings).files                                         # doctest: +SKIP
    """
    plan = make_plan(settings)  # what is wrong is found before a folder is made
    out = Path(settings.out)
    with hold_folder(out) as held:
        plan.write()
        executor = executor or LocalExecutor(out, settings, held=held)
        outcome = run_jobs(plan.jobs, executor, tick=tick)
        tick("tables", 0, 1, "")
        files = write_tables(plan, outcome)
        tick("tables", 1, 1, "")
    return Reproduction(settings.out, outcome, files)


def write_tables(plan: AnyPlan, outcome: Outcome) -> tuple[Path, ...]:
    """Write the tables and figures of a plan's finished runs; return the files.

    Raises:
        SympromptError: no run came to its end, or one is damaged.
    """
    out = Path(plan.out)
    if isinstance(plan.settings, FactSettings):
        page = fact_page(plan, outcome)
        files = (*page.write(out), _write_times(plan, outcome))
    else:
        entries = load_entries(plan, outcome.failed, _describe(plan))
        outcome.require_some(bool(entries.values))
        page = _task_page(plan.settings.paper, entries, outcome, out)
        files = tuple(page.write(out))
    _write_manifest(plan, page)
    return files


def _write_manifest(plan: AnyPlan, page: Page) -> None:
    """State what the reproduction is and what came of it, as every run folder does."""
    folder, settings = Folder(plan.out), plan.settings
    about: dict[str, Any] = {"method": "spe", "seeds": settings.seeds}
    if isinstance(settings, TaskSettings):
        about = {"method": settings.paper, "seeds": settings.all_seeds}
    models = ", ".join(model.name for model in plan.models)
    manifest = Manifest(command="reproduce", model=models, **about)
    records = validated(list[Record], page.results["records"], folder.path)
    folder.start(None, manifest)
    folder.finish(records=records)


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
        not folder.is_dir()
        or any(entry.name not in (*_PAGES, *OWN, "figures") for entry in folder.iterdir())
    )
    if others:
        raise RunError(f"{out} exists and holds other things; choose another --out.")
    files = _task_page(paper, entries, outcome, folder).write(folder)
    return Reproduction(out, outcome, tuple(files))


def _describe(plan: AnyPlan) -> str:
    """Return what the tables of labelled tasks are about, in a sentence or two."""
    assert isinstance(plan.settings, TaskSettings)
    parts = [
        f"Models: {', '.join(model.name for model in plan.models)}.",
        f"Seeds: {', '.join(map(str, plan.settings.all_seeds))}.",
        *plan.settings.describe_trial("examples"),
    ]
    return " ".join(parts)


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
    sizes = {model: entries.parameters(model) for model in entries.models}
    about = {"note": entries.note, "paper": paper, "model parameters": sizes}
    results = plain_results(about, to_records(entries.values.values()))
    return Page(TITLES[paper], text, tuple(sections), results)


def _write_times(plan: AnyPlan, outcome: Outcome) -> Path:
    """Write how long every run took, apart from the tables, which are the same whenever made."""
    path = Path(plan.out) / "times.json"
    times: dict[str, Any] = read_json(path) if path.is_file() else {}
    for name, stages in run_times(plan).items():  # type: ignore[arg-type]
        times[name] = times.get(name, {}) | stages | outcome.made.get(name, {})
    write_file(path, to_json(times))
    return path


def show_plan(plan: Plan[Any]) -> None:
    """Print every job of a plan, whether it is there, and what is not measured."""
    done = [job for job in plan.jobs if job.finished]
    print(f"{len(plan.jobs)} runs, {len(done)} of them done, in {plan.out}:")
    for job in plan.jobs:
        state = "done" if job.finished else "begun" if job.begun else ""
        print(f"  {job.name:<48} {state}".rstrip())
    for name, why in plan.missing.items():
        print(f"  {name}: not measured: {why}")


def show_reproduction(made: Reproduction) -> None:
    """Print where the tables are, what failed, and how to look at the results again."""
    outcome = made.outcome
    if outcome.made or outcome.skipped or outcome.failed:
        counts = f"{len(outcome.made)} runs made, {len(outcome.skipped)} there from before"
        print(f"{counts}, {len(outcome.failed)} failed.")
    for run, why in outcome.failed.items():
        print(f"  {run} failed: {why}")
    for path in made.files:
        print(f"  {path}")
    if not can_draw():
        print(f"no figures: {NEED}.")
    print(f"print the results again: symprompt table {made.out}/results.json")
