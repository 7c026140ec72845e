"""WSC: the model writes what a pronoun refers to, and the words written are compared.

As in PET, training knows true references only and makes them likely; to answer, the model fills as
many places as the given reference has tokens, and a reference counts as true when its words are
among those written or the other way round. A masked model fills the place it is most certain of
first and reads again, a causal one from left to right; both take the likeliest token.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from symprompt.tasks.patterns.layout import VerbalLayout
from symprompt.tasks.patterns.model import VerbalModel, passes

_ARTICLES = frozenset({"a", "an", "the"})


@torch.no_grad()
def write_spans(model: VerbalModel, layout: VerbalLayout, *, max_tokens: int) -> list[list[int]]:
    """Return the tokens that the model writes in the place of every example's span."""
    found: list[list[int]] = [[] for _ in range(len(layout))]
    size = model.backbone.vocabulary_size
    for rows in passes(layout, max_tokens=max_tokens, vocabulary=size):
        place = torch.from_numpy(rows).to(layout.ids.device)
        width = layout.width_of(rows)
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
