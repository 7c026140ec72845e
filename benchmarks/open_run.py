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

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from tiny.big import FACTS, write_big_run

OPEN = """
import json, sys, time
begun = time.perf_counter()
from symprompt.probing.results import load_asked, load_combination, open_run
imported = time.perf_counter()
folder = open_run(sys.argv[1])
weights, asked = load_combination(folder), load_asked(folder, "test")
opened = time.perf_counter()
rank = asked.predictions.final(weights).realistic
ranked = time.perf_counter()
assert len(rank) == len(asked.predictions) and "torch" not in sys.modules
times = {"importing": imported - begun, "opening": opened - imported, "ranking": ranked - opened}
print(json.dumps(times))
"""


def main() -> None:
    """Write the run, open it several times, print the medians."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--facts", type=int, default=FACTS)
    parser.add_argument("--rounds", type=int, default=5)
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        write_big_run(Path(place), flags.facts)
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
