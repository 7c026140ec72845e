"""Tables that compare runs: P@1, P@10 and MRR with intervals, paired differences, per relation.

Means are named *mean over relations* and *mean over facts*, never micro and macro.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from symprompt.errors import ConfigError, RunError, SympromptError, counted
from symprompt.facts.types import Split
from symprompt.files.grid import DASH, Grid, Grids, difference_cell, interval_cell
from symprompt.probing.results import (
    SUBJECT,
    Combination,
    Predictions,
    coherency_file,
    load_asked,
    load_card,
    load_coherency,
    load_combination,
    open_run,
)
from symprompt.probing.summary import candidate_notes, skipped_notes, unfilled_notes
from symprompt.report.records import METRIC_NAMES
from symprompt.runs import statistics as averages
from symprompt.runs.folder import MANIFEST
from symprompt.runs.statistics import OVER_FACTS, OVER_RELATIONS, Difference, Interval

_ABOUT_FILTERED = (
    "filtered: other true objects of the same subject are left out of the ranks (– where no rank "
    "changes)."
)
_MUCH, _SURE = 1.0, 0.01
_ABOUT_RELATIONS = (
    "by relation, p is of exchanging the two runs' ranks of a fact at random, two-sided, corrected "
    "for the number of relations by Holm's method."
)
RankKind = Literal["realistic", "optimistic", "pessimistic"]
_BESIDE = {
    "filtered": {metric: f"filtered\n{name}" for metric, name in METRIC_NAMES.items()},
    "coherency": {"p1": "coherency", "mrr": "coherency\nMRR"},
}
"""Further columns: of each kind the metrics that are shown, and their headings."""


@dataclass(frozen=True, eq=False)
class RunScores:
    """The ranks of one run, checked to be complete and consistent.

    Attributes:
        name: the run folder's name.
        title: the method on the model, as a reader should see it.
        relation_names: names of all relations of the run, distinct.
        relation: ``[facts]`` integers, positions in ``relation_names``.
        rank: ``[facts]``, the chosen kind of rank (optimistic, realistic or pessimistic).
        key: per fact (relation, subject, object): tells whether two runs hold the same facts.
        note: a remark to print below the table, or "".
        model: the model's name, or "".
        method: the method's name, or "".
        labels: what relations are about, by name, where that is known.
        beside: further ranks by kind: ``filtered``, without other true objects of the same subject;
            ``coherency``, of the subjects of some of the facts, asked back with the run's own first
            object.
    """

    name: str
    title: str
    relation_names: tuple[str, ...]
    relation: npt.NDArray[Any]
    rank: npt.NDArray[Any]
    key: Sequence[tuple[Any, ...]]
    note: str = ""
    model: str = ""
    method: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    beside: Mapping[str, RunScores] = field(default_factory=dict)

    def __post_init__(self) -> None:
        facts = len(self.key)
        if not facts or self.relation.shape != (facts,) or self.rank.shape != (facts,):
            raise SympromptError(
                f"Run {self.name!r}: {facts} keys, relation {list(self.relation.shape)}, rank "
                f"{list(self.rank.shape)}; needed is one of each per fact, and at least one fact."
            )
        if len(set(self.relation_names)) != len(self.relation_names):
            raise SympromptError(f"Run {self.name!r}: a relation's name occurs twice.")
        low, high = int(self.relation.min()), int(self.relation.max())
        if low < 0 or high >= len(self.relation_names):
            raise SympromptError(
                f"Run {self.name!r}: relation holds {low} to {high}, allowed are 0 to "
                f"{len(self.relation_names) - 1}, the positions in relation_names."
            )


def comparison(
    runs: Sequence[RunScores],
    *,
    by_relation: bool = False,
    draws: int = 1000,
    reference: int = 0,
) -> Grids:
    """Compare runs with bootstrap intervals, each also paired with the reference, the first one.

    A run whose facts differ from the reference's is paired on those that both have; a note says
    how many. Relations without a fact are named in a note. Filtered ranks stand beside raw ones
    where they differ, as a subject has several true objects.

    Args:
        runs: at least one run, with distinct names.
        by_relation: also make one row per relation.
        draws: bootstrap resamplings.
        reference: the position of the run that the others are compared with.

    Returns:
        Tables whose values are "runs", "differences" (the other runs minus the reference, on the
        facts that both have), "relations" with their own "differences", "notes" and "bootstrap".
    """
    names = [run.name for run in runs]
    if len(set(names)) != len(names):
        raise SympromptError(f"Runs {names} must have distinct names.")
    count = Counter(run.title for run in runs)
    labels = {
        run.name: run.title if count[run.title] == 1 else f"{run.title} ({run.name})"
        for run in runs
    }
    notes = shared_notes({labels[run.name]: remarks_of(run) for run in runs})
    if any(map(_filtered_differ, runs)):
        notes.append(_ABOUT_FILTERED)
    else:
        runs = [replace(run, beside=_without_filtered(run)) for run in runs]
    first = runs[reference]
    differences: list[dict[str, Any]] = []
    for run in (*runs[:reference], *runs[reference + 1 :]):
        pairs = shared_facts(first.key, run.key)
        if len(pairs) < max(len(first.key), len(run.key)):
            notes.append(_differing(run, first, len(pairs), labels))
        if not len(pairs):
            continue
        row: dict[str, Any] = {"name": run.name, "title": run.title, "to": first.name}
        row |= _changes(first, run, pairs, draws)
        for kind, one in first.beside.items():
            if kind not in run.beside:
                continue
            other = run.beside[kind]
            pairs = shared_facts(one.key, other.key)
            if len(pairs):
                row[kind] = _changes(one, other, pairs, draws)
        differences.append(row)
    if differences:
        notes.append(averages.ABOUT_P)
    relations = _relation_rows(runs, draws) if by_relation else []
    if by_relation and len(runs) > 1:
        notes += _compare_relations(runs, first, relations, labels, draws)
    values: dict[str, Any] = {
        "runs": [_run_row(run, labels[run.name], draws) for run in runs],
        "differences": differences,
        "relations": relations,
        "notes": notes,
        "bootstrap": about_bootstrap(draws),
    }
    grids = means_grids(values, _shown_columns(values["runs"]), labels)
    if by_relation:
        grids.append(_relation_grid(values["relations"], labels))
    return Grids(values, grids, notes)


def compare_runs(
    *runs: str | Path, by_relation: bool = False, split: str = "", draws: int = 1000
) -> Grids:
    """Return tables of runs on facts: P@1, P@10, MRR with intervals, differences from the first.

    Args:
        runs: finished run folders.
        by_relation: add a table of all relations.
        split: dev or test; empty takes test.
        draws: of the bootstrap.

    Raises:
        SympromptError: no finished run there, or none is given.

    Example:
        >>> tables = compare_runs("runs/ptuning", "runs/spe", draws=100)
        >>> tables.to_csv().splitlines()[0][:24]
        'table,run,facts,P@1,P@1 '
    """
    if not runs:
        raise ConfigError("no run was named; give one run folder or more.")
    scores = [load_scores(str(path), split=facts_split(split), both=True) for path in runs]
    return comparison(scores, by_relation=by_relation, draws=draws)


def about_bootstrap(draws: int) -> dict[str, Any]:
    """Return how intervals were made, for programs."""
    return {"draws": draws, "seed": 0, "level": averages.LEVEL}


def _filtered_differ(run: RunScores, relation: str = "") -> bool:
    """Return whether filtered ranks of a run, or of one of its relations, are not the raw ones."""
    if "filtered" not in run.beside:
        return False
    names = np.array([relation in ("", name) for name in run.relation_names])
    differ = run.beside["filtered"].rank != run.rank
    return bool((differ & names[run.relation]).any())


def _without_filtered(run: RunScores) -> dict[str, RunScores]:
    return {kind: own for kind, own in run.beside.items() if kind != "filtered"}


def shared_notes(remarks: Mapping[str, Sequence[str]]) -> list[str]:
    """Return what is remarked of each run, by its label; once what is remarked of all."""
    first, *others = remarks.values()
    shared = [own for own in first if others and all(own in theirs for theirs in others)]
    return [f"all runs: {own}" for own in shared] + [
        f"{label}: {own}" for label, every in remarks.items() for own in every if own not in shared
    ]


def _changes(
    first: RunScores, run: RunScores, pairs: npt.NDArray[Any], draws: int
) -> dict[str, Any]:
    """Return a run minus the first one on the facts that both have."""
    ours, theirs = pairs.T
    changes = averages.paired_bootstrap(
        first.rank[ours], run.rank[theirs], first.relation[ours], draws=draws
    )
    return {"facts": len(pairs), **_plain(changes)}


def _plain(measured: Mapping[str, Mapping[str, Interval | Difference]]) -> dict[str, Any]:
    return {
        averaging: {metric: asdict(value) for metric, value in own.items()}
        for averaging, own in measured.items()
    }


def _run_row(run: RunScores, label: str, draws: int) -> dict[str, Any]:
    """Return a run's averages and their intervals, by averaging and metric."""
    row: dict[str, Any] = {"name": run.name, "title": run.title, "label": label}
    row |= {"method": run.method, "model": run.model}
    row |= {"facts": len(run.key), "relations": np.unique(run.relation).size}
    for kind, own in run.beside.items():
        row[kind] = {"facts": len(own.key), **_averages(own.rank, own.relation, draws)}
    return row | _averages(run.rank, run.relation, draws)


def _averages(rank: npt.NDArray[Any], relation: npt.NDArray[Any], draws: int) -> dict[str, Any]:
    bounds = _plain(averages.bootstrap(rank, relation, draws=draws))
    return {
        averaging: {
            metric: {"value": value, **bounds[averaging][metric]}
            for metric, value in asdict(means).items()
        }
        for averaging, means in averages.summarise(rank, relation).items()
    }


def _relation_rows(runs: Sequence[RunScores], draws: int) -> list[dict[str, Any]]:
    """Return one row per relation name of any run, in order of first appearance.

    Each has the number of facts and the averages of every run; no averages where a run lacks it.
    """
    labels = {name: label for run in runs for name, label in run.labels.items()}
    rows = []
    for name in dict.fromkeys(name for run in runs for name in run.relation_names):
        found: list[dict[str, Any]] = []
        for run in runs:
            number = run.relation_names.index(name) if name in run.relation_names else -1
            own = run.relation == number
            row: dict[str, Any] = {"name": run.name, "facts": int(own.sum())}
            if own.any():
                row |= _averages(run.rank[own], run.relation[own], draws)[OVER_FACTS]
            several = any(_filtered_differ(own, name) for own in runs)
            for kind, beside in (run.beside if several else _without_filtered(run)).items():
                asked = beside.relation == number
                if asked.any():
                    means = _averages(beside.rank[asked], beside.relation[asked], draws)
                    row[kind] = {"facts": int(asked.sum()), OVER_FACTS: means[OVER_FACTS]}
            found.append(row)
        rows.append({"relation": name, "label": labels.get(name, ""), "runs": found})
    return rows


def _compare_relations(
    runs: Sequence[RunScores],
    first: RunScores,
    rows: Sequence[dict[str, Any]],
    labels: Mapping[str, str],
    draws: int,
) -> list[str]:
    """Add to each relation's row the other runs minus the first; return notes on what was lost."""
    notes = []
    by_name = {row["relation"]: row for row in rows}
    for run in runs:
        if run is first or not len(shared_facts(first.key, run.key)):
            continue
        kinds = [kind for kind in first.beside if kind in run.beside]
        beside = {kind: _paired(first.beside[kind], run.beside[kind], draws) for kind in kinds}
        found = _paired(first, run, draws)
        lost = []
        for name, change in found.items():
            row = by_name[name]
            shown = {kind for own in row["runs"] for kind in own}
            change |= {
                kind: own[name] for kind, own in beside.items() if kind in shown and name in own
            }
            row.setdefault("differences", []).append(change)
            if change["mrr"]["difference"] < -_MUCH and change["mrr"]["p"] < _SURE:
                lost.append(f"{name} ({change['mrr']['difference']:+.1f})")
        notes.append(
            f"{labels[run.name]} minus {labels[first.name]}, relations that lose more than "
            f"{_MUCH:g} MRR (p < {_SURE:g}, corrected for {counted(len(found), 'relation')}): "
            f"{', '.join(lost) or 'none'}."
        )
    return [*notes, _ABOUT_RELATIONS] if notes else []


def _paired(first: RunScores, run: RunScores, draws: int) -> dict[str, dict[str, Any]]:
    """Return a run minus the first for each relation, on the facts that both have."""
    ours, theirs = shared_facts(first.key, run.key).T
    relation = first.relation[ours]
    found = averages.paired_by_relation(first.rank[ours], run.rank[theirs], relation, draws=draws)
    return {
        first.relation_names[number]: {
            "name": run.name,
            "to": first.name,
            "facts": int((relation == number).sum()),
            **{metric: asdict(mean) for metric, mean in means.items()},
        }
        for number, means in found.items()
    }


# The kind of the figures, "" for a run's own ranks, and the metric -> the column's heading.
Columns = Mapping[tuple[str, str], str]


def means_grids(
    values: Mapping[str, Any], columns: Columns, labels: Mapping[str, str]
) -> list[Grid]:
    """Return a table of runs and of their differences, for either averaging.

    Args:
        values: "runs" and "differences".
        labels: what runs are called, by name.
    """
    grids = []
    for averaging in (OVER_RELATIONS, OVER_FACTS):
        rows = tuple(
            (labels[run["name"]], *_cells(run, averaging, columns, interval_cell))
            for run in values["runs"]
        )
        changes = tuple(
            (
                f"{labels[row['name']]}\nminus {labels[row['to']]}",
                *_cells(row, averaging, columns, difference_cell),
            )
            for row in values["differences"]
        )
        title = f"{averaging.capitalize()}, in percent, with 95 % intervals"
        grids.append(Grid(title, ("run", "facts", *columns.values()), (rows, changes)))
    return grids


def _shown_columns(rows: Sequence[Mapping[str, Any]]) -> Columns:
    """Return the columns of a table: those of every run, and further ones that any of them has."""
    beside = {
        (kind, metric): heading
        for kind, metrics in _BESIDE.items()
        for metric, heading in metrics.items()
        if any(kind in row for row in rows)
    }
    return {("", metric): name for metric, name in METRIC_NAMES.items()} | beside


def _cells(
    row: Mapping[str, Any], averaging: str, columns: Columns, cell: Callable[..., str]
) -> Iterator[str]:
    """Yield how many facts there are, and the figures of a row."""
    yield str(row["facts"])
    for kind, metric in columns:
        own = row.get(kind, {}) if kind else row
        # The figures of a relation stand in the row itself.
        means = own.get(averaging, own)
        yield cell(**means[metric]) if metric in means else DASH


def _relation_grid(relations: Sequence[Mapping[str, Any]], labels: Mapping[str, str]) -> Grid:
    """Return a row for each run below each relation; with one run there is no column of runs."""
    sections = []
    columns = _shown_columns([run for row in relations for run in row["runs"]])
    several = len(labels) > 1
    for row in relations:
        name = f"{row['relation']} {row['label']}".strip()
        section: list[tuple[str, ...]] = []
        for run in row["runs"]:
            # The relation stands in the first of its rows alone.
            label = (labels[run["name"]],) if several else ()
            cells = _cells(run, OVER_FACTS, columns, interval_cell)
            section.append(("" if section else name, *label, *cells))
        for change in row.get("differences", []):
            label = (f"{labels[change['name']]}\nminus {labels[change['to']]}",)
            section.append(("", *label, *_cells(change, OVER_FACTS, columns, difference_cell)))
        sections.append(tuple(section))
    header = ("relation", *["run"] * several, "facts", *columns.values())
    title = "By relation, in percent, with 95 % intervals"
    rows = tuple(sections) if several else (tuple(row for own in sections for row in own),)
    return Grid(title, header, rows, folded=(1,) if several else ())


def remarks_of(run: RunScores) -> list[str]:
    """Return what a reader must know of a run beside its figures: its model, what is left out."""
    present = set(run.relation.tolist())
    empty = [name for number, name in enumerate(run.relation_names) if number not in present]
    remarks = [f"model {run.model}"] if run.model else []
    remarks += [run.note] if run.note else []
    if empty:
        remarks.append(f"no facts, so not in the means: {', '.join(empty)}.")
    return remarks


def shared_facts(
    first: Sequence[tuple[Any, ...]], other: Sequence[tuple[Any, ...]]
) -> npt.NDArray[Any]:
    """Return the places of facts that both runs have, [facts, 2]; repeats are paired in turn.

    Args:
        first: per fact of one run what tells it from others; the second argument is the other's.
    """
    places: dict[tuple[Any, ...], list[int]] = {}
    for place, key in enumerate(other):
        places.setdefault(tuple(key), []).append(place)
    for own in places.values():
        own.reverse()
    pairs = [
        (place, places[tuple(key)].pop())
        for place, key in enumerate(first)
        if places.get(tuple(key))
    ]
    return np.array(pairs, dtype=np.int64).reshape(-1, 2)


def _differing(run: RunScores, first: RunScores, shared: int, labels: Mapping[str, str]) -> str:
    """Return a note on a run whose facts are not those of the reference."""
    name, to = labels[run.name], labels[first.name]
    if not shared:
        return f"{name}: no fact in common with {to}, so no paired comparison."
    return (
        f"{name}: compared with {to} on the {counted(shared, 'fact')} that both have; it has "
        f"{len(run.key) - shared} others, {to} has {len(first.key) - shared}."
    )


def facts_split(name: str) -> Split:
    """Return the split of facts that is asked for; an empty name is test.

    Raises:
        ConfigError: there is no such split.
    """
    if name not in ("", "dev", "test"):
        raise ConfigError(f"--split is {name!r}; facts have the splits dev and test.")
    return "dev" if name == "dev" else "test"


def load_scores(
    path: str,
    *,
    split: Split = "test",
    kind: RankKind = "realistic",
    filtered: bool = False,
    forward: bool = False,
    k: int = 0,
    weight: float | None = None,
    coherency: bool = False,
    both: bool = False,
) -> RunScores:
    """Read one run's ranks from its stored predictions.

    Args:
        path: a finished run folder.
        filtered: leave other true objects of the same subject out of the ranks.
        forward: the order before asking back.
        k: ask back this many candidates instead of all that are stored.
        weight: re-rank with this weight instead of the run's.
        coherency: also read where the subjects stand that were asked back with the run's own first
            objects; a run that cannot ask back has none.
        both: also read filtered ranks.

    Raises:
        RunError: no finished run there, or it cannot be re-ranked as asked, or its coherency was
            not measured.
    """
    folder = open_run(path)
    details = folder.manifest.details
    asked = load_asked(folder, split)
    predictions = asked.predictions
    card = load_card(folder)
    names = tuple(card["relations"])
    _check_options(path, predictions, k, weight)
    combination = None if forward else load_combination(folder)
    if combination is None and predictions.asked_back and not forward:
        raise RunError(
            f"{folder.path / MANIFEST} is damaged: weights is missing, and the run asked back."
        )
    if weight is not None and combination is not None:
        combination = Combination({SUBJECT: np.full(len(names), weight)})

    def ranked(*, filtered: bool) -> npt.NDArray[Any]:
        ranks = predictions.ranks(filtered=filtered)
        if combination is not None:
            ranks = predictions.reranked(combination, k=k or None, filtered=filtered)
        found: npt.NDArray[Any] = getattr(ranks, kind).astype(np.float64)
        return found

    suffix = " forward" if forward and details["weights"] else ""
    with folder.refuse_damage(MANIFEST):
        notes = [
            *candidate_notes(details),
            *unfilled_notes(details, len(np.unique(predictions.relation))),
            *skipped_notes(details.get("skipped", {})),
            *(f"{counted(n, 'fact')} left out: {why}" for why, n in details["dropped"].items()),
        ]
    found = RunScores(
        name=str(folder.path) + suffix,
        title=folder.name + suffix,
        relation_names=names,
        relation=predictions.relation,
        rank=ranked(filtered=filtered),
        key=asked.keys(),
        note="; ".join(notes),
        model=Path(folder.manifest.model).name,
        method=folder.manifest.method,
        labels={name: about["label"] for name, about in card["relations"].items()},
    )
    if both:
        found = replace(found, beside={"filtered": replace(found, rank=ranked(filtered=True))})
    if not coherency:
        return found
    if not predictions.asked_back:
        return replace(found, note="; ".join([*notes, "no subject prompt, so no coherency"]))
    back = load_coherency(folder, split)
    if back is None:
        raise RunError(
            f"the coherency of {path} on {split} was not measured; measure it with: symprompt "
            f"coherency {path}{'' if split == 'test' else f' --split {split}'}."
        )
    with folder.refuse_damage(coherency_file(split)):
        rank = getattr(back.ranks(forward=forward, filtered=filtered), kind)
        subjects = RunScores(
            name=found.name,
            title=found.title,
            relation_names=names,
            relation=found.relation[back.rows],
            rank=rank.astype(np.float64),
            key=[found.key[row] for row in back.rows.tolist()],
        )
    counts = sorted(back.note["subjects"].values())
    known = " to ".join(dict.fromkeys(map(str, (counts[0], counts[-1]))))
    told = (
        f"coherency: the subject's place among the {known} known ones of its relation, given the "
        f"run's own first object; {counted(len(back.rows), 'fact')} asked back"
    )
    beside = {**found.beside, "coherency": subjects}
    return replace(found, note="; ".join([*notes, told]), beside=beside)


def _check_options(path: str, predictions: Predictions, k: int, weight: float | None) -> None:
    """Refuse a k and weight that the stored predictions cannot be re-ranked with."""
    if k < 0 or (weight is not None and not weight >= 0):
        what = f"k is {k}" if k < 0 else f"weight is {weight}"
        raise RunError(f"{what}; it must be at least 0.")
    changed = k or weight is not None
    if changed and not predictions.asked_back:
        raise RunError(f"{path} did not ask back, so there is nothing to re-rank.")
    if k > predictions.candidates.shape[1]:
        raise RunError(
            f"k is {k}, but {path} stores {counted(predictions.candidates.shape[1], 'candidate')}; "
            "choose a smaller k, or train again with a larger one."
        )
