"""What a run stores of every fact, and the ranks that follow from it for any K and weight.

Everything here is numpy: stored predictions are read, ranked and compared without torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from symprompt.errors import SympromptError

Array = npt.NDArray[Any]
Values = TypeVar("Values")


@dataclass(frozen=True, eq=False)
class Ranks(Generic[Values]):
    """How many others score higher than the true answer, and how many score exactly the same.

    Attributes:
        better: ``[b]`` int64 array or tensor, others with a higher score.
        equal: ``[b]`` int64, others with exactly the same score.
    """

    better: Values
    equal: Values

    @property
    def optimistic(self) -> Values:
        """The rank if every tie is won, ``[b]`` int64."""
        return self.better + 1  # type: ignore[operator, return-value]

    @property
    def pessimistic(self) -> Values:
        """The rank if every tie is lost, ``[b]`` int64."""
        return self.better + self.equal + 1  # type: ignore[operator, no-any-return]

    @property
    def realistic(self) -> Values:
        """The mean of the optimistic and the pessimistic rank, ``[b]`` float64."""
        return _double(self.better) + _double(self.equal) / 2 + 1  # type: ignore[no-any-return]


def _double(values: Any) -> Any:
    return values.astype(np.float64) if isinstance(values, np.ndarray) else values.double()


def joint_scores(
    object_score: Array, subject_score: Array, *, weight: float | Array
) -> npt.NDArray[Any]:
    """Return the joint score of every candidate: object + weight * subject (SPE, equation 10).

    Args:
        object_score: ``[b, k]`` log-probabilities of the candidates given the subject.
        subject_score: ``[b, k]`` log-probabilities of the subject given each candidate.
        weight: a number, or one per fact as ``[b]`` or ``[b, 1]``. Where it is zero the object
            score stays as it is, even if the subject score is ``-inf``.

    Raises:
        SympromptError: scores of half precision, which tie, or shapes that do not fit.
    """
    for name, scores in {"object_score": object_score, "subject_score": subject_score}.items():
        if scores.dtype not in (np.float32, np.float64):
            raise SympromptError(
                f"{name} has dtype {scores.dtype}, allowed are float32 and float64: coarser scores "
                "tie. Compute the last product and the softmax in float32."
            )
    if object_score.ndim != 2 or object_score.shape != subject_score.shape:
        raise SympromptError(
            f"object_score is {list(object_score.shape)} and subject_score "
            f"{list(subject_score.shape)}; both must be [facts, candidates]."
        )
    factor = np.asarray(weight, dtype=object_score.dtype)
    rows = len(object_score)
    if factor.ndim and factor.shape not in {(rows,), (rows, 1)}:
        raise SympromptError(
            f"weight is {list(factor.shape)}, allowed are a number, [{rows}] or [{rows}, 1]."
        )
    if factor.ndim == 1:
        factor = factor[:, None]
    with np.errstate(invalid="ignore"):
        return np.where(factor == 0, object_score, object_score + factor * subject_score)


@dataclass(frozen=True, eq=False)
class Predictions:
    """Per fact: the gold object's place by object score, and the top candidates' scores.

    Arrays of n facts: relation, gold [n] int64; gold_score [n] float32; better, equal and their
    filtered twins [n] int64 (see ``Ranks``); candidates [n, k] int64 and object_score [n, k]
    float32, best first; subject_score [n, k] float32, NaN where the run has no subject prompt;
    known [n, k] bool, candidates that are other true objects of the same subject; terms, further
    scores [n, k] float32 by name, which count with the subject score.
    """

    relation: Array
    gold: Array
    gold_score: Array
    better: Array
    equal: Array
    better_filtered: Array
    equal_filtered: Array
    candidates: Array
    object_score: Array
    subject_score: Array
    known: Array
    terms: Mapping[str, Array] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.gold)

    @property
    def asked_back(self) -> bool:
        """Whether subject scores are there."""
        return len(self) > 0 and not bool(np.isnan(self.subject_score).any())

    @property
    def weighed_score(self) -> Array:
        """What is weighed and added to the object score: the subject score and further terms."""
        total = self.subject_score
        for term in self.terms.values():
            total = total + term
        return total

    def joint(self, weights: Array) -> Array:
        """Return the joint scores [n, k] with a weight per relation."""
        each = weights[self.relation].astype(np.float32)
        return joint_scores(self.object_score, self.weighed_score, weight=each)

    def columns(self) -> dict[str, Array]:
        """Return all arrays by name; a further term's name begins with ``terms/``."""
        own = {name: getattr(self, name) for name in _COLUMNS}
        return own | {f"terms/{name}": term for name, term in self.terms.items()}

    @classmethod
    def from_columns(cls, columns: Mapping[str, Array]) -> Predictions:
        """Return predictions from arrays named as ``columns`` names them.

        Raises:
            KeyError: a column is missing.
            ValueError: columns are of different lengths or of another shape.
        """
        own = {name: columns[name] for name in _COLUMNS}
        terms = {
            name.removeprefix("terms/"): value
            for name, value in columns.items()
            if name.startswith("terms/")
        }
        rows, wide = len(own["gold"]), own["candidates"].shape
        for name, value in {**own, **terms}.items():
            wanted = wide if name in (*_WIDE, *terms) else (rows,)
            if value.shape != wanted or len(value) != rows:
                raise ValueError(f"{name} has the shape {list(value.shape)}")
        return cls(**own, terms=terms)

    @classmethod
    def concatenate(cls, parts: Sequence[Predictions]) -> Predictions:
        """Return the facts of all parts, one after the other."""
        columns = [part.columns() for part in parts]
        return cls.from_columns(
            {name: np.concatenate([own[name] for own in columns]) for name in columns[0]}
        )

    def take(self, rows: Array) -> Predictions:
        """Return some facts, in the order of ``rows``."""
        return self.from_columns({name: value[rows] for name, value in self.columns().items()})

    def first(self, k: int) -> Predictions:
        """Return predictions with the first k candidates only."""
        return replace(
            self,
            **{name: getattr(self, name)[:, :k] for name in _WIDE},
            terms={name: term[:, :k] for name, term in self.terms.items()},
        )

    def ranks(self, *, filtered: bool = False) -> Ranks[Array]:
        """Return the ranks by object score."""
        if filtered:
            return Ranks(self.better_filtered, self.equal_filtered)
        return Ranks(self.better, self.equal)

    def reranked(
        self, weight: float | Array, *, k: int | None = None, filtered: bool = False
    ) -> Ranks[Array]:
        """Return the ranks after re-ranking the first k candidates (SPE, equation 10).

        The candidates come first by joint score, all others follow by object score.

        Args:
            weight: of the subject score; a number, or one per fact [n].
            k: how many candidates are re-ranked; None takes all that are stored.
        """
        stored = self.candidates.shape[1]
        k = stored if k is None else k
        if not 1 <= k <= stored:
            raise SympromptError(f"k is {k}; {stored} candidates are stored, so 1 to {stored} go.")
        kept = self.first(k)
        joint = joint_scores(kept.object_score, kept.weighed_score, weight=weight)
        is_gold = kept.candidates == self.gold[:, None]
        counted = ~is_gold & ~kept.known if filtered else ~is_gold
        gold_joint = np.where(is_gold, joint, 0).sum(1, keepdims=True, dtype=joint.dtype)
        before = self.ranks(filtered=filtered)
        # Candidates score at least as high as a gold outside, so those that tie with it now lead.
        level = (counted & (kept.object_score == self.gold_score[:, None])).sum(1)
        inside = is_gold.any(1)
        return Ranks(
            np.where(inside, ((joint > gold_joint) & counted).sum(1), before.better + level),
            np.where(inside, ((joint == gold_joint) & counted).sum(1), before.equal - level),
        )

    def final(self, weights: Array | None, *, filtered: bool = False) -> Ranks[Array]:
        """Return the ranks the run stands for: re-ranked with its weight per relation, if any."""
        if weights is None or not self.asked_back:
            return self.ranks(filtered=filtered)
        return self.reranked(weights[self.relation].astype(np.float32), filtered=filtered)


_COLUMNS = tuple(entry.name for entry in fields(Predictions) if entry.name != "terms")
_WIDE = ("candidates", "object_score", "subject_score", "known")
