"""What SuperGLUE measures: accuracy, macro-averaged F1 (CB), EM and F1a (MultiRC), in percent.

WSC: the model writes what a pronoun refers to, and the words written are compared.

As in PET, training knows true references only and makes them likely; to answer, the model fills as
many places as the given reference has tokens, and a reference counts as true when its words are
among those written or the other way round. A masked model fills the place it is most certain of
first and reads again, a causal one from left to right; both take the likeliest token.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from symprompt.errors import DataError
from symprompt.tasks.patterns.layout import VerbalLayout
from symprompt.tasks.patterns.model import VerbalModel, passes
from symprompt.tasks.patterns.superglue import VerbalExample, VerbalTask

Labels = npt.NDArray[np.int64]


def measure(
    task: VerbalTask, examples: Sequence[VerbalExample], predicted: Labels
) -> dict[str, float]:
    """Return a task's metrics, the main one first.

    Raises:
        DataError: an example has no label, or there are not as many predictions as examples.
    """
    if any(example.label is None for example in examples) or len(examples) != len(predicted):
        raise DataError(
            f"{len(predicted)} predictions cannot be measured on {len(examples)} examples of "
            f"{task.name}; every example needs a label and a prediction."
        )
    gold = np.array([example.label for example in examples], dtype=np.int64)
    found = {"accuracy": accuracy(gold, predicted)}
    if "macro_f1" in task.metrics:
        found["macro_f1"] = macro_f1(gold, predicted)
    if "em" in task.metrics:
        groups = [example.group for example in examples]
        found["em"] = exact_match(gold, predicted, groups)
        found["f1a"] = f1(gold, predicted, 1)
    return {name: found[name] for name in task.metrics}


def accuracy(gold: Labels, predicted: Labels) -> float:
    """Return the share of right labels."""
    return 100 * float((gold == predicted).mean())


def f1(gold: Labels, predicted: Labels, label: int) -> float:
    """Return the F1 of one label; 0 where it is neither right nor predicted (over all answers,
    F1a of MultiRC for label 1)."""
    both = int(((gold == label) & (predicted == label)).sum())
    either = int((gold == label).sum() + (predicted == label).sum())
    return 200 * both / either if either else 0.0


def macro_f1(gold: Labels, predicted: Labels) -> float:
    """Return the mean F1 of the labels that are right or predicted anywhere, as scikit-learn's."""
    labels = np.union1d(gold, predicted)
    return float(np.mean([f1(gold, predicted, int(label)) for label in labels]))


def exact_match(gold: Labels, predicted: Labels, groups: Sequence[str]) -> float:
    """Return the share of questions all of whose answers are labelled right."""
    right: dict[str, bool] = defaultdict(lambda: True)
    for name, same in zip(groups, gold == predicted, strict=True):
        right[name] = right[name] and bool(same)
    return 100 * sum(right.values()) / len(right)


_ARTICLES = frozenset({"a", "an", "the"})


@torch.no_grad()
def write_spans(model: VerbalModel, layout: VerbalLayout, *, max_tokens: int) -> list[list[int]]:
    """Return the tokens that the model writes in the place of every example's span."""
    found: list[list[int]] = [[] for _ in range(len(layout))]
    size = model.backbone.vocabulary_size
    for rows in passes(layout, max_tokens=max_tokens, vocabulary=size):
        place = torch.tensor(rows, device=layout.ids.device)
        width = layout.width_of(np.array(rows))
        written = _fill(model, layout, place, width)
        counts = (layout.weight[place] > 0).sum(1).tolist()
        for row, tokens, count in zip(rows, written.tolist(), counts, strict=True):
            found[row] = tokens[:count]
    return found


def _fill(model: VerbalModel, layout: VerbalLayout, rows: Tensor, width: int) -> Tensor:
    """Return [b, a] tokens, one for each place, those beyond an example's own without meaning."""
    causal = model.backbone.causal
    ids = layout.ids[rows, :1, :width].clone()
    at = layout.at[rows]
    batch, places = at.shape
    own = layout.weight[rows] > 0
    written = torch.zeros_like(at)
    left = own.clone()
    line = torch.arange(batch, device=rows.device)
    for turn in range(places):
        inputs = model.inputs(layout, rows, width, ids)
        which = line[:, None].expand(batch, places).flatten()
        logits = model.token_logits(inputs, at.flatten(), which)
        best, token = logits.log_softmax(-1).view(batch, places, -1).max(-1)
        if causal:
            place = torch.full_like(line, turn)
        else:
            place = best.masked_fill(~left, -torch.inf).argmax(1)
        chosen = left[line, place]
        written[line, place] = torch.where(chosen, token[line, place], written[line, place])
        left[line, place] = False
        to = (at[line, place] + int(causal)).clamp(max=width - 1)
        # What a causal model wrote last stands beyond its sentence and is not read again.
        ids[line, 0, to] = torch.where(chosen, token[line, place], ids[line, 0, to])
        if not bool(left.any()):
            break
    return written


def same_words(one: str, other: str) -> bool:
    """Say whether all words of one text are in the other; case, marks and articles aside."""
    first, second = _words(one), _words(other)
    if not first or not second:
        return False
    return first <= second or second <= first


def judge_spans(written: Sequence[str], wanted: Sequence[str]) -> npt.NDArray[np.int64]:
    """Return 1 where what was written is what was wanted, else 0."""
    pairs = zip(written, wanted, strict=True)
    return np.array([int(same_words(one, other)) for one, other in pairs], dtype=np.int64)


def _words(text: str) -> set[str]:
    words = set(re.findall(r"[^\W_]+", text.lower()))
    return words - _ARTICLES or words
