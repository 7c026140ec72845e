"""Small hand-made text to pretrain on, and configs that take a second or two."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from symprompt.config import build, flatten
from symprompt.pretraining.config import PretrainConfig
from tiny.models import overlay

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
