"""SPE's section 4: how the rank depends on how often training has the right object."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import torch

from symprompt.papers.groups import Group, Loaded
from symprompt.papers.methods import DASH
from symprompt.probing.folder import RunFolder
from symprompt.probing.rank import rerank
from symprompt.report.grid import Grid
from symprompt.report.pages import Section
from symprompt.runs.statistics import hits

# Shares of a relation's training facts that have the object; a bin ends below its bound.
BOUNDS = (0.0, 0.01, 0.05, 0.2, 1.0)
BINS = ("not in training", "below 1 %", "1 to 5 %", "5 to 20 %", "20 % or more")


@dataclass(frozen=True)
class Bin:
    """One method's facts whose objects are about as frequent: how many, and how they rank."""

    facts: int
    p1: float
    mrr: float
    median: float


def training_shares(group: Group) -> np.ndarray:
    """Return for every test fact the share of its relation's training facts with its object."""
    counts = {
        relation.name: Counter(fact.object for fact in relation.train)
        for relation in group.facts.relations
    }
    totals = {name: max(1, count.total()) for name, count in counts.items()}
    return np.array([counts[name][object] / totals[name] for name, _, object in group.keys])


def frequency_bins(group: Group) -> list[Bin | None]:
    """Return P@1, MRR (percent, mean over facts) and median rank in every bin; None if empty."""
    place = np.digitize(training_shares(group), BOUNDS[1:-1]) + 1
    place[training_shares(group) == 0] = 0
    bins: list[Bin | None] = []
    for number in range(len(BINS)):
        rank = group.rank[:, place == number]
        if not rank.size:
            bins.append(None)
            continue
        bins.append(
            Bin(
                rank.shape[1],
                float(100 * hits(rank, 1).mean()),
                float(100 * (1 / rank).mean()),
                float(np.median(rank)),
            )
        )
    return bins


def majority_answers(group: Group) -> float:
    """Return in percent how often the first answer is its relation's most frequent training object.

    Counted over the facts whose object is another one: each such answer is wrong.
    """
    commonest = {
        relation.name: Counter(fact.object for fact in relation.train).most_common(1)[0][0]
        for relation in group.facts.relations
        if relation.train
    }
    said = wrong = 0
    for path in group.paths:
        for (relation, _, right), answer in zip(group.keys, first_answers(path), strict=True):
            if relation in commonest and right != commonest[relation]:
                wrong += 1
                said += answer == commonest[relation]
    return 100 * said / wrong if wrong else float("nan")


def first_answers(path: str) -> list[str]:
    """Return the first answer of every test fact of a run, asked back where it asks back."""
    folder = RunFolder(path)
    predictions, _, texts = folder.load_asked("test")
    weights = folder.load_weights()
    best = torch.zeros(len(predictions), dtype=torch.long)
    if weights is not None and predictions.asked_back:
        each = weights[predictions.relation].to(predictions.forward.dtype)
        best = rerank(predictions.forward, predictions.backward, weight=each).argmax(1)
    return [row[place].strip() for row, place in zip(texts, best.tolist(), strict=True)]


def imbalance_section(loaded: Loaded) -> Section:
    """Return the label-imbalance analysis for every model."""
    grids = []
    for model in loaded.plan.models:
        groups = loaded.of_model(model.name)
        if not groups:
            continue
        found = [frequency_bins(group) for group in groups]
        rows = []
        for number, name in enumerate(BINS):
            own = [bins[number] for bins in found]
            most = max(one.facts if one else 0 for one in own)
            rows.append((name, f"{most:,}", *map(_bin_cell, own)))
        shares = [majority_answers(group) for group in groups]
        said = ("wrongly says the most frequent object", "", *(_percent(x) for x in shares))
        header: tuple[str, ...] = ("right object's share of\nthe training facts", "test facts")
        header += tuple(group.row.name for group in groups)
        title = f"{model.name}: P@1 / MRR / median rank, mean over facts"
        grids.append(Grid(title, header, (tuple(rows), (said,))))
    return Section(
        "SPE, section 4: label imbalance",
        (
            "Test facts by how much of their relation's training facts has the right object. The "
            "last line counts, among facts whose object is not the most frequent one, how often "
            "the first answer is the most frequent one all the same.",
        ),
        tuple(grids),
    )


def _bin_cell(found: Bin | None) -> str:
    return DASH if found is None else f"{found.p1:.1f} / {found.mrr:.1f} / {found.median:g}"


def _percent(value: float) -> str:
    return DASH if np.isnan(value) else f"{value:.1f} %"
