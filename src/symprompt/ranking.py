"""Ranks of the true answers: tie-aware, filtered, re-ranked; P@k and MRR; bootstrap intervals.

Shapes: b facts, v vocabulary, k candidates, m other true answers. Ties are counted, never hidden:
scores of a half-precision head tie at the top often enough to move P@1 by half a point, so such
scores are refused here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from symprompt.errors import SympromptError

FloatArray = npt.NDArray[np.float64]

OVER_RELATIONS = "mean over relations"
OVER_FACTS = "mean over facts"
METRICS = ("p1", "p10", "mrr")

# Indices held at once while resampling; small enough that the gathers stay in the cache.
_CHUNK = 1 << 16
# A difference that should be exactly zero comes out of float sums as about 1e-14 percent; the
# smallest real one (one fact of many, one place down at rank 20,000) is larger than this.
_ZERO = 1e-12


@dataclass(frozen=True, eq=False)
class Ranks:
    """How many others score higher than the true answer, and how many score exactly the same.

    Attributes:
        better: ``[b]`` int64, others with a higher score.
        equal: ``[b]`` int64, others with exactly the same score.
    """

    better: Tensor
    equal: Tensor

    @property
    def optimistic(self) -> Tensor:
        """The rank if every tie is won, ``[b]`` int64."""
        return self.better + 1

    @property
    def pessimistic(self) -> Tensor:
        """The rank if every tie is lost, ``[b]`` int64."""
        return self.better + self.equal + 1

    @property
    def realistic(self) -> Tensor:
        """The mean of the optimistic and the pessimistic rank, ``[b]`` float64."""
        return self.better.double() + self.equal.double() / 2 + 1


def ranks(scores: Tensor, gold: Tensor, ignore: Tensor | None = None) -> Ranks:
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


def rerank(forward: Tensor, backward: Tensor, *, weight: float | Tensor) -> Tensor:
    """Return the joint score of every candidate: forward + weight * backward (SPE, equation 10).

    Args:
        forward: ``[b, k]`` log-probabilities of the candidates given the subject.
        backward: ``[b, k]`` log-probabilities of the subject given each candidate.
        weight: a number, or one per fact as ``[b]`` or ``[b, 1]``. Where it is zero the forward
            score stays as it is, even if the backward score is ``-inf``.
    """
    _check_scores("forward", forward)
    _check_scores("backward", backward)
    if forward.shape != backward.shape:
        raise SympromptError(
            f"forward is {list(forward.shape)} and backward {list(backward.shape)}; "
            "both must be [facts, candidates]."
        )
    factor = torch.as_tensor(weight, dtype=forward.dtype, device=forward.device)
    rows = forward.shape[0]
    if factor.ndim and tuple(factor.shape) not in {(rows,), (rows, 1)}:
        raise SympromptError(
            f"weight is {list(factor.shape)}, allowed are a number, [{rows}] or [{rows}, 1]."
        )
    if factor.ndim == 1:
        factor = factor[:, None]
    return torch.where(factor == 0, forward, forward + factor * backward)


def reranked_ranks(
    scores: Tensor,
    gold: Tensor,
    candidates: Tensor,
    joint: Tensor,
    ignore: Tensor | None = None,
) -> Ranks:
    """Count who beats or ties with the true answer when the candidates come first.

    The candidates are ordered by joint score, all others follow in forward order. Candidates tie by
    equal joint scores, the others by equal forward scores; the two groups never tie.

    Args:
        scores: ``[b, v]`` forward scores.
        gold: ``[b]`` int64.
        candidates: ``[b, k]`` int64, distinct ids in a row, normally those of ``top_k``.
        joint: ``[b, k]`` joint scores of the candidates, see ``rerank``.
        ignore: ``[b, m]`` int64 padded with -1, see ``ranks``; ignored candidates are not counted.
    """
    base = ranks(scores, gold, ignore)
    rows, width = scores.shape
    _check_scores("joint", joint)
    _check_no_nan("joint", joint)
    _check_ids("candidates", candidates, (rows, joint.shape[1]), 0, width)
    if joint.shape[0] != rows:
        raise SympromptError(f"joint has {joint.shape[0]} rows, scores have {rows}.")
    ordered = candidates.sort(dim=1).values
    if bool((ordered[:, 1:] == ordered[:, :-1]).any()):
        raise SympromptError("candidates holds an id twice in a row; the ids must be distinct.")

    is_gold = candidates == gold[:, None]
    counted = ~is_gold
    if ignore is not None:
        counted &= ~(candidates[:, :, None] == ignore[:, None, :]).any(dim=2)
    gold_joint = joint.masked_fill(~is_gold, 0.0).sum(dim=1, keepdim=True)
    better_inside = ((joint > gold_joint) & counted).sum(dim=1)
    equal_inside = ((joint == gold_joint) & counted).sum(dim=1)

    # A gold outside: the candidates leave the forward count and all stand before it instead.
    gold_forward = scores.gather(1, gold[:, None])
    forward = scores.gather(1, candidates)
    not_above = (counted & ~(forward > gold_forward)).sum(dim=1)
    level = (counted & (forward == gold_forward)).sum(dim=1)
    inside = is_gold.any(dim=1)
    return Ranks(
        torch.where(inside, better_inside, base.better + not_above),
        torch.where(inside, equal_inside, base.equal - level),
    )


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


@dataclass(frozen=True)
class Summary:
    """P@1, P@10 and MRR in percent, 0 to 100."""

    p1: float
    p10: float
    mrr: float


@dataclass(frozen=True)
class Interval:
    """A bootstrap percentile interval, in percent."""

    low: float
    high: float


@dataclass(frozen=True)
class Difference:
    """A paired difference (b minus a) in percentage points, its interval and a p-value.

    ``p`` is the share of draws in which b is no better than a, counting the observed one, so it is
    never smaller than 1 / (draws + 1).
    """

    difference: float
    low: float
    high: float
    p: float


def hits(rank: npt.NDArray[Any], k: int) -> FloatArray:
    """Return 1 where the rank is at most k and 0 elsewhere, in the shape of rank."""
    return (np.asarray(rank) <= k).astype(np.float64)


def summarise(rank: npt.NDArray[Any], relation: npt.NDArray[Any]) -> dict[str, Summary]:
    """Return P@1, P@10 and MRR as mean over relations and as mean over facts.

    Args:
        rank: ``[facts]`` or ``[seeds, facts]``, each at least 1; seeds are averaged.
        relation: ``[facts]`` integers, the relation of each fact.
    """
    contributions, groups = _prepare(rank, relation)
    per_relation = np.stack([contributions[:, facts].mean(axis=1) for facts in groups.values()])
    return {
        OVER_RELATIONS: _summary(per_relation.mean(axis=0)),
        OVER_FACTS: _summary(contributions.mean(axis=1)),
    }


def by_relation(rank: npt.NDArray[Any], relation: npt.NDArray[Any]) -> dict[int, Summary]:
    """Return P@1, P@10 and MRR of every relation that has a fact, by ascending relation."""
    contributions, groups = _prepare(rank, relation)
    return {
        number: _summary(contributions[:, facts].mean(axis=1)) for number, facts in groups.items()
    }


def bootstrap(
    rank: npt.NDArray[Any],
    relation: npt.NDArray[Any],
    *,
    draws: int = 10_000,
    seed: int = 0,
    level: float = 0.95,
) -> dict[str, dict[str, Interval]]:
    """Return a percentile interval per averaging and metric; facts are resampled within relation.

    Args:
        rank: ``[facts]`` or ``[seeds, facts]``; all seeds see the same resampled facts.
        relation: ``[facts]`` integers.
        draws: number of resamplings.
        seed: seed of ``numpy.random.default_rng``.
        level: share of the draws inside the interval.
    """
    contributions, groups = _prepare(rank, relation)
    resampled = _resample(contributions, groups, draws, seed)
    return {
        averaging: {
            metric: Interval(*_bounds(means[index], level)) for index, metric in enumerate(METRICS)
        }
        for averaging, means in resampled.items()
    }


def paired_bootstrap(
    rank_a: npt.NDArray[Any],
    rank_b: npt.NDArray[Any],
    relation: npt.NDArray[Any],
    *,
    draws: int = 10_000,
    seed: int = 0,
    level: float = 0.95,
) -> dict[str, dict[str, Difference]]:
    """Return b minus a per averaging and metric, with interval and one-sided p-value.

    Args:
        rank_a: ``[facts]`` or ``[seeds, facts]``; metrics are averaged over seeds first.
        rank_b: the same facts in the same order; the number of seeds may differ.
        relation: ``[facts]`` integers; facts are resampled within relation.
        draws: number of resamplings.
        seed: seed of ``numpy.random.default_rng``.
        level: share of the draws inside the interval.
    """
    first, groups = _prepare(rank_a, relation)
    second, _ = _prepare(rank_b, relation)
    change = second - first
    observed = {
        OVER_RELATIONS: np.stack([change[:, f].mean(axis=1) for f in groups.values()]).mean(axis=0),
        OVER_FACTS: change.mean(axis=1),
    }
    return {
        averaging: {
            metric: Difference(
                float(observed[averaging][index]),
                *_bounds(means[index], level),
                float((1 + np.count_nonzero(means[index] <= _ZERO)) / (1 + draws)),
            )
            for index, metric in enumerate(METRICS)
        }
        for averaging, means in _resample(change, groups, draws, seed).items()
    }


def _prepare(
    rank: npt.NDArray[Any], relation: npt.NDArray[Any]
) -> tuple[FloatArray, dict[int, npt.NDArray[np.intp]]]:
    """Return what each fact adds, ``[metrics, facts]`` in percent, and the facts per relation."""
    rank = np.atleast_2d(np.asarray(rank, dtype=np.float64))
    relation = np.asarray(relation)
    if relation.ndim != 1 or rank.ndim != 2 or rank.shape[1] != relation.size or not rank.size:
        raise SympromptError(
            f"rank is {list(rank.shape)} and relation {list(relation.shape)}; needed are "
            "[facts] or [seeds, facts] and [facts], with at least one fact."
        )
    if not np.issubdtype(relation.dtype, np.integer):
        raise SympromptError(f"relation has dtype {relation.dtype}, needed are integers.")
    if not (np.isfinite(rank) & (rank >= 1)).all():
        raise SympromptError("rank holds a number that is below 1 or not finite.")
    per_fact = [hits(rank, 1).mean(axis=0), hits(rank, 10).mean(axis=0), (1 / rank).mean(axis=0)]
    groups = {int(number): np.flatnonzero(relation == number) for number in np.unique(relation)}
    return 100 * np.stack(per_fact), groups


def _summary(means: FloatArray) -> Summary:
    return Summary(*(float(value) for value in means))


def _bounds(means: FloatArray, level: float) -> tuple[float, float]:
    if not 0 < level < 1:
        raise SympromptError(f"level is {level}, allowed is a number between 0 and 1.")
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _resample(
    contributions: FloatArray,
    groups: dict[int, npt.NDArray[np.intp]],
    draws: int,
    seed: int,
) -> dict[str, FloatArray]:
    """Return the means of every draw, ``[metrics, draws]`` per averaging.

    Drawing indices and gathering is several times faster than multinomial counts: at a few hundred
    facts per relation nearly every count is its own binomial draw.
    """
    if draws < 1:
        raise SympromptError(f"draws is {draws}, allowed is 1 or more.")
    generator = np.random.default_rng(seed)
    metrics, total = contributions.shape
    over_relations = np.zeros((metrics, draws))
    over_facts = np.zeros((metrics, draws))
    for facts in groups.values():
        size = facts.size
        values = np.ascontiguousarray(contributions[:, facts])
        step = max(1, _CHUNK // size)
        for start in range(0, draws, step):
            stop = min(start + step, draws)
            picked = generator.integers(0, size, size=(stop - start, size))
            sums = np.stack([value.take(picked).sum(axis=1) for value in values])
            over_relations[:, start:stop] += sums / (size * len(groups))
            over_facts[:, start:stop] += sums / total
    return {OVER_RELATIONS: over_relations, OVER_FACTS: over_facts}
