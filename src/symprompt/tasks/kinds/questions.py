"""The answer to a question: a part of its context, or nothing.

The figures are SQuAD's, from their definition (Rajpurkar et al., 2016 and 2018): answers are
compared in lower case without punctuation, articles and extra spaces, each with the right answer
it fits best. A question without an answer counts 1 where none is predicted, else 0.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from symprompt.errors import DataError, ModelError
from symprompt.models.vocabulary import Vocabulary
from symprompt.tasks.data.examples import NO_LABEL, QuestionExample
from symprompt.tasks.data.questions import read_own_questions
from symprompt.tasks.features import (
    Batch,
    Features,
    Ints,
    Ragged,
    Sheet,
    assemble,
    encode,
    make_windows,
)
from symprompt.tasks.kinds.base import Head, Kind, Scores, Target

_BATCH = 4096
_CHUNK = 2048
_CANDIDATES = 20
"""How many first and last tokens are tried, and how many answers are kept, for each row."""
_LONGEST = 30
"""The most tokens of an answer."""
_KEPT = 3
"""Candidate answers that are stored with each question."""
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


@dataclass(frozen=True)
class Candidate:
    """A possible answer and its score."""

    text: str
    score: float


@dataclass(frozen=True)
class AnswerPrediction:
    """What a model answers; final.

    Attributes:
        text: the answer; empty for none.
        null_score: the score of no answer, less that of the best answer: higher means that the
            question is less likely to have one.
        candidates: the best answers, best first.
    """

    text: str
    null_score: float
    candidates: tuple[Candidate, ...]

    def at(self, threshold: float | None) -> AnswerPrediction:
        """Return the prediction with no answer if ``null_score`` is above a threshold.

        None always answers, as SQuAD 1.1 asks for.
        """
        best = self.candidates[0].text if self.candidates else ""
        none = threshold is not None and self.null_score > threshold
        return replace(self, text="" if none else best)


class Questions(Kind[QuestionExample, AnswerPrediction]):
    """Extractive question answering; final.

    Targets: starts and ends, the first and last token of the answer [n], ``null`` if the row does
    not show it whole, -100 where it is not known; allowed, the tokens that can be one of these
    [n, t]. Notes: null, the token that stands for "no answer": the first one, or a causal model's
    last [n]; offsets, the characters of the context that each token covers, -1 outside [n, t, 2].
    """

    read = staticmethod(read_own_questions)
    inputs = ("question", "context")
    predicted = "answers"
    settings = ("task.choose_threshold",)
    has_labels = False
    per_token = True

    def tensorise(
        self, examples: Sequence[QuestionExample], sheet: Sheet, target: Target
    ) -> Features:
        """Return questions as rows; a context that is too long is split into windows."""
        vocabulary = sheet.vocabulary
        table: dict[str, int] = {}
        context = np.array([table.setdefault(x.context, len(table)) for x in examples], np.int64)
        tokens, offsets = _encode_contexts(list(table), vocabulary)
        asked = encode(vocabulary, [entry.question.strip() for entry in examples])["input_ids"]
        question = Ragged.of(asked)
        room = sheet.room(pair=True, closing=True) - question.length
        lengths = tokens.length[context]
        sheet.check_room(room, lengths <= room, [entry.id for entry in examples], "question")
        windows = make_windows(lengths, room, sheet.stride)
        row = windows.example
        start = tokens.start[context[row]] + windows.start
        features, (_, column) = assemble(
            sheet,
            row,
            question.take(row),
            Ragged(tokens.values, start, windows.length),
            closing=True,
        )
        covered = np.full((*features.ids.shape, 2), -1, np.int32)
        for side in range(2):
            Ragged(offsets[:, side], start, windows.length).write(covered[..., side], column)
        null = features.lengths - 1 if vocabulary.causal else np.zeros_like(features.lengths)
        begin, end = _answers(examples, context, tokens, offsets)
        first, last = begin[row] - windows.start, end[row] - windows.start
        shown = (first >= 0) & (last < windows.length) & (first <= last)
        answered = np.array([bool(entry.answers) for entry in examples], np.bool_)
        unknown = np.array([entry.answers is None for entry in examples], np.bool_)
        unknown |= answered & (begin > end)  # the tokenizer reads the answer as nothing
        cases = [unknown[row], answered[row] & shown]
        starts, ends = (
            np.select(cases, [np.full_like(first, NO_LABEL), column + place], null)
            for place in (first, last)
        )
        allowed = covered[..., 0] >= 0
        allowed[np.arange(len(row)), null] = True
        return replace(
            features,
            targets={"starts": starts, "ends": ends, "allowed": allowed},
            notes={"null": null, "offsets": covered},
        )

    def head(
        self, width: int, target: Target, *, causal: bool, generator: torch.Generator | None = None
    ) -> Head:
        """Return a head that scores first and last tokens."""
        return AnswerHead(width, 2, target.head, generator)

    def decode(
        self,
        scores: Scores,
        features: Features,
        examples: Sequence[QuestionExample],
        target: Target,
        *,
        threshold: float | None = None,
    ) -> list[AnswerPrediction]:
        """Return an answer to each question from logits of first and last tokens [n, t, 2].

        As in SQuAD's baselines: an answer's score is the sum of its two logits, the best of all
        rows of an example compete, and no answer has the lowest score that any row gives it.

        Args:
            threshold: no answer is given if its score is higher than the best answer's by more
                than this; None always answers.
        """
        offsets = features.notes["offsets"][:, : scores.shape[1]]
        null = scores[np.arange(len(features)), features.notes["null"]].astype(np.float64).sum(-1)
        lowest = np.full(len(examples), np.inf)
        np.minimum.at(lowest, features.example, null)
        found: list[list[tuple[float, int, int]]] = [[] for _ in examples]
        for begin in range(0, len(features), _CHUNK):
            chunk = slice(begin, begin + _CHUNK)
            covered = offsets[chunk]
            best = _best_spans(scores[chunk], covered[..., 0] >= 0)
            for row, score, start, end in zip(*(part.tolist() for part in best), strict=True):
                place = features.example[begin + row]
                found[place].append((score, int(covered[row, start, 0]), int(covered[row, end, 1])))
        return [
            _answer(example, spans, float(none)).at(threshold)
            for example, spans, none in zip(examples, found, lowest, strict=True)
        ]

    def measure(
        self, examples: Sequence[QuestionExample], predictions: Sequence[AnswerPrediction]
    ) -> dict[str, float]:
        """Return SQuAD's exact match and F1 over all questions.

        Where some questions have no answer, also over those with and those without one, and what
        the best threshold on no answer would give. That threshold is chosen on the very same
        questions, so the figures that begin with "oracle" are no measure of a model that is used.
        """
        pairs = zip(examples, predictions, strict=True)
        scores = np.array([question_scores(example, entry.text) for example, entry in pairs])
        scores = scores.reshape(-1, 2)
        none = np.array([not example.answers for example in examples], np.bool_)
        groups = {"": np.ones_like(none)}
        if none.any():
            groups |= {"answerable_": ~none, "unanswerable_": none}
        found = {
            prefix + name: float(scores[chosen, column].sum() / max(1, chosen.sum()))
            for prefix, chosen in groups.items()
            for column, name in enumerate(("exact", "f1"))
        }
        if none.any():
            for column, name in enumerate(("exact", "f1")):
                threshold, best = best_threshold(examples, predictions, column=column)
                found[f"oracle_{name}"] = best
                found[f"oracle_{name}_threshold"] = threshold
        return found

    def row(self, example: QuestionExample, prediction: AnswerPrediction) -> dict[str, Any]:
        """Return the answer, the score of none, and the best candidates.

        Gold is the right answers; an empty list for none.
        """
        gold = [answer.text for answer in example.answers or ()]
        return {
            "id": example.id,
            "prediction": prediction.text,
            "null_score": round(prediction.null_score, 4),
            "candidates": [
                {"text": entry.text, "score": round(entry.score, 4)}
                for entry in prediction.candidates[:_KEPT]
            ],
            **({} if example.answers is None else {"gold": gold}),
        }

    def threshold(
        self,
        train: Sequence[QuestionExample],
        unanswerable: Literal["data", "always"] = "data",
    ) -> float | None:
        """Return 0 if questions may have no answer, None if they always have one.

        Args:
            unanswerable: whether that is as in training, or so always.
        """
        may = unanswerable == "always" or any(entry.answers == () for entry in train)
        return 0.0 if train and may else None

    def best_threshold(
        self, examples: Sequence[QuestionExample], predictions: Sequence[AnswerPrediction]
    ) -> float:
        """Return the threshold on no answer with the best F1."""
        return best_threshold(examples, predictions)[0]


def _encode_contexts(texts: Sequence[str], vocabulary: Vocabulary) -> tuple[Ragged, Ints]:
    """Return contexts' tokens and the characters [n, 2] that each token covers."""
    if not vocabulary.tokenizer.is_fast:
        raise ModelError(
            "the tokenizer of this model does not say which characters its tokens cover, so "
            "answers cannot be found; use a model with a fast tokenizer (tokenizer.json)."
        )
    ids: list[list[int]] = []
    offsets: list[Ints] = []
    for begin in range(0, len(texts), _BATCH):
        found = encode(vocabulary, texts[begin : begin + _BATCH], offsets=True)
        ids += found["input_ids"]
        pairs = chain.from_iterable(chain.from_iterable(found["offset_mapping"]))
        offsets.append(np.fromiter(pairs, np.int32).reshape(-1, 2))
    covered = np.concatenate(offsets) if offsets else np.zeros((0, 2), np.int32)
    return Ragged.of(ids), covered


def _answers(
    examples: Sequence[QuestionExample],
    context: NDArray[np.int64],
    tokens: Ragged,
    offsets: Ints,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the first and last context token of each example's first answer.

    The first token is the first that ends after the answer's start, the last the last that starts
    before its end: tokens may cover the space before their word. First after last: no token.
    """
    spans = [
        (x.answers[0].start, len(x.answers[0].text)) if x.answers else (0, 0) for x in examples
    ]
    start, length = np.array(spans, np.int64).reshape(-1, 2).T
    # One search over all contexts: characters counted on from context to context.
    far = int(max((len(entry.context) for entry in examples), default=0)) + 2
    base = np.repeat(np.arange(len(tokens.length)), tokens.length) * far
    here = context * far
    first = np.searchsorted(base + offsets[:, 1], here + start, side="right")
    last = np.searchsorted(base + offsets[:, 0], here + start + length, side="left") - 1
    origin = tokens.start[context]
    return first - origin, last - origin


class AnswerHead(Head):
    """The first and the last token of an answer; final.

    Only tokens of the context and the one that means "no answer" can be chosen, in training as in
    decoding, so that padding and the question take no part.
    """

    labels = "starts"

    def loss(self, states: Tensor, batch: Batch) -> Tensor:
        """Return the mean of the cross-entropies of first and last token [b]."""
        logits = self.scores(states, batch)
        losses = [
            functional.cross_entropy(
                logits[..., side], batch.targets[name], reduction="none", ignore_index=NO_LABEL
            )
            for side, name in enumerate(("starts", "ends"))
        ]
        return (losses[0] + losses[1]) / 2

    def scores(self, states: Tensor, batch: Batch) -> Tensor:
        """Return logits [b, t, 2]; a token that cannot be chosen has -inf."""
        allowed = batch.targets["allowed"]
        return self.logits(states).masked_fill(~allowed[..., None], float("-inf"))


def _best_spans(
    scores: Scores, allowed: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], Scores, NDArray[np.int64], NDArray[np.int64]]:
    """Return row, score, first and last token of the best answers of each row."""
    logits = np.where(allowed[..., None], scores.astype(np.float64), -np.inf)
    count = min(_CANDIDATES, logits.shape[1])
    # Sorted by score and, among equals, by place, so that nothing depends on the rows around.
    tops = np.argsort(-logits, axis=1, kind="stable")[:, :count]
    starts, ends = tops[..., 0], tops[..., 1]
    totals = (
        np.take_along_axis(logits[..., 0], starts, 1)[:, :, None]
        + np.take_along_axis(logits[..., 1], ends, 1)[:, None, :]
    )
    length = ends[:, None, :] - starts[:, :, None]
    flat = np.where((length >= 0) & (length < _LONGEST), totals, -np.inf).reshape(len(totals), -1)
    best = np.argsort(-flat, axis=1, kind="stable")[:, :count]
    values = np.take_along_axis(flat, best, 1)
    rows, kept = np.nonzero(np.isfinite(values))
    chosen = best[rows, kept]
    return (
        rows,
        values[rows, kept],
        starts[rows, chosen // count],
        ends[rows, chosen % count],
    )


def _answer(
    example: QuestionExample, spans: list[tuple[float, int, int]], null: float
) -> AnswerPrediction:
    """Return the best answers of an example; the same text from two windows is kept once."""
    kept: dict[tuple[int, int], Candidate] = {}
    for score, start, end in sorted(spans, key=lambda span: (-span[0], span[1], span[2])):
        text = example.context[start:end].strip()
        if text and (start, end) not in kept:
            kept[start, end] = Candidate(text, score)
        if len(kept) == _CANDIDATES:
            break
    best = tuple(kept.values())
    return AnswerPrediction("", null - best[0].score if best else float("inf"), best)


def normalise(answer: str) -> str:
    """Return an answer in lower case, without punctuation, articles and extra spaces."""
    plain = answer.lower().translate(_NO_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", plain).split())


def answer_f1(predicted: str, gold: str) -> float:
    """Return the F1 of two answers' words; an empty one fits an empty one alone."""
    left, right = normalise(predicted).split(), normalise(gold).split()
    if not left or not right:
        return float(left == right)
    shared = sum((Counter(left) & Counter(right)).values())
    return 2 * shared / (len(left) + len(right))


def question_scores(example: QuestionExample, predicted: str) -> tuple[float, float]:
    """Return exact match and F1 of one prediction: the best over the right answers.

    Answers that are nothing once normalised are left out, as in the official script; a question
    that is left with none has no answer.
    """
    gold = [entry.text for entry in example.answers or () if normalise(entry.text)] or [""]
    return (
        max(float(normalise(predicted) == normalise(text)) for text in gold),
        max(answer_f1(predicted, text) for text in gold),
    )


def best_threshold(
    examples: Sequence[QuestionExample],
    predictions: Sequence[AnswerPrediction],
    *,
    column: int = 1,
) -> tuple[float, float]:
    """Return the threshold on ``null_score`` with the highest score, and that score.

    A question is answered if its null score is not above the threshold. To be fair, choose it on
    questions held out from training. Of equal scores the lowest threshold is taken, as in the
    official script; scores that tie are passed together, as a threshold cannot part them.

    Args:
        column: 0 for exact match, 1 for F1.
    """
    if not examples:
        raise DataError("no threshold can be chosen on no questions; hold some out.")
    best_texts = [entry.at(None).text for entry in predictions]
    pairs = zip(examples, best_texts, strict=True)
    answered = np.array([question_scores(example, text)[column] for example, text in pairs])
    silent = np.array([float(not example.answers) for example in examples])
    # Any text is wrong where there is no answer, even one that is nothing once normalised.
    answered[(silent > 0) & np.array([bool(text) for text in best_texts])] = 0.0
    null = np.array([entry.null_score for entry in predictions])
    order = np.argsort(null, kind="stable")
    totals = silent.sum() + np.cumsum((answered - silent)[order])
    # Answer nothing, or everything up to the last of equal null scores.
    last = np.append(null[order][1:] != null[order][:-1], True) & np.isfinite(null[order])
    thresholds = np.append(null.min() - 1.0, null[order][last])
    values = np.append(silent.sum(), totals[last])
    place = int(values.argmax())
    return float(thresholds[place]), float(values[place]) / len(examples)
