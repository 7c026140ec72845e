"""What ask, train and data check show, as rich tables built from plain values.

What prompts show prints: each relation's prompt and the words its vectors are near.

What data vocabulary prints: each model's words, and the facts they leave.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from symprompt.report.tables import candidate_notes, unfilled_notes


def answer_table(answers: Sequence[Mapping[str, Any]], title: str) -> Table:
    """Return ranked answers with their scores, blank where there is none."""
    # Text cells are taken literally: a token such as [unused1] is no rich markup.
    table = Table(title=Text(title), title_justify="left")
    table.add_column("rank", justify="right")
    table.add_column("answer")
    asked_back = any(answer["joint"] is not None for answer in answers)
    names = ("forward", "backward", "joint") if asked_back else ("forward",)
    for name in names:
        table.add_column(name, justify="right")
    for rank, answer in enumerate(answers, start=1):
        scores = ("" if answer[name] is None else f"{answer[name]:.3f}" for name in names)
        table.add_row(str(rank), Text(answer["text"]), *scores)
    return table


def run_summary(metrics: Mapping[str, Any]) -> RenderableType:
    """Return a finished run's test figures, and what was left out of them."""
    title = Text(f"{metrics['method']} on {metrics['model']}")
    table = Table(title=title, title_justify="left")
    table.add_column("test, realistic ranks")
    for name in ("P@1", "P@10", "MRR"):
        table.add_column(name, justify="right")
    test = metrics["test"]
    rows = {"forward only": "forward"} if metrics["weights"] else {}
    rows |= {"raw": "raw", "filtered": "filtered"}
    for label, key in rows.items():
        for mean, values in test[key]["realistic"].items():
            table.add_row(f"{label}, {mean}", *(f"{value:.2f}" for value in values.values()))
    notes = [f"{test['facts']} facts, {len(test['relations'])} relations, seed {metrics['seed']}"]
    notes += candidate_notes(metrics) + unfilled_notes(metrics)
    notes += [f"left out: {count} facts, {why}" for why, count in metrics["dropped"].items()]
    weights = sorted(set((metrics["weights"] or {}).values()))
    if weights:
        shown = (
            f"{weights[0]:.3g}" if len(weights) == 1 else f"{weights[0]:.3g} to {weights[-1]:.3g}"
        )
        more = ", objects' frequencies counted" if metrics.get("frequency_shares") else ""
        notes.append(f"asked back: K = {metrics['k']}, weight {shown}{more}")
    notes += [f"{stage}: {seconds:.1f} s" for stage, seconds in metrics["seconds"].items()]
    return Group(table, *(Text(note) for note in notes))


def check_table(report: Mapping[str, Any]) -> RenderableType:
    """Return what ``facts.check`` found, relation by relation, with the sums below."""
    title = Text(f"{report['source']} ({report['layout']})")
    table = Table(title=title, title_justify="left", box=box.SIMPLE, padding=(0, 1, 0, 0))
    left = ("relation", "majority")
    for name in ("relation", "train", "dev", "test", "objects", "majority", "right"):
        table.add_column(name, justify="left" if name in left else "right")
    for name in ("repeats", "seen", "named"):
        table.add_column(name, justify="right")
    for row in [*report["relations"], {**report, "name": "all", "label": ""}]:
        share = row.get("majority_accuracy")
        table.add_row(
            Text(f"{row['name']} {row['label']}".strip()),
            *(str(row["facts"][split]) for split in ("train", "dev", "test")),
            str(row["distinct_objects"]),
            Text(row.get("majority_object", "")),
            "" if share is None else f"{100 * share:.1f} %",
            str(row["duplicates"]["test"]),
            str(row["test_pairs_in_train_or_dev"]),
            str(row["object_in_subject"]["test"]),
            end_section=row is report["relations"][-1],
        )
    return Group(table, *(Text(note) for note in _check_notes(report)))


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


def prompts_table(views: Sequence[Mapping[str, Any]], by: str) -> RenderableType:
    """Return the prompts of some relations, a table for each that learned vectors.

    Args:
        views: relations as plain values, as ``inspection.describe_prompts`` has them.
        by: what the numbers beside the words are.
    """
    parts: list[RenderableType] = []
    for view in views:
        title = f"{view['relation']} {view['label']}".strip()
        parts.append(Text(f"{title}: {view['about']}" if view["about"] else title))
        parts += [Text(f"  {part}: {text}") for part, text in view["prompts"].items()]
        if view["vectors"]:
            parts.append(_vectors(view["vectors"], by))
    if any(view["vectors"] for view in views):
        parts.append(
            Text("norm: of the vector, and as a multiple of the mean norm of the word embeddings.")
        )
    return Group(*parts)


def _vectors(vectors: Sequence[Mapping[str, Any]], by: str) -> Table:
    table = Table(box=box.SIMPLE, pad_edge=False)
    table.add_column("vector")
    table.add_column("norm", justify="right")
    table.add_column(f"nearest words ({by})")
    for index, vector in enumerate(vectors):
        last = index + 1 == len(vectors) or vectors[index + 1]["part"] != vector["part"]
        # Text cells are taken literally: a token such as [unused1] is no rich markup.
        near = "  ".join(f"{word['text']} {word['value']:.2f}" for word in vector["nearest"])
        table.add_row(
            f"{vector['part']} v{vector['slot']}",
            f"{vector['norm']:.2f} ({vector['relative_norm']:.2f} x)",
            Text(near),
            end_section=last,
        )
    return table


def vocabulary_table(report: Mapping[str, Any]) -> Table:
    """Return the counts of a shared vocabulary, one row a model and one for what they share."""
    table = Table(title="words that are one token", title_justify="left", box=box.SIMPLE)
    table.add_column("model")
    splits = list(report["total"])
    for name in ("tokens", "words", *(f"{split} facts" for split in splits)):
        table.add_column(name, justify="right")
    for name, model in report["models"].items():
        left = (str(model["facts"][split]) for split in splits)
        table.add_row(Text(name), str(model["tokens"]), str(model["words"]), *left)
    table.add_section()
    shared = (f"{report['facts'][split]} of {report['total'][split]}" for split in splits)
    table.add_row("all of them", "", str(len(report["words"])), *shared)
    return table
