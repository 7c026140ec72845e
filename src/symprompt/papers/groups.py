"""A row of the tables for one model: its runs over the seeds, read from what they stored."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from symprompt.errors import RunError
from symprompt.facts import FactSet
from symprompt.papers.plan import Plan
from symprompt.papers.pool import Outcome
from symprompt.papers.rows import Row
from symprompt.probing.folder import RunFolder
from symprompt.report.tables import load_scores
from symprompt.runs.statistics import OVER_RELATIONS, Summary, summarise

Ranks = npt.NDArray[np.float64]
Key = tuple[Any, ...]


@dataclass(frozen=True, eq=False)
class Group:
    """The finished runs of a method on a model; final.

    Attributes:
        paths: run folders, one per seed.
        seeds: their seeds.
        wanted: how many runs there should be.
        rank: [seeds, facts], realistic ranks.
        relation: [facts] int, places in ``names``.
        keys: per fact (relation, subject, object).
    """

    row: Row
    model: str
    paths: tuple[str, ...]
    seeds: tuple[int, ...]
    wanted: int
    names: tuple[str, ...]
    rank: Ranks
    relation: npt.NDArray[Any]
    keys: tuple[Key, ...]
    note: str

    @property
    def label(self) -> str:
        """What results call the group: model and method."""
        return f"{self.model}: {self.row.name}"

    @cached_property
    def facts(self) -> FactSet:
        """The facts of the first run, training facts too."""
        return RunFolder(self.paths[0]).load_facts()

    @cached_property
    def means(self) -> dict[str, Summary]:
        """P@1, P@10 and MRR by averaging."""
        return summarise(self.rank, self.relation)

    def mean_of(self, keep: npt.NDArray[np.bool_]) -> Summary | None:
        """Return the mean over relations of some of the facts; None if there are none."""
        if not keep.any():
            return None
        return summarise(self.rank[:, keep], self.relation[keep])[OVER_RELATIONS]


@dataclass(frozen=True)
class Loaded:
    """Everything the tables read: the groups, and why a row has none.

    Attributes:
        groups: (model, row config) -> group.
        missing: (model, row config) -> what stands in the table instead.
        failed: run -> why it failed.
    """

    plan: Plan
    groups: dict[tuple[str, str], Group]
    missing: dict[tuple[str, str], str]
    failed: dict[str, str]

    def of_model(self, model: str) -> list[Group]:
        """Return a model's groups in the order of the rows."""
        found = (self.groups.get((model, row.config)) for row in self.plan.rows)
        return [group for group in found if group is not None]


def load_groups(plan: Plan, outcome: Outcome) -> Loaded:
    """Read the ranks of every finished run of the rows.

    Raises:
        RunError: a run is damaged, or the runs of one model were made by different weights.
    """
    groups: dict[tuple[str, str], Group] = {}
    missing = {(gap.model, gap.row): gap.why for gap in plan.gaps}
    for model in plan.models:
        for row in plan.rows:
            place = (model.name, row.config)
            if place in missing:
                continue
            group = _load_group(plan, model.name, row)
            if group is None:
                missing[place] = "failed"
            else:
                groups[place] = group
    return Loaded(plan, groups, missing, dict(sorted(outcome.failed.items())))


def _load_group(plan: Plan, model: str, row: Row) -> Group | None:
    runs = plan.runs_of(model, row.config)
    done = [run for run in runs if run.folder.finished]
    if not done:
        return None
    scores = [load_scores(run.config.out) for run in done]
    if any(list(score.key) != list(scores[0].key) for score in scores):
        raise RunError(f"the runs of {row.name} on {model} are about different facts.")
    wanted = plan.record["models"][model]["fingerprint"]
    for run in done:
        found = run.folder.load_environment()["model_fingerprint"]
        if found != wanted:
            raise RunError(
                f"{run.config.out} was made by other weights ({found}) than {model} has now "
                f"({wanted}); delete the folder to make it again."
            )
    return Group(
        row,
        model,
        tuple(run.config.out for run in done),
        tuple(run.config.seed for run in done),
        len(runs),
        scores[0].relation_names,
        np.stack([score.rank for score in scores]),
        scores[0].relation,
        tuple(tuple(key) for key in scores[0].key),
        scores[0].note,
    )
