"""What commands print of predictions, data, prompts, word vectors and senses.

Tables of plain values; those of finished runs are in ``records``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from symprompt.errors import counted
from symprompt.facts.types import with_advice
from symprompt.files.grid import Grid, stack
from symprompt.probing.summary import skipped_notes
from symprompt.runs.statistics import ABOUT_P

if TYPE_CHECKING:
    from rich.console import Group


def check_table(report: Mapping[str, Any]) -> Group:
    """Return what ``facts.check`` found, relation by relation, with the sums below."""
    counts = (
        "train",
        "dev",
        "test",
        "objects",
        "majority",
        "right",
        "repeats",
        "seen",
        "named",
        "turned",
    )
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
        str(row["test_inverses_in_train"]),
    )


def _check_notes(report: Mapping[str, Any]) -> list[str]:
    notes = [
        "majority: the most frequent object of train, and on how many test facts it is right; "
        "repeats: test facts that stand twice; seen: test facts also in train or dev; named: test "
        "facts whose object is part of the subject's name; turned: test facts whose subject and "
        "object, exchanged, are a training fact of any relation.",
        f"test facts with a subject that occurs in train: {report['test_subjects_in_train']}",
        "test facts with a subject that has several true objects in test: "
        f"{report['test_facts_with_several_objects']}",
    ]
    inverses = [
        f"{row['name']} in {name} ({count})"
        for row in report["relations"]
        for name, count in row["inverses"].items()
    ]
    if inverses:
        notes.append(f"test facts turned around in train: {', '.join(inverses)}")
    for mean in ("relations", "facts"):
        share = report[f"majority_mean_over_{mean}"]
        if share is not None:
            notes.append(f"majority baseline, mean over {mean}: {100 * share:.2f} P@1")
    if report["composed"]:
        notes.append(
            f"{counted(report['composed'], 'fact')} with names in decomposed Unicode (NFD), taken "
            "in composed one (NFC), so that each name is one"
        )
    notes += skipped_notes(report.get("skipped", {}))
    notes += [f"with --skip-unusable: {own}" for own in skipped_notes(report.get("unusable", {}))]
    dropped = report["dropped_by_reason"]
    notes += [
        f"left out: {counted(count, 'fact')}, {with_advice(reason)}"
        for reason, count in dropped.items()
    ]
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


def _kind(report: Mapping[str, Any]) -> str:
    """Return what the vectors of an isotropy report are of."""
    return "texts" if report["about"]["pool"].startswith("text-") else "words"


def isotropy_table(report: Mapping[str, Any]) -> Grid:
    """Return the expected cosine of each layer, before and after, and its rogue dimensions."""
    rows = []
    for layer in report["layers"]:
        shares = ", ".join(f"{place}: {100 * share:.0f} %" for place, share in layer["shares"])
        rows.append((layer["layer"], f"{layer['before']:.3f}", f"{layer['after']:.3f}", shares))
    return Grid(
        f"Expected cosine of two random {_kind(report)}",
        ("layer", "as it is", "standardised", "dimensions with the largest shares"),
        (tuple(rows),),
    )


def frequency_table(report: Mapping[str, Any]) -> Grid:
    """Return the cosines by word frequency, before and after."""
    rows = []
    for one, other in zip(report["before"], report["after"], strict=True):
        cells = (f"{entry[key]:.3f}" for entry in (one, other) for key in ("same", "other"))
        rows.append((f"{one['low']} to {one['high']}", str(one["types"]), *cells))
    return Grid(
        f"Mean cosine by word frequency, {report['layers'][-1]['layer']}",
        (
            "times seen",
            "words",
            "same word",
            "others",
            "same, standardised",
            "others, standardised",
        ),
        (tuple(rows),),
    )


def similarity_table(
    texts: Sequence[str], cosines: Sequence[Sequence[float]], kind: str = "word"
) -> Grid:
    """Return the cosine of every two texts, or of the words marked in them (kind text or word)."""
    rows = [
        (f"{number}  {text}", *(f"{value:.3f}" for value in row))
        for number, (text, row) in enumerate(zip(texts, cosines, strict=True), start=1)
    ]
    what = "text" if kind == "text" else "occurrence"
    header = (what, *(str(number + 1) for number in range(len(texts))))
    title = "Cosine of texts" if kind == "text" else "Cosine of word occurrences"
    return Grid(title, header, (tuple(rows),))


def pair_table(found: Mapping[str, Any], top: int) -> Group:
    """Return the cosine of each pair, beside its score if it has one, and how the two agree.

    Args:
        found: first, second, scores (or none), cosines and spearman.
        top: at most so many pairs.
    """
    scores = found["scores"] or [None] * len(found["cosines"])
    lines = zip(found["first"], found["second"], scores, found["cosines"], strict=True)
    header = ("first", "second", *["score"] * bool(found["scores"]), "cosine")
    rows = tuple(
        (one, other, *([] if score is None else [f"{score:g}"]), f"{cosine:.3f}")
        for one, other, score, cosine in islice(lines, top)
    )
    grid = Grid("Cosine of pairs", header, (rows,), folded=(0, 1))
    count = len(scores)
    notes = [f"the first {top} of {count:,} pairs; --json has all."] if count > top else []
    if found["scores"]:
        value = found["spearman"]
        shown = "none, as all are the same" if value is None else f"{value:.3f}"
        notes.append(f"rank correlation with the scores (Spearman, {count:,} pairs): {shown}")
    return stack(grid, *notes)


def neighbour_table(found: Mapping[str, Any]) -> Grid:
    """Return the texts, or words in texts, that are nearest to one.

    Args:
        found: text, and nearest: cosine, text and label of each.
    """
    labelled = any(own["label"] for own in found["nearest"])
    header = ("nearest", *["language"] * labelled, "cosine")
    rows = tuple(
        (own["text"], *[own["label"]] * labelled, f"{own['cosine']:.3f}")
        for own in found["nearest"]
    )
    return Grid(f"Nearest to: {found['text']}", header, (rows,))


def senses_table(evaluation: Mapping[str, Any]) -> Grid:
    """Return F1 of each set against the most frequent sense."""
    parts = {"n": "nouns", "v": "verbs", "a": "adjectives", "r": "adverbs"}
    blocks = (
        evaluation["sets"],
        [evaluation["all"], evaluation["seen"]],
        [{**score, "name": parts[score["name"]]} for score in evaluation["parts"]],
    )
    return Grid(
        "F1 in percent, with the 95 % interval of the paired difference",
        ("set", "words", "F1", "most frequent sense", "difference", "p"),
        tuple(tuple(_score_row(score) for score in block) for block in blocks),
    )


def senses_notes(evaluation: Mapping[str, Any]) -> list[str]:
    """Return what a reader must know beside the table: sets and words that are not in it."""
    about = evaluation["about"]
    notes = [ABOUT_P]
    if about["sets that are not there"]:
        notes.append(f"not there, so not in all: {', '.join(about['sets that are not there'])}")
    for name, dropped in about["words left out"].items():
        reasons = ", ".join(f"{count} ({reason})" for reason, count in dropped.items())
        notes.append(f"words of {name} left out: {reasons}")
    return notes


def _score_row(score: Mapping[str, Any]) -> tuple[str, ...]:
    change = score["difference"]
    p = "< 0.01" if change["p"] < 0.01 else f"{change['p']:.2f}"
    bounds = f"{change['difference']:+z.2f} ({change['low']:+z.2f} to {change['high']:+z.2f})"
    return (
        score["name"],
        str(score["instances"]),
        f"{score['f1']:.2f}",
        f"{score['baseline']:.2f}",
        bounds,
        p,
    )


def tags_table(tagged: Sequence[Mapping[str, Any]]) -> Grid:
    """Return each content word with its sense, gloss and confidence."""
    rows = []
    for word in tagged:
        sure = word["confidence"]
        share = "first sense" if sure is None else f"{100 * sure:.0f} %"
        gloss = word["gloss"].split("; ")[0]
        rows.append((word["word"], word["pos"], word["sense"], share, gloss))
    header = ("word", "part", "sense", "confidence", "gloss")
    return Grid("", header, (tuple(rows),), folded=(1, 2, 4))
