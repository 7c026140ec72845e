"""Prompt encoders: modules whose output is the learned vectors, [relation, n, width].

Every parameter has a leading relation axis and is drawn from a generator of its own relation, so
that training R relations in one stack is the same computation as training each alone.

Last the encoder of deep prefixes: keys and values for the layers, per task (P-tuning v2).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from symprompt.accel.compiling import SWITCHES
from symprompt.config import layers_of
from symprompt.models import Prefix, PrefixShape
from symprompt.runs.environment import make_generator

PrefixKind = Literal["free", "mlp"]
Recur = Callable[..., tuple[Tensor, ...]]
Keep = Callable[[Tensor, Tensor], bool]
"""Takes the factors of a gradient, and says whether it did."""
Take = Callable[[str, Tensor, Tensor], None]
"""Takes a parameter's name and the factors of its gradient."""


class PromptEncoder(nn.Module):
    """Abstract: parameters with a leading relation axis; forward gives [relation, n, width]."""

    def __init__(self, relations: Sequence[str], seed: tuple[object, ...]) -> None:
        super().__init__()
        self._generators = [make_generator(*seed, name) for name in relations]
        self._take: Take | None = None

    def compile_steps(self, *, half: bool = False) -> None:
        """Compile what a training step on a GPU spends its time on, if there is such a thing.

        Args:
            half: read weights in bfloat16 where time is spent on reading them.
        """
        return

    @contextmanager
    def factoring(self, take: Take) -> Iterator[None]:
        """Give gradients of matrices as factors: a backward pass within gives those matrices none.

        Args:
            take: called with a parameter's name and [b, n, out] and [b, n, in] once it no
                longer reads the parameter. The factors' products summed over n are the gradient of
                the parameter seen as [b, out, in].
        """
        self._take = take
        try:
            yield
        finally:
            self._take = None

    def _linear(self, rows: Tensor, name: str, bias: Tensor) -> Tensor:
        """Return rows [r, n, in] times a parameter seen as [r, out, in], plus biases [r, out]."""
        weight = self.get_parameter(name).view(len(rows), -1, rows.shape[-1])
        found: Tensor = _Linear.apply(  # type: ignore[no-untyped-call]
            rows, weight, bias, partial(self._keep_factors, name)
        )
        return found

    def _keep_factors(self, name: str, left: Tensor, right: Tensor) -> bool:
        """Pass a gradient's factors on, if they are wanted."""
        if self._take is None:
            return False
        self._take(name, left, right)
        return True

    def _normal(self, *shape: int, scale: float = 1.0) -> nn.Parameter:
        return nn.Parameter(self._draw(torch.randn, shape).mul_(scale))

    def _uniform(self, *shape: int, bound: float) -> nn.Parameter:
        return nn.Parameter(self._draw(torch.rand, shape).mul_(2).sub_(1).mul_(bound))

    def _draw(self, draw: Callable[..., Tensor], shape: tuple[int, ...]) -> Tensor:
        """Return each relation's own draws, [relation, *shape]."""
        draws = torch.empty(len(self._generators), *shape)
        for row, generator in zip(draws, self._generators, strict=True):
            draw(shape, generator=generator, out=row)
        return draws


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
        hidden = self._linear(hidden, "weight_1", self.bias_1).relu()
        return self._linear(hidden, "weight_2", self.bias_2)


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
        self._recurrence: tuple[Recur, Recur] = (_recur, _recur_back)
        self._half = False
        self.hidden = hidden = lstm_hidden or width // 2
        self.base = self._normal(count, width)
        self._make_mlp(2 * hidden, width)
        bound = 1 / math.sqrt(hidden)
        for layer in range(self.layers):
            size = width if layer == 0 else 2 * hidden
            # The axis of 2 is the direction: forward, then backward.
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

    def compile_steps(self, *, half: bool = False) -> None:
        """Take kernels for the recurrence, which reads its weights once for every vector."""
        here = self.base.device.type == "cuda" and self.base.dtype == torch.float32
        if here and SWITCHES["recurrence"]:
            # Imported here: its compiler comes with builds of torch for CUDA alone.
            from symprompt.accel.recurrence_kernels import recur, recur_back

            self._half = half
            self._recurrence = recur, recur_back

    def _layer(self, sequence: Tensor, layer: int) -> Tensor:
        """Run both directions of every relation's LSTM layer at once, [r, n, in] -> [r, n, 2h]."""
        bias = self.get_parameter(f"biases_{layer}").sum(2).flatten(1)
        outputs: Tensor = _Recurrence.apply(  # type: ignore[no-untyped-call]
            self._linear(sequence, f"input_{layer}", bias),
            self.get_parameter(f"recurrent_{layer}").flatten(0, 1).mT,
            *self._recurrence,
            self._half,
            partial(self._keep_factors, f"recurrent_{layer}"),
        )
        return outputs


class _Linear(torch.autograd.Function):
    """Rows [b, n, in] times matrices [b, out, in], plus biases [b, out], each b its own.

    Written out because autograd gives the gradient of a transposed matrix transposed, and the
    optimiser then copies it, which takes as long as computing it. ``keep`` may take the factors of
    the matrices' gradient, which is then not made.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor, keep: Keep) -> Tensor:
        ctx.save_for_backward(rows, weight)
        ctx.keep = keep
        return torch.baddbmm(bias[:, None], rows, weight.mT)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        rows, weight = ctx.saved_tensors
        # First: whoever keeps the factors may change the weight.
        below = torch.bmm(gradient, weight)
        found = None if ctx.keep(gradient, rows) else torch.bmm(gradient.mT, rows)
        return below, found, gradient.sum(1), None


class _Recurrence(torch.autograd.Function):
    """Many LSTMs side by side, from what their inputs drive: [r, n, 8h], [2r, h, 4h] -> [r, n, 2h].

    A relation's second LSTM goes from the last vector to the first. Written out because autograd
    adds up the gradient of the recurrent weights step by step, which reads and writes all of them
    at every step; here it is one product at the end. ``forth`` and ``back`` are the two functions
    below, or kernels that do the same; ``half`` lets them read a copy of the recurrent weights in
    bfloat16, half as many bytes for every vector.
    """

    @staticmethod
    def forward(
        ctx: Any,
        drive: Tensor,
        recurrent: Tensor,
        forth: Recur,
        back: Recur,
        half: bool,
        keep: Keep,
    ) -> Tensor:
        recurrent = recurrent.to(torch.bfloat16) if half else recurrent
        states, before, gates, cells = forth(drive, recurrent)
        ctx.save_for_backward(before, gates, cells, recurrent)
        ctx.back, ctx.keep = back, keep
        return states

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (states,) = gradients
        before, gates, cells, recurrent = ctx.saved_tensors
        drive, raw = ctx.back(states, gates, cells, recurrent)
        # Laid out as the weights are, [2r, 4h, h]: what reads it need not copy it.
        found = None if ctx.keep(raw, before) else torch.bmm(raw.mT, before).mT
        return drive, found, None, None, None, None


def _recur(drive: Tensor, recurrent: Tensor) -> tuple[Tensor, ...]:
    """Walk through the vectors.

    Args:
        drive: [r, n, 8h], what the inputs drive, of both directions.
        recurrent: [2r, h, 4h]; any float type.

    Returns:
        The states [r, n, 2h]; and, each direction's own steps one after the other, the states
        before each step [2r, n, h], the gates [2r, n, 4h], the cells after each step [2r, n, h].
    """
    recurrent = recurrent.to(drive.dtype)
    hidden = recurrent.shape[1]
    drive = _walked(drive)
    state = cell = drive.new_zeros(len(drive), hidden)
    states, gates, cells = [state], [], []
    for step in range(drive.shape[1]):
        raw = drive[:, step] + torch.bmm(state[:, None], recurrent)[:, 0]
        take, forget = raw[:, : 2 * hidden].sigmoid().chunk(2, dim=-1)
        new, show = raw[:, 2 * hidden : 3 * hidden].tanh(), raw[:, 3 * hidden :].sigmoid()
        cell = forget * cell + take * new
        state = show * cell.tanh()
        gates.append(torch.cat((take, forget, new, show), dim=-1))
        states.append(state)
        cells.append(cell)
    found = torch.stack(states, 1)
    return _in_order(found[:, 1:]), found[:, :-1], torch.stack(gates, 1), torch.stack(cells, 1)


def _recur_back(
    states: Tensor, gates: Tensor, cells: Tensor, recurrent: Tensor
) -> tuple[Tensor, ...]:
    """Return the gradient of what the inputs drive from that of the states.

    Once as the inputs stand, [r, n, 8h], once as the steps of each direction, [2r, n, 4h].
    """
    outputs = _walked(states)
    take, forget, new, show = gates.chunk(4, dim=-1)
    shown = cells.tanh()
    earlier = functional.pad(cells[:, :-1], (0, 0, 1, 0))
    # What multiplies the gradient of the state or of the cell, for all steps at once.
    by_show = shown * show * (1 - show)
    to_cell = show * (1 - shown * shown)
    by_cell = torch.cat(
        (new * take * (1 - take), earlier * forget * (1 - forget), take * (1 - new * new)), dim=-1
    )
    found = []
    recurrent = recurrent.to(gates.dtype)
    state = cell = torch.zeros_like(cells[:, 0])
    for step in reversed(range(gates.shape[1])):
        state = state + outputs[:, step]
        cell = cell + state * to_cell[:, step]
        raw = torch.cat((by_cell[:, step] * cell.repeat(1, 3), by_show[:, step] * state), dim=-1)
        found.append(raw)
        cell = cell * forget[:, step]
        state = torch.bmm(raw[:, None], recurrent.mT)[:, 0]
    steps = torch.stack(found[::-1], 1)
    return _in_order(steps), steps


def _walked(values: Tensor) -> Tensor:
    """Return what belongs to each vector, [r, n, 2s], as each direction comes by, [2r, n, s]."""
    forth, back = values.chunk(2, dim=-1)
    return torch.stack((forth, back.flip(1)), dim=1).flatten(0, 1)


def _in_order(values: Tensor) -> Tensor:
    """Return what each direction came by, [2r, n, s], as the vectors stand, [r, n, 2s]."""
    forth, back = values.reshape(-1, 2, *values.shape[1:]).unbind(1)
    return torch.cat((forth, back.flip(1)), dim=-1)


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


class PrefixEncoder(PromptEncoder):
    """Deep prefixes of one or several tasks, each with its own parameters; final.

    "free" learns the keys and values themselves. "mlp" learns one vector for each place in the
    prefix and maps it onto the keys and values of the layers: Linear, Tanh, Linear. All weights
    begin normally distributed, biases at zero, as the reference code of P-tuning v2 leaves them.

    Args:
        tasks: names; each seeds its own random numbers.
        shape: from ``backbone.prefix_shape``.
        length: of every prefix.
        layers: which layers read it: all, last:6, 1,3,5; the others have no parameters.
        kind: free or mlp.
        hidden: the width between the two products of "mlp".
        dropout: the share of prefix numbers dropped in training, for each row and layer.
        scale: standard deviation of the numbers at first.
        shift_positions: whether token positions begin at the prefix's length.
        seed: what else the random numbers depend on.

    Raises:
        ConfigError: layers that the model has not.
    """

    def __init__(
        self,
        tasks: Sequence[str],
        shape: PrefixShape,
        length: int,
        *,
        layers: str = "all",
        kind: PrefixKind = "free",
        hidden: int = 512,
        dropout: float = 0.0,
        scale: float = 0.02,
        shift_positions: bool = False,
        seed: tuple[object, ...] = (0,),
    ) -> None:
        super().__init__(tasks, seed)
        self.shape = shape
        self.layers = layers
        self.kind = kind
        self.dropout = dropout
        self.shift_positions = shift_positions
        outputs = len(layers_of(layers, shape.layers)) * 2 * shape.width
        self.base = self._normal(length, outputs if kind == "free" else shape.width, scale=scale)
        if kind == "mlp":
            self.weight_1 = self._normal(hidden, shape.width, scale=scale)
            self.bias_1 = self._normal(hidden, scale=0.0)
            self.weight_2 = self._normal(outputs, hidden, scale=scale)
            self.bias_2 = self._normal(outputs, scale=0.0)

    def forward(self) -> Tensor:
        """Return the chosen layers' states, [tasks, layers, 2, kv_heads, length, head_dim]."""
        flat: Tensor = self.base
        if self.kind == "mlp":
            inner = torch.baddbmm(self.bias_1[:, None], flat, self.weight_1.mT).tanh()
            flat = torch.baddbmm(self.bias_2[:, None], inner, self.weight_2.mT)
        _, heads, size = self.shape
        states = flat.view(*flat.shape[:2], -1, 2, heads, size)
        return states.permute(0, 2, 3, 4, 1, 5)

    @torch.no_grad()
    def put(self, states: Tensor) -> None:
        """Put stored keys and values of the only task in place; the prefix must be a free one.

        Args:
            states: [layers, 2, kv_heads, length, head_dim].
        """
        assert self.kind == "free"
        self.base.copy_(states.permute(3, 0, 1, 2, 4).flatten(1)[None])

    def prefix(self) -> Prefix:
        """Return the first task's prefix for a batch; in training mode with its dropout."""
        return Prefix(
            self(),
            shift_positions=self.shift_positions,
            dropout=self.dropout if self.training else 0.0,
            layers=self.layers,
        )
