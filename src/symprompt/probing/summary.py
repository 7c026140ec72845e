"""What a run on facts states of itself: its figures, and what a reader must know beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from symprompt.errors import counted
from symprompt.files.grid import Grid, Grids

# Names that a note lists.
_NAMED = 5


def run_summary(metrics: Mapping[str, Any]) -> Grids:
    """Return a finished run's test figures, and what was left out of them."""
    # Lists of runs, which have the notes below, do without numpy.
    from symprompt.facts import with_advice

    test = metrics["test"]
    kinds = {"forward only": "forward"} if metrics["weights"] else {}
    kinds |= {"raw": "raw"}
    if test["filtered"] != test["raw"]:
        kinds |= {"filtered": "filtered"}
    rows = tuple(
        (f"{label}, {mean}", *(f"{value:.2f}" for value in values.values()))
        for label, key in kinds.items()
        for mean, values in test[key]["realistic"].items()
    )
    title = f"{metrics['method']} on {metrics['model']}"
    grid = Grid(title, ("test, realistic ranks", "P@1", "P@10", "MRR"), (rows,))
    notes = [
        f"{counted(test['facts'], 'fact')}, {counted(len(test['relations']), 'relation')}, "
        f"seed {metrics['seed']}"
    ]
    notes += candidate_notes(metrics) + unfilled_notes(metrics, len(test["relations"]))
    notes += skipped_notes(metrics.get("skipped", {}))
    notes += [
        f"left out: {counted(count, 'fact')}, {with_advice(why)}"
        for why, count in metrics["dropped"].items()
    ]
    notes += leakage_notes(metrics)
    if metrics["weights"]:
        fewer = metrics.get("fewer_answers", {})
        small = f" (all answers in {counted(len(fewer), 'relation')} with fewer)" if fewer else ""
        if near := metrics.get("within"):
            small += f", those within {near:g} of the first"
        ranges = []
        for term, own in metrics["weights"].items():
            values = dict.fromkeys((min(own.values()), max(own.values())))
            ranges.append(f"{term} {' to '.join(f'{weight:.3g}' for weight in values)}")
        asked = "asked back" if "subject" in metrics["weights"] else "re-ranked"
        notes.append(f"{asked}: K = {metrics['k']}{small}; weights: {', '.join(ranges)}")
    if "evidence" in metrics:
        dev, train = (counted(metrics["evidence"][split], "fact") for split in ("dev", "train"))
        notes.append(
            f"weights rest on {dev} of dev and {train} of train, asked by prompts that had not "
            "seen them"
        )
    notes += [f"{stage}: {seconds:.1f} s" for stage, seconds in metrics["seconds"].items()]
    return Grids(dict(metrics), [grid], notes)


def leakage_notes(details: Mapping[str, Any]) -> list[str]:
    """Return a note if test facts or their subjects are among those that were learned from."""
    notes, leaks = list[str](), details.get("leakage") or {}
    if any(leaks.values()):
        # Older runs did not count the last.
        pairs, subjects, *inverses = leaks.values()
        more = f", and {inverses[0]} are in train turned around" if inverses and inverses[0] else ""
        notes.append(
            f"leakage: of the test facts {pairs} are also in train or dev, {subjects} have a "
            f"subject that train has{more}; symprompt data check has all by relation"
        )
    return notes


def candidate_notes(details: Mapping[str, Any]) -> list[str]:
    """Return a note if a run's ranks are not among the whole vocabulary: among what instead."""
    notes = []
    counts = sorted((details["candidates"] or {}).values())
    if counts:
        shown = _from_to(counts)
        notes.append(f"objects of any length: ranks are among {shown} candidates of each relation")
    excluded = details.get("excluded") or {}
    copies, words = excluded.get("copies", ()), excluded.get("words", {})
    never = [f"the subject itself in {counted(len(copies), 'relation')}"] if copies else []
    if words:
        shown = _from_to(sorted(words.values()))
        never.append(f"{shown} tokens that are no words in {counted(len(words), 'relation')}")
    return [*notes, f"never an answer: {', '.join(never)}"] if never else notes


def _from_to(counts: Sequence[int]) -> str:
    """Return the first and the last of sorted counts."""
    return f"{counts[0]}" if counts[0] == counts[-1] else f"{counts[0]} to {counts[-1]}"


def unfilled_notes(details: Mapping[str, Any], relations: int) -> list[str]:
    """Return a note if a search was too short to find all words of some relations' prompts."""
    names = details["unfilled"]
    if not names:
        return []
    shown = ", ".join(names[:_NAMED]) + (", ..." if len(names) > _NAMED else "")
    return [
        f"prompts that are not all words, as the search was too short: {len(names)} of "
        f"{counted(relations, 'relation')} ({shown}); raise learning.epochs or search.steps"
    ]


def skipped_notes(skipped: Mapping[str, str]) -> list[str]:
    """Return a note on relations that were left out as they cannot be used; all are named."""
    groups: dict[str, list[str]] = {}
    for name, why in skipped.items():
        groups.setdefault(why, []).append(name)
    told = "; ".join(f"{why}: {', '.join(names)}" for why, names in groups.items())
    return [f"{counted(len(skipped), 'relation')} left out ({told})"] if skipped else []
