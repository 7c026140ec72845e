"""Ranks of the true answers, tie-aware and filtered; the best candidates.

Shapes: b facts, v vocabulary, k candidates, m other true answers. Ties are counted, never hidden:
scores of a half-precision head tie at the top often enough to move P@1 by half a point, so such
scores are refused here.
"""

from __future__ import annotations

import torch
from torch import Tensor

from symprompt.errors import SympromptError
from symprompt.probing.predictions import Ranks


def ranks(scores: Tensor, gold: Tensor, ignore: Tensor | None = None) -> Ranks[Tensor]:
    """Count, for every fact, the others that beat or tie with the true answer.

    Args:
        scores: ``[b, v]`` float32 or float64; ``-inf`` marks what is no candidate.
        gold: ``[b]`` int64, the true answer's id. A gold of ``-inf`` comes after all finite scores
            and ties with every other ``-inf``.
        ignore: ``[b, m]`` int64, padded with -1: other true answers, not counted (filtered ranks).
            The gold itself and repeated ids in a row change nothing.

    Raises:
        SympromptError: half-precision or NaN scores, a wrong shape, or an id out of range.

    Example:
        >>> ranks(torch.tensor([[0.5, 2.0, 0.5]]), torch.tensor([0])).realistic
        tensor([2.5000], dtype=torch.float64)
    """
    _check_scores("scores", scores)
    _check_no_nan("scores", scores)
    rows, width = scores.shape
    _check_ids("gold", gold, (rows,), 0, width)
    gold_score = scores.gather(1, gold[:, None])
    better = (scores > gold_score).sum(dim=1)
    equal = (scores == gold_score).sum(dim=1) - 1  # without the gold itself
    if ignore is None:
        return Ranks(better, equal)
    _check_ids("ignore", ignore, (rows, None), -1, width)
    ordered = ignore.sort(dim=1).values
    counted = (ordered >= 0) & (ordered != gold[:, None])
    counted[:, 1:] &= ordered[:, 1:] != ordered[:, :-1]
    ignored_score = scores.gather(1, ordered.clamp(min=0))
    better = better - ((ignored_score > gold_score) & counted).sum(dim=1)
    equal = equal - ((ignored_score == gold_score) & counted).sum(dim=1)
    return Ranks(better, equal)


def top_k(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return values and ids of the k best per row, best first, ties broken by the lower id.

    The answer is the same on every device; ``torch.topk`` alone leaves the order of ties open.

    Args:
        scores: ``[b, v]`` float32 or float64; ``-inf`` marks what is no candidate.
        k: how many, at most the number of candidates in every row.

    Returns:
        Values ``[b, k]`` and ids ``[b, k]`` int64 (equation 8 of the SPE paper).

    Raises:
        SympromptError: half-precision or NaN scores, or k out of range.
    """
    _check_scores("scores", scores)
    width = scores.shape[1]
    if not 1 <= k <= width:
        raise SympromptError(f"k is {k}, allowed is 1 to {width}, the number of scores in a row.")
    values, ids = torch.topk(scores, k, dim=1)
    _check_no_nan("scores", values)  # topk puts NaN first, so a look at its values is enough
    border = values[:, -1:]
    if bool((border == -torch.inf).any()):
        fewest = int((scores > -torch.inf).sum(dim=1).min())
        raise SympromptError(
            f"k is {k}, but a row has only {fewest} finite scores; choose k <= {fewest}."
        )
    tied_everywhere = (scores == border).sum(dim=1)
    crowded = (tied_everywhere > (values == border).sum(dim=1)).nonzero().squeeze(1)
    if crowded.numel():
        ids[crowded] = _best_ids_by_border(scores[crowded], border[crowded], k)
    ids = ids.sort(dim=1).values
    values = scores.gather(1, ids)
    # Adding zero turns -0.0 into 0.0: a sort by bits would tell the two apart.
    order = torch.sort(values + 0.0, stable=True, dim=1, descending=True).indices
    return values.gather(1, order), ids.gather(1, order)


def _best_ids_by_border(scores: Tensor, border: Tensor, k: int) -> Tensor:
    """Return the ids above the border, filled up to k with the lowest ids on the border."""
    above = scores > border
    tied = scores == border
    room = k - above.sum(dim=1, keepdim=True)
    chosen = above | (tied & (tied.cumsum(dim=1) <= room))
    return chosen.nonzero()[:, 1].view(-1, k)


def _check_scores(name: str, scores: Tensor) -> None:
    if scores.dtype not in (torch.float32, torch.float64):
        raise SympromptError(
            f"{name} has dtype {scores.dtype}, allowed are torch.float32 and torch.float64: "
            "coarser scores tie. Compute the last product and the softmax in float32."
        )
    if scores.ndim != 2:
        raise SympromptError(f"{name} has shape {list(scores.shape)}, needed are two axes.")


def _check_no_nan(name: str, scores: Tensor) -> None:
    if bool(torch.isnan(scores).any()):
        raise SympromptError(f"{name} holds NaN, which has no rank; check the model's output.")


def _check_ids(
    name: str, ids: Tensor, shape: tuple[int | None, ...], lowest: int, width: int
) -> None:
    fits = ids.ndim == len(shape) and all(
        wanted in (None, got) for wanted, got in zip(shape, ids.shape, strict=True)
    )
    if not fits or ids.dtype != torch.int64:
        wanted = ["any" if size is None else size for size in shape]
        raise SympromptError(
            f"{name} is {ids.dtype} of shape {list(ids.shape)}, needed is torch.int64 of {wanted}."
        )
    if ids.numel() == 0:
        return
    low, high = (int(bound) for bound in torch.aminmax(ids))
    if low < lowest or high >= width:
        raise SympromptError(
            f"{name} holds ids {low} to {high}, allowed are {lowest} to {width - 1}."
        )
