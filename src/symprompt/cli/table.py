"""``symprompt table``, ``diff``, ``runs`` and ``configs``: what is there, read without torch."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from symprompt.cli.flags import ConfigsFlags, DiffFlags, ExamplesFlags, RunsFlags, TableFlags
from symprompt.cli.output import give
from symprompt.cli.parsing import refuse_given
from symprompt.config import TABLES, nearest, shipped_configs
from symprompt.errors import ConfigError
from symprompt.files.atomic import write_file
from symprompt.files.grid import Grids
from symprompt.report.records import is_results, list_grid, list_runs, load_results, load_runs
from symprompt.runs.folder import Folder, Record

_TRIES = {
    "learn prompts from facts": "train my-facts --data {}/facts.csv --out runs/facts",
    "sort tickets": "tune my-labels --data {}/tickets.csv --columns text=ticket label=team"
    " --out runs/tickets",
    "find names": "tune my-tags --data {}/names --out runs/names",
    "tag parts of speech": "tune my-tags --data {}/parts-of-speech --out runs/pos",
    "answer questions": "tune my-questions --data {}/questions --out runs/questions",
    "draw a word's senses": "senses map bank,banks --corpus {}/text.txt --clusters 2 --out bank",
}
"""What the example files are for."""
_OF_FACTS = {"train", "rerank"}
# Flags that any table takes.
_ALWAYS = {"runs", "format", "json"}


def run_table(flags: TableFlags) -> None:
    """Run ``symprompt table RUN [RUN ...]``."""
    if flags.json and flags.format not in ("text", "json"):
        raise ConfigError(f"--json and --format {flags.format} are two formats; give one of them.")
    if any(map(is_results, flags.runs)):
        _show_results(flags)
        return
    if flags.figure:
        from symprompt.report.figures import check_figure

        check_figure(flags.figure)
    commands = {Folder(path).require_finished().command for path in flags.runs}
    if not commands <= _OF_FACTS:
        why = "is about runs on facts alone; leave it out."
        refuse_given(flags, {*_ALWAYS, "split", "figure"}, why)
        results = load_runs(flags.runs, flags.split)
        _show_tables(results.tables(), flags, results.records)
        return
    _compare(flags)


def _compare(flags: TableFlags) -> None:
    """Print runs on facts side by side, from their stored predictions."""
    from symprompt.report.tables import comparison, facts_split, load_scores

    if flags.coherency and (flags.k or flags.weight is not None):
        raise ConfigError(
            "--coherency is about each run's own answers; leave --k and --weight out, which make "
            "other ones."
        )
    paths = list(flags.runs)
    if flags.baseline and Path(flags.baseline) not in map(Path, paths):
        paths.insert(0, flags.baseline)
    rows, reference = [], 0
    for path in paths:
        options: dict[str, Any] = {
            "split": facts_split(flags.split),
            "kind": flags.ranks,
            "filtered": flags.filtered,
            "both": not flags.filtered,
            "coherency": flags.coherency,
        }
        main = load_scores(path, **options, k=flags.k, weight=flags.weight)
        if flags.forward:
            before = load_scores(path, **options, forward=True)
            rows += [before] if before.name != main.name else []
        rows.append(main)
        if flags.baseline and Path(path) == Path(flags.baseline):
            reference = len(rows) - 1
    found = comparison(
        rows, by_relation=flags.by == "relation", draws=flags.draws, reference=reference
    )
    _show_tables(found, flags)


def run_diff(flags: DiffFlags) -> None:
    """Run ``symprompt diff RUN_A RUN_B``."""
    from symprompt.report.diff import check_ending, diff_runs

    if flags.out:
        check_ending(flags.out)
    found = diff_runs(
        flags.first,
        flags.second,
        split=flags.split,
        top=flags.top,
        filtered=flags.filtered,
        ranks=flags.ranks,
        examples=flags.examples,
    )
    if flags.out:
        found.write(flags.out)
    written = [f"all that differ: {flags.out}"] if flags.out else []
    give(flags.json, found.tables.values, found.tables, *written)


def run_runs(flags: RunsFlags) -> None:
    """Run ``symprompt runs [FOLDER]``."""
    rows = list_runs(flags.folder)
    give(flags.json, rows, list_grid(rows) if rows else f"no runs below {flags.folder}")


def _show_results(flags: TableFlags) -> None:
    """Print results that were stored as JSON; what would need the runs is refused."""
    for path in flags.runs:
        if not is_results(path):
            raise ConfigError(f"{path} is no JSON file; give stored results or run folders apart.")
    why = "needs run folders; stored results are printed as they are."
    refuse_given(flags, {*_ALWAYS, *["html"] * (len(flags.runs) == 1)}, why)
    found = [load_results(path).tables() for path in flags.runs]
    if flags.format == "csv":
        found = [Grids({}, [grid for own in found for grid in own.grids])]
    for tables in found:
        _show_tables(tables, flags)


def _show_tables(tables: Grids, flags: TableFlags, records: Sequence[Record] = ()) -> None:
    if flags.html or flags.figure:
        _write_tables(tables, flags, records)
    written = {"markdown": Grids.to_markdown, "csv": Grids.to_csv, "latex": Grids.to_latex}
    shaped = written[flags.format](tables).rstrip("\n") if flags.format in written else tables
    give(flags.json or flags.format == "json", tables.values, shaped)


def _write_tables(tables: Grids, flags: TableFlags, records: Sequence[Record]) -> None:
    """Write tables as a page and draw them, where there is something to draw."""
    from symprompt.report.figures import can_draw, draw_comparison, draw_results, save_figure
    from symprompt.report.pages import tables_page

    figure = None
    if can_draw():
        drawn = "bootstrap" in tables.values
        figure = draw_comparison(tables.values) if drawn else draw_results(records)
    if flags.figure:
        if figure is None:
            raise ConfigError("--figure draws runs on facts and on labelled tasks; leave it out.")
        save_figure(figure, Path(flags.figure))
    if flags.html:
        write_file(Path(flags.html), tables_page(tables, "Runs compared", figure).encode())


def run_configs(flags: ConfigsFlags) -> None:
    """List what ships, or print one."""
    shipped = shipped_configs()
    if not flags.name:
        width = max(map(len, shipped))
        for command in TABLES:
            print(f"for symprompt {command}:")
            for name, path in shipped_configs(command).items():
                first = path.read_text(encoding="utf-8").splitlines()[0].strip("#. ")
                print(f"  {name:<{width}} {first}")
        print("symprompt configs NAME prints one; save it, change it and give its path instead.")
        return
    if flags.name not in shipped:
        near = nearest(flags.name, shipped)
        raise ConfigError(
            f"no config {flags.name!r} ships{f' (did you mean {near}?)' if near else ''}; shipped "
            f"are: {', '.join(shipped)}."
        )
    print(shipped[flags.name].read_text(encoding="utf-8"), end="")


def run_examples(flags: ExamplesFlags) -> None:
    """Write the example files that ship."""
    target, source = Path(flags.folder), Path(str(resources.files("symprompt") / "examples"))
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ConfigError(f"{target} exists and is not an empty folder; choose another one.")
    for path in sorted(path for path in source.rglob("*") if path.is_file()):
        write_file(target / path.relative_to(source), path.read_bytes())
    print(f"example files: {target}")
    for about, command in _TRIES.items():
        print(f"{about}:\n  symprompt {command.format(target)}")
