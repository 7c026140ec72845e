"""What ask, train, data check, data vocabulary and prompts show print: tables of plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from symprompt.report.grid import Grid, stack
from symprompt.report.tables import candidate_notes, unfilled_notes

if TYPE_CHECKING:
    from rich.console import Group


def answer_table(answers: Sequence[Mapping[str, Any]], title: str) -> Grid:
    """Return ranked answers with their scores, blank where there is none."""
    asked_back = any(answer["joint"] is not None for answer in answers)
    names = ("object_score", "subject_score", "joint") if asked_back else ("object_score",)
    rows = []
    for rank, answer in enumerate(answers, start=1):
        scores = ("" if answer[name] is None else f"{answer[name]:.3f}" for name in names)
        rows.append((str(rank), answer["text"], *scores))
    shown = (name.replace("_", " ") for name in names)
    return Grid(title, ("rank", "answer", *shown), (tuple(rows),), folded=(1,))


def run_summary(metrics: Mapping[str, Any]) -> Group:
    """Return a finished run's test figures, and what was left out of them."""
    test = metrics["test"]
    kinds = {"forward only": "forward"} if metrics["weights"] else {}
    kinds |= {"raw": "raw", "filtered": "filtered"}
    rows = tuple(
        (f"{label}, {mean}", *(f"{value:.2f}" for value in values.values()))
        for label, key in kinds.items()
        for mean, values in test[key]["realistic"].items()
    )
    title = f"{metrics['method']} on {metrics['model']}"
    grid = Grid(title, ("test, realistic ranks", "P@1", "P@10", "MRR"), (rows,))
    notes = [f"{test['facts']} facts, {len(test['relations'])} relations, seed {metrics['seed']}"]
    notes += candidate_notes(metrics) + unfilled_notes(metrics, len(test["relations"]))
    notes += [f"left out: {count} facts, {why}" for why, count in metrics["dropped"].items()]
    weights = sorted(set((metrics["weights"] or {}).values()))
    if weights:
        shown = " to ".join(f"{weight:.3g}" for weight in dict.fromkeys((weights[0], weights[-1])))
        more = ", objects' frequencies counted" if metrics.get("frequency_shares") else ""
        notes.append(f"asked back: K = {metrics['k']}, weight {shown}{more}")
    notes += [f"{stage}: {seconds:.1f} s" for stage, seconds in metrics["seconds"].items()]
    return stack(grid, *notes)


def check_table(report: Mapping[str, Any]) -> Group:
    """Return what ``facts.check`` found, relation by relation, with the sums below."""
    counts = ("train", "dev", "test", "objects", "majority", "right", "repeats", "seen", "named")
    rows = tuple(_check_row(row) for row in report["relations"])
    total = _check_row({**report, "name": "all", "label": ""})
    title = f"{report['source']} ({report['layout']})"
    grid = Grid(title, ("relation", *counts), (rows, (total,)), folded=(5,))
    return stack(grid, *_check_notes(report))


def _check_row(row: Mapping[str, Any]) -> tuple[str, ...]:
    share = row.get("majority_accuracy")
    return (
        f"{row['name']} {row['label']}".strip(),
        *(str(row["facts"][split]) for split in ("train", "dev", "test")),
        str(row["distinct_objects"]),
        row.get("majority_object", ""),
        "" if share is None else f"{100 * share:.1f} %",
        str(row["duplicates"]["test"]),
        str(row["test_pairs_in_train_or_dev"]),
        str(row["object_in_subject"]["test"]),
    )


def _check_notes(report: Mapping[str, Any]) -> list[str]:
    notes = [
        "majority: the most frequent object of train, and on how many test facts it is right; "
        "repeats: test facts that stand twice; seen: test facts also in train or dev; named: test "
        "facts whose object is part of the subject's name.",
        f"{report['test_subjects_in_train']} test facts have a subject that occurs in train.",
        f"{report['test_facts_with_several_objects']} test facts have a subject with several true "
        "objects in test.",
    ]
    for mean in ("relations", "facts"):
        share = report[f"majority_mean_over_{mean}"]
        if share is not None:
            notes.append(f"majority baseline, mean over {mean}: {100 * share:.2f} P@1")
    dropped = report["dropped_by_reason"]
    notes += [f"left out: {count} facts, {reason}" for reason, count in dropped.items()]
    return notes if dropped else [*notes, "left out: none"]


def prompts_table(views: Sequence[Mapping[str, Any]], by: str) -> Group:
    """Return the prompts of some relations, a table for each that learned vectors.

    Args:
        views: relations as plain values, as ``inspect.describe_prompts`` has them.
        by: the measure of nearness beside the words.
    """
    parts: list[Grid | str] = []
    for view in views:
        title = f"{view['relation']} {view['label']}".strip()
        parts.append(f"{title}: {view['about']}" if view["about"] else title)
        parts += [f"  {part}: {text}" for part, text in view["prompts"].items()]
        if view["vectors"]:
            parts.append(_vectors(view["vectors"], by))
    if any(view["vectors"] for view in views):
        parts.append("norm: of the vector, and relative to the word embeddings' mean norm.")
    return stack(*parts)


def _vectors(vectors: Sequence[Mapping[str, Any]], by: str) -> Grid:
    sections: dict[str, list[tuple[str, ...]]] = {}
    for vector in vectors:
        near = "  ".join(f"{word['text']} {word['value']:.2f}" for word in vector["nearest"])
        norm = f"{vector['norm']:.2f} ({vector['relative_norm']:.2f} x)"
        row = (f"{vector['part']} v{vector['slot']}", norm, near)
        sections.setdefault(vector["part"], []).append(row)
    header = ("vector", "norm", f"nearest words ({by})")
    return Grid("", header, tuple(map(tuple, sections.values())), folded=(2,))


def vocabulary_table(report: Mapping[str, Any]) -> Grid:
    """Return the counts of a shared vocabulary, one row a model and one for what they share."""
    splits = list(report["total"])
    rows = tuple(
        (
            name,
            str(model["tokens"]),
            str(model["words"]),
            *(str(model["facts"][split]) for split in splits),
        )
        for name, model in report["models"].items()
    )
    left = (f"{report['facts'][split]} of {report['total'][split]}" for split in splits)
    shared = ("all of them", "", str(len(report["words"])), *left)
    header = ("model", "tokens", "words", *(f"{split} facts" for split in splits))
    return Grid("words that are one token", header, (rows, (shared,)))
