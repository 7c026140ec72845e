"""P@k and MRR averaged over relations and over facts, with bootstrap intervals and differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from symprompt.errors import SympromptError

FloatArray = npt.NDArray[np.float64]

OVER_RELATIONS = "mean over relations"
OVER_FACTS = "mean over facts"
METRICS = ("p1", "p10", "mrr")
ABOUT_P = "p is two-sided, by a paired bootstrap."
LEVEL = 0.95
"""Share of the draws inside an interval."""

# Indices held at once while resampling; small enough that the gathers stay in the cache.
_CHUNK = 1 << 16
# A difference that should be exactly zero comes out of float sums as about 1e-14 percent; the
# smallest real one (one fact of many, one place down at rank 20,000) is larger than this.
_ZERO = 1e-12


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

    ``p`` is two-sided: twice the share of draws on the rarer side of zero (b no better than a, or b
    no worse), counting the observed one, so it is never smaller than 2 / (draws + 1). By relation
    it is that of ``exchange_test``, corrected.
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
    means = _means(_per_fact(rank), _groups(relation))
    return {averaging: Summary(*own.tolist()) for averaging, own in means.items()}


def by_relation(rank: npt.NDArray[Any], relation: npt.NDArray[Any]) -> dict[int, Summary]:
    """Return P@1, P@10 and MRR of every relation that has a fact, by ascending relation."""
    each = _per_fact(rank)
    return {
        number: Summary(*each[:, facts].mean(axis=1).tolist())
        for number, facts in _groups(relation).items()
    }


def bootstrap(
    rank: npt.NDArray[Any],
    relation: npt.NDArray[Any],
    *,
    draws: int = 10_000,
    seed: int = 0,
) -> dict[str, dict[str, Interval]]:
    """Return a percentile interval per averaging and metric; facts are resampled within relation.

    Args:
        rank: ``[facts]`` or ``[seeds, facts]``; all seeds see the same resampled facts.
        relation: ``[facts]`` integers.
        draws: number of resamplings.
        seed: seed of ``numpy.random.default_rng``.
    """
    values = dict(zip(METRICS, _per_fact(rank), strict=True))
    found = bootstrap_means(values, relation, draws=draws, seed=seed)
    return {
        averaging: {metric: Interval(own.low, own.high) for metric, own in means.items()}
        for averaging, means in found.items()
    }


def paired_bootstrap(
    rank_a: npt.NDArray[Any],
    rank_b: npt.NDArray[Any],
    relation: npt.NDArray[Any],
    *,
    draws: int = 10_000,
    seed: int = 0,
) -> dict[str, dict[str, Difference]]:
    """Return b minus a per averaging and metric, with interval and two-sided p-value.

    Args:
        rank_a: ``[facts]`` or ``[seeds, facts]``; metrics are averaged over seeds first.
        rank_b: the same facts in the same order; the number of seeds may differ.
        relation: ``[facts]`` integers; facts are resampled within relation.
        draws: number of resamplings.
        seed: seed of ``numpy.random.default_rng``.
    """
    change = _per_fact(rank_b) - _per_fact(rank_a)
    values = dict(zip(METRICS, change, strict=True))
    return bootstrap_means(values, relation, draws=draws, seed=seed)


def paired_by_relation(
    rank_a: npt.NDArray[Any],
    rank_b: npt.NDArray[Any],
    relation: npt.NDArray[Any],
    *,
    draws: int = 10_000,
    seed: int = 0,
) -> dict[int, dict[str, Difference]]:
    """Return b minus a per relation and metric, p corrected for the number of relations.

    Intervals are of the bootstrap, p is ``exchange_test``'s, corrected by Holm's method.

    Args:
        rank_a, rank_b, relation: see ``paired_bootstrap``.
        draws: of the bootstrap.
    """
    change, groups = _per_fact(rank_b) - _per_fact(rank_a), _groups(relation)
    ps = [[exchange_test(own[facts], seed=seed) for facts in groups.values()] for own in change]
    found: dict[int, dict[str, Difference]] = {}
    for number, p in zip(groups, zip(*map(correct, ps), strict=True), strict=True):
        own = dict(zip(METRICS, change[:, groups[number]], strict=True))
        means = bootstrap_means(own, relation[groups[number]], draws=draws, seed=seed)[OVER_FACTS]
        found[number] = {
            metric: replace(mean, p=one)
            for (metric, mean), one in zip(means.items(), p, strict=True)
        }
    return found


def bootstrap_means(
    values: Mapping[str, npt.NDArray[Any]],
    relation: npt.NDArray[Any],
    *,
    draws: int = 10_000,
    seed: int = 0,
) -> dict[str, dict[str, Difference]]:
    """Return the means of any values per averaging, with intervals and p-values of being zero.

    Args:
        values: ``[facts]`` each, by name, such as differences in percent.
        relation: ``[facts]`` integers; facts are resampled within relation.
        draws: number of resamplings.
        seed: seed of ``numpy.random.default_rng``.
    """
    each = np.stack(list(values.values()))
    groups = _groups(relation)
    observed = _means(each, groups)
    found = {}
    for averaging, means in _resample(each, groups, draws, seed).items():
        low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=1).tolist()
        found[averaging] = {
            name: Difference(
                float(observed[averaging][index]), low[index], high[index], _two_sided(means[index])
            )
            for index, name in enumerate(values)
        }
    return found


def _groups(relation: npt.NDArray[Any]) -> dict[int, npt.NDArray[np.intp]]:
    """Return the facts of each relation, by ascending relation."""
    return {int(number): np.flatnonzero(relation == number) for number in np.unique(relation)}


def exchange_test(differences: npt.NDArray[Any], *, draws: int = 20_000, seed: int = 0) -> float:
    """Return the two-sided p that paired differences are as far from zero by chance alone.

    If two runs are as good as each other, each fact's difference might as well have the other sign.
    All choices of signs are counted where there are at most ``draws`` of them, otherwise so many
    are drawn. Unlike a bootstrap's its p may be small enough to be corrected for many relations.
    """
    each = differences[np.abs(differences) > _ZERO].astype(np.float64)
    # Sums of the same numbers in another order differ by less.
    count, observed = len(each), abs(each.sum()) - 1e-9
    if count <= np.log2(draws):
        numbers = np.arange(1 << count)[:, None]
        flips = (numbers >> np.arange(count)) & 1
        return float((np.abs((1 - 2 * flips) @ each) >= observed).mean())
    generator, as_far, step = np.random.default_rng(seed), 0, max(1, _CHUNK // count)
    for start in range(0, draws, step):
        signs = 1 - 2 * generator.integers(0, 2, (min(step, draws - start), count), np.int8)
        as_far += int(np.count_nonzero(np.abs(signs @ each) >= observed))
    return (1 + as_far) / (1 + draws)


def sign_test(more: int, fewer: int) -> float:
    """Return the two-sided p that a fair coin falls as unequally as this; exact.

    Of paired answers, right or wrong, it is McNemar's exact test: only the pairs count of which one
    alone is right.

    Args:
        more: how often one side won; in any order, the two are treated alike.
        fewer: how often the other one did; ties are left out.
    """
    total, rarer = more + fewer, min(more, fewer)
    # Whole numbers throughout: of thousands of tosses no float is exact.
    term = tail = 1
    for heads in range(rarer):
        term = term * (total - heads) // (heads + 1)
        tail += term
    return min(1.0, 2 * tail / (1 << total))


def correct(ps: Sequence[float]) -> list[float]:
    """Return p-values corrected for their number by Holm's method, in their order."""
    found, largest = [0.0] * len(ps), 0.0
    for before, place in enumerate(sorted(range(len(ps)), key=lambda place: ps[place])):
        largest = max(largest, min(1.0, (len(ps) - before) * ps[place]))
        found[place] = largest
    return found


def _per_fact(rank: npt.NDArray[Any]) -> FloatArray:
    """Return what each fact adds to P@1, P@10 and MRR, ``[metrics, facts]`` in percent."""
    rank = np.atleast_2d(np.asarray(rank, dtype=np.float64))
    per_fact = [hits(rank, 1).mean(axis=0), hits(rank, 10).mean(axis=0), (1 / rank).mean(axis=0)]
    return 100 * np.stack(per_fact)


def _means(each: FloatArray, groups: Mapping[int, npt.NDArray[np.intp]]) -> dict[str, FloatArray]:
    """Return the means of ``[metrics, facts]`` per averaging, ``[metrics]``."""
    per_relation = np.stack([each[:, facts].mean(axis=1) for facts in groups.values()])
    return {OVER_RELATIONS: per_relation.mean(axis=0), OVER_FACTS: each.mean(axis=1)}


def _two_sided(means: FloatArray) -> float:
    no_better, no_worse = np.count_nonzero(means <= _ZERO), np.count_nonzero(means >= -_ZERO)
    return float(min(1.0, 2 * (1 + min(no_better, no_worse)) / (1 + means.size)))


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
