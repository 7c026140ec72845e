"""How often each language is drawn: equation 11.7 of Jurafsky and Martin's chapter 11."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from symprompt.errors import ConfigError, DataError
from symprompt.runs.environment import derive_seed


@dataclass(frozen=True)
class LanguageShare:
    """One language before and after sampling.

    Attributes:
        language: its name; "" when none was given.
        before: sentences (or sequences) there are, n_i.
        prior: its share of them, p_i.
        share: its share after sampling, q_i.
        after: sentences (or sequences) it gives; above ``before`` means that some are repeated.
    """

    language: str
    before: int
    prior: float
    share: float
    after: int


def language_shares(counts: Mapping[str, int], alpha: float) -> dict[str, float]:
    """Return q_i = p_i^alpha / sum_j p_j^alpha with p_i = n_i / sum_k n_k (equation 11.7).

    Args:
        counts: sentences of each language, n_i; a language without any gets 0.
        alpha: 1 leaves the languages as they are; 0 makes them equal.

    Raises:
        ConfigError: alpha is not between 0 and 1.
        DataError: a count is negative, or there is nothing to sample from.
    """
    if not 0 <= alpha <= 1:
        raise ConfigError(f"alpha is {alpha}; it must be from 0 to 1.")
    if any(count < 0 for count in counts.values()) or not any(counts.values()):
        raise DataError(f"the languages have {dict(counts)} sentences; at least one is needed.")
    total = sum(counts.values())
    raised = {name: (count / total) ** alpha if count else 0.0 for name, count in counts.items()}
    whole = sum(raised.values())
    return {name: value / whole for name, value in raised.items()}


def plan_sampling(counts: Mapping[str, int], alpha: float) -> tuple[LanguageShare, ...]:
    """Return how many sentences each language gives; together they are as many as there are.

    Numbers are rounded by largest remainder, so the total is kept.

    Args:
        counts: sentences of each language.
        alpha: the exponent of equation 11.7.
    """
    shares = language_shares(counts, alpha)
    total = sum(counts.values())
    exact = {name: share * total for name, share in shares.items()}
    after = {name: int(value) for name, value in exact.items()}
    # A remainder is given to the largest fraction first; names settle ties.
    order = sorted(exact, key=lambda name: (after[name] - exact[name], name))
    given = [name for name in order if counts[name]]
    for name in given[: total - sum(after.values())]:
        after[name] += 1
    return tuple(
        LanguageShare(name, counts[name], counts[name] / total, shares[name], after[name])
        for name in sorted(counts)
    )


def repeats_at(index: int, before: int, after: int, start: int) -> int:
    """Return how often item ``index`` of ``before`` is taken, so that all give ``after`` exactly.

    Systematic sampling: the taken ones are evenly spread, and no list of choices is kept, so a
    stream of any length can be sampled as it passes.

    Args:
        index: the item's position, from 0.
        before: items there are.
        after: items wanted; more than ``before`` repeats, fewer leaves out.
        start: where the even spacing begins; from the seed, see `sampling_start`.
    """
    phase = start % before
    return ((index + 1) * after + phase) // before - (index * after + phase) // before


def sampling_start(seed: int, language: str) -> int:
    """Return the start that a seed gives a language's systematic sampling."""
    return derive_seed("sampling", seed, language)


def draw_repeated(before: int, after: int, generator: np.random.Generator) -> np.ndarray:
    """Return ``after`` indices below ``before``: each as often as the others, give or take one."""
    times, rest = divmod(after, before)
    whole = np.tile(np.arange(before, dtype=np.int64), times)
    extra = generator.choice(before, size=rest, replace=False) if rest else np.empty(0, np.int64)
    return np.concatenate([whole, extra.astype(np.int64, copy=False)])
