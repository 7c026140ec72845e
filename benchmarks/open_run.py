"""Time to open a run of LAMA's size: folder, manifest and test predictions, ready for ranks.

A synthetic run of 34,039 test facts of 41 relations with 15 candidates each is written, then opened
in fresh processes. Reported are the median seconds of opening it, of its ranks and of both with the
imports; torch must not be imported.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from symprompt.facts.types import Fact
from symprompt.probing.results import CARD, Predictions, write_predictions
from symprompt.runs.folder import MANIFEST, Folder, Manifest

FACTS, RELATIONS, CANDIDATES, VOCABULARY = 34_039, 41, 15, 28_996
OPEN = """
import json, sys, time
begun = time.perf_counter()
from symprompt.probing.results import (load_asked, load_weights, open_run)
imported = time.perf_counter()
folder = open_run(sys.argv[1])
weights, asked = load_weights(folder), load_asked(folder, "test")
opened = time.perf_counter()
rank = asked.predictions.final(weights).realistic
ranked = time.perf_counter()
assert len(rank) == len(asked.predictions) and "torch" not in sys.modules
times = {"importing": imported - begun, "opening": opened - imported, "ranking": ranked - opened}
print(json.dumps(times))
"""


def make_run(path: Path, facts: int) -> None:
    """Write a finished run with random predictions."""
    draw = np.random.default_rng(0)
    names = [f"P{number}" for number in range(RELATIONS)]
    relation = np.sort(draw.integers(0, RELATIONS, facts))
    candidates = np.sort(draw.integers(0, VOCABULARY, (facts, CANDIDATES)))
    score = -np.sort(draw.random((facts, CANDIDATES), dtype=np.float32) * 9)
    better = draw.integers(0, 50, facts)
    ties = np.zeros(facts, dtype=np.int64)
    predictions = Predictions(
        relation=relation,
        gold=candidates[np.arange(facts), draw.integers(0, CANDIDATES, facts)],
        gold_score=score[:, 0],
        better=better,
        equal=ties,
        better_filtered=better,
        equal_filtered=ties,
        candidates=candidates,
        object_score=score,
        subject_score=-draw.random((facts, CANDIDATES), dtype=np.float32) * 9,
        known=draw.random((facts, CANDIDATES)) < 0.05,
        terms={"frequency": -draw.random((facts, CANDIDATES), dtype=np.float32)},
    )
    listed = [
        Fact(names[own], f"Subject number {row}", f"object {row % 3000}")
        for row, own in enumerate(relation.tolist())
    ]
    text = {token: f"token{token}" for token in np.unique(candidates).tolist()}
    folder = Folder(path)
    about = {"label": "", "template": "<3> [X] <3> [Y] <3>", "manual_template": "[X] is [Y] ."}
    card = {"base_model": "m", "base_model_fingerprint": "f", "method": "spe", "parts": []}
    folder.write_json(CARD, {**card, "relations": dict.fromkeys(names, about)})
    write_predictions(folder, "test", predictions, listed, names, text)
    details = {"weights": dict.fromkeys(names, 0.8), "candidates": None, "unfilled": []}
    manifest = Manifest(command="train", state="finished", details={**details, "dropped": {}})
    folder.write(MANIFEST, manifest.to_json())


def main() -> None:
    """Write the run, open it several times, print the medians."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--facts", type=int, default=FACTS)
    parser.add_argument("--rounds", type=int, default=5)
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        make_run(Path(place), flags.facts)
        size = (Path(place) / "predictions/test.safetensors").stat().st_size
        words = [sys.executable, "-c", OPEN, place]
        rounds = [
            json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)
            for _ in range(flags.rounds)
        ]
    medians = {name: statistics.median(one[name] for one in rounds) for name in rounds[0]}
    print(f"{flags.facts:,} facts, {size / 1e6:.1f} MB of predictions, median of {flags.rounds}:")
    for name, seconds in medians.items():
        print(f"  {name}: {seconds:.3f} s")


if __name__ == "__main__":
    main()
