"""The positions and token types that a model's body knows."""

from __future__ import annotations

import inspect
from typing import Any

from torch import Tensor, nn

from symprompt.errors import ModelError
from symprompt.models.prefix import Prefix

_ENDLESS = 1 << 30


class Positions:
    """The positions and token types of a model; final.

    Attributes:
        limit: how many tokens have a position.
        first: the position of a sentence's first token; RoBERTa's kind counts on from the padding.
        reads_types: whether the two texts of a pair are distinguished by token types.

    Args:
        body: the model without its head.
        config: of the text model.
    """

    def __init__(self, body: nn.Module, config: Any) -> None:
        self._name = type(body).__name__
        self._arguments = frozenset(inspect.signature(body.forward).parameters)
        known = int(getattr(config, "type_vocab_size", 0) or 0)
        self.reads_types = known > 1 and "token_type_ids" in self._arguments
        self.limit = int(getattr(config, "max_position_embeddings", 0) or _ENDLESS)
        self.first = 0
        for name, module in body.named_modules():
            if name.endswith("position_embeddings") and isinstance(module, nn.Embedding):
                if module.padding_idx is not None:
                    self.first = module.padding_idx + 1
                    self.limit = module.num_embeddings - self.first
                break

    def shifted(self, prefix: Prefix, rows: int, tokens: int, *, limit: int) -> Tensor:
        """Return the tokens' positions after a prefix, [b, t].

        Raises:
            ModelError: the model takes no positions, or has not as many.
        """
        if "position_ids" not in self._arguments:
            raise ModelError(
                f"{self._name} takes no positions from outside, so a prefix cannot shift them; "
                "leave the shift of positions out."
            )
        if prefix.length + tokens > limit:
            raise ModelError(
                f"{tokens} tokens after a prefix of {prefix.length} that shifts positions need "
                f"{prefix.length + tokens} of them, and the model has {limit}; leave the shift of "
                "positions out, or take shorter texts."
            )
        return prefix.positions(rows, tokens) + self.first
