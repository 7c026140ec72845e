"""Hand-made labelled data in the real formats, small enough for tiny models and to count by eye."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import BertConfig, BertForMaskedLM

from tiny.models import (
    CITIES,
    COUNTRIES,
    FUNCTION_WORDS,
    LANDS,
    PLAIN_WORDS,
    TONGUES,
    make_wordpiece,
)

NLI = [
    {"premise": "Paris is old .", "hypothesis": "Paris is in France.", "label": "entailment"},
    {"premise": "Rome is the capital of Italy .", "hypothesis": "Rome is a river."},
    {"premise": "Lima lies in Peru", "hypothesis": "the city lies in Peru!"},
]


_ANSWERS = [{"text": "Rome", "idx": 0, "label": 1}, {"text": "Lima.", "idx": 1, "label": 0}]
_QUESTIONS = [
    {"question": "Which city is old?", "idx": number, "answers": _ANSWERS} for number in range(2)
]
# The example of each number, by task; MultiRC has a passage of two questions.
_ROWS: dict[str, Callable[[int], dict[str, Any]]] = {
    "rte": lambda number: {
        **NLI[number % 3],
        "label": ("entailment", "not_entailment")[number % 2],
        "idx": number,
    },
    "cb": lambda number: {
        **NLI[number % 3],
        "label": ("entailment", "contradiction", "neutral")[number % 3],
        "idx": number,
    },
    "boolq": lambda number: {
        "passage": "Paris -- Paris is old .",
        "question": "is paris old",
        "idx": number,
        "label": number % 2 == 0,
    },
    "wic": lambda number: {
        "word": "old",
        "sentence1": "The old river .",
        "sentence2": "An old city",
        "idx": number,
        "label": number % 2 == 0,
        "start1": 4,
        "end1": 7,
        "start2": 3,
        "end2": 6,
    },
    "copa": lambda number: {
        "premise": "The river is old.",
        "choice1": "The city lies in it.",
        "idx": number,
        "choice2": "It is new.",
        "question": ("cause", "effect")[number % 2],
        "label": number % 2,
    },
    "wsc": lambda number: {
        "text": "Rome is old , and it, is the capital .",
        "target": {"span1_index": 0, "span1_text": "Rome", "span2_index": 5, "span2_text": "it"},
        "idx": number,
        "label": number % 2 == 0,
    },
    "multirc": lambda number: {
        "idx": number,
        "passage": {"text": "Rome is old .", "questions": _QUESTIONS},
    },
}


def rows_of(task: str) -> list[dict[str, Any]]:
    """Four labelled examples of a task (MultiRC: two passages of two questions each)."""
    return [_ROWS[task](number) for number in range(2 if task == "multirc" else 4)]


def lines(*rows: object) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def write_lines(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(lines(*rows), encoding="utf-8")
    return path


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def write_task(folder: Path, task: str, *, few: bool = True) -> Path:
    """Write a task's folder: with dev32 (FewGLUE_32dev), or as full SuperGLUE with a test file."""
    rows = rows_of(task)
    write_lines(folder / "train.jsonl", rows)
    write_lines(folder / "val.jsonl", rows)
    if few:
        write_lines(folder / "dev32.jsonl", rows)
    else:
        bare = [{key: value for key, value in row.items() if key != "label"} for row in rows]
        write_lines(folder / "test.jsonl", bare)
    return folder


def write_labelled(folder: Path) -> Path:
    """Write RTE, BoolQ, CoNLL-2003 and 2004, SQuAD 1.1, and FewGLUE's RTE and CB."""
    for task in ("rte", "boolq"):
        write_task(folder / task, task, few=False)
    write_entities(folder / "ner")
    (folder / "ner/conll2004").rename(folder / "conll2004")
    _write_questions(folder / "squad")
    for name, task in {"RTE": "rte", "CB": "cb"}.items():
        write_task(folder / "FewGLUE_32dev" / name, task)
    return folder


def _write_questions(folder: Path) -> None:
    folder.mkdir(parents=True)
    for split in ("train", "dev"):
        asked = [
            {"id": f"{split}-{number}", "question": "Which city is old?"}
            | {"answers": [{"text": "Paris", "answer_start": 0}]}
            for number in range(4)
        ]
        paragraphs = [{"context": "Paris is old .", "qas": asked}]
        whole = {"version": "1.1", "data": [{"title": "t", "paragraphs": paragraphs}]}
        (folder / f"{split}-v1.1.json").write_text(json.dumps(whole))


LONG_WORDS = ("Rome", "Paris", "is", "old", "the", "Yes", "No", "Maybe", "?", ":", "*", '"')


def write_long_model(
    folder: Path, words: Sequence[str] = LONG_WORDS, *, positions: int = 320
) -> Path:
    """Write a tiny BERT that takes sentences as long as the published patterns need."""
    tokenizer = make_wordpiece(words=tuple(words))
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=positions,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        BertForMaskedLM(config).save_pretrained(folder)  # type: ignore[no-untyped-call]
    tokenizer.save_pretrained(folder)
    return folder


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


def _write_splits(
    folder: Path, draw_row: Callable[[random.Random], Any], seed: int, sizes: Mapping[str, int]
) -> Path:
    draw = random.Random(seed)
    for split, size in sizes.items():
        write_lines(folder / f"{split}.jsonl", [draw_row(draw) for _ in range(size)])
    return folder


def write_spans(
    folder: Path, *, relations: bool = False, seed: int = 0, sizes: dict[str, int] | None = None
) -> Path:
    """Write train, dev and test files of sentences with spans, nested or related."""
    sizes = sizes or {"train": 128, "dev": 24, "test": 32}
    return _write_splits(folder, related if relations else nested, seed, sizes)


def write_toy(
    folder: Path, kind: str, *, seed: int = 0, sizes: dict[str, int] | None = None
) -> Path:
    """Write train, dev and test files of a kind that a tiny model can learn."""
    sizes = sizes or {"train": 96, "dev": 16, "test": 24}
    return _write_splits(folder, partial(example, kind), seed, sizes)


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
    if kind == "words":
        tag = "LAND" if is_land else "TONGUE"
        return {"words": words, "tags": [tag if at == place else "X" for at in range(len(words))]}
    if kind == "roles":
        tags = ["B-ARG0" if at == place else "O" for at in range(len(words))]
        verb = (place + 1) % len(words)
        tags[verb] = "B-V"
        return {"words": words, "predicate": verb, "tags": tags}
    text = " ".join(words)
    start = len(" ".join(words[:place])) + (place > 0)
    answers = [{"text": words[place], "start": start}]
    return {"question": "in the", "context": text, "answers": answers}


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
