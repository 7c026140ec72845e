"""Which of a model's positions and segments were trained: the record of it, and a look at tables.

``pretrain`` writes a record into the config.json of its models, where transformers keeps it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError
from torch import Tensor, nn

from symprompt.errors import ModelError

KEY = "symprompt_trained"
"""The record's key in config.json."""
_POSITIONS = ("position_embeddings", "embed_positions", "wpe", "positions_embed")
_SEGMENTS = "token_type_embeddings"


@dataclass(frozen=True)
class Trained:
    """What training has reached of a model; final.

    Attributes:
        positions: tokens, from the first on, whose position was trained; None where positions are
            no table of learned rows (rotary or relative ones), which sets no limit.
        segments: rows of the segment table, from the first on, that were trained; 0 without one.
        objectives: what was trained for, earlier runs first; none where it is not known.
    """

    positions: int | None
    segments: int
    objectives: tuple[str, ...] = ()

    def then(self, later: Trained) -> Trained:
        """Return what is trained after a run that went on from here: either run's rows count."""
        return Trained(
            None if self.positions is None else max(self.positions, later.positions or 0),
            max(self.segments, later.segments),
            tuple(dict.fromkeys(self.objectives + later.objectives)),
        )

    def write(self, config: Any) -> None:
        """Put the record into a config of transformers, to be saved with it."""
        setattr(config, KEY, asdict(self) | {"objectives": list(self.objectives)})


def read_record(config: Any, name: str = "the model") -> Trained | None:
    """Return the record in a config of transformers; None where there is none.

    Args:
        name: the model's, for errors.

    Raises:
        ModelError: the record is damaged.
    """
    stored = getattr(config, KEY, None)
    if stored is None:
        return None
    try:
        return TypeAdapter(Trained).validate_python(stored)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, (KEY, *first["loc"])))
        raise ModelError(
            f"config.json of {name} is damaged: {key} is {first['input']!r} "
            f"({first['msg'].rstrip('.')}); mend it, or remove {KEY}."
        ) from error


def find_positions(body: nn.Module) -> tuple[nn.Embedding | None, int]:
    """Return the table of a body's learned positions and the row of a first token; None: no table.

    RoBERTa's kind counts on from the padding's row, OPT's from a fixed row.
    """
    for name, module in body.named_modules():
        if isinstance(module, nn.Embedding) and name.rpartition(".")[2] in _POSITIONS:
            after_padding = 0 if module.padding_idx is None else module.padding_idx + 1
            return module, int(getattr(module, "offset", after_padding))
    return None, 0


def find_segments(body: nn.Module) -> nn.Embedding | None:
    """Return the table of a body's segments, if it has one."""
    for name, module in body.named_modules():
        if isinstance(module, nn.Embedding) and name.rpartition(".")[2] == _SEGMENTS:
            return module
    return None


def count_leading(rows: Tensor) -> int:
    """Return how many rows are true before the first that is not."""
    return int(rows.long().cumprod(0).sum())
