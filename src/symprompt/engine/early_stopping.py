"""The best evaluation and the end by patience, for each relation by itself."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

_KEPT = ("score", "tie", "best", "raised", "stopped")
_NEVER = -2
"""Before the first evaluation; one of what training starts from is -1."""


class EarlyStopping:
    """Keeps each relation's best values, and stops those that get no better; final.

    A training without relations is the case of one relation.

    Args:
        values: name -> [relation, ...], what is trained; each relation's best rows are copied.
        patience: evaluations, or whatever ``at`` counts, without a higher score after which a
            relation stops; 0 never stops one.

    Attributes:
        score: [relation] the best score so far.
        tie: [relation] what chose among equal scores, higher is better.
        best: [relation] where the best score was.
        raised: [relation] where patience is counted from.
        stopped: [relation] bool.
        values: name -> [relation, ...] the best rows; those of the start before any evaluation.
    """

    def __init__(self, values: Mapping[str, Tensor], *, patience: int) -> None:
        relations = len(next(iter(values.values())))
        self.patience = patience
        self.score = np.full(relations, -np.inf)
        self.tie = np.full(relations, -np.inf)
        self.best = np.full(relations, _NEVER, dtype=np.int64)
        self.raised = np.full(relations, _NEVER, dtype=np.int64)
        self.stopped = np.zeros(relations, dtype=bool)
        self.values = {name: value.detach().clone() for name, value in values.items()}

    @torch.no_grad()
    def update(
        self,
        scores: np.ndarray,
        at: int,
        values: Mapping[str, Tensor],
        *,
        tie: np.ndarray | float = 0.0,
        tie_counts: bool = False,
    ) -> None:
        """Take an evaluation's scores, higher is better.

        Args:
            at: the number of the evaluation or epoch.
            values: as they are now.
            tie: chooses among equal scores, higher is better; equal ones take the earlier.
            tie_counts: whether a score that wins a tie is worth more patience.
        """
        scores = np.where(np.isnan(scores), -np.inf, scores)
        higher = (scores > self.score) | (self.best == _NEVER)
        wins = higher | ((scores == self.score) & (tie > self.tie))
        higher, wins = higher & ~self.stopped, wins & ~self.stopped
        self.score = np.where(wins, scores, self.score)
        self.tie = np.where(wins, tie, self.tie)
        self.best = np.where(wins, at, self.best)
        self.raised = np.where(wins if tie_counts else higher, at, self.raised)
        if self.patience:
            self.stopped = self.stopped | (at - self.raised >= self.patience)
        for name, value in values.items():
            if wins.all():
                self.values[name].copy_(value)
            elif wins.any():
                mask = torch.from_numpy(wins).to(value.device)
                self.values[name][mask] = value.detach()[mask]

    @torch.no_grad()
    def load_best(self, values: Mapping[str, Tensor]) -> None:
        """Put each relation's best values in place."""
        for name, value in values.items():
            value.copy_(self.values[name])

    def state_dict(self) -> dict[str, Tensor]:
        """Return everything that later evaluations depend on."""
        numbers = {name: torch.from_numpy(getattr(self, name)) for name in _KEPT}
        return {**numbers, **{f"values/{name}": value for name, value in self.values.items()}}

    @torch.no_grad()
    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on from a stored state.

        Raises:
            KeyError, ValueError, RuntimeError: it is damaged or of another training.
        """
        for name in _KEPT:
            if tensors[name].shape != (len(self.score),):
                raise ValueError(f"{name} has the shape {list(tensors[name].shape)}")
            setattr(self, name, tensors[name].cpu().numpy())
        for name, value in self.values.items():
            fill(value, tensors[f"values/{name}"])


@torch.no_grad()
def fill(tensor: Tensor, stored: Tensor) -> None:
    """Put stored values into a tensor's place.

    Raises:
        ValueError: they are of another shape.
    """
    if tensor.shape != stored.shape:
        raise ValueError(f"the shape {list(stored.shape)} is not {list(tensor.shape)}")
    tensor.copy_(stored)
