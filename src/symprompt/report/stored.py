"""Results that were stored as JSON, printed again without the runs they came from.

Read are the files of ``symprompt reproduce`` (results.json) and of ``experiments/compare.py``: a
table whose entries with "metrics" are methods, each perhaps with "minus NAME", its difference to
another one. A list "tasks" holds results on labelled tasks, see ``symprompt.report.tasks``; a list
"tables" holds tables of text: title, header, rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from symprompt.errors import RunError
from symprompt.files.atomic import read_json
from symprompt.report.grid import Grid, Grids
from symprompt.report.tasks import TaskResults
from symprompt.runs.statistics import METRICS, OVER_FACTS, OVER_RELATIONS

_LABELS = ("P@1", "P@10", "MRR")
_MINUS = "minus "


@dataclass(frozen=True)
class StoredResults(Grids):
    """A file of results; final."""

    path: str
    values: dict[str, Any]

    def grids(self) -> list[Grid]:
        """Return the methods and their differences, by averaging."""
        found = []
        for averaging in (OVER_RELATIONS, OVER_FACTS):
            rows, changes = [], []
            for name, entry in _methods(self.values).items():
                cells = (_cell(entry["metrics"][averaging][metric]) for metric in METRICS)
                rows.append((name, str(len(entry.get("seeds", [])) or ""), *cells))
                for key, values in entry.items():
                    if key.startswith(_MINUS):
                        cells = (_change(values[averaging][metric]) for metric in METRICS)
                        changes.append((f"{name}\n{key}", "", *cells))
            title = f"{averaging.capitalize()}, in percent, with 95 % intervals"
            header = ("method", "seeds", *_LABELS)
            found.append(Grid(title, header, (tuple(rows), tuple(changes))))
        return found


@dataclass(frozen=True)
class StoredTables(Grids):
    """Results that are tables already: each a title, a header and rows of text; final."""

    values: dict[str, Any]

    def grids(self) -> list[Grid]:
        """Return the tables."""
        return [
            Grid(
                str(table["title"]),
                tuple(map(str, table["header"])),
                (tuple(tuple(map(str, row)) for row in table["rows"]),),
            )
            for table in self.values["tables"]
        ]


def is_stored(path: str) -> bool:
    """Say whether a path is a file of results and not a run folder."""
    return path.endswith(".json") and Path(path).is_file()


def load_stored(path: str) -> Grids:
    """Read a file of results.

    Raises:
        RunError: it holds none.
    """
    values = read_json(Path(path))
    listed = values if isinstance(values, dict) else {}
    results: Grids = StoredResults(path, values)
    if isinstance(listed.get("tasks"), list):
        results = TaskResults(listed)
    elif isinstance(listed.get("tables"), list) and not _methods(listed):
        results = StoredTables(listed)
    try:
        if isinstance(results, StoredResults) and not _methods(values):
            raise ValueError("no entry has metrics")
        results.grids()
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise RunError(
            f"{path} holds no results ({error}); give a results.json written by reproduce, a file "
            "of experiments/results, or run folders."
        ) from error
    return results


def _methods(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: entry
        for name, entry in values.items()
        if isinstance(entry, dict) and "metrics" in entry
    }


def _cell(value: Mapping[str, float]) -> str:
    return f"{value['value']:.2f}\n({value['low']:.2f} to {value['high']:.2f})"


def _change(value: Mapping[str, float]) -> str:
    p = "p < 0.01" if value["p"] < 0.01 else f"p = {value['p']:.2f}"
    bounds = f"({value['low']:+z.2f} to {value['high']:+z.2f})"
    return f"{value['difference']:+z.2f}\n{bounds}\n{p}"
