"""Several soft prompts per relation: their vectors, their weights, and changes at every layer."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from symprompt.prompts.encoders import PromptEncoder


class SoftMixture(PromptEncoder):
    """The parameters of a mixture of soft prompts (Qin and Eisner, 2021); final.

    Parameters, all with a leading relation axis: ``vectors`` [relation, n, width], those of all
    prompts one after the other; ``mix`` [relation, p], logarithms of the prompts' weights up to a
    constant, equal at first; ``changes`` [relation, layers - 1, n, hidden], zero at first, where
    they are asked for.

    Args:
        relations: the relations' names; each seeds its own random numbers.
        start: [relation, n, width] to start from.
        counts: how many prompts each relation has.
        learn_weights: learn ``mix`` by gradients.
        deep: (layers - 1, hidden) for changes at the layers.
    """

    def __init__(
        self,
        relations: Sequence[str],
        start: Tensor,
        counts: Sequence[int],
        *,
        seed: tuple[object, ...] = (0,),
        learn_weights: bool = False,
        deep: tuple[int, int] | None = None,
    ) -> None:
        super().__init__(relations, seed)
        self.vectors = nn.Parameter(start.detach().clone())
        real = torch.arange(max(counts))[None, :] < torch.tensor(counts)[:, None]
        self.register_buffer("_real", real, persistent=False)
        self.mix = nn.Parameter(torch.zeros(real.shape), requires_grad=learn_weights)
        self.changes: nn.Parameter | None = None
        if deep is not None:
            layers, hidden = deep
            self.changes = nn.Parameter(torch.zeros(len(start), layers, start.shape[1], hidden))

    def forward(self) -> Tensor:
        """Return the vectors of all prompts, [relation, n, width]."""
        return self.vectors

    def weights(self) -> Tensor:
        """Return the prompts' weights, [relation, p]: positive, and zero behind the last prompt."""
        real = self.get_buffer("_real")
        return torch.softmax(self.mix.masked_fill(~real, -torch.inf), dim=1)

    @torch.no_grad()
    def set_weights(self, weights: Tensor, which: Tensor) -> None:
        """Take other weights [relation, p] over, for those relations [relation] that are marked."""
        # A weight of zero could never grow again.
        new = weights.to(self.mix).clamp(min=1e-8).log()
        self.mix.copy_(torch.where(which[:, None], new, self.mix))
