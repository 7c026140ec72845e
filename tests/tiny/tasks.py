"""Small labelled tasks of every kind that a tiny model can learn, as files, and runs on them."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from symprompt.models import LanguageModel
from symprompt.models.vocabulary import Vocabulary
from symprompt.tasks.config import TuneConfig, make_tune_config
from symprompt.tasks.data.examples import Example, LabelSet
from symprompt.tasks.features import Features, Sheet
from symprompt.tasks.kinds import KINDS as ALL_KINDS
from symprompt.tasks.kinds import Target
from symprompt.tasks.train import TaskRun, tune
from symprompt.tasks.trainables import TRAINABLES, TunedModel
from tiny.models import LANDS, PLAIN_WORDS, TONGUES

KINDS = ("sequence", "pair", "tagging", "roles", "question")
SIZES = {"train": 96, "dev": 16, "test": 24}


def tuned(backbone: LanguageModel, config: TuneConfig, *, seed: int = 1) -> TunedModel:
    """Return a model with what the config's method trains, at its start."""
    return TRAINABLES[config.method](backbone, config, (seed,))


def full_weights(backbone: LanguageModel, layers: int = -1) -> TunedModel:
    """Return a model whose weights are trained, or those of its last layers."""
    return tuned(backbone, make_tune_config({"method": "ft", "weights": {"layers": layers}}))


def write_toy(
    folder: Path, kind: str, *, seed: int = 0, sizes: dict[str, int] | None = None
) -> Path:
    """Write train, dev and test files of a kind; return their folder."""
    draw = random.Random(seed)
    folder.mkdir(parents=True, exist_ok=True)
    for split, size in (sizes or SIZES).items():
        rows = [example(kind, draw) for _ in range(size)]
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{split}.jsonl").write_text(lines)
    return folder


def example(kind: str, draw: random.Random) -> dict[str, Any]:
    """Return one example whose label follows from its words."""
    words = [draw.choice(PLAIN_WORDS) for _ in range(draw.randint(2, 4))]
    place = draw.randrange(len(words))
    is_land = draw.random() < 0.5
    words[place] = draw.choice(LANDS[:3] if is_land else TONGUES[:3])
    if kind == "sequence":
        return {"text": " ".join(words), "label": "land" if is_land else "tongue"}
    if kind == "pair":
        label = "land" if is_land else "tongue"
        return {"first": draw.choice(PLAIN_WORDS), "second": " ".join(words), "label": label}
    if kind == "tagging":
        tag = "B-LAND" if is_land else "B-TONGUE"
        return {"words": words, "tags": [tag if at == place else "O" for at in range(len(words))]}
    if kind == "roles":
        tags = ["B-ARG0" if at == place else "O" for at in range(len(words))]
        verb = (place + 1) % len(words)
        tags[verb] = "B-V"
        return {"words": words, "predicate": verb, "tags": tags}
    text = " ".join(words)
    start = len(" ".join(words[:place])) + (place > 0)
    answers = [{"text": words[place], "start": start}]
    return {"question": "in the", "context": text, "answers": answers}


def toy_config(data: Path, model: Path, out: Path, kind: str, **changes: Any) -> TuneConfig:
    """Return a config of a short run; changes are dotted keys with __ for the dot."""
    table: dict[str, Any] = {
        "model": str(model),
        "data": str(data),
        "out": str(out),
        "device": "cpu",
        "method": "pt2",
        "task": {"kind": kind, "max_length": 32, "stride": 4},
        "prefix": {"length": 4},
        "head": {"dropout": 0.0},
        "learning": {"rate": 2e-2, "batch": 8, "epochs": 4},
    }
    for key, value in changes.items():
        outer, _, inner = key.rpartition("__")
        if outer:
            table.setdefault(outer, {})[inner] = value
        else:
            table[inner] = value
    return make_tune_config(table)


def run_toy(data: Path, model: Path, out: Path, kind: str, **changes: Any) -> TaskRun:
    """Make a short run."""
    return tune(toy_config(data, model, out, kind, **changes))


def tensorise(
    kind: str,
    examples: Sequence[Example],
    labels: LabelSet,
    vocabulary: Vocabulary,
    *,
    max_length: int,
    stride: int = 8,
    token_types: bool | None = None,
    **target: Any,
) -> Features:
    """Return examples of a kind as rows."""
    sheet = Sheet.make(vocabulary, max_length=max_length, stride=stride, token_types=token_types)
    return ALL_KINDS[kind].tensorise(examples, sheet, Target(labels, **target))
