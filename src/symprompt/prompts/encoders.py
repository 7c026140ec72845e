"""Prompt encoders: modules whose output is the learned vectors, [relation, n, width].

Every parameter has a leading relation axis and is drawn from a generator of its own relation, so
that training R relations in one stack is the same computation as training each alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from symprompt.runtime import make_generator


class PromptEncoder(nn.Module):
    """Abstract: parameters with a leading relation axis; forward gives [relation, n, width]."""

    def __init__(self, relations: Sequence[str], seed: tuple[object, ...]) -> None:
        super().__init__()
        self._generators = [make_generator(*seed, name) for name in relations]

    def forward(self) -> Tensor:
        """Return the learned vectors, [relation, n, width]."""
        raise TypeError("PromptEncoder is abstract; use FreeVectors, MLPEncoder or BiLSTMEncoder.")

    def _normal(self, *shape: int, scale: float = 1.0) -> nn.Parameter:
        draws = [torch.randn(shape, generator=generator) for generator in self._generators]
        return nn.Parameter(torch.stack(draws) * scale)

    def _uniform(self, *shape: int, bound: float) -> nn.Parameter:
        draws = [torch.rand(shape, generator=generator) for generator in self._generators]
        return nn.Parameter((torch.stack(draws) * 2 - 1) * bound)


class FreeVectors(PromptEncoder):
    """Vectors that are parameters themselves (OptiPrompt); final.

    Args:
        relations: the relations' names; each seeds its own random numbers.
        count: vectors per relation.
        width: the model's input embedding size.
        seed: what else the random numbers depend on.
        scale: standard deviation of random vectors.
        start: [relation, n, width] to start from instead, for example a manual template's
            embeddings.
    """

    def __init__(
        self,
        relations: Sequence[str],
        count: int,
        width: int,
        *,
        seed: tuple[object, ...] = (0,),
        scale: float = 1.0,
        start: Tensor | None = None,
    ) -> None:
        super().__init__(relations, seed)
        if start is None:
            self.vectors = self._normal(count, width, scale=scale)
        else:
            self.vectors = nn.Parameter(start.detach().clone())

    def forward(self) -> Tensor:
        """Return the vectors."""
        return self.vectors


class TriggerTokens(PromptEncoder):
    """Vectors that are the embeddings of words, for prompts that are searched (AutoPrompt); final.

    Args:
        start: [relation, n] int64, the tokens at first.
        embed: gives tokens' embeddings, as the model reads them.
        dtype: of the vectors.
    """

    def __init__(
        self, start: Tensor, embed: Callable[[Tensor], Tensor], *, dtype: torch.dtype
    ) -> None:
        super().__init__((), ())
        # A parameter without gradient: what keeps, stores and loads parameters does so with tokens.
        self.tokens = nn.Parameter(start.detach().clone(), requires_grad=False)
        self._embed = embed
        self._dtype = dtype

    def forward(self) -> Tensor:
        """Return the tokens' embeddings."""
        return self._embed(self.tokens).to(self._dtype)


class _MLPTop(PromptEncoder):
    """Abstract: a two-layer ReLU MLP per relation, inner -> width -> width."""

    def _make_mlp(self, inner: int, width: int) -> None:
        self.weight_1 = self._uniform(width, inner, bound=1 / math.sqrt(inner))
        self.bias_1 = self._uniform(width, bound=1 / math.sqrt(inner))
        self.weight_2 = self._uniform(width, width, bound=1 / math.sqrt(width))
        self.bias_2 = self._uniform(width, bound=1 / math.sqrt(width))

    def _mlp(self, hidden: Tensor) -> Tensor:
        hidden = torch.baddbmm(self.bias_1[:, None], hidden, self.weight_1.mT).relu()
        return torch.baddbmm(self.bias_2[:, None], hidden, self.weight_2.mT)


class MLPEncoder(_MLPTop):
    """Base vectors through a two-layer ReLU MLP, one MLP per relation; final."""

    def __init__(
        self, relations: Sequence[str], count: int, width: int, *, seed: tuple[object, ...] = (0,)
    ) -> None:
        super().__init__(relations, seed)
        self.base = self._normal(count, width)
        self._make_mlp(width, width)

    def forward(self) -> Tensor:
        """Return MLP(base)."""
        return self._mlp(self.base)


class BiLSTMEncoder(_MLPTop):
    """P-tuning's encoder: base vectors, two-layer BiLSTM, two-layer ReLU MLP (equation 4); final.

    Three published variants differ in ``lstm_hidden``, the size per direction: half the width
    (the P-tuning LAMA code, our default), the full width (SPE's appendix, P-tuning's few-shot
    code). The MLP maps 2 x lstm_hidden -> width -> width.
    """

    layers = 2

    def __init__(
        self,
        relations: Sequence[str],
        count: int,
        width: int,
        *,
        seed: tuple[object, ...] = (0,),
        lstm_hidden: int | None = None,
    ) -> None:
        super().__init__(relations, seed)
        self.hidden = hidden = lstm_hidden or width // 2
        self.base = self._normal(count, width)
        self._make_mlp(2 * hidden, width)
        bound = 1 / math.sqrt(hidden)
        for layer in range(self.layers):
            size = width if layer == 0 else 2 * hidden
            # The axis of 2 is the direction: forth, then back.
            self.register_parameter(
                f"input_{layer}", self._uniform(2, 4 * hidden, size, bound=bound)
            )
            self.register_parameter(
                f"recurrent_{layer}", self._uniform(2, 4 * hidden, hidden, bound=bound)
            )
            # torch.nn.LSTM adds two biases; both are kept so that training moves as it does there.
            self.register_parameter(f"biases_{layer}", self._uniform(2, 2, 4 * hidden, bound=bound))

    def forward(self) -> Tensor:
        """Return MLP(BiLSTM(base))."""
        hidden: Tensor = self.base
        for layer in range(self.layers):
            hidden = self._layer(hidden, layer)
        return self._mlp(hidden)

    def _layer(self, sequence: Tensor, layer: int) -> Tensor:
        """Run both directions of every relation's LSTM layer at once, [r, n, in] -> [r, n, 2h]."""
        relations, steps, size = sequence.shape
        weight = self.get_parameter(f"input_{layer}").flatten(0, 1)
        recurrent = self.get_parameter(f"recurrent_{layer}").flatten(0, 1).mT
        bias = self.get_parameter(f"biases_{layer}").sum(2).flatten(0, 1)
        both = torch.stack((sequence, sequence.flip(1)), dim=1).reshape(-1, steps, size)
        drive = torch.baddbmm(bias[:, None], both, weight.mT)
        outputs: Tensor = _Recurrence.apply(drive, recurrent)  # type: ignore[no-untyped-call]
        hidden = outputs.reshape(relations, 2, steps, self.hidden)
        return torch.cat((hidden[:, 0], hidden[:, 1].flip(1)), dim=-1)


class _Recurrence(torch.autograd.Function):
    """Many LSTMs side by side, from what their inputs drive: [b, n, 4h], [b, h, 4h] -> [b, n, h].

    Written out because autograd adds up the gradient of the recurrent weights step by step, which
    reads and writes all of them at every step; here it is one product at the end.
    """

    @staticmethod
    def forward(ctx: Any, drive: Tensor, recurrent: Tensor) -> Tensor:
        batch, steps, _ = drive.shape
        hidden = recurrent.shape[1]
        gates = torch.empty_like(drive)
        states = drive.new_zeros(batch, steps + 1, hidden)
        cells = torch.zeros_like(states)
        for step in range(steps):
            raw = torch.baddbmm(drive[:, step : step + 1], states[:, step : step + 1], recurrent)
            raw = raw[:, 0]
            take, forget = raw[:, : 2 * hidden].sigmoid().chunk(2, dim=-1)
            new, show = raw[:, 2 * hidden : 3 * hidden].tanh(), raw[:, 3 * hidden :].sigmoid()
            gates[:, step] = torch.cat((take, forget, new, show), dim=-1)
            cells[:, step + 1] = forget * cells[:, step] + take * new
            states[:, step + 1] = show * cells[:, step + 1].tanh()
        ctx.save_for_backward(gates, states, cells, recurrent)
        return states[:, 1:].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        (outputs,) = gradients
        gates, states, cells, recurrent = ctx.saved_tensors
        take, forget, new, show = gates.chunk(4, dim=-1)
        shown = cells[:, 1:].tanh()
        # What multiplies the gradient of the state or of the cell, for all steps at once.
        by_show = shown * show * (1 - show)
        to_cell = show * (1 - shown * shown)
        by_cell = torch.cat(
            (
                new * take * (1 - take),
                cells[:, :-1] * forget * (1 - forget),
                take * (1 - new * new),
            ),
            dim=-1,
        )
        raw = torch.empty_like(gates)
        state, cell = torch.zeros_like(states[:, 0]), torch.zeros_like(states[:, 0])
        hidden = recurrent.shape[1]
        for step in reversed(range(gates.shape[1])):
            state = state + outputs[:, step]
            cell = cell + state * to_cell[:, step]
            raw[:, step, : 3 * hidden] = by_cell[:, step] * cell.repeat(1, 3)
            raw[:, step, 3 * hidden :] = by_show[:, step] * state
            cell = cell * forget[:, step]
            state = torch.bmm(raw[:, step : step + 1], recurrent.mT)[:, 0]
        return raw, torch.bmm(states[:, :-1].mT, raw)
