"""The encoder of deep prefixes: keys and values for every layer, per task (P-tuning v2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from symprompt.errors import ConfigError
from symprompt.models.prefix import Prefix, PrefixShape
from symprompt.prompts.encoders import PromptEncoder

PrefixKind = Literal["free", "mlp"]


class PrefixEncoder(PromptEncoder):
    """Deep prefixes of one or several tasks, each with its own parameters; final.

    "free" learns the keys and values themselves. "mlp" learns one vector for each place in the
    prefix and maps it onto the keys and values of all layers: Linear, Tanh, Linear. All weights
    begin normally distributed, biases at zero, as the reference code of P-tuning v2 leaves them.

    Attributes:
        shape: layers, key-value heads and head size of the model.
        lengths: of each task's prefix.
        visible: [tasks, length], false after the end of shorter prefixes; None: all are as long.

    Args:
        tasks: names; each seeds its own random numbers.
        shape: from ``backbone.prefix_shape``.
        length: of every prefix, or one for each task.
        kind: free or mlp.
        hidden: the width between the two products of "mlp".
        dropout: the share of prefix numbers dropped in training, for each row and layer.
        scale: standard deviation of the numbers at first.
        shift_positions: whether token positions begin at the prefix's length.
        seed: what else the random numbers depend on.

    Raises:
        ConfigError: a length below 0, a dropout outside [0, 1), or another kind.
    """

    visible: Tensor | None

    def __init__(
        self,
        tasks: Sequence[str],
        shape: PrefixShape,
        length: int | Sequence[int],
        *,
        kind: PrefixKind = "free",
        hidden: int = 512,
        dropout: float = 0.0,
        scale: float = 0.02,
        shift_positions: bool = False,
        seed: tuple[object, ...] = (0,),
    ) -> None:
        super().__init__(tasks, seed)
        self.shape = shape
        self.lengths = (length,) * len(tasks) if isinstance(length, int) else tuple(length)
        self.kind = kind
        self.dropout = dropout
        self.shift_positions = shift_positions
        self._check(len(tasks), hidden)
        longest = max(self.lengths)
        outputs = shape.layers * 2 * shape.width
        # Drawn at its own length, a task begins with the same numbers alone and beside longer ones.
        draws = [
            torch.randn((own, outputs if kind == "free" else shape.width), generator=generator)
            for own, generator in zip(self.lengths, self._generators, strict=True)
        ]
        padded = [functional.pad(own, (0, 0, 0, longest - len(own))) for own in draws]
        self.base = nn.Parameter(torch.stack(padded) * scale)
        if kind == "mlp":
            self.weight_1 = self._normal(hidden, shape.width, scale=scale)
            self.bias_1 = self._normal(hidden, scale=0.0)
            self.weight_2 = self._normal(outputs, hidden, scale=scale)
            self.bias_2 = self._normal(outputs, scale=0.0)
        own = torch.arange(longest) < torch.tensor(self.lengths)[:, None]
        self.register_buffer("visible", None if bool(own.all()) else own, persistent=False)

    def _check(self, tasks: int, hidden: int) -> None:
        if not self.lengths or len(self.lengths) != tasks or min(self.lengths) < 0:
            raise ConfigError(
                f"prefix lengths {self.lengths} were given for {tasks} tasks; give one length of 0 "
                "or more for each."
            )
        if self.kind not in get_args(PrefixKind):
            raise ConfigError(f"prefix kind {self.kind!r} is not known; use free or mlp.")
        if not 0 <= self.dropout < 1 or hidden < 1:
            raise ConfigError(
                f"prefix dropout {self.dropout} and hidden width {hidden} were given; dropout is "
                "from 0 to below 1, and the width 1 or more."
            )

    def forward(self) -> Tensor:
        """Return the keys and values, [tasks, layers, 2, kv_heads, length, head_dim]."""
        flat: Tensor = self.base
        if self.kind == "mlp":
            inner = torch.baddbmm(self.bias_1[:, None], flat, self.weight_1.mT).tanh()
            flat = torch.baddbmm(self.bias_2[:, None], inner, self.weight_2.mT)
        layers, heads, size = self.shape
        states = flat.view(*flat.shape[:2], layers, 2, heads, size)
        return states.permute(0, 2, 3, 4, 1, 5)

    @torch.no_grad()
    def put(self, states: Tensor) -> None:
        """Put stored keys and values of the only task in place; the prefix must be a free one.

        Args:
            states: [layers, 2, kv_heads, length, head_dim].
        """
        assert self.kind == "free"
        self.base.copy_(states.permute(3, 0, 1, 2, 4).flatten(1)[None])

    def prefix(self, row: Tensor | None = None) -> Prefix:
        """Return the prefix for a batch; in training mode with its dropout.

        Args:
            row: [b], which task each row is of; None: all are of the first.
        """
        return Prefix(
            self(),
            row,
            shift_positions=self.shift_positions,
            visible=self.visible,
            dropout=self.dropout if self.training else 0.0,
        )
