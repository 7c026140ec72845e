"""Which of a model's positions and segments were trained: its record, or a look at its tables.

``pretrain`` writes a record into the config.json of its models, where transformers keeps it. Other
models are looked at. Rows that no text ever reached are noise as it was drawn at first, shrunk by
weight decay at most; trained rows share directions with their neighbours and with other tables.
The rule says too little rather than too much:

- Positions: rows at the end of the table, eight or more, that are noise by every test: no cosine
  with a neighbour, one norm, no common direction. Or rows that are zero.
- Segments: the second row if it has no cosine with the first, with the mean position or with the
  mean word, and the moments of initial noise.
- In both cases the rows before must not be noise. Where all rows look initial, as in a model that
  was never trained, nothing can be known, and all are used.
- Tables of fewer than 64 columns are not judged.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated, Any

import torch
from pydantic import Field, TypeAdapter, ValidationError
from torch import Tensor, nn
from torch.nn import functional

from symprompt.errors import ModelError

KEY = "symprompt_trained"
"""The record's key in config.json."""
_POSITIONS = ("position_embeddings", "embed_positions", "wpe", "positions_embed")
_SEGMENTS = "token_type_embeddings"
_LEAST_WIDTH = 64
_LEAST_ROWS = 8
_FAR = 5.0
"""Standard deviations beyond which a row is not noise; of hundreds of rows none is by chance."""
_NEAR = 3.0
_TOP = 1.2
"""Largest singular value of noise, over what is expected of it; of trained rows it is above 2."""
_SPECTRUM = 512
_SHRUNK = 0.5
"""What decay leaves of an untrained segment's initial size, at the least."""


@dataclass(frozen=True)
class Trained:
    """What training has reached of a model; final.

    Attributes:
        positions: tokens, from the first on, whose position was trained; None where positions are
            no table of learned rows (rotary or relative ones), which sets no limit.
        segments: rows of the segment table, from the first on, that were trained; 0 without one.
        objectives: what was trained for, earlier runs first; none where it is not known.
    """

    positions: Annotated[int, Field(ge=1)] | None
    segments: Annotated[int, Field(ge=0)]
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


def read_record(config: Any) -> Trained | None:
    """Return the record in a config of transformers; None where there is none.

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
        key, name = ".".join(map(str, (KEY, *first["loc"]))), config.name_or_path or "the model"
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


def find_trained(body: nn.Module, config: Any) -> tuple[Trained, str]:
    """Return what of a model was trained, by its record or the look of its tables, and a note.

    Args:
        body: of a model of transformers.
        config: its config, of the text part.

    Returns:
        What was trained; rows about which nothing can be known count as trained. The note names
        what was not; "" where there is nothing to say.

    Raises:
        ModelError: the record is damaged.
    """
    table, first = find_positions(body)
    kinds = find_segments(body)
    positions = None if table is None else table.num_embeddings - first
    segments = 0 if kinds is None else kinds.num_embeddings
    record = read_record(config)
    if record is None:
        rows = None if table is None else table.weight.detach()[first:].float()
        known, own = positions, segments
        if rows is not None:
            known = count_trained_positions(rows)
        if kinds is not None:
            words = body.get_input_embeddings().weight  # type: ignore[operator]
            spread = getattr(config, "initializer_range", None)
            others = [words.detach().float().mean(0)]
            others += [] if rows is None else [rows[:known].mean(0)]
            own = count_trained_segments(kinds.weight.detach().float(), others, spread)
        trained, source = Trained(known, own), "as initialised, by the look of the table"
    else:
        known = positions
        if positions is not None and record.positions is not None:
            known = min(positions, record.positions)
        trained = Trained(known, min(segments, record.segments), record.objectives)
        source = "by the model's record"
    return trained, _note(trained, positions, segments, source)


def _note(trained: Trained, positions: int | None, segments: int, source: str) -> str:
    untrained, use = [], []
    if positions is not None and trained.positions is not None and trained.positions < positions:
        untrained.append(f"positions {trained.positions} to {positions - 1}")
        use.append(f"inputs end after {trained.positions} tokens")
    if trained.segments < segments:
        untrained.append("segment 1" if segments == 2 else f"segments {trained.segments} and on")
        use.append("one segment is used (in tune: unless --segments on)")
    return f"{', '.join(untrained)} ({source}); {', '.join(use)}" if untrained else ""


def count_trained_positions(table: Tensor) -> int:
    """Return how many rows of a table [n, h] come before those at its end that look initial.

    All of them where no such rows are at the end, or where the others look initial too.
    """
    count, width = table.shape
    sizes = table.pow(2).mean(1).sqrt()
    if not sizes.any():
        return count
    written = int(sizes.nonzero().max()) + 1
    if written < count:
        # No training gives exactly zero.
        return written
    if width < _LEAST_WIDTH or count <= _LEAST_ROWS:
        return count
    rows = functional.normalize(table, dim=1)
    cosines = (rows[1:] * rows[:-1]).sum(1).abs() * width**0.5
    edge = cosines.new_zeros(1)
    to_neighbour = torch.maximum(torch.cat((edge, cosines)), torch.cat((cosines, edge)))
    # The norm of noise is spread by 1 / sqrt(2 h) of itself; the median of eight is not exact.
    usual = sizes[-_LEAST_ROWS:].median()
    apart = (sizes / usual - 1).abs() * (2 * width) ** 0.5
    noise = (to_neighbour <= _FAR) & (apart <= _FAR + 1)
    first = count - count_leading(noise.flip(0))
    if count - first < _LEAST_ROWS or 2 * int(noise[:first].sum()) > first or first == 0:
        return count
    tail = rows[first : first + _SPECTRUM]
    # Marchenko and Pastur's largest singular value.
    expected = 1 + (len(tail) / width) ** 0.5
    return count if torch.linalg.matrix_norm(tail, 2) > _TOP * expected else first


def count_trained_segments(table: Tensor, others: list[Tensor], spread: float | None) -> int:
    """Return 1 if the second row of a table [n, h] looks initial and the first does not, else n.

    Args:
        others: [h], what trained rows have something in common with: mean word, mean position.
        spread: the standard deviation of initial rows; None where it is not known.
    """
    count, width = table.shape
    if count < 2 or width < _LEAST_WIDTH or not spread or not table[0].any():
        return count
    if not table[1].any():
        return 1

    def is_noise(row: Tensor, beside: list[Tensor], far: float) -> bool:
        cosines = [functional.cosine_similarity(row, one, dim=0) for one in beside]
        deviation = row - row.mean()
        size = float(deviation.pow(2).mean().sqrt())
        kurtosis, slack = float(deviation.pow(4).mean()) / size**4, far / (2 * width) ** 0.5
        return (
            _SHRUNK * (1 - slack) <= size / spread <= 1 + slack
            and abs(kurtosis - 3) <= far * (24 / width) ** 0.5
            and all(float(one.abs()) * width**0.5 <= far for one in cosines)
        )

    untrained = is_noise(table[1], [table[0], *others], _NEAR)
    return 1 if untrained and not is_noise(table[0], others, _FAR) else count
