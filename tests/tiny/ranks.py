"""Ranks by sorting, one fact at a time: what fast ranks are compared with."""

from __future__ import annotations

import torch
from torch import Tensor

from symprompt.probing.predictions import Ranks


def reranked_ranks(
    scores: Tensor, gold: Tensor, candidates: Tensor, joint: Tensor, ignore: Tensor | None = None
) -> Ranks[Tensor]:
    """Count who beats or ties with the gold when the candidates come first, by joint score.

    All others follow by their scores; ignored ids are not counted.
    """
    better, equal = [], []
    for row, true in enumerate(gold.tolist()):
        order = {token: (0.0, score) for token, score in enumerate(scores[row].tolist())}
        first = zip(candidates[row].tolist(), joint[row].tolist(), strict=True)
        order |= {token: (1.0, score) for token, score in first}
        left_out = set() if ignore is None else set(ignore[row].tolist())
        kept = [key for token, key in order.items() if token != true and token not in left_out]
        better.append(sum(key > order[true] for key in kept))
        equal.append(sum(key == order[true] for key in kept))
    return Ranks(torch.tensor(better), torch.tensor(equal))
