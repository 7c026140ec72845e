"""A hand-made set of sentences with names in names, right by construction.

    python experiments/nested_names.py OUT

writes OUT/spans (every name, kind spans) and OUT/outermost (the outermost names as tags, kind
tagging: all that IOB2 can say), each with train, dev and test as JSON lines. Names are put together
by a small grammar ("Alumni Club of the University of Leeds" holds a university, which holds a
place); the test split has sentences, places and people that training does not have.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

SIZES = {"train": 2000, "dev": 300, "test": 600}
PLACES = (
    "London", "Paris", "Leeds", "Oslo", "Vienna", "Cairo", "Lagos", "Delhi", "Kyoto", "Lima",
    "Boston", "Geneva", "Prague", "Dublin", "Athens", "Warsaw", "Ghana", "Peru", "Norway",
    "Kenya", "India", "Japan", "Chile", "Poland", "Greece", "Egypt", "Cuba", "Texas", "Bavaria",
    "Wales", "New York", "South Korea", "Hong Kong", "San Diego", "Sri Lanka", "Berlin",
    "Madrid", "Rome", "Lisbon", "Moscow", "Turin", "Bergen", "Malta", "Brazil", "Canada",
    "Spain", "Latvia", "Iran", "Nepal", "Utah", "Cape Town", "New Zealand", "Costa Rica",
    "Los Angeles",
)  # fmt: skip
FIRST = (
    "John", "Mary", "Anna", "Peter", "James", "Laura", "Karl", "Nadia", "Omar", "Ruth", "Hugo",
    "Irene", "Paul", "Sara",
)  # fmt: skip
LAST = (
    "Smith", "Brown", "Keller", "Novak", "Okafor", "Tanaka", "Rossi", "Silva", "Hansen",
    "Moreau", "Kowalski", "Byrne", "Costa", "Weber", "Ito", "Marsh", "Dunn", "Patel", "Fischer",
    "Lindgren", "Haddad", "Navarro", "Petrov", "Quinn",
)  # fmt: skip
# A name: its type, and its parts; {LOC} and the like are names again.
NAMES: dict[str, list[str]] = {
    "LOC": ["<place>"],
    "PER": ["<first> <last>", "<last>"],
    "ORG": [
        "University of {LOC}",
        "Bank of {LOC}",
        "{LOC} United",
        "{LOC} Institute of Technology",
        "{PER} Foundation",
        "{PER} & Sons",
        "Ministry of Finance of {LOC}",
        "{LOC} Chamber of Commerce",
        "Alumni Club of the {ORG}",
        "{ORG} Press",
        "Friends of {FAC}",
        "Acme Holding",
        "Red Cross",
    ],
    "FAC": [
        "{LOC} Airport",
        "{PER} Street",
        "{LOC} Central Station",
        "{ORG} Library",
        "{PER} Hospital",
    ],
    "EVENT": ["{LOC} Marathon", "{LOC} Film Festival", "{PER} Memorial Cup", "Battle of {LOC}"],
}
SENTENCES = [
    "{PER} joined the {ORG} last year .",
    "The {ORG} said on Monday that profits fell .",
    "She flew from {FAC} to {LOC} in the morning .",
    "{PER} will speak at the {EVENT} in {LOC} .",
    "Shares of {ORG} rose after the report .",
    "He was born in {LOC} and studied at the {ORG} .",
    "The {EVENT} was won by {PER} of {LOC} .",
    "A fire broke out near {FAC} , officials said .",
    "{PER} left {LOC} for good .",
    "The {ORG} and the {ORG} signed a treaty .",
    "Nobody was hurt , the spokesman added .",
    "It rained all day and the match was stopped .",
    "{ORG} opened an office on {FAC} .",
    "Visitors to {LOC} often see {FAC} first .",
    "The chairman of the {ORG} , {PER} , resigned .",
    "{PER} and {PER} met at {FAC} .",
]
HELD_OUT = [
    "Police closed {FAC} after the {EVENT} .",
    "A statement by the {ORG} angered {PER} .",
    "In {LOC} , {ORG} has many rivals .",
    "{PER} wrote a history of the {EVENT} .",
    "The road from {LOC} to {FAC} is closed .",
    "Critics of {ORG} include {PER} of the {ORG} .",
    "The weather will stay dry until Friday .",
]
_DEEPEST = 3


def make_example(random: np.random.Generator, held_out: bool) -> dict[str, Any]:
    """Return a sentence's words and all its names, outer before inner."""
    words: list[str] = []
    spans: list[list[Any]] = []
    sentences = HELD_OUT if held_out else SENTENCES
    for part in sentences[random.integers(len(sentences))].split():
        _put(part, words, spans, random, held_out, 0)
    return {"words": words, "spans": spans}


def _put(
    part: str,
    words: list[str],
    spans: list[list[Any]],
    random: np.random.Generator,
    held_out: bool,
    depth: int,
) -> None:
    """Add a word, or a name with the names in it."""
    kind = part.strip("{}")
    if part == "<place>":
        words += _draw(PLACES, random, held_out).split()
    elif part == "<first>":
        words.append(_draw(FIRST, random, held_out))
    elif part == "<last>":
        words.append(_draw(LAST, random, held_out))
    elif kind in NAMES and part != kind:
        patterns = NAMES[kind]
        if depth >= _DEEPEST - 1:
            shallow = ("{LOC}", "{PER}", "<")
            patterns = [p for p in patterns if "{" not in p or any(s in p for s in shallow)]
        span = [kind, len(words), 0]
        spans.append(span)
        for inner in patterns[random.integers(len(patterns))].split():
            _put(inner, words, spans, random, held_out, depth + 1)
        span[2] = len(words)
    else:
        words.append(part)


def _draw(names: Sequence[str], random: np.random.Generator, held_out: bool) -> str:
    """Draw a name: the last third is the test split's alone."""
    cut = len(names) * 2 // 3
    own = names[cut:] if held_out else names[:cut]
    return own[random.integers(len(own))]


def outermost(row: dict[str, Any]) -> dict[str, Any]:
    """Return a sentence with tags of its outermost names."""
    tags = ["O"] * len(row["words"])
    for kind, start, end in sorted(row["spans"], key=lambda span: (span[1], -span[2])):
        if tags[start] == "O":
            tags[start:end] = [f"B-{kind}", *[f"I-{kind}"] * (end - start - 1)]
    return {"words": row["words"], "tags": tags}


def write_nested(folder: Path, *, seed: int = 0, sizes: dict[str, int] | None = None) -> Path:
    """Write both readings of the set; return the folder."""
    random = np.random.default_rng(seed)
    for split, size in (sizes or SIZES).items():
        rows = [make_example(random, split == "test") for _ in range(size)]
        for name, own in (("spans", rows), ("outermost", [outermost(row) for row in rows])):
            path = folder / name / f"{split}.jsonl"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(json.dumps(row) + "\n" for row in own), encoding="utf-8")
    return folder


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    write_nested(parser.parse_args().out)
