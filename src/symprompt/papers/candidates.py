"""SPE's Table 2, the number of candidates that are asked back, and Table 3, what that moves."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from symprompt.papers import published
from symprompt.papers.groups import Group, Loaded
from symprompt.papers.methods import DASH
from symprompt.papers.plan import pool_row
from symprompt.papers.rows import PTUNING, SPE
from symprompt.probing.folder import RunFolder
from symprompt.probing.rank import rerank
from symprompt.report.grid import Grid
from symprompt.report.pages import Section
from symprompt.report.series import METRIC_NAMES, KCurve
from symprompt.report.tables import load_scores
from symprompt.runs.statistics import METRICS, OVER_RELATIONS, Summary, summarise

POOLS = (1, 5, 10, 15)
_RISEN, _FALLEN, _SHOWN = 6, 3, 5


Pools = dict[int, Summary]


def pool_means(loaded: Loaded) -> dict[str, Pools]:
    """Return by model the mean over relations for every K that the model's SPE runs have stored.

    The weight of the backward score is each run's own, whatever K is; where weights are fitted, a
    larger pool has its own fit.
    """
    found = {}
    for model in loaded.plan.models:
        group = loaded.groups.get((model.name, SPE))
        if group is not None:
            seeds = [_pool_ranks(loaded, group, place) for place in range(len(group.seeds))]
            common = [k for k in seeds[0] if all(k in ranks for ranks in seeds)]
            found[model.name] = {
                k: summarise(np.stack([ranks[k] for ranks in seeds]), group.relation)[
                    OVER_RELATIONS
                ]
                for k in common
            }
    return found


def _pool_ranks(loaded: Loaded, group: Group, place: int) -> dict[int, np.ndarray]:
    """Return one seed's ranks [facts] for every K, those beyond the run's own asked apart."""
    folder = RunFolder(group.paths[place])
    weights = folder.load_weights()
    runs = loaded.plan.runs_of(group.model, pool_row(loaded.plan.settings))
    larger = [run.folder for run in runs if run.config.seed == group.seeds[place]]
    ranks: dict[int, np.ndarray] = {}
    for source in (folder, *(other for other in larger if other.finished)):
        predictions, facts = source.load_predictions("test")
        keys = tuple((fact.relation, fact.subject, fact.object) for fact in facts)
        if weights is None or not predictions.asked_back or keys != group.keys:
            continue
        if source.load_config().method.choose_weight == "dev-fit":
            # Backward scores that hold frequencies go with the weights they were fitted with.
            weights = source.load_weights()
            assert weights is not None
        each = weights[predictions.relation].to(predictions.forward.dtype)
        for k in range(max(ranks, default=0) + 1, predictions.candidates.shape[1] + 1):
            ranks[k] = predictions.reranked(each, k=k).realistic.double().numpy()
    return ranks


def table_2(loaded: Loaded, found: dict[str, Pools]) -> Section:
    """Return SPE's Table 2 for every model."""
    largest = loaded.plan.settings.pool
    pools = (*POOLS, largest) if largest > POOLS[-1] else POOLS
    grids = []
    for model in loaded.plan.models:
        means = found.get(model.name, {})
        base = loaded.groups.get((model.name, PTUNING))
        rows = []
        if base is not None:
            rows.append(_pool_row("P-tuning", base.means[OVER_RELATIONS], 0))
        for k in pools:
            name = f"SPE, K = {k}" + (" (ours)" if k not in published.SPE_TABLE_2 else "")
            rows.append(_pool_row(name, means.get(k), k))
        header = ("candidates", "P@1", "P@10", "MRR", f"published:\nBERT-base\n{published.S2}")
        title = f"{model.name}, {OVER_RELATIONS}"
        grids.append(Grid(title, header, (tuple(rows),), marked=(4,)))
    return Section(
        "SPE, Table 2: candidates that are asked back",
        (
            "The same runs re-ranked with fewer of their stored candidates, each with the weight "
            "that was chosen for the run, at its own K; a larger K was asked apart, and where "
            "weights are fitted it has its own fit. Up to K = 10, P@10 cannot change. K = 1 is "
            "the forward order of prompts that were trained both ways.",
        ),
        tuple(grids),
    )


def _pool_row(name: str, summary: Summary | None, k: int) -> tuple[str, ...]:
    theirs = published.SPE_TABLE_2.get(k)
    cells = [f"{getattr(summary, metric):.2f}" if summary else DASH for metric in METRICS]
    shown = " / ".join(f"{value:.1f}" for value in theirs) if theirs else DASH
    return (name, *cells, shown)


def pool_curve(group: Group, found: Pools) -> KCurve:
    """Return the metrics against K of a model's SPE runs, for a figure."""
    before = np.stack([load_scores(path, forward=True).rank for path in group.paths])
    start = summarise(before, group.relation)[OVER_RELATIONS]
    weights = [RunFolder(path).load_weights() for path in group.paths]
    every = torch.cat([weight for weight in weights if weight is not None])
    return KCurve(
        tuple(found),
        {
            name: tuple(getattr(summary, metric) for summary in found.values())
            for metric, name in METRIC_NAMES.items()
        },
        {name: getattr(start, metric) for metric, name in METRIC_NAMES.items()},
        (float(every.min()), float(every.max())),
    )


@dataclass(frozen=True)
class Example:
    """A question, the ranks of its right answer, and the first answers in both orders."""

    relation: str
    label: str
    subject: str
    right: str
    before: float
    after: float
    forward: tuple[str, ...]
    joint: tuple[str, ...]


def find_examples(path: str, *, risen: int = _RISEN, fallen: int = _FALLEN) -> list[Example]:
    """Return the facts whose right answer rose most by asking back, then those that fell most.

    Of each relation at most one that rose and one that fell. Facts with another true object among
    the candidates are passed over: an answer that overtook a right one proves nothing.
    """
    folder = RunFolder(path)
    weights = folder.load_weights()
    predictions, facts, texts = folder.load_asked("test")
    if weights is None:
        return []
    before = predictions.ranks().realistic
    after = predictions.final(weights).realistic
    moved = (before - after).masked_fill(predictions.known.any(1), 0.0)
    each = weights[predictions.relation].to(predictions.forward.dtype)
    joint = rerank(predictions.forward, predictions.backward, weight=each)
    card = folder.load_card()["relations"]

    def example(row: int) -> Example:
        fact = facts[row]
        order = joint[row].argsort(descending=True, stable=True).tolist()
        return Example(
            fact.relation,
            card[fact.relation]["label"] or card[fact.relation]["manual_template"],
            fact.subject,
            fact.object,
            float(before[row]),
            float(after[row]),
            tuple(texts[row][:_SHOWN]),
            tuple(texts[row][place] for place in order[:_SHOWN]),
        )

    found = []
    for sign, count in ((1.0, risen), (-1.0, fallen)):
        seen: set[str] = set()
        for row in (sign * moved).argsort(descending=True, stable=True).tolist():
            if len(seen) == count or not sign * float(moved[row]) > 0:
                break
            if facts[row].relation not in seen:
                seen.add(facts[row].relation)
                found.append(example(row))
    return found


def table_3(loaded: Loaded) -> Section:
    """Return SPE's Table 3: questions whose right answer moved most, from the first seed's run."""
    grids = []
    for model in loaded.plan.models:
        group = loaded.groups.get((model.name, SPE))
        if group is None:
            continue
        base = loaded.groups.get((model.name, PTUNING))
        theirs = dict(zip(base.keys, base.rank[0].tolist(), strict=True)) if base else {}
        rose: list[tuple[str, ...]] = []
        fell: list[tuple[str, ...]] = []
        for example in find_examples(group.paths[0]):
            rank = theirs.get((example.relation, example.subject, example.right), math.nan)
            (rose if example.after < example.before else fell).append(_example_row(example, rank))
        header = (
            "relation",
            "subject",
            "right answer",
            "rank",
            "forward order",
            "asked-back order",
            "rank by\nP-tuning",
        )
        title = f"{model.name}, {Path(group.paths[0]).name}: the most risen, then the most fallen"
        grids.append(Grid(title, header, (tuple(rose), tuple(fell))))
    return Section(
        "SPE, Table 3: questions whose right answer moved most",
        (
            "Found automatically in the SPE run of the first seed, at most one that rose and one "
            "that fell of each relation; the right answer stands in ‹brackets›. The last column "
            "is where P-tuning with the same seed has it.",
        ),
        tuple(grids),
    )


def _example_row(example: Example, rank: float) -> tuple[str, ...]:
    def listed(texts: tuple[str, ...]) -> str:
        return ", ".join(f"‹{text}›" if text == example.right else text for text in texts)

    return (
        f"{example.relation}\n{example.label}",
        example.subject,
        example.right,
        f"{example.before:g} → {example.after:g}",
        listed(example.forward),
        listed(example.joint),
        DASH if math.isnan(rank) else f"{rank:g}",
    )
