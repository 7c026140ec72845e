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
    """Return the weights under which held-out words' right senses are likeliest.

    Maximum likelihood of a softmax over each word's candidates, by Newton's method; the likelihood
    has one maximum. A word with several right senses shares its weight among them.

    Args:
        groups: for each fold the cosines, log frequencies, whether a candidate is right, and which
            word it is a candidate of, words one after the other.
    """
    kept = [group for group in groups if len(group[0])]
    if not kept:
        return Scoring()
    features = np.concatenate([np.stack(group[:2], axis=1) for group in kept]).astype(np.float64)
    right = np.concatenate([group[2] for group in kept]).astype(np.float64)
    owner = np.concatenate([group[3] for group in kept])
    fold = np.repeat(np.arange(len(kept)), [len(group[0]) for group in kept])
    new = np.flatnonzero((np.diff(owner, prepend=-1) != 0) | (np.diff(fold, prepend=-1) != 0))
    sizes = np.diff(np.append(new, len(owner)))

    def spread(values: Floats) -> Floats:
        return np.repeat(values, sizes, axis=0)

    target = right / spread(np.add.reduceat(right, new))
    weights = np.array([10.0, 0.5])
    for _ in range(_STEPS):
        logits = features @ weights
        powers = np.exp(logits - spread(np.maximum.reduceat(logits, new)))
        chance = powers / spread(np.add.reduceat(powers, new))
        mean = spread(np.add.reduceat(chance[:, None] * features, new))
        gradient = ((target - chance)[:, None] * features).sum(axis=0) - _RIDGE * weights
        centred = features - mean
        curvature = (chance[:, None] * centred).T @ centred + _RIDGE * np.eye(2)
        step = np.linalg.solve(curvature, gradient)
        # Newton may overshoot far from the maximum; no step is longer than the weights are large.
        step *= min(1.0, float(np.abs(weights).max() + 1) / float(np.abs(step).max() + 1e-12))
        weights = weights + step
        if np.abs(step).max() < 1e-8:
            break
    return Scoring(float(max(weights[0], 1e-3)), float(max(weights[1], 0.0)))
