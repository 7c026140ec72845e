"""One call for the tables of P-tuning or P-tuning v2: runs first, then what is read off them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from symprompt.errors import RunError, SympromptError
from symprompt.files.atomic import to_json, write_file
from symprompt.files.progress import Tick, silent
from symprompt.papers.labelled.entries import Entries, load_jobs, load_results
from symprompt.papers.labelled.figures import draw_ptuning, draw_v2
from symprompt.papers.labelled.jobs import make_jobs
from symprompt.papers.labelled.plan import LabelledPlan, make_labelled_plan
from symprompt.papers.labelled.ptuning import ptuning_sections
from symprompt.papers.labelled.settings import PTUNING_V2, LabelledSettings, Paper
from symprompt.papers.labelled.v2 import v2_sections
from symprompt.papers.lock import hold_folder
from symprompt.papers.pool import Outcome
from symprompt.papers.settings import OWN
from symprompt.report.figures import can_draw
from symprompt.report.pages import Picture, Section, html_page, markdown_page

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
class LabelledReport:
    """What came of it.

    Attributes:
        outcome: of the runs; nothing was made for tables of stored results.
        files: the pages, tables and figures that were written.
        drawn: whether there are figures; they need matplotlib.
    """

    out: str
    outcome: Outcome
    files: tuple[Path, ...]
    drawn: bool


def reproduce_labelled(settings: LabelledSettings, *, tick: Tick = silent) -> LabelledReport:
    """Make every run of a paper's tables on labelled tasks that is not there, and the tables.

    Runs go to OUT/runs/MODEL/TASK-METHOD-SEED and are ordinary run folders of tune. Stop it as you
    like: called again with the same settings it goes on. A run that fails is named in the tables
    and does not stop the others; a task whose data is not there reads "not measured".

    Args:
        settings: the paper, models, data, and how much of it all.
        tick: told of progress.

    Raises:
        SympromptError: bad settings, models or data, a folder made with other ones, or no run
            that came to its end.
    """
    plan = make_labelled_plan(settings)  # what is wrong is found before a folder is made
    with hold_folder(Path(settings.out)):
        plan.write()
        outcome = make_jobs(plan, tick=tick)
        entries = load_jobs(plan, outcome.failed)
        if not entries.values:
            first = next(iter(outcome.failed.items()), ("none", "nothing was planned."))
            raise SympromptError(
                f"no run of the tables came to its end; the first of {len(outcome.failed)} that "
                f"failed is {first[0]}: {first[1]}"
            )
        tick("tables", 0, 1, "")
        entries = replace(entries, note=describe(plan))
        files, drawn = _write(settings.paper, entries, Path(settings.out), outcome.failed)
        tick("tables", 1, 1, "")
    return LabelledReport(settings.out, outcome, files, drawn)


def report_results(paper: Paper, paths: Sequence[str], out: str) -> LabelledReport:
    """Write a paper's tables from stored files of results, without any run folder.

    Args:
        paths: JSON files such as those of experiments/results, or folders of them.
        out: folder for the tables; another report of stored results there is written anew.

    Raises:
        SympromptError: a file holds no results, none is of the paper's tables, or the folder holds
            something else.
    """
    entries = load_results(paths, paper)
    folder = Path(out)
    others = folder.exists() and (
        not folder.is_dir()
        or any(entry.name not in (*_PAGES, *OWN, "figures") for entry in folder.iterdir())
    )
    if others:
        raise RunError(f"{out} exists and holds other things; choose another --out.")
    files, drawn = _write(paper, entries, folder, {})
    return LabelledReport(out, Outcome(), files, drawn)


def describe(plan: LabelledPlan) -> str:
    """Return what the tables are about, in a sentence or two."""
    settings = plan.settings
    parts = [
        f"Models: {', '.join(model.name for model in plan.models)}.",
        f"Seeds: {', '.join(map(str, settings.all_seeds))}.",
    ]
    if settings.limit or settings.epochs:
        trial = [f"at most {settings.limit} examples of each split"] if settings.limit else []
        trial += [f"{settings.epochs} training epochs"] if settings.epochs else []
        parts.append(f"A trial, not the papers' setting: {' and '.join(trial)}.")
    return " ".join(parts)


def _write(
    paper: Paper, entries: Entries, out: Path, failed: Mapping[str, str]
) -> tuple[tuple[Path, ...], bool]:
    """Write tables, figures and pages; return the files and whether there are figures."""
    of_v2 = paper == PTUNING_V2
    sections = v2_sections(entries) if of_v2 else ptuning_sections(entries)
    pictures: list[Picture] = []
    drawn = can_draw()
    if drawn:
        folder = out / "figures"
        groups = draw_v2(entries, folder) if of_v2 else {"average": draw_ptuning(entries, folder)}
        pictures = [picture for group in groups.values() for picture in group]
        sections[0] = replace(sections[0], pictures=tuple(groups["average"]))
        if groups.get("tasks"):
            sections.append(Section("Methods by task", pictures=tuple(groups["tasks"])))
    if failed:
        notes = tuple(f"{name}: {why}" for name, why in failed.items())
        sections.append(Section("Runs that failed", notes=notes))
    text = [part for part in (entries.note, _COLUMNS) if part]
    results: dict[str, Any] = {"note": entries.note, "paper": paper, "tasks": entries.to_list()}
    results["tables"] = [section.to_dict() for section in sections]
    written = {
        out / "report.md": markdown_page(TITLES[paper], text, sections).encode(),
        out / "report.html": html_page(TITLES[paper], text, sections).encode(),
        out / "results.json": to_json(results),
    }
    for path, content in written.items():
        write_file(path, content)
    return (*written, *(out / "figures" / picture.file for picture in pictures)), drawn
