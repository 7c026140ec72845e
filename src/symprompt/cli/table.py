"""``symprompt table``: runs of any kind compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from symprompt.cli.flags import TableFlags
from symprompt.cli.output import print_json
from symprompt.errors import ConfigError
from symprompt.report import comparison, load_scores, show
from symprompt.report.grid import Grids
from symprompt.report.stored import is_stored, load_stored
from symprompt.report.tasks import TaskResults, load_task_runs
from symprompt.tasks.folder import TaskFolder, is_task_run
from symprompt.tasks.patterns.folder import is_pattern_run


def run_table(flags: TableFlags) -> None:
    """Run ``symprompt table RUN [RUN ...]``."""
    if any(map(is_stored, flags.runs)):
        _show_stored(flags)
        return
    tasks = table_of_tasks(flags.runs, flags.split)
    if tasks is not None:
        plain = TableFlags(flags.runs, split=flags.split, markdown=flags.markdown, json=flags.json)
        _refuse_flags(flags, plain, "is about runs on facts; leave it out for labelled tasks.")
        _show_tables(tasks, flags)
        return
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
    if flags.json:
        print_json(found.to_dict())
    elif flags.markdown:
        print(found.to_markdown())
    else:
        show(found)


def _show_stored(flags: TableFlags) -> None:
    """Print results that were stored as JSON; what would need the runs is refused."""
    for path in flags.runs:
        if not is_stored(path):
            raise ConfigError(f"{path} is no JSON file; give stored results or run folders apart.")
    plain = TableFlags(flags.runs, markdown=flags.markdown, json=flags.json)
    _refuse_flags(flags, plain, "needs run folders; stored results are printed as they are.")
    for path in flags.runs:
        _show_tables(load_stored(path), flags)


def _refuse_flags(flags: TableFlags, plain: TableFlags, why: str) -> None:
    for name, value in asdict(flags).items():
        if value != getattr(plain, name):
            raise ConfigError(f"--{name} {why}")


def _show_tables(tables: Grids, flags: TableFlags) -> None:
    if flags.json:
        print_json(tables.values)
    elif flags.markdown:
        print(tables.to_markdown())
    else:
        show(tables.to_rich())


def table_of_tasks(paths: Sequence[str], split: str) -> TaskResults | None:
    """Return the table of runs of tune; None if none of the paths is one.

    Raises:
        ConfigError: some are and some are not.
    """
    ours = [path for path in paths if is_task_run(path) or is_pattern_run(path)]
    if not ours:
        return None
    if len(ours) < len(paths):
        other = next(path for path in paths if path not in ours)
        raise ConfigError(
            f"{other} is no run on a labelled task as the others are; compare the two kinds apart."
        )
    return load_task_runs([inner for path in ours for inner in task_paths(path)], split)


def task_paths(path: str, metrics: dict[str, Any] | None = None) -> list[str]:
    if is_pattern_run(path):
        return [path]
    folder = TaskFolder(path)
    found = metrics if metrics is not None else (folder.load_metrics() if folder.finished else {})
    return [str(Path(path, name)) for name in found.get("tasks", {})] or [path]
