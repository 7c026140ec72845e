"""Easy and hard facts, and LAMA-UHN: what is left when guesses from training or names are out."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from symprompt.facts import Fact
from symprompt.facts.quality import easy_facts
from symprompt.papers.fact_jobs import NAMES, NAMES_RUN, name_words
from symprompt.papers.records import Group, Key, Loaded
from symprompt.report.grid import DASH, Grid
from symprompt.report.pages import Section
from symprompt.report.tables import load_scores

_TOP = 3


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
    for model in loaded.plan.models:
        groups = loaded.of_model(model.name)
        if not groups:
            continue
        given = given_away_by_name(loaded, model.name)
        easy = _easy_keys(groups)
        subsets = {
            "all": set(groups[0].keys),
            "easy": easy,
            "hard": set(groups[0].keys) - easy,
            "UHN, string": uhn_keys(groups[0].keys, None),
        }
        if given is not None:
            subsets["UHN, string\nand names"] = uhn_keys(groups[0].keys, given)
        header = ("method", *(f"{name}\n{_count(groups[0], k):,}" for name, k in subsets.items()))
        rows = tuple(
            (group.row.name, *(_cell(group, keys) for keys in subsets.values())) for group in groups
        )
        grids.append(Grid(f"{model.name}: P@1 / MRR, mean over relations", header, (rows,)))
        if given is None:
            jobs = loaded.plan.of_row(model.name, NAMES_RUN)
            why = "that run failed" if jobs else "no relation is about people"
            notes.append(f"{model.name} was not queried for names: {why}.")
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


def _easy_keys(groups: list[Group]) -> set[Key]:
    # Manual prompts need no training facts, but every run stores those it was given.
    easy: set[Fact] = easy_facts(groups[0].facts)
    return {(fact.relation, fact.subject, fact.object) for fact in easy}


def _count(group: Group, keys: set[Key]) -> int:
    return sum(key in keys for key in group.keys)


def _cell(group: Group, keys: set[Key]) -> str:
    found = group.mean_of(np.array([key in keys for key in group.keys]))
    return DASH if found is None else f"{found.p1:.2f} / {found.mrr:.2f}"
