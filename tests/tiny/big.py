"""A made-up run of LAMA's size: what a model of its kind would have stored, without the model."""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from symprompt.facts.types import Fact
from symprompt.probing.results import (
    CARD,
    COPY,
    FREQUENCY,
    SUBJECT,
    Predictions,
    write_predictions,
)
from symprompt.probing.results import FACTS as FACTS_FILE
from symprompt.runs.folder import CONFIG, MANIFEST, Folder, Manifest, Record

FACTS, RELATIONS, CANDIDATES, VOCABULARY, FEW = 34_039, 41, 15, 28_996, 6

HOSTILE = (
    "<img src=x onerror=window.hacked=1>",
    "</script><script>window.hacked=1</script>",
    "\u202eevil\u0000\u001b[31m",
    "${window.hacked=1}",
    "__proto__",
    'a" onclick="window.hacked=1',
)
"""Names that a page must show as they are."""


def write_big_run(
    path: Path,
    facts: int = FACTS,
    *,
    relations: int = RELATIONS,
    seed: int = 0,
    subjects: Sequence[str] = (),
    terms: bool = True,
    method: str = "spe",
) -> Path:
    """Write a finished run; answers of a relation are few and skewed, as those of LAMA.

    Args:
        subjects: names of the first facts instead of made-up ones.
        terms: the frequency of objects and copies count too, as in a run that was fitted.
    """
    draw = np.random.default_rng(seed)
    names = [f"P{number + 17}" for number in range(relations)]
    relation = np.sort(draw.integers(0, relations, facts))
    offset = draw.integers(0, VOCABULARY, relations)[relation]
    # Zipf among the words of the relation; distinct within a row.
    ranks = np.minimum(draw.zipf(1.25, (facts, 3 * CANDIDATES)), 4000)
    candidates = np.stack([_distinct(row) for row in ranks])
    candidates = (candidates * 7 + offset[:, None]) % VOCABULARY
    object_score = -np.sort(draw.gamma(3.0, 1.6, (facts, CANDIDATES))).astype(np.float32)
    subject_score = -draw.gamma(6.0, 1.7, (facts, CANDIDATES)).astype(np.float32)
    if method != "spe":
        # Another method: other scores of asking back about the same facts.
        subject_score = np.ascontiguousarray(subject_score[:, ::-1])
    place = np.minimum(draw.geometric(0.22, facts) - 1, 4 * CANDIDATES)
    # The last relation has few answers.
    few = relation == relations - 1
    place = np.where(few, np.minimum(place, FEW - 1), place)
    inside = place < CANDIDATES
    rows = np.arange(facts)
    where = np.minimum(place, CANDIDATES - 1)
    gold = np.where(inside, candidates[rows, where], VOCABULARY + relation)
    gold_score = np.where(inside, object_score[rows, where], object_score[:, -1] - 1)
    subject_score[rows[inside], where[inside]] += 3
    known = draw.random((facts, CANDIDATES)) < 0.03
    known[rows[inside], where[inside]] = False
    # A few ties: the next candidate scores the same.
    tied = rows[(draw.random(facts) < 0.01) & (place < np.where(few, FEW, CANDIDATES) - 1)]
    object_score[tied, place[tied] + 1] = object_score[tied, place[tied]]
    is_gold = candidates == gold[:, None]
    higher = (object_score > gold_score[:, None]) & ~is_gold
    same = (object_score == gold_score[:, None]) & ~is_gold
    beyond = np.where(inside, 0, (place - CANDIDATES) * 40)
    counts = np.bincount(candidates[:, 0], minlength=VOCABULARY)
    frequency = np.log((1 + counts[candidates % VOCABULARY]) / facts).astype(np.float32)
    more = {FREQUENCY: frequency, COPY: (frequency < -9.9).astype(np.float32)} if terms else {}
    none = few[:, None] & (np.arange(CANDIDATES) >= FEW)
    candidates = np.where(none, -1, candidates)
    object_score = np.where(none, np.float32(-np.inf), object_score)
    subject_score = np.where(none, np.float32(0), subject_score)
    more = {name: np.where(none, np.float32(0), own) for name, own in more.items()}
    known &= ~none
    predictions = Predictions(
        relation=relation,
        gold=gold,
        gold_score=gold_score.astype(np.float32),
        better=higher.sum(1) + beyond,
        equal=same.sum(1),
        better_filtered=(higher & ~known).sum(1) + beyond,
        equal_filtered=(same & ~known).sum(1),
        candidates=candidates,
        object_score=object_score,
        subject_score=subject_score,
        known=known,
        terms=more,
    )
    words = _words(draw, VOCABULARY + relations)
    listed = [
        Fact(names[own], subject, words[answer])
        for own, subject, answer in zip(
            relation.tolist(), _names(draw, facts, subjects), gold.tolist(), strict=True
        )
    ]
    folder = Folder(path)
    about = {"label": "made up", "template": "<3> [X] <3> [Y] <3>"}
    card = {"base_model": "m", "base_model_fingerprint": "f", "method": method, "parts": []}
    own = {name: {**about, "manual_template": f"[X] has {name} [Y] ."} for name in names}
    folder.write_json(CARD, {**card, "relations": own})
    folder.write(CONFIG, b'model = "m"\n')
    folder.write_rows(FACTS_FILE, [{"split": "test", **asdict(fact)} for fact in listed])
    text = {token: words[token] for token in np.unique(candidates[candidates >= 0]).tolist()}
    write_predictions(folder, "test", predictions, listed, names, text)
    weights = {SUBJECT: 0.8, **({FREQUENCY: 0.31, COPY: -1.7} if terms else {})}
    details = {
        "weights": {
            term: {name: own * (1 + place / 50) for place, name in enumerate(names)}
            for term, own in weights.items()
        },
        "k": CANDIDATES,
        "candidates": None,
        "unfilled": [],
        "dropped": {},
    }
    manifest = Manifest(
        command="train",
        state="finished",
        method=method,
        model="m",
        data="made up",
        seeds=(seed,),
        details=details,
        records=(Record(metric="p1", value=1.0),),
    )
    folder.write(MANIFEST, manifest.to_json())
    return path


def _distinct(row: np.ndarray) -> np.ndarray:
    found, first = np.unique(row, return_index=True)
    found = row[np.sort(first)][:CANDIDATES]
    rest = np.setdiff1d(np.arange(1, 2 * CANDIDATES), found)
    return np.concatenate([found, rest])[:CANDIDATES]


def _words(draw: np.random.Generator, count: int) -> list[str]:
    letters = np.array(list(string.ascii_lowercase))
    sizes = draw.integers(3, 11, count)
    return [
        f"{''.join(letters[draw.integers(0, 26, size)])}{number:x}"
        for number, size in enumerate(sizes.tolist())
    ]


def _names(draw: np.random.Generator, count: int, given: Sequence[str]) -> list[str]:
    words = _words(draw, 4000)
    pairs = draw.integers(0, len(words), (count, 2)).tolist()
    made = [f"{words[one].title()} {words[other].title()}" for one, other in pairs]
    return [*given, *made[len(given) :]]
