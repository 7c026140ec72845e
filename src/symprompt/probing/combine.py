"""Combine a candidate's scores into one: a model of which candidate is the true object.

A fact f of relation r has K candidates c; each has an object score x_0 and further terms x_1, x_2,
...: its subject score (asking back), log P(object) in training, whether it is a copy of the
subject. With weights theta the candidates' softmax is to give the true object c*:

    P(c | f) = softmax_c sum_t theta_rt x_t(f, c)                                             (1)
    theta_rt ~ Normal(mu_t, tau^2),  mu_t ~ Normal(m_t, 1)                                    (2)

Terms are measured in their own spread within a fact, so that one tau fits all. m is 1 for the
object score as it is and 0 for every other term: without evidence nothing is added to it. mu, what
relations share, and theta are the mode of (1) times (2). How far relations may differ, tau, is the
one of ``TAUS`` that makes held-out facts likeliest: facts are parted into folds within each
relation, and each fold is scored by a fit to the others.

Whether terms are used at all is decided in the same way. Held-out facts say how much likelier a
relation's true objects are with them than without, and even odds become

    g_r = 1 / (1 + exp(-sum_f [log P_with(c* | f) - log P_without(c* | f)]))                  (3)
    w_rt = g_r theta_rt / theta_r0                                                            (4)

the weights of the terms beside the object score. A relation that the terms help keeps them, one
that they harm loses them, and few facts give little. A subject score that would count against a
candidate gets no weight. Facts whose true object is not among the candidates tell nothing here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from symprompt.probing.results import SUBJECTS, Array, Combination, Predictions
from symprompt.runs.environment import derive_seed

TAUS = (0.03, 0.1, 0.3, 1.0)
"""By how much relations may differ; the smallest lets them hardly."""
FOLDS = 5
_STEPS = 50
_HALVINGS = 20
_CLOSE = 1e-7
"""Newton's steps end when they gain less than this, in the log-likelihood of all facts."""
_LEAST_OBJECT = 0.2
"""An object score that weighs less than this share of what it was is noise of few facts."""


@dataclass(frozen=True, eq=False)
class _Evidence:
    """Facts whose true object is a candidate: scores [n, k, t], its place [n], relation [n].

    ``real`` [n, k] says which candidates there are: a fact may have fewer answers than k.
    """

    terms: Tensor
    real: Tensor
    gold: Tensor
    relation: Tensor
    relations: int
    start: Tensor

    def take(self, rows: Tensor) -> _Evidence:
        return replace(
            self,
            terms=self.terms[rows],
            real=self.real[rows],
            gold=self.gold[rows],
            relation=self.relation[rows],
        )

    def first(self) -> _Evidence:
        """Return the evidence with the object score alone."""
        return replace(self, terms=self.terms[..., :1], start=self.start[:1])

    def losses(self, theta: Tensor) -> Tensor:
        """Return -log P(c* | f) of every fact (1), [n]."""
        return functional.cross_entropy(self.scores(theta), self.gold, reduction="none")

    def scores(self, theta: Tensor) -> Tensor:
        """Return the candidates' scores [n, k]."""
        scores = (self.terms @ theta[self.relation][..., None])[..., 0]
        return scores.masked_fill(~self.real, -torch.inf)

    def derivatives(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradient [r, t] and the Hessian [r, t, t] of the summed losses."""
        terms, share = self.terms, self.scores(theta).softmax(1)
        weighed = terms * share[..., None]
        mean = weighed.sum(1)
        true = terms[torch.arange(len(terms)), self.gold]
        curve = weighed.transpose(1, 2) @ terms - mean[:, :, None] * mean[:, None]
        slopes = torch.zeros_like(theta).index_add(0, self.relation, mean - true)
        empty = torch.zeros(*theta.shape, theta.shape[1], dtype=theta.dtype)
        return slopes, empty.index_add(0, self.relation, curve)


def fit_combination(
    predictions: Predictions, terms: Sequence[str], relations: int, *, seed: int = 0
) -> Combination:
    """Return each term's weight of each relation, fitted on facts that were not trained on.

    Args:
        predictions: of such facts, with these terms.
        terms: their names; see ``Combination``.
        relations: how many relations there are.
        seed: of the folds.
    """
    evidence, spread = _gather(predictions, terms, relations)
    nothing = {name: np.zeros(relations) for name in terms}
    if not terms or not len(evidence.gold):
        return Combination(nothing)
    theta, gain = _choose(evidence, _folds(evidence.relation, seed))
    # Where the object score itself hardly counts, nothing is learned.
    sound = theta[:, 0] > _LEAST_OBJECT * evidence.start[0]
    weights = theta[:, 1:] / spread[1:] / (theta[:, :1] / spread[0])
    shares = torch.where(sound, gain.sigmoid(), torch.zeros_like(gain))
    weights = torch.where(sound[:, None], weights, torch.zeros_like(weights)) * shares[:, None]
    found = dict(zip(terms, weights.T.numpy(), strict=True))
    for name in set(SUBJECTS) & found.keys():
        found[name] = found[name].clip(min=0.0)
    return Combination(found)


def _gather(
    predictions: Predictions, terms: Sequence[str], relations: int
) -> tuple[_Evidence, Tensor]:
    """Return the evidence, each term in its own spread, and these spreads [t]."""
    is_gold = predictions.candidates == predictions.gold[:, None]
    rows = is_gold.any(1).nonzero()[0]
    found = predictions.take(rows)
    real = np.isfinite(found.object_score)
    columns = [found.object_score, *(found.term(name) for name in terms)]
    scores = torch.from_numpy(np.stack([_centred(column, real) for column in columns], axis=-1))
    spread = (scores.flatten(0, 1).square().sum(0) / max(1, int(real.sum()))).sqrt()
    spread = torch.where(spread > 0, spread, torch.ones_like(spread)).nan_to_num(nan=1.0)
    start = torch.zeros_like(spread)
    start[0] = spread[0]
    gold = torch.from_numpy(is_gold[rows].argmax(1))
    relation = torch.from_numpy(found.relation)
    evidence = _Evidence(scores / spread, torch.from_numpy(real), gold, relation, relations, start)
    return evidence, spread


def _centred(scores: Array, real: Array) -> Array:
    """Return float64 scores less each fact's mean, which its softmax does not see; 0 for none."""
    wide = scores.astype(np.float64)
    finite = real & np.isfinite(wide)
    if not finite.all():
        # A likelihood that is too small for its logarithm is smaller than the others.
        wide = np.where(finite, wide, wide[finite].min(initial=0.0) - 1.0)
    mean = np.where(real, wide, 0.0).sum(1) / real.sum(1)
    centred: Array = np.where(real, wide - mean[:, None], 0.0)
    return centred


def _folds(relation: Tensor, seed: int) -> Tensor:
    """Return each fact's fold [n], as many of each in every relation as can be."""
    folds = torch.empty_like(relation)
    for index in sorted(set(relation.tolist())):
        rows = (relation == index).nonzero()[:, 0]
        generator = np.random.default_rng(derive_seed("combination", seed, index))
        order = generator.permutation(len(rows)) + generator.integers(FOLDS)
        folds[rows] = torch.from_numpy(order % FOLDS)
    return folds


def _choose(evidence: _Evidence, folds: Tensor) -> tuple[Tensor, Tensor]:
    """Return theta [r, t] at the best tau, and what held-out facts gain by the terms [r]."""
    without = min((_held_out(evidence.first(), folds, tau)[1] for tau in TAUS), key=_total)
    theta, losses = min(
        (_held_out(evidence, folds, tau) for tau in TAUS), key=lambda found: _total(found[1])
    )
    gain = torch.zeros(evidence.relations, dtype=torch.float64)
    return theta, gain.index_add(0, evidence.relation, without - losses)


def _total(losses: Tensor) -> float:
    return float(losses.sum())


def _held_out(evidence: _Evidence, folds: Tensor, tau: float) -> tuple[Tensor, Tensor]:
    """Return theta fitted to all facts, and every fact's loss by a fit to other folds, [n]."""
    whole = _fit(evidence, tau)
    losses = torch.empty(len(evidence.gold), dtype=torch.float64)
    for fold in sorted(set(folds.tolist())):
        # The fit to all facts is near, so the search begins there.
        found = _fit(evidence.take((folds != fold).nonzero()[:, 0]), tau, whole)
        rows = (folds == fold).nonzero()[:, 0]
        losses[rows] = evidence.take(rows).losses(found[0] + found[1])
    return whole[0] + whole[1], losses


def _fit(
    evidence: _Evidence, tau: float, start: tuple[Tensor, Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """Return mu [t] and theta - mu [r, t], the mode of (1) times (2), by Newton's method.

    The loss is convex. theta_r has a Hessian H_r of its own, so that the step of mu follows from a
    system of t equations and those of theta from r such systems.
    """
    shape = evidence.relations, len(evidence.start)
    shared, own = start or (evidence.start, torch.zeros(shape, dtype=torch.float64))
    one = torch.eye(len(evidence.start), dtype=torch.float64)

    def loss(shared: Tensor, own: Tensor) -> float:
        penalty = (own / tau).square().sum() + (shared - evidence.start).square().sum()
        return float(evidence.losses(shared + own).sum() + penalty / 2)

    now = loss(shared, own)
    for _ in range(_STEPS):
        slope, curve = evidence.derivatives(shared + own)
        force = slope + own / tau**2
        solved = torch.linalg.solve(
            curve + one / tau**2, torch.cat([curve, force[..., None]], dim=-1)
        )
        inner, outer = solved[..., :-1], solved[..., -1]
        left = (curve - curve @ inner).sum(0) + one
        right = (curve @ outer[..., None])[..., 0].sum(0) - slope.sum(0) - shared + evidence.start
        move = torch.linalg.solve(left, right)
        moves = -outer - inner @ move
        for halving in range(_HALVINGS):
            tried = shared + move / 2**halving, own + moves / 2**halving
            then = loss(*tried)
            if then <= now:
                break
        else:
            break
        (shared, own), gained, now = tried, now - then, then
        if gained < _CLOSE:
            break
    return shared, own
