"""A split as token arrays, laid out once: ids, labels, and what decoding needs to get back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from symprompt.models.vocabulary import Vocabulary
from symprompt.tasks.data.examples import (
    Example,
    LabelSet,
    QuestionExample,
    SpanExample,
    TaskData,
    TaskKind,
)
from symprompt.tasks.features import Features
from symprompt.tasks.kinds.questions import lay_out_questions
from symprompt.tasks.kinds.spans import lay_out_spans
from symprompt.tasks.kinds.texts import Texts, lay_out_texts
from symprompt.tasks.kinds.words import Tagged, lay_out_words
from symprompt.tasks.rows import LongTexts, Sheet

__all__ = ["Features", "LongTexts", "lay_out", "make_features"]


def make_features(
    data: TaskData,
    split: str,
    vocabulary: Vocabulary,
    *,
    max_length: int,
    stride: int = 128,
    label_all_tokens: bool = False,
    token_types: bool | None = None,
    long_texts: LongTexts = "windows",
) -> Features:
    """Lay out a split of a data set; see ``lay_out``."""
    return lay_out(
        data.kind,
        data.split(split),
        data.labels,
        vocabulary,
        max_length=max_length,
        stride=stride,
        label_all_tokens=label_all_tokens,
        token_types=token_types,
        long_texts=long_texts,
        relations=data.relations,
    )


def lay_out(
    kind: TaskKind,
    examples: Sequence[Example],
    labels: LabelSet,
    vocabulary: Vocabulary,
    *,
    max_length: int,
    stride: int = 128,
    label_all_tokens: bool = False,
    token_types: bool | None = None,
    long_texts: LongTexts = "windows",
    relations: LabelSet | None = None,
) -> Features:
    """Lay out examples of one kind as arrays; nothing is cut unless ``long_texts`` says so.

    Args:
        labels: the labels that are known; others, and None, become -100.
        max_length: the most tokens of a row, special tokens included.
        stride: tokens that two neighbouring windows of a long text share, as transformers counts
            it; never more than half of a window.
        label_all_tokens: label every token of a word, not its first alone. The others of a word
            that starts a phrase are then I-.
        token_types: whether to make segment types; without a word, if the tokenizer has them.
        long_texts: what happens to texts and pairs that are too long: "windows" splits the longer
            text of the example (its score is the mean over its windows), "cut" drops the end of the
            longer text and counts it. Sentences with tags and contexts are always split.
        relations: the relations between spans that are known.

    Raises:
        DataError: an example's other parts leave no room for the text that is split.
        ConfigError: the settings leave no room for any text.
    """
    sheet = Sheet.make(vocabulary, max_length=max_length, stride=stride, token_types=token_types)
    if kind == "question":
        return lay_out_questions(cast(Sequence[QuestionExample], examples), sheet)
    if kind in ("spans", "relations"):
        sentences = cast(Sequence[SpanExample], examples)
        return lay_out_spans(kind, sentences, labels, relations or LabelSet(()), sheet)
    if kind in ("tagging", "roles"):
        tagged = cast(Sequence[Tagged], examples)
        return lay_out_words(kind, tagged, labels, sheet, label_all_tokens=label_all_tokens)
    return lay_out_texts(kind, cast(Sequence[Texts], examples), labels, sheet, long_texts)
