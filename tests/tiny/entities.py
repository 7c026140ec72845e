"""Made-up sets of named entities, in the layouts of the real ones."""

from __future__ import annotations

import random
from pathlib import Path

from tiny.models import CITIES, COUNTRIES, FUNCTION_WORDS


def write_entities(root: Path) -> Path:
    """Write a made-up CoNLL-2003 and CoNLL-2004, each in its own layout."""
    draw = random.Random(0)
    layouts: dict[str, tuple[dict[str, str], str]] = {
        "conll2003": (
            {"train": "eng.train", "dev": "eng.testa", "test": "eng.testb"},
            "{word} NN B-NP {tag}",
        ),
        "conll2004": (
            {"train": "train.txt", "dev": "dev.txt", "test": "test.txt"},
            "{at} {word} {tag} ['{relation}'] [{other}]",
        ),
    }
    for name, (files, line) in layouts.items():
        (root / name).mkdir(parents=True)
        for split, file in files.items():
            text = ""
            for _ in range({"train": 24 if name == "conll2003" else 12}.get(split, 8)):
                words = [draw.choice(FUNCTION_WORDS) for _ in range(4)]
                at = draw.randrange(3)
                words[at] = draw.choice(CITIES[:2] + COUNTRIES[:2])
                tag = "B-LOC" if words[at] in CITIES else "B-ORG"
                # A second name, and how the first one is related to it.
                words[3] = CITIES[0]
                for place, word in enumerate(words):
                    own = tag if place == at else "B-LOC" if place == 3 else "O"
                    relation, other = ("Near", 3) if place == at else ("N", place)
                    cells = {"at": place, "word": word, "tag": own}
                    cells |= {"relation": relation, "other": other}
                    text += line.format(**cells).replace(" ", "\t") + "\n"
                text += "\n"
            (root / name / file).write_text(
                text if name == "conll2004" else text.replace("\t", " ")
            )
    return root
