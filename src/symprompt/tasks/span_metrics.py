"""How good predicted spans and relations are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from symprompt.tasks.examples import SpanExample
from symprompt.tasks.labels import Span
from symprompt.tasks.span_decoding import Related, SpanPrediction

T = TypeVar("T")


def span_metrics(
    examples: Sequence[SpanExample], predictions: Sequence[SpanPrediction]
) -> dict[str, float]:
    """Return precision, recall and F1 of spans: type, first and last word must be right.

    For spans that do not overlap these are the figures of conlleval and seqeval. Where some right
    spans lie in others, ``inner_recall`` is the share of those that are found, and ``outer_recall``
    that of all others; tags can say only the latter.
    """
    gold = [set(entry.spans or ()) for entry in examples]
    found = [set(entry.spans) for entry in predictions]
    measured = scores_of(gold, found)
    inner = [{span for span in own if _lies_in_another(span, own)} for own in gold]
    if any(inner):
        outer = [own - within for own, within in zip(gold, inner, strict=True)]
        measured["inner_recall"] = scores_of(inner, found)["recall"]
        measured["outer_recall"] = scores_of(outer, found)["recall"]
    return measured


def relation_metrics(
    examples: Sequence[SpanExample], predictions: Sequence[SpanPrediction]
) -> dict[str, float]:
    """Return precision, recall and F1 of relations whose name and two spans are all right.

    ``span_f1`` is that of the spans; ``given_f1`` is that of relations between the right spans, as
    if they had been given.
    """
    gold = [set(related(entry)) for entry in examples]
    measured = scores_of(gold, [set(entry.relations) for entry in predictions])
    measured["span_f1"] = span_metrics(examples, predictions)["f1"]
    measured["given_f1"] = scores_of(gold, [set(entry.given or ()) for entry in predictions])["f1"]
    return measured


def related(example: SpanExample) -> list[Related]:
    """Return the right relations of a sentence, with their spans."""
    spans = example.spans or ()
    return [(entry.name, spans[entry.one], spans[entry.other]) for entry in example.relations or ()]


def scores_of(gold: Sequence[set[T]], found: Sequence[set[T]]) -> dict[str, float]:
    """Return precision, recall and F1 of sets; 0 where one is not defined."""
    pairs = list(zip(gold, found, strict=True))
    right = sum(len(left & other) for left, other in pairs)
    given = sum(len(left) for left, _ in pairs)
    taken = sum(len(other) for _, other in pairs)
    score = 2 * right / (given + taken) if given + taken else 0.0
    return {"f1": score, "precision": right / max(1, taken), "recall": right / max(1, given)}


def _lies_in_another(span: Span, spans: set[Span]) -> bool:
    return any(
        other[1:] != span[1:] and other[1] <= span[1] and span[2] <= other[2] for other in spans
    )
