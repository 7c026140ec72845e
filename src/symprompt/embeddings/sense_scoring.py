"""How a candidate sense is scored: cosine and log frequency, with weights fitted by likelihood."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from symprompt.embeddings.words import Ints

Floats = npt.NDArray[np.float64]
Examples = tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any], Ints]

_PAIRS = 1 << 15
_STEPS = 50
# Weights of frequency against the cosine that are tried: 0.005, 0.01, ...
_RATIOS = 60
_STEP = 0.005
# Keeps the fit finite where every held-out word is right already, as in very small corpora.
_RIDGE = 1e-3


@dataclass(frozen=True)
class Scoring:
    """The logit of a sense: ``cosine`` times its cosine plus ``frequency`` times its log count.

    Probabilities are the softmax over the candidates. A weight of 0 for frequency is the chapter's
    nearest neighbour.
    """

    cosine: float = 20.0
    frequency: float = 0.0

    def nearest(self) -> Scoring:
        """Return the same without frequency."""
        return Scoring(self.cosine, 0.0)

    def logits(self, cosines: npt.NDArray[Any], frequencies: npt.NDArray[Any]) -> Floats:
        """Return candidates' logits; both arguments have one number for each."""
        found: Floats = self.cosine * cosines + self.frequency * frequencies
        return found


def shares(logits: Floats) -> Floats:
    """Return probabilities of one occurrence's candidates."""
    powers = np.exp(logits - logits.max())
    found: Floats = powers / powers.sum()
    return found


def pair_cosines(
    table: npt.NDArray[np.floating], vectors: npt.NDArray[np.floating], rows: Ints, owner: Ints
) -> Floats:
    """Return the cosine of table[row] and vectors[owner] for every pair; both are unit vectors."""
    found = np.empty(len(rows), dtype=np.float64)
    for start in range(0, len(rows), _PAIRS):
        part = slice(start, start + _PAIRS)
        found[part] = np.einsum("ij,ij->i", table[rows[part]], vectors[owner[part]])
    return found


def fit_scoring(groups: Sequence[Examples]) -> Scoring:
    """Return the weights that serve held-out words best.

    How much frequency weighs against the cosine is what makes most held-out words right; how sure
    that makes one is then fitted by likelihood, of a softmax over each word's candidates. (Both by
    likelihood weighed frequency 1.6 times as much on SemCor.) Several right senses share a word's
    weight.

    Args:
        groups: for each fold the cosines, log frequencies, whether a candidate is right, and which
            word it is a candidate of, words one after the other.
    """
    kept = [group for group in groups if len(group[0])]
    if not kept:
        return Scoring()
    cosines, frequencies = (
        np.concatenate([group[place] for group in kept]).astype(np.float64) for place in (0, 1)
    )
    right = np.concatenate([group[2] for group in kept]).astype(np.float64)
    owner = np.concatenate([group[3] for group in kept])
    fold = np.repeat(np.arange(len(kept)), [len(group[0]) for group in kept])
    words = _Words(
        np.flatnonzero(np.diff(owner, prepend=-1) | np.diff(fold, prepend=-1)), len(fold)
    )
    ratios = np.arange(_RATIOS + 1) * _STEP
    hits = [words.hits(cosines + ratio * frequencies, right) for ratio in ratios]
    # Neighbours are counted in: one ratio that is best by a word or two is chance.
    smooth = np.convolve(hits, np.ones(3) / 3, mode="valid")
    ratio = float(ratios[1 + int(np.argmax(smooth))])
    scale = words.fit_scale(cosines + ratio * frequencies, right)
    return Scoring(scale, scale * ratio)


@dataclass(frozen=True)
class _Words:
    """Where each word's candidates begin among all, and how many candidates there are."""

    starts: Ints
    count: int

    def spread(self, values: Floats) -> Floats:
        """Return each word's value for each of its candidates."""
        return np.repeat(values, np.diff(np.append(self.starts, self.count)))

    def hits(self, scores: Floats, right: Floats) -> float:
        """Return how many words' best candidate is right."""
        best = scores == self.spread(np.maximum.reduceat(scores, self.starts))
        tied = np.add.reduceat(best.astype(np.float64), self.starts)
        return float((np.add.reduceat(best * right, self.starts) / tied).sum())

    def fit_scale(self, scores: Floats, right: Floats) -> float:
        """Return what to multiply scores by, so that right candidates are likeliest (Newton)."""
        target = right / self.spread(np.add.reduceat(right, self.starts))
        scale = 1.0
        for _ in range(_STEPS):
            logits = scale * scores
            powers = np.exp(logits - self.spread(np.maximum.reduceat(logits, self.starts)))
            chance = powers / self.spread(np.add.reduceat(powers, self.starts))
            centred = scores - self.spread(np.add.reduceat(chance * scores, self.starts))
            slope = float(((target - chance) * scores).sum()) - _RIDGE * scale
            bend = float((chance * centred**2).sum()) + _RIDGE
            # Newton may overshoot far from the maximum; a step at most doubles or halves.
            new = min(max(scale + slope / bend, scale / 2), scale * 2)
            if abs(new - scale) < 1e-8 * scale:
                break
            scale = new
        return scale
