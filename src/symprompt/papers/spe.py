"""One call for the whole of SPE's and P-tuning's tables: runs first, then what is read off them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from symprompt.errors import SympromptError
from symprompt.files.atomic import read_json, to_json, write_file
from symprompt.files.progress import Tick, silent
from symprompt.papers.candidates import pool_means, table_2, table_3
from symprompt.papers.drawing import draw_pictures
from symprompt.papers.groups import Loaded, load_groups
from symprompt.papers.imbalance import imbalance_section
from symprompt.papers.lock import hold_folder
from symprompt.papers.methods import measure_groups, result_entries, table_1
from symprompt.papers.plan import Plan, make_plan
from symprompt.papers.pool import Outcome, make_runs
from symprompt.papers.ptuning import prompt_type_section, wording_section
from symprompt.papers.settings import ReproduceSettings
from symprompt.papers.subsets import subset_section
from symprompt.report import figures
from symprompt.report.pages import Picture, Section, html_page, markdown_page

TITLE = "Fact retrieval by prompts: SPE's and P-tuning's tables"


@dataclass(frozen=True)
class Reproduction:
    """What came of it.

    Attributes:
        files: the pages, tables and figures that were written.
        failed: run -> why it failed; its row says so in the tables.
        drawn: whether there are figures; they need matplotlib.
    """

    plan: Plan
    outcome: Outcome
    files: tuple[Path, ...]
    drawn: bool

    @property
    def failed(self) -> dict[str, str]:
        """The runs that failed, and why."""
        return self.outcome.failed


def reproduce(settings: ReproduceSettings, *, tick: Tick = silent) -> Reproduction:
    """Make every run of the papers' tables that is not there yet, and write the tables.

    Runs go to OUT/runs/MODEL/CONFIG-SEED and are ordinary run folders. Stop it as you like: called
    again with the same settings it goes on, and the tables are those of an undisturbed one. A run
    that fails is named in the tables and does not stop the others.

    Args:
        settings: models, data, and how much of it all.
        tick: told of progress.

    Raises:
        SympromptError: bad settings, models or facts, or a folder that was made with other ones.

    Example:
        >>> settings = ReproduceSettings(data="lama", models=("shipped",))    # doctest: +SKIP
        >>> reproduce(settings).files                                         # doctest: +SKIP
    """
    make_plan(settings)  # what is wrong is found before a folder is made
    out = Path(settings.out)
    with hold_folder(out) as held:
        plan = make_plan(settings)
        plan.write()
        outcome = make_runs(plan, held=held, tick=tick)
        tick("tables", 0, 1, "")
        files, drawn = write_report(plan, outcome)
        tick("tables", 1, 1, "")
    return Reproduction(plan, outcome, files, drawn)


def write_report(plan: Plan, outcome: Outcome) -> tuple[tuple[Path, ...], bool]:
    """Write tables, figures and pages from the stored runs; return the files and whether drawn."""
    loaded = load_groups(plan, outcome)
    if not loaded.groups:
        whys = [f"{run}: {why}" for run, why in loaded.failed.items()]
        told = f"the first of {len(whys)} that failed is {whys[0]}" if whys else "none was planned."
        raise SympromptError(f"no run of the tables came to its end; {told}")
    out = Path(plan.settings.out)
    measured = measure_groups(loaded, plan.settings.draws)
    pools = pool_means(loaded)
    pictures: dict[str, list[Picture]] = {}
    if figures.can_draw():
        pictures = draw_pictures(loaded, measured, pools, out / "figures")
    sections = [
        _with(table_1(loaded, measured), pictures.get("methods", [])),
        _with(table_2(loaded, pools), pictures.get("candidates", [])),
        table_3(loaded),
        _with(imbalance_section(loaded), pictures.get("imbalance", [])),
        wording_section(loaded),
        prompt_type_section(loaded),
        subset_section(loaded),
    ]
    text = [describe(plan)]
    results: dict[str, Any] = {"note": describe(plan), "split": "test"}
    results |= {"draws": plan.settings.draws} | result_entries(loaded, measured)
    results["tables"] = [section.to_dict() for section in sections]
    written = {
        out / "report.md": markdown_page(TITLE, text, sections).encode(),
        out / "report.html": html_page(TITLE, text, sections).encode(),
        out / "results.json": to_json(results),
    }
    for path, content in written.items():
        write_file(path, content)
    drawn = [out / "figures" / picture.file for each in pictures.values() for picture in each]
    return (*written, _write_times(loaded, outcome), *drawn), bool(pictures)


def describe(plan: Plan) -> str:
    """Return what the tables are about, in a sentence or two."""
    settings = plan.settings
    parts = [
        f"Models: {', '.join(model.name for model in plan.models)}.",
        f"Facts: {Path(settings.data).name or settings.data}"
        + (f", relations {', '.join(settings.relations)}" if settings.relations else "")
        + ".",
        f"Seeds: {', '.join(map(str, settings.seeds))}.",
        "Vocabulary: "
        + (settings.vocabulary if settings.vocabulary in ("full", "objects") else "a word list")
        + ".",
    ]
    if settings.limit or settings.epochs:
        limit = f"at most {settings.limit} facts of each relation in each split"
        trial = [limit] if settings.limit else []
        trial += [f"{settings.epochs} training epochs"] if settings.epochs else []
        parts.append(f"A trial, not the papers' setting: {' and '.join(trial)}.")
    return " ".join(parts)


def _with(section: Section, pictures: list[Picture]) -> Section:
    return Section(section.title, section.text, section.grids, section.notes, tuple(pictures))


def _write_times(loaded: Loaded, outcome: Outcome) -> Path:
    """Write how long every run took, apart from the tables, which are the same whenever made."""
    path = Path(loaded.plan.settings.out) / "times.json"
    times: dict[str, Any] = read_json(path) if path.is_file() else {}
    for run in loaded.plan.runs:
        if run.folder.finished:
            stages = {"stages": run.folder.load_metrics()["seconds"]}
            times[run.name] = times.get(run.name, {}) | stages | outcome.made.get(run.name, {})
    write_file(path, to_json(times))
    return path
