"""SPE's Table 1: methods x models, with intervals, and SPE minus P-tuning."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

from symprompt.papers import published
from symprompt.papers.groups import Group, Loaded
from symprompt.papers.rows import PTUNING, SPE, Row
from symprompt.probing.folder import RunFolder
from symprompt.report.grid import Grid
from symprompt.report.pages import Section
from symprompt.report.tables import unfilled_notes
from symprompt.runs.statistics import (
    METRICS,
    OVER_FACTS,
    OVER_RELATIONS,
    Difference,
    Interval,
    bootstrap,
    paired_bootstrap,
    summarise,
)

_AVERAGES = (OVER_RELATIONS, OVER_FACTS)
_ENVIRONMENT = ("device", "dtype", "torch", "transformers", "model_fingerprint")
DASH = "–"


@dataclass(frozen=True)
class Measured:
    """What the bootstrap says of every group, by label, and of SPE minus P-tuning, by model."""

    intervals: dict[str, dict[str, dict[str, Interval]]]
    differences: dict[str, dict[str, dict[str, Difference]]]


def measure_groups(loaded: Loaded, draws: int) -> Measured:
    """Resample every group's facts, and those of SPE and P-tuning together."""
    groups = list(loaded.groups.values())
    # numpy lets go of the interpreter while it draws, so threads share the work.
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as threads:
        drawn = threads.map(lambda one: bootstrap(one.rank, one.relation, draws=draws), groups)
        intervals = {group.label: found for group, found in zip(groups, drawn, strict=True)}
    differences = {}
    for model in loaded.plan.models:
        base, other = (loaded.groups.get((model.name, name)) for name in (PTUNING, SPE))
        if base is not None and other is not None and base.keys == other.keys:
            differences[model.name] = paired_bootstrap(
                base.rank, other.rank, base.relation, draws=draws
            )
    return Measured(intervals, differences)


def table_1(loaded: Loaded, measured: Measured) -> Section:
    """Return SPE's Table 1 with our numbers, one table per model and average."""
    grids = [
        _model_grid(loaded, measured, model.name, averaging)
        for averaging in _AVERAGES
        for model in loaded.plan.models
    ]
    return Section(
        "SPE, Table 1: methods",
        (
            "Percent, realistic ranks, raw (other true objects count as wrong), mean over the "
            "seeds; in brackets the 95 % interval of a bootstrap over facts within relations "
            f"({loaded.plan.settings.draws:,} draws). The columns named “published” hold the "
            "papers' own figures, P@1 / P@10 / MRR, for other models: [S] is SPE's Table 1, "
            "[P] is P-tuning's Table 2 (P@1 alone). The two print different figures for the same "
            "methods, and mix averages over relations and over facts.",
        ),
        tuple(grids),
        tuple(_notes(loaded)),
    )


def _model_grid(loaded: Loaded, measured: Measured, model: str, averaging: str) -> Grid:
    places = published.MODELS
    header = ("method", "seeds", "P@1", "P@10", "MRR", *(f"published:\n{name}" for name in places))
    rows = []
    for row in loaded.plan.rows:
        group = loaded.groups.get((model, row.config))
        theirs = tuple(published_cell(row, place) for place in range(len(places)))
        if group is None:
            rows.append((row.name, "", loaded.missing[model, row.config], "", "", *theirs))
            continue
        cells = []
        for metric in METRICS:
            value = getattr(group.means[averaging], metric)
            interval = measured.intervals[group.label][averaging][metric]
            cells.append(f"{value:.2f}\n({interval.low:.2f} to {interval.high:.2f})")
        rows.append((row.name, seeds_cell(group), *cells, *theirs))
    changes: tuple[tuple[str, ...], ...] = ()
    if model in measured.differences:
        values = measured.differences[model][averaging]
        cells = [difference_cell(values[metric]) for metric in METRICS]
        changes = (("SPE minus P-tuning", "", *cells, *_published_difference()),)
    title = f"{model}, {averaging}"
    return Grid(title, header, (tuple(rows), changes), marked=(5, 6, 7))


def seeds_cell(group: Group) -> str:
    """Return how many seeds a group has, and out of how many if some are missing."""
    if not group.row.seeded:
        return DASH
    count = len(group.seeds)
    return str(count) if count == group.wanted else f"{count} of {group.wanted}"


def difference_cell(change: Difference) -> str:
    """Return a difference with its interval and p; z keeps a rounded zero from being -0.00."""
    p = "p < 0.01" if change.p < 0.01 else f"p = {change.p:.2f}"
    return f"{change.difference:+z.2f}\n({change.low:+z.2f} to {change.high:+z.2f})\n{p}"


def published_cell(row: Row, place: int) -> str:
    """Return what the papers print for a method on one of their models."""
    parts = []
    figures = published.SPE_TABLE_1.get(row.published, (None, None, None))[place]
    if figures is not None:
        parts.append(" / ".join(f"{value:.1f}" for value in figures) + " [S]")
    other = published.PTUNING_34K.get(row.published, {}).get(published.MODELS[place])
    if other is not None:
        parts.append(f"{other:.1f} [P]")
    return "\n".join(parts) or DASH


def _published_difference() -> tuple[str, ...]:
    cells = []
    for place in range(len(published.MODELS)):
        ours = published.SPE_TABLE_1["SPE"][place]
        base = published.SPE_TABLE_1["P-tuning"][place]
        assert ours is not None
        assert base is not None
        changes = (f"{a - b:+.1f}" for a, b in zip(ours, base, strict=True))
        cells.append(" / ".join(changes) + " [S]")
    return tuple(cells)


def _notes(loaded: Loaded) -> list[str]:
    notes = [f"{run} failed: {why}" for run, why in loaded.failed.items()]
    for model in loaded.plan.models:
        groups = loaded.of_model(model.name)
        if not groups:
            continue
        first = groups[0]
        notes.append(
            f"{model.name}: {len(first.keys):,} test facts of "
            f"{len(set(first.relation.tolist()))} relations"
            + (f"; {first.note}." if first.note else ".")
        )
        for group in groups[1:]:
            if group.keys != first.keys:
                notes.append(
                    f"{group.label}: {len(group.keys):,} test facts, not the same as those of "
                    f"{first.row.name}."
                )
        for group in groups:
            for path, seed in zip(group.paths, group.seeds, strict=True):
                found = unfilled_notes(RunFolder(path).load_metrics())
                notes += [f"{group.label}, seed {seed}: {note}." for note in found]
    return notes


def result_entries(loaded: Loaded, measured: Measured) -> dict[str, Any]:
    """Return every group as ``symprompt table`` reads it back: metrics, intervals, differences."""
    entries: dict[str, Any] = {}
    for group in loaded.groups.values():
        folders = [RunFolder(path) for path in group.paths]
        environment = folders[0].load_environment()
        weights = [folder.load_metrics()["weights"] or {} for folder in folders]
        entry: dict[str, Any] = {
            "model": group.model,
            "config": group.row.config,
            "facts": len(group.keys),
            "relations": len(set(group.relation.tolist())),
            "seeds": list(group.seeds),
            "weights": [sorted(set(one.values())) for one in weights],
            "environment": {key: environment[key] for key in _ENVIRONMENT if key in environment},
            "metrics": {
                averaging: {
                    metric: {
                        "value": getattr(group.means[averaging], metric),
                        **asdict(measured.intervals[group.label][averaging][metric]),
                    }
                    for metric in METRICS
                }
                for averaging in _AVERAGES
            },
            "by_seed": [
                {name: asdict(one) for name, one in summarise(rank, group.relation).items()}
                for rank in group.rank
            ],
        }
        if group.row.config == SPE and group.model in measured.differences:
            base = loaded.groups[group.model, PTUNING].label
            entry[f"minus {base}"] = {
                averaging: {metric: asdict(value) for metric, value in values.items()}
                for averaging, values in measured.differences[group.model].items()
            }
        entries[group.label] = entry
    return entries
