"""``symprompt table``, ``runs`` and ``configs``: what is there, read without torch."""

from __future__ import annotations

from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import Any

from symprompt.cli.flags import ConfigsFlags, ExamplesFlags, RunsFlags, TableFlags
from symprompt.cli.output import print_json
from symprompt.config import TABLES, nearest, shipped_configs
from symprompt.errors import ConfigError
from symprompt.files.atomic import write_file
from symprompt.report.grid import Grids, show
from symprompt.report.records import is_results, list_grid, list_runs, load_results, load_runs
from symprompt.runs.folder import Folder

_TRIES = {
    "learn prompts from facts": "train my-facts --data {}/facts.csv --out runs/facts",
    "sort tickets": "tune my-labels --data {}/tickets.csv --columns text=ticket label=team"
    " --out runs/tickets",
    "find names": "tune my-tags --data {}/names --out runs/names",
    "answer questions": "tune my-questions --data {}/questions --out runs/questions",
    "draw a word's senses": "senses map bank,banks --corpus {}/text.txt --clusters 2 --out bank",
}
"""What the example files are for."""
_OF_FACTS = {"train", "rerank"}


def run_table(flags: TableFlags) -> None:
    """Run ``symprompt table RUN [RUN ...]``."""
    if any(map(is_results, flags.runs)):
        _show_results(flags)
        return
    commands = {Folder(path).require_finished().command for path in flags.runs}
    if not commands <= _OF_FACTS:
        _refuse_flags(flags, {"split"}, "is about runs on facts alone; leave it out.")
        _show_tables(load_runs(flags.runs, flags.split).tables(), flags)
        return
    _compare(flags)


def _compare(flags: TableFlags) -> None:
    """Print runs on facts side by side, from their stored predictions."""
    from symprompt.report.tables import comparison, load_scores

    if flags.split not in ("", "dev", "test"):
        raise ConfigError(f"--split is {flags.split!r}; facts have the splits dev and test.")
    rows = []
    for path in flags.runs:
        options: dict[str, Any] = {
            "split": flags.split or "test",
            "kind": flags.ranks,
            "filtered": flags.filtered,
        }
        main = load_scores(path, **options, k=flags.k, weight=flags.weight)
        if flags.forward:
            before = load_scores(path, **options, forward=True)
            rows += [before] if before.name != main.name else []
        rows.append(main)
    found = comparison(rows, by_relation=flags.by == "relation", draws=flags.draws)
    _show_tables(found, flags)


def run_runs(flags: RunsFlags) -> None:
    """Run ``symprompt runs [FOLDER]``."""
    rows = list_runs(flags.folder)
    if flags.json:
        print_json(rows)
    elif rows:
        show(list_grid(rows))
    else:
        show(f"no runs below {flags.folder}")


def _show_results(flags: TableFlags) -> None:
    """Print results that were stored as JSON; what would need the runs is refused."""
    for path in flags.runs:
        if not is_results(path):
            raise ConfigError(f"{path} is no JSON file; give stored results or run folders apart.")
    _refuse_flags(flags, set(), "needs run folders; stored results are printed as they are.")
    for path in flags.runs:
        _show_tables(load_results(path).tables(), flags)


def _refuse_flags(flags: TableFlags, allowed: set[str], why: str) -> None:
    plain = TableFlags(runs=flags.runs)
    for name, value in asdict(flags).items():
        if name not in {"markdown", "json", *allowed} and value != getattr(plain, name):
            raise ConfigError(f"--{name} {why}")


def _show_tables(tables: Grids, flags: TableFlags) -> None:
    if flags.json:
        print_json(tables.values)
    elif flags.markdown:
        show(tables.to_markdown())
    else:
        show(tables)


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
