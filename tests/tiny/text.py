"""Small hand-made text to pretrain on, and configs that take a second or two."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from symprompt.config import build, flatten
from symprompt.engine.processes import ProcessGroup
from symprompt.files.progress import Tick
from symprompt.pretraining.config import PretrainConfig
from symprompt.pretraining.parent import Parent
from symprompt.pretraining.sequences import Batch, Feed
from symprompt.pretraining.tokenizer import Specials
from symprompt.pretraining.training import Pretraining
from tiny.models import overlay

SPECIALS = Specials(cls=2, sep=3, pad=0, mask=4)
CPU = torch.device("cpu")
COLOURS = {
    "grass": "green",
    "sky": "blue",
    "snow": "white",
    "coal": "black",
    "blood": "red",
    "ash": "grey",
}


OTHERS = (
    *("apples", "bread", "cheese", "dreams", "eggs", "fish", "gold"),
    *("honey", "iron", "jam", "kites", "lemons", "maps", "nuts"),
)


def write_text(path: Path, documents: int = 120, seed: int = 0) -> Path:
    """Write documents of sentences that say which colour a thing has, and some that do not."""
    generator = random.Random(seed)
    lines = []
    for _ in range(documents):
        for _ in range(6):
            thing = generator.choice(list(COLOURS))
            lines.append(f"The color of {thing} is {COLOURS[thing]} .")
        lines += [f"We saw {' '.join(generator.sample(OTHERS, 2))} .", ""]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def pretrain_config(out: Path | str = "", **changes: Any) -> PretrainConfig:
    """Return a tiny config; changes are tables or top-level values, laid over it."""
    table: dict[str, Any] = {
        "out": str(out),
        "seed": 1,
        "device": "cpu",
        "evaluate_every": 10,
        "vocabulary": {"size": 110},
        "corpus": {"length": 16, "held_out": 0.1},
        "corruption": {},
        "shape": {"layers": 1, "hidden": 16, "heads": 2},
        "learning": {"batch": 16, "steps": 12, "rate": 2e-3, "warmup": 0.1},
    }
    return build(PretrainConfig, overlay(table, changes))


def flags_of(config: PretrainConfig) -> list[str]:
    """Return a config's values as flags of the command."""
    words = []
    for key, value in flatten(config).items():
        name = key.replace("_", "-")
        if isinstance(value, bool):
            table, _, last = name.rpartition(".")
            prefix = f"--{table}." if table else "--"
            words.append(prefix + ("" if value else "no-") + last)
        elif value != "":
            words += [f"--{name}", str(value)]
    return words


def make_batch(
    rows: int = 64, length: int = 64, *, ragged: bool = True, vocabulary: int = 200
) -> Batch[Tensor]:
    """Return two sentences a row with separators; lengths are from 6 on where ragged."""
    generator = torch.Generator().manual_seed(rows + length)
    ids = torch.randint(5, vocabulary, (rows, length), generator=generator)
    lengths = torch.full((rows,), length)
    if ragged:
        lengths = torch.randint(6, length + 1, (rows,), generator=generator)
    places = torch.arange(length)
    middle = (lengths // 2)[:, None]
    padding = places >= lengths[:, None]
    separator = (places == middle) | (places == lengths[:, None] - 1)
    special = (places == 0) | separator | padding
    ids = ids.masked_fill(separator, SPECIALS.sep).masked_fill(padding, SPECIALS.pad)
    ids[:, 0] = SPECIALS.cls
    starts = (torch.rand((rows, length), generator=generator) < 0.65) & ~special
    segments = ((places > middle) & ~padding).long()
    is_next = torch.arange(rows) % 3 == 0
    return Batch(ids, starts, special, lengths, segments, is_next)


class Rows:
    """Full sequences of random tokens."""

    def __init__(self, count: int = 40, vocabulary: int = 40) -> None:
        drawn = np.random.default_rng(0).integers(5, vocabulary, (count, 16))
        self.ids = drawn.astype(np.uint16)
        self.ids[:, 0], self.ids[:, -1] = SPECIALS.cls, SPECIALS.sep

    def __len__(self) -> int:
        return len(self.ids)

    def order(self, epoch: int) -> np.ndarray:
        return np.random.default_rng(epoch).permutation(len(self.ids))

    def batch(self, indices: np.ndarray, epoch: int) -> Batch[np.ndarray]:
        ids = self.ids[indices]
        special = ids < 5
        return Batch(
            ids=ids,
            starts_word=~special,
            special=special,
            lengths=np.full(len(ids), ids.shape[1], np.int64),
            segments=np.zeros(ids.shape, np.uint8),
            is_next=np.full(len(ids), epoch % 2 == 0),
        )


def make_training(
    config: PretrainConfig, parent: Parent | None = None, specials: Specials = SPECIALS
) -> Pretraining:
    """Return the training on as many such sequences as a batch has, 40 at least."""
    size = 40 if parent is None else len(parent.tokenizer)
    rows = Rows(max(40, config.learning.batch), size)
    frequencies = torch.ones(size)
    frequencies[:5] = 0
    return Pretraining(
        config,
        Feed(rows, config.learning.batch),  # type: ignore[arg-type]
        rows.batch(np.arange(8), 0).to(CPU),
        specials=specials,
        frequencies=frequencies / frequencies.sum(),
        group=ProcessGroup(0, 1, CPU),
        parent=parent,
    )


def rounding_errors(make: Callable[[str], Pretraining], least: float) -> dict[str, float]:
    """How far a first step's gradients are off where passes are in bfloat16, by their names.

    Args:
        make: gives the training with passes in a dtype.
        least: gradients of a smaller norm are taken to have this one.
    """
    found = []
    for dtype in ("float32", "bfloat16"):
        training = make(dtype)
        training.learn(0, training.feed.make(0, CPU)[0])
        found.append(dict(training.optimizer.views(training.optimizer.gradients)))
    exact, rough = found
    return {
        name: float((rough[name] - wanted).norm() / wanted.norm().clamp(min=least))
        for name, wanted in exact.items()
    }


def interrupt_after(step: int) -> Tick:
    """Return a tick that stops a run, as Ctrl-C does after the step's state was written."""

    def tick(stage: str, done: int, _: int, __: str) -> None:
        if stage == "training" and done >= step:
            os.kill(os.getpid(), signal.SIGINT)

    return tick
