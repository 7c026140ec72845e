"""Tables that compare runs: P@1, P@10 and MRR with intervals, paired differences, per relation.

Everything here takes plain arrays and returns text, dictionaries or rich tables. Means are named
*mean over relations* and *mean over facts*, never micro and macro. rich is imported when a terminal
table is made: machines that only compute do not have it.

Run folders as rows of a comparison.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from symprompt.errors import SympromptError
from symprompt.report.grid import Grid
from symprompt.runs import statistics as averages
from symprompt.runs.statistics import (
    METRICS,
    OVER_FACTS,
    OVER_RELATIONS,
    Difference,
    Interval,
    Summary,
)

if TYPE_CHECKING:
    from rich.console import Group
from collections.abc import Mapping
from typing import Literal

from symprompt.errors import RunError
from symprompt.facts.types import Split
from symprompt.probing.folder import load_asked, load_card, load_weights, open_run
from symprompt.probing.predictions import Array, Predictions
from symprompt.runs.folder import MANIFEST, Folder

_LABELS = {"p1": "P@1", "p10": "P@10", "mrr": "MRR"}
_MISSING = "–"


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
    """

    name: str
    title: str
    relation_names: tuple[str, ...]
    relation: npt.NDArray[Any]
    rank: npt.NDArray[Any]
    key: Sequence[tuple[Any, ...]]
    note: str = ""

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


@dataclass(frozen=True)
class RunRow:
    """One run's row: its averages and their intervals, by averaging and metric."""

    name: str
    title: str
    facts: int
    relations: int
    means: dict[str, Summary]
    intervals: dict[str, dict[str, Interval]]


@dataclass(frozen=True)
class DifferenceRow:
    """One run against the first run, over the same facts."""

    name: str
    title: str
    values: dict[str, dict[str, Difference]]


@dataclass(frozen=True)
class RelationRow:
    """One relation: the number of facts and the averages, per run; None where a run lacks it."""

    relation: str
    facts: tuple[int, ...]
    means: tuple[Summary | None, ...]


@dataclass(frozen=True)
class Comparison:
    """Runs side by side; ``relations`` is empty unless asked for.

    Attributes:
        runs: one row per run.
        differences: the other runs that hold the same facts as the reference, minus it.
        relations: one row per relation.
        notes: remarks that belong under the table.
        draws: bootstrap resamplings behind every interval.
        seed: the bootstrap's seed.
        reference: which run the others are compared with.
    """

    runs: tuple[RunRow, ...]
    differences: tuple[DifferenceRow, ...]
    relations: tuple[RelationRow, ...]
    notes: tuple[str, ...]
    draws: int
    seed: int
    reference: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain dictionaries, lists, strings and numbers, ready for JSON."""
        return {
            "runs": [
                {
                    "name": run.name,
                    "title": run.title,
                    "facts": run.facts,
                    "relations": run.relations,
                }
                | {
                    averaging: {
                        metric: {
                            "value": getattr(run.means[averaging], metric),
                            **asdict(run.intervals[averaging][metric]),
                        }
                        for metric in METRICS
                    }
                    for averaging in (OVER_RELATIONS, OVER_FACTS)
                }
                for run in self.runs
            ],
            "differences": [
                {"name": row.name, "title": row.title, "to": self.runs[self.reference].name}
                | asdict(row)["values"]
                for row in self.differences
            ],
            "relations": [
                {
                    "relation": row.relation,
                    "runs": [
                        {"name": run.name, "facts": facts} | (asdict(means) if means else {})
                        for run, facts, means in zip(self.runs, row.facts, row.means, strict=True)
                    ],
                }
                for row in self.relations
            ],
            "notes": list(self.notes),
            "bootstrap": {"draws": self.draws, "seed": self.seed, "level": 0.95},
        }

    def to_markdown(self) -> str:
        """Return the tables and notes as Markdown."""
        parts = [grid.to_markdown() for grid in self._grids()]
        if self.notes:
            parts.append("\n".join(f"- {note}" for note in self.notes))
        return "\n\n".join(parts) + "\n"

    def to_rich(self) -> Group:
        """Return the tables and notes as one rich renderable."""
        from rich.console import Group
        from rich.text import Text

        return Group(*(grid.to_rich() for grid in self._grids()), *map(Text, self.notes))

    def __rich__(self) -> Group:
        """Let a rich console print the comparison directly."""
        return self.to_rich()

    def _grids(self) -> list[Grid]:
        grids = [self._means_grid(averaging) for averaging in (OVER_RELATIONS, OVER_FACTS)]
        return [*grids, self._relation_grid()] if self.relations else grids

    def _labels(self) -> dict[str, str]:
        return _labels([(run.name, run.title) for run in self.runs])

    def _means_grid(self, averaging: str) -> Grid:
        labels = self._labels()
        rows = tuple(
            (
                labels[run.name],
                str(run.facts),
                *(_mean_cell(run, averaging, metric) for metric in METRICS),
            )
            for run in self.runs
        )
        changes = tuple(
            (
                f"{labels[row.name]}\nminus {labels[self.runs[self.reference].name]}",
                "",
                *(_difference_cell(row.values[averaging][metric]) for metric in METRICS),
            )
            for row in self.differences
        )
        title = f"{averaging.capitalize()}, in percent, with 95 % intervals"
        return Grid(title, ("run", "facts", *_LABELS.values()), (rows, changes))

    def _relation_grid(self) -> Grid:
        labels = self._labels()
        columns = [
            f"{labels[run.name]}\n{label}" for run in self.runs for label in _LABELS.values()
        ]
        rows = tuple(
            (
                row.relation,
                # One number where the runs agree, one per run where they do not.
                " / ".join(map(str, set(row.facts) if len(set(row.facts)) == 1 else row.facts)),
                *(
                    f"{getattr(means, metric):.2f}" if means else _MISSING
                    for means in row.means
                    for metric in METRICS
                ),
            )
            for row in self.relations
        )
        return Grid("By relation, in percent", ("relation", "facts", *columns), (rows,))


def comparison(
    runs: Sequence[RunScores],
    *,
    by_relation: bool = False,
    draws: int = 1000,
    seed: int = 0,
    reference: int = 0,
) -> Comparison:
    """Compare runs with bootstrap intervals, each also paired with the reference, the first one.

    A run whose facts differ from the reference's gets no paired line but a note that says how many
    facts differ. Relations without a fact are named in a note.

    Args:
        runs: at least one run, with distinct names.
        by_relation: also make one row per relation.
        draws: bootstrap resamplings.
        seed: the bootstrap's seed.
        reference: the position of the run that the others are compared with.
    """
    if not runs:
        raise SympromptError("No runs to compare; give at least one.")
    names = [run.name for run in runs]
    if len(set(names)) != len(names):
        raise SympromptError(f"Runs {names} must have distinct names.")
    labels = _labels([(run.name, run.title) for run in runs])
    notes: list[str] = []
    differences: list[DifferenceRow] = []
    remarks = {run.name: _remarks(run) for run in runs}
    if len(runs) > 1 and all(remark == remarks[runs[0].name] for remark in remarks.values()):
        notes += [f"all runs: {remark}" for remark in remarks[runs[0].name]]
    else:
        notes += [f"{labels[name]}: {remark}" for name in remarks for remark in remarks[name]]
    first = runs[reference]
    for run in (*runs[:reference], *runs[reference + 1 :]):
        mismatch = _mismatch(first, run)
        if mismatch:
            notes.append(
                f"{labels[run.name]}: {mismatch} {labels[first.name]}, so no paired comparison."
            )
            continue
        values = averages.paired_bootstrap(
            first.rank, run.rank, first.relation, draws=draws, seed=seed
        )
        differences.append(DifferenceRow(run.name, run.title, values))
    return Comparison(
        tuple(_run_row(run, draws, seed) for run in runs),
        tuple(differences),
        _relation_rows(runs) if by_relation else (),
        tuple(notes),
        draws,
        seed,
        reference,
    )


def _run_row(run: RunScores, draws: int, seed: int) -> RunRow:
    return RunRow(
        run.name,
        run.title,
        len(run.key),
        np.unique(run.relation).size,
        averages.summarise(run.rank, run.relation),
        averages.bootstrap(run.rank, run.relation, draws=draws, seed=seed),
    )


def _relation_rows(runs: Sequence[RunScores]) -> tuple[RelationRow, ...]:
    """Return one row per relation name of any run, in order of first appearance."""
    names = dict.fromkeys(name for run in runs for name in run.relation_names)
    means: list[dict[str, Summary]] = []
    facts: list[Counter[str]] = []
    for run in runs:
        numbered = averages.by_relation(run.rank, run.relation)
        means.append({run.relation_names[number]: value for number, value in numbered.items()})
        facts.append(Counter(run.relation_names[number] for number in run.relation.tolist()))
    return tuple(
        RelationRow(
            name, tuple(count[name] for count in facts), tuple(mean.get(name) for mean in means)
        )
        for name in names
    )


def _remarks(run: RunScores) -> list[str]:
    present = set(run.relation.tolist())
    empty = [name for number, name in enumerate(run.relation_names) if number not in present]
    remarks = [run.note] if run.note else []
    if empty:
        remarks.append(f"no facts, so not in the means: {', '.join(empty)}.")
    return remarks


def _mismatch(first: RunScores, other: RunScores) -> str:
    """Return how the facts of two runs differ, or "" if they are the same in the same order."""
    keys_first = [tuple(key) for key in first.key]
    keys_other = [tuple(key) for key in other.key]
    if keys_first == keys_other:
        return ""
    missing = (Counter(keys_first) - Counter(keys_other)).total()
    added = (Counter(keys_other) - Counter(keys_first)).total()
    if not missing and not added:
        places = sum(a != b for a, b in zip(keys_first, keys_other, strict=True))
        return f"the same facts in another order ({places} places differ) than"
    return f"{missing + added} facts differ ({missing} missing, {added} added) from"


def _labels(names_and_titles: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Return what to call each run: its title, with the name where two runs share a title."""
    count = Counter(title for _, title in names_and_titles)
    return {
        name: title if count[title] == 1 else f"{title} ({name})"
        for name, title in names_and_titles
    }


def _mean_cell(run: RunRow, averaging: str, metric: str) -> str:
    interval = run.intervals[averaging][metric]
    value = getattr(run.means[averaging], metric)
    return f"{value:.2f}\n({interval.low:.2f} to {interval.high:.2f})"


def _difference_cell(change: Difference) -> str:
    """Return difference, interval and p; z keeps a rounded zero from showing as -0.00."""
    bounds = f"({change.low:+z.2f} to {change.high:+z.2f})"
    p = "p < 0.01" if change.p < 0.01 else f"p = {change.p:.2f}"
    return f"{change.difference:+z.2f}\n{bounds}\n{p}"


RankKind = Literal["realistic", "optimistic", "pessimistic"]
_NAMED = 5


def load_scores(
    path: str,
    *,
    split: Split = "test",
    kind: RankKind = "realistic",
    filtered: bool = False,
    forward: bool = False,
    k: int = 0,
    weight: float | None = None,
) -> RunScores:
    """Read one run's ranks from its stored predictions.

    Args:
        path: a finished run folder.
        filtered: leave other true objects of the same subject out of the ranks.
        forward: the order before asking back.
        k: ask back this many candidates instead of all that are stored.
        weight: re-rank with this weight instead of the run's.

    Raises:
        RunError: no finished run there, or it cannot be re-ranked as asked.
    """
    folder = open_run(path)
    details = folder.manifest.details
    asked = load_asked(folder, split)
    predictions = asked.predictions
    names = tuple(load_card(folder)["relations"])
    _check_options(path, predictions, k, weight)
    if forward or not predictions.asked_back:
        ranks = predictions.ranks(filtered=filtered)
    else:
        own = _weights(folder) if weight is None else np.full(len(names), weight)
        each = own[predictions.relation].astype(np.float32)
        ranks = predictions.reranked(each, k=k or None, filtered=filtered)
    suffix = " forward" if forward and predictions.asked_back else ""
    return RunScores(
        name=str(folder.path) + suffix,
        title=folder.name + suffix,
        relation_names=names,
        relation=predictions.relation,
        rank=getattr(ranks, kind).astype(np.float64),
        key=asked.keys(),
        note="; ".join(
            [
                *candidate_notes(details),
                *unfilled_notes(details, len(np.unique(predictions.relation))),
                *(f"{n} facts left out: {why}" for why, n in details["dropped"].items()),
            ]
        ),
    )


def candidate_notes(details: Mapping[str, Any]) -> list[str]:
    """Return a note if a run's ranks are among the names of candidates, not the vocabulary's."""
    counts = sorted((details["candidates"] or {}).values())
    if not counts:
        return []
    shown = f"{counts[0]}" if counts[0] == counts[-1] else f"{counts[0]} to {counts[-1]}"
    return [f"objects of any length: ranks are among {shown} candidates of each relation"]


def unfilled_notes(details: Mapping[str, Any], relations: int) -> list[str]:
    """Return a note if a search was too short to find all words of some relations' prompts."""
    names = details["unfilled"]
    if not names:
        return []
    shown = ", ".join(names[:_NAMED]) + (", ..." if len(names) > _NAMED else "")
    return [
        f"prompts that are not all words, as the search was too short: {len(names)} of "
        f"{relations} relations ({shown}); raise learning.epochs or search.steps"
    ]


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
            f"k is {k}, but {path} stores {predictions.candidates.shape[1]} candidates; choose a "
            "smaller k, or train again with a larger one."
        )


def _weights(folder: Folder) -> Array:
    weights = load_weights(folder)
    if weights is None:
        raise RunError(
            f"{folder.path / MANIFEST} is damaged: weights is missing, and the run asked back."
        )
    return weights
