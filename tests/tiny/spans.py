"""Sentences with spans that a tiny model can learn: nested ones, and related ones, as files."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from tiny.models import LANDS, PLAIN_WORDS, TONGUES

SIZES = {"train": 128, "dev": 24, "test": 32}


def write_spans(
    folder: Path, *, relations: bool = False, seed: int = 0, sizes: dict[str, int] | None = None
) -> Path:
    """Write train, dev and test files; return their folder."""
    draw = random.Random(seed)
    folder.mkdir(parents=True, exist_ok=True)
    for split, size in (sizes or SIZES).items():
        rows = [related(draw) if relations else nested(draw) for _ in range(size)]
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{split}.jsonl").write_text(lines)
    return folder


def nested(draw: random.Random) -> dict[str, Any]:
    """Return a sentence: a land is a LAND, and a tongue and a land side by side are a GROUP too."""
    words = [draw.choice(PLAIN_WORDS) for _ in range(draw.randint(1, 3))]
    place = draw.randrange(len(words) + 1)
    land, tongue = draw.choice(LANDS[:3]), draw.choice(TONGUES[:3])
    if draw.random() < 0.6:
        words[place:place] = [tongue, land]
        return {
            "words": words,
            "spans": [["GROUP", place, place + 2], ["LAND", place + 1, place + 2]],
        }
    words.insert(place, land)
    return {"words": words, "spans": [["LAND", place, place + 1]]}


def related(draw: random.Random) -> dict[str, Any]:
    """Return a sentence: a tongue is of the land in the sentence, in either order."""
    words = [draw.choice(PLAIN_WORDS) for _ in range(draw.randint(1, 2))]
    names = [("LAND", draw.choice(LANDS[:3])), ("TONGUE", draw.choice(TONGUES[:3]))]
    draw.shuffle(names)
    if draw.random() < 0.3:
        names = names[:1]
    spans = []
    for kind, name in names:
        place = draw.randint(spans[-1][2] if spans else 0, len(words))
        words.insert(place, name)
        spans.append([kind, place, place + 1])
    kinds = [kind for kind, _ in names]
    both = len(kinds) == 2
    relations = [["OF", kinds.index("TONGUE"), kinds.index("LAND")]] if both else []
    return {"words": words, "spans": spans, "relations": relations}
