"""Tables of how alike runs' first answers are when their facts are asked in other words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from symprompt.files.grid import DASH, Grid, Grids, interval_cell
from symprompt.report.tables import about_bootstrap, means_grids, shared_facts, shared_notes
from symprompt.runs.statistics import ABOUT_P, OVER_FACTS, bootstrap_means

if TYPE_CHECKING:
    from symprompt.probing.rewording import Consistency

_COLUMNS = {
    "consistency": "consistency",
    "p1": "P@1 of a\nrewording",
    "always": "right in\nall",
    "own": "as its own\nprompt",
}


def consistency_tables(
    runs: Mapping[str, Consistency],
    *,
    by_relation: bool = False,
    forward: bool = False,
    draws: int = 1000,
) -> Grids:
    """Return the consistency of runs with bootstrap intervals, each also minus the first.

    Args:
        runs: by their folders.
        by_relation: also make one row per relation.
        forward: also the first answers by object score of runs that re-rank.
        draws: bootstrap resamplings of facts.

    Returns:
        Tables whose values are "runs", "differences", "relations", "notes" and "bootstrap".
    """
    names = {path: Path(path).name for path in runs}
    if len(set(names.values())) < len(names):
        names = {path: path for path in runs}
    rows = [
        (f"{names[path]}{' forward' if order == 'forward' else ''}", run, values)
        for path, run in runs.items()
        for order, values in sorted(run.values.items())
        if order == "raw" or forward
    ]
    notes = shared_notes({names[path]: _remarks(run) for path, run in runs.items()})
    listed: list[dict[str, Any]] = []
    differences: list[dict[str, Any]] = []
    relations: list[dict[str, Any]] = []
    for title, run, values in rows:
        figures = _figures(values, run.relation, draws)
        listed.append({"name": title, "facts": len(run.facts), **figures})
        relations += _relation_rows(title, run, values, draws) if by_relation else []
    first, base, before = rows[0]
    for title, run, values in rows[1:]:
        pairs = shared_facts(_keys(base), _keys(run))
        if not len(pairs):
            continue
        ours, theirs = pairs.T
        change = {name: values[name][theirs] - before[name][ours] for name in _COLUMNS}
        found = bootstrap_means(_percent(change), base.relation[ours], draws=draws)
        plain = {mean: {k: asdict(v) for k, v in own.items()} for mean, own in found.items()}
        differences.append({"name": title, "to": first, "facts": len(pairs), **plain})
    if differences:
        notes.append(ABOUT_P)
    values_all: dict[str, Any] = {
        "runs": listed,
        "differences": differences,
        "relations": relations,
        "rewordings": {names[path]: dict(run.rewordings) for path, run in runs.items()},
        "notes": notes,
        "bootstrap": about_bootstrap(draws),
    }
    columns = {("", name): heading for name, heading in _COLUMNS.items()}
    grids = means_grids(values_all, columns, {title: title for title, *_ in rows})
    if by_relation:
        grids.append(_relation_grid(relations))
    return Grids(values_all, grids, notes)


def _keys(run: Consistency) -> list[tuple[str, str, str]]:
    return [(fact.relation, fact.subject, fact.object) for fact in run.facts]


def _percent(values: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
    return {name: 100 * own for name, own in values.items()}


def _figures(
    values: Mapping[str, npt.NDArray[Any]], relation: npt.NDArray[Any], draws: int
) -> dict[str, Any]:
    found = bootstrap_means(_percent(values), relation, draws=draws)
    return {
        averaging: {
            name: {"value": own.difference, "low": own.low, "high": own.high}
            for name, own in means.items()
        }
        for averaging, means in found.items()
    }


def _relation_rows(
    title: str, run: Consistency, values: Mapping[str, npt.NDArray[Any]], draws: int
) -> Iterator[dict[str, Any]]:
    for number in np.unique(run.relation).tolist():
        own = run.relation == number
        name = run.relations[number]
        figures = _figures(
            {key: value[own] for key, value in values.items()}, run.relation[own], draws
        )
        yield {
            "relation": name,
            "name": title,
            "facts": int(own.sum()),
            "rewordings": run.rewordings[name],
            **figures[OVER_FACTS],
        }


def _relation_grid(rows: list[dict[str, Any]]) -> Grid:
    sections: dict[str, list[tuple[str, ...]]] = {}
    for row in rows:
        section = sections.setdefault(row["relation"], [])
        section.append(
            (
                "" if section else row["relation"],
                row["name"],
                str(row["facts"]),
                str(row["rewordings"]),
                *(interval_cell(**row[name]) if name in row else DASH for name in _COLUMNS),
            )
        )
    header = ("relation", "run", "facts", "rewordings", *_COLUMNS.values())
    title = "By relation, in percent, with 95 % intervals"
    return Grid(title, header, tuple(map(tuple, sections.values())), folded=(1,))


def _remarks(run: Consistency) -> list[str]:
    counts = sorted(run.rewordings.values())
    shown = " to ".join(dict.fromkeys(map(str, (counts[0], counts[-1]))))
    return [f"{shown} rewordings of a relation, such as {run.example!r}", *run.notes]
