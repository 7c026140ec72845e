"""SPE's tables: methods (1), candidates that are queried backward (2, 3), label imbalance (4).

And beside them what is left of the facts when guesses from training or names are out.
"""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from symprompt.errors import counted
from symprompt.facts.quality import easy_facts
from symprompt.files.grid import DASH, Grid
from symprompt.papers.fact_jobs import (
    NAMES,
    NAMES_RUN,
    PTUNING,
    SPE,
    Row,
    list_rows,
    name_words,
    pool_row,
)
from symprompt.papers.jobs import Outcome, Plan
from symprompt.papers.ptuning import paraphrase_section, prompt_type_section
from symprompt.papers.records import (
    Group,
    Key,
    Loaded,
    describe_plan,
    load_groups,
    published,
)
from symprompt.papers.settings import FactSettings
from symprompt.probing.results import SUBJECT, load_asked, load_card, load_combination, run_config
from symprompt.probing.summary import unfilled_notes
from symprompt.report import figures
from symprompt.report.figures import Bar, KCurve
from symprompt.report.pages import Page, Picture, Section, save_picture
from symprompt.report.records import METRIC_NAMES, figure_cell
from symprompt.report.tables import load_scores
from symprompt.runs.folder import Folder, Record
from symprompt.runs.statistics import (
    ABOUT_P,
    METRICS,
    OVER_FACTS,
    OVER_RELATIONS,
    Summary,
    bootstrap,
    hits,
    paired_bootstrap,
    summarise,
)

TITLE = "Fact retrieval by prompts: SPE's and P-tuning's tables"
# The paper's Table 1 (marked [S]) and P-tuning's Table 2 (marked [P]) have these models.
MODELS = ("BERT-base", "BERT-large", "RoBERTa-base")
TABLE_1, TABLE_2, TABLE_34K = "SPE, Table 1", "SPE, Table 2", "P-tuning, Table 2, LAMA-34k"
POOLS = (1, 5, 10, 15)
_AVERAGES = (OVER_RELATIONS, OVER_FACTS)
_ENVIRONMENT = ("device", "dtype", "torch", "transformers", "model_fingerprint")
_RISEN, _FALLEN, _SHOWN = 6, 3, 5
# So high may a name alone not bring the answer.
_TOP = 3


def fact_page(plan: Plan[FactSettings], outcome: Outcome) -> Page:
    """Return the tables and figures of facts, from the stored runs.

    Raises:
        SympromptError: no run came to its end, or one is damaged.
    """
    loaded = load_groups(plan, list_rows(plan.settings.methods), outcome.failed)
    outcome.require_some(bool(loaded.groups))
    measured = measure_groups(loaded, loaded.rows)
    pools = pool_means(loaded)
    pictures: dict[str, list[Picture]] = {}
    if figures.can_draw():
        folder = Path(plan.out) / "figures"
        pictures = draw_pictures(loaded, measured, pools, folder)
    sections = [
        replace(table_1(loaded, measured), pictures=tuple(pictures.get("methods", ()))),
        replace(table_2(loaded, pools), pictures=tuple(pictures.get("candidates", ()))),
        table_3(loaded),
        replace(imbalance_section(loaded), pictures=tuple(pictures.get("imbalance", ()))),
        paraphrase_section(loaded),
        prompt_type_section(loaded),
        subset_section(loaded),
    ]
    words = plan.settings.vocabulary
    of_words = f"Vocabulary: {words if words in ('full', 'objects') else 'a word list'}."
    note = describe_plan(plan, "facts of each relation", facts=True, more=[of_words])
    about = {"note": note, "bootstrap draws": plan.settings.draws, "runs": about_groups(loaded)}
    return Page(TITLE, (note,), tuple(sections), about, list(measured.values()))


# ---------------------------------------------------------------- Table 1: methods


# Label, average, metric and what was subtracted -> the figure.
Measured = Mapping[tuple[str, str, str, str], Record]


def measure_groups(loaded: Loaded, rows: Sequence[Row]) -> Measured:
    """Return the groups' figures with bootstrap intervals, and SPE's minus P-tuning's."""
    draws = loaded.plan.settings.draws
    groups = [group for group in loaded.groups.values() if group.row in rows]
    # numpy lets go of the interpreter while it draws, so threads share the work.
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as threads:
        drawn = list(
            threads.map(lambda one: bootstrap(one.rank, one.relation, draws=draws), groups)
        )
    records = []
    for group, intervals in zip(groups, drawn, strict=True):
        own: dict[str, Any] = {"command": "train", "split": "test", "n": len(group.keys)}
        own |= {"method": group.row.config, "label": group.label, "seeds": group.seeds}
        for mean, metric in itertools.product(_AVERAGES, METRICS):
            own |= {"metric": metric, "settings": {"mean": mean}}
            value, bounds = getattr(group.means[mean], metric), asdict(intervals[mean][metric])
            records.append(Record(value=value, **bounds, **own))
        base = next((one for one in groups if one.label == f"{group.model}: P-tuning"), None)
        if group.row.name == "SPE" and base is not None and base.keys == group.keys:
            changes = paired_bootstrap(base.rank, group.rank, base.relation, draws=draws)
            for mean, metric in itertools.product(changes, METRICS):
                own |= {"metric": metric, "settings": {"mean": mean}, "versus": base.label}
                bounds = asdict(changes[mean][metric])
                records.append(Record(value=bounds.pop("difference"), **bounds, **own))
    return {(own.label, own.settings["mean"], own.metric, own.versus): own for own in records}


def table_1(loaded: Loaded, measured: Measured) -> Section:
    """Return SPE's Table 1 with our figures, one table per model and average."""
    grids = [
        method_grid(loaded, loaded.rows, measured, model.name, averaging, MODELS)
        for averaging in _AVERAGES
        for model in loaded.plan.models
    ]
    return Section(
        "SPE, Table 1: methods",
        (
            "Percent, realistic ranks, raw (other true objects count as wrong), mean over the "
            "seeds; in brackets the 95 % interval of a bootstrap over facts within relations "
            f"({loaded.plan.settings.draws:,} draws); {ABOUT_P} The columns named "
            "“published” hold the papers' own figures, P@1 / P@10 / MRR, for other models: [S] is "
            "SPE's Table 1, [P] is P-tuning's Table 2 (P@1 alone). The two print different figures "
            "for the same methods, and mix averages over relations and over facts.",
        ),
        tuple(grids),
        tuple(_notes(loaded)),
    )


def method_grid(
    loaded: Loaded,
    rows: Sequence[Row],
    measured: Measured,
    model: str,
    averaging: str,
    beside: Sequence[str] = (),
) -> Grid:
    """Return the methods on one model, and SPE minus P-tuning.

    Args:
        beside: models of SPE's Table 1 whose figures stand in columns of their own.
    """
    header = ("method", "seeds", "P@1", "P@10", "MRR", *(f"published:\n{name}" for name in beside))
    ours, changes = [], []
    for row in rows:
        group = loaded.groups.get((model, row.config))
        theirs = tuple(published_cell(row, name) for name in beside)
        if group is None:
            ours.append((row.name, "", loaded.missing[model, row.config], "", "", *theirs))
            continue
        seeds = str(len(group.seeds)) if row.seeded else DASH
        if row.seeded and len(group.seeds) < group.wanted:
            seeds += f" of {group.wanted}"
        for versus in ("", f"{model}: P-tuning"):
            found = [measured.get((group.label, averaging, one, versus)) for one in METRICS]
            cells = [figure_cell([own]) for own in found if own is not None]
            if not versus:
                ours.append((row.name, seeds, *cells, *theirs))
            elif cells:
                for name in beside:
                    own, base = (published(config)[TABLE_1][name] for config in (SPE, PTUNING))
                    minus = (f"{own[one] - base[one]:+.1f}" for one in METRICS)
                    cells.append(" / ".join(minus) + " [S]")
                changes.append(("SPE minus P-tuning", "", *cells))
    title, marked = f"{model}, {averaging}", tuple(range(5, len(header)))
    return Grid(title, header, (tuple(ours), tuple(changes)), marked)


def published_cell(row: Row, model: str) -> str:
    """Return what the papers print for a method on one of their models."""
    tables, parts = published(row.config), []
    values = tables.get(TABLE_1, {}).get(model)
    if values:
        parts.append(" / ".join(f"{values[metric]:.1f}" for metric in METRICS) + " [S]")
    other = tables.get(TABLE_34K, {}).get(model)
    if other:
        parts.append(f"{other['p1']:.1f} [P]")
    return "\n".join(parts) or DASH


def _notes(loaded: Loaded) -> list[str]:
    notes = [f"{run} failed: {why}" for run, why in loaded.failed.items()]
    for model, groups in loaded.by_model.items():
        first = groups[0]
        notes.append(
            f"{model}: {counted(len(first.keys), 'test fact')} of "
            f"{counted(len(set(first.relation.tolist())), 'relation')}"
            + (f"; {first.note}." if first.note else ".")
        )
        for group in groups[1:]:
            if group.keys != first.keys:
                notes.append(
                    f"{group.label}: {counted(len(group.keys), 'test fact')}, not the same as "
                    f"those of {first.row.name}."
                )
        for group in groups:
            count = len(set(group.relation.tolist()))
            for path, seed in zip(group.paths, group.seeds, strict=True):
                found = unfilled_notes(Folder(path).manifest.details, count)
                notes += [f"{group.label}, seed {seed}: {note}." for note in found]
    return notes


def about_groups(loaded: Loaded) -> dict[str, Any]:
    """Return how every group was made, and its figures of each seed."""
    found: dict[str, Any] = {}
    for group in loaded.groups.values():
        manifests = [Folder(path).manifest for path in group.paths]
        environment = manifests[0].versions | manifests[0].model_dump(include=set(_ENVIRONMENT))
        weights = [manifest.details["weights"] or {} for manifest in manifests]
        found[group.label] = {
            "model": group.model,
            "config": group.row.config,
            "facts": len(group.keys),
            "relations": len(set(group.relation.tolist())),
            "seeds": list(group.seeds),
            "weights": [sorted(set(one.get("subject", {}).values())) for one in weights],
            "environment": {key: environment[key] for key in _ENVIRONMENT if key in environment},
            "by_seed": [
                {name: asdict(one) for name, one in summarise(rank, group.relation).items()}
                for rank in group.rank
            ],
        }
    return found


# ---------------------------------------------------------------- Tables 2 and 3: candidates

Pools = dict[int, Summary]


def pool_means(loaded: Loaded) -> dict[str, Pools]:
    """Return by model the mean over relations for every K that the model's SPE runs have stored.

    The weight of the subject score is each run's own, whatever K is; where weights are fitted, a
    larger pool has its own fit.
    """
    found = {}
    for model, group in loaded.of_row(SPE).items():
        seeds = [_pool_ranks(loaded, group, place) for place in range(len(group.seeds))]
        found[model] = {
            k: summarise(np.stack([ranks[k] for ranks in seeds]), group.relation)[OVER_RELATIONS]
            for k in seeds[0]
            if all(k in ranks for ranks in seeds)
        }
    return found


def _pool_ranks(loaded: Loaded, group: Group, place: int) -> dict[int, np.ndarray]:
    """Return one seed's ranks [facts] for every K, those beyond the run's own queried apart."""
    folder = Folder(group.paths[place])
    combination = load_combination(folder)
    jobs = loaded.plan.of_row(group.model, pool_row(loaded.plan.settings))
    larger = [
        Folder(job.config.out)
        for job in jobs
        if job.source is not None and job.source.config.out == group.paths[place]
    ]
    ranks: dict[int, np.ndarray] = {}
    for source in (folder, *(other for other in larger if other.finished)):
        asked = load_asked(source, "test")
        predictions, keys = asked.predictions, tuple(asked.keys())
        if combination is None or not predictions.asked_back or keys != group.keys:
            continue
        if run_config(source).method.choose_weight == "dev-fit":
            # Terms are stored only where weights were fitted.
            combination = load_combination(source)
            assert combination is not None
        for k in range(max(ranks, default=0) + 1, predictions.candidates.shape[1] + 1):
            ranks[k] = predictions.reranked(combination, k=k).realistic
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
            theirs = published(PTUNING)[TABLE_1][MODELS[0]]
            rows.append(_pool_row("P-tuning", base.means[OVER_RELATIONS], theirs))
        for k in pools:
            name = f"SPE, K = {k}" + ("" if f"K = {k}" in published(SPE)[TABLE_2] else " (ours)")
            rows.append(_pool_row(name, means.get(k), published(SPE)[TABLE_2].get(f"K = {k}")))
        header = ("candidates", "P@1", "P@10", "MRR", f"published:\nBERT-base\n{TABLE_2}")
        title = f"{model.name}, {OVER_RELATIONS}"
        grids.append(Grid(title, header, (tuple(rows),), marked=(4,)))
    return Section(
        "SPE, Table 2: candidates that are scored by subject prompts",
        (
            "The same runs re-ranked with fewer of their stored candidates, each with the weight "
            "that was chosen for the run, at its own K; a larger K was queried apart, and where "
            "weights are fitted it has its own fit. Up to K = 10, P@10 cannot change. K = 1 is "
            "the forward order of prompts that were trained both ways.",
        ),
        tuple(grids),
    )


def _pool_row(
    name: str, summary: Summary | None, theirs: Mapping[str, float] | None
) -> tuple[str, ...]:
    cells = [f"{getattr(summary, metric):.2f}" if summary else DASH for metric in METRICS]
    shown = " / ".join(f"{theirs[metric]:.1f}" for metric in METRICS) if theirs else DASH
    return (name, *cells, shown)


def pool_curve(group: Group, found: Pools) -> KCurve:
    """Return the metrics against K of a model's SPE runs, for a figure."""
    before = np.stack([load_scores(path, forward=True).rank for path in group.paths])
    start = summarise(before, group.relation)[OVER_RELATIONS]
    found_weights = [load_combination(Folder(path)) for path in group.paths]
    every = np.concatenate([own.weights[SUBJECT] for own in found_weights if own is not None])
    return KCurve(found, start, every)


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


def find_examples(path: str) -> list[Example]:
    """Return the facts whose right answer rose most by re-ranking, then those that fell most.

    Of each relation at most one that rose and one that fell. Facts with another true object among
    the candidates are passed over: an answer that overtook a right one proves nothing.
    """
    folder = Folder(path)
    combination, asked = load_combination(folder), load_asked(folder, "test")
    predictions, facts, texts = asked.predictions, asked.facts(), asked.candidates()
    if combination is None:
        return []
    before = predictions.ranks().realistic
    after = predictions.final(combination).realistic
    moved = np.where(predictions.known.any(1), 0.0, before - after)
    joint = predictions.joint(combination)
    card = load_card(folder)["relations"]

    def example(row: int) -> Example:
        fact = facts[row]
        order = np.argsort(-joint[row, : len(texts[row])], kind="stable").tolist()
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
    for sign, count in ((1.0, _RISEN), (-1.0, _FALLEN)):
        seen: set[str] = set()
        for row in np.argsort(-sign * moved, kind="stable").tolist():
            if len(seen) == count or not sign * float(moved[row]) > 0:
                break
            if facts[row].relation not in seen:
                seen.add(facts[row].relation)
                found.append(example(row))
    return found


def table_3(loaded: Loaded) -> Section:
    """Return SPE's Table 3: questions whose right answer moved most, from the first seed's run."""
    grids = []
    for model, group in loaded.of_row(SPE).items():
        base = loaded.groups.get((model, PTUNING))
        theirs = dict(zip(base.keys, base.rank[0].tolist(), strict=True)) if base else {}
        rose: list[tuple[str, ...]] = []
        fell: list[tuple[str, ...]] = []
        for one in find_examples(group.paths[0]):
            rank = theirs.get((one.relation, one.subject, one.right))
            orders = [
                ", ".join(f"‹{text}›" if text == one.right else text for text in texts)
                for texts in (one.forward, one.joint)
            ]
            row = (f"{one.relation}\n{one.label}", one.subject, one.right)
            moved = f"{one.before:g} → {one.after:g}"
            last = DASH if rank is None else f"{rank:g}"
            (rose if one.after < one.before else fell).append((*row, moved, *orders, last))
        header = (
            "relation",
            "subject",
            "right answer",
            "rank",
            "forward order",
            "re-ranked order",
            "rank by\nP-tuning",
        )
        title = f"{model}, {Path(group.paths[0]).name}: the most risen, then the most fallen"
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


# ---------------------------------------------------------------- Section 4: label imbalance

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
    """Return the first answer of every test fact of a run, re-ranked where the run re-ranks."""
    folder = Folder(path)
    asked = load_asked(folder, "test")
    found = asked.predictions.first_answer(load_combination(folder))
    return [text.strip() for text in asked.read(found)]


def imbalance_section(loaded: Loaded) -> Section:
    """Return the label-imbalance analysis for every model."""
    grids = []
    for model, groups in loaded.by_model.items():
        found = [frequency_bins(group) for group in groups]
        rows = []
        for number, name in enumerate(BINS):
            own = [bins[number] for bins in found]
            most = max(one.facts if one else 0 for one in own)
            cells = (f"{a.p1:.1f} / {a.mrr:.1f} / {a.median:g}" if a else DASH for a in own)
            rows.append((name, f"{most:,}", *cells))
        shares = (majority_answers(group) for group in groups)
        shown = (DASH if np.isnan(share) else f"{share:.1f} %" for share in shares)
        said = ("wrongly answers the most frequent object", "", *shown)
        header: tuple[str, ...] = ("right object's share of\nthe training facts", "test facts")
        header += tuple(group.row.name for group in groups)
        title = f"{model}: P@1 / MRR / median rank, mean over facts"
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


# ---------------------------------------------------------------- easy and hard facts, LAMA-UHN


def given_away_by_name(loaded: Loaded, model: str) -> set[Key] | None:
    """Return (relation, word, object) where the word as a name puts the object in the top three.

    None if the model was not queried, which is so where no relation is about people.
    """
    jobs = [job for job in loaded.plan.of_row(model, NAMES_RUN) if job.finished]
    if not jobs:
        return None
    scores = load_scores(jobs[0].config.out)
    return {tuple(key) for key, rank in zip(scores.key, scores.rank, strict=True) if rank <= _TOP}


def uhn_keys(keys: Iterable[Key], given: set[Key] | None) -> set[Key]:
    """Return the facts that LAMA-UHN keeps (Poerner et al., 2020).

    Args:
        given: what names give away, see ``given_away_by_name``; None filters by string alone.
    """
    kept = set()
    for key in keys:
        relation, subject, right = key
        if right.lower() in subject.lower():
            continue
        if given and relation in NAMES:
            words = name_words(subject)
            if any((relation, word, right) in given for word in words):
                continue
        kept.add(key)
    return kept


def subset_section(loaded: Loaded) -> Section:
    """Return every method's P@1 and MRR on the subsets, for every model."""
    grids, notes = [], []
    for model, groups in loaded.by_model.items():
        given = given_away_by_name(loaded, model)
        # Manual prompts need no training facts, but every run stores those it was given.
        found = easy_facts(groups[0].facts)
        easy = {(fact.relation, fact.subject, fact.object) for fact in found}
        subsets = {
            "all": set(groups[0].keys),
            "easy": easy,
            "hard": set(groups[0].keys) - easy,
            "UHN, string": uhn_keys(groups[0].keys, None),
        }
        if given is not None:
            subsets["UHN, string\nand names"] = uhn_keys(groups[0].keys, given)
        counts = {name: sum(key in own for key in groups[0].keys) for name, own in subsets.items()}
        header = ("method", *(f"{name}\n{count:,}" for name, count in counts.items()))
        rows = []
        for group in groups:
            keeps = (np.array([key in own for key in group.keys]) for own in subsets.values())
            means = map(group.mean_of, keeps)
            cells = (f"{mean.p1:.2f} / {mean.mrr:.2f}" if mean else DASH for mean in means)
            rows.append((group.row.name, *cells))
        grids.append(Grid(f"{model}: P@1 / MRR, mean over relations", header, (tuple(rows),)))
        if given is None:
            jobs = loaded.plan.of_row(model, NAMES_RUN)
            why = "that run failed" if jobs else "no relation is about people"
            notes.append(f"{model} was not queried for names: {why}.")
    return Section(
        "Easy, hard and UHN facts",
        (
            "Easy facts are those that the relation's most frequent training object or naive Bayes "
            "over the subject's words gets right; the others are hard. OptiPrompt (Zhong et al., "
            "2021), which also counts what tuned models with random weights get right as easy, has "
            "10,546 easy and 23,493 hard facts. UHN leaves out facts whose object is named in the "
            "subject and, with names, those about people where the model itself, queried for each "
            f"word of the name whether it is a common name there, has the object among its first "
            f"{_TOP}. Relations without facts in a subset are not in its mean.",
        ),
        tuple(grids),
        tuple(notes),
    )


# ---------------------------------------------------------------- figures


def draw_pictures(
    loaded: Loaded, measured: Measured, pools: dict[str, Pools], folder: Path
) -> dict[str, list[Picture]]:
    """Draw every model's figures into a folder; return what was drawn by section."""
    drawn: dict[str, list[Picture]] = {"methods": [], "candidates": [], "imbalance": []}
    for model, groups in loaded.by_model.items():
        first, seeds = groups[0], max(len(group.seeds) for group in groups)
        about = (
            f"Model {model}; {counted(len(set(first.relation.tolist())), 'relation')}, "
            f"{counted(len(first.keys), 'test fact')}; realistic ranks; mean over "
            f"{counted(seeds, 'seed')}."
        )
        bars = []
        for metric, group in itertools.product(METRICS, groups):
            own = measured[group.label, OVER_RELATIONS, metric, ""]
            bounds = own.model_dump(include={"value", "low", "high"})
            bars.append(Bar(group.row.name, METRIC_NAMES[metric], **bounds))
        title = f"Methods on the model {model}"
        caption = f"{about} Mean over relations, 95 % bootstrap intervals; bold: the best."
        figure = figures.draw_method_rows(bars, title=title, caption=caption)
        drawn["methods"].append(save_picture(figure, folder, f"methods-{model}.png", title))
        if pools.get(model):
            curve = pool_curve(loaded.groups[model, SPE], pools[model])
            title = f"SPE on {model}: candidates scored by subject prompts"
            caption = f"{about} Weight {curve.shown_weights}. Up to K = 10, P@10 cannot change."
            figure = figures.draw_k_curve(curve, title=title, caption=caption)
            picture = save_picture(figure, folder, f"candidates-{model}.png", title)
            drawn["candidates"].append(picture)
        lines = {
            group.row.name: [None if bin is None else bin.mrr for bin in frequency_bins(group)]
            for group in groups
        }
        counts = [bin.facts if bin else 0 for bin in frequency_bins(first)]
        title = f"{model}: MRR by frequency of the right object"
        caption = f"{about} MRR, mean over the facts of a bin."
        figure = figures.draw_frequency(lines, BINS, counts, title=title, caption=caption)
        drawn["imbalance"].append(save_picture(figure, folder, f"imbalance-{model}.png", title))
    return drawn
