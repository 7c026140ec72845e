"""Short pretraining runs of several model shapes on the same text: which knows most per megabyte.

    python experiments/shapes.py --text wiki.txt passages.txt --words words.txt --runs runs/shapes

The text is tokenised once, into RUNS/text. All shapes share the vocabulary, so their validation
losses compare. With --jobs several runs share one GPU. Needs no more than the compute core (no
rich). Writes experiments/results/NAME.json with --name.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from symprompt.errors import SympromptError
from symprompt.pretraining.config import PretrainConfig, ShapeConfig, load_pretrain_config
from symprompt.pretraining.prepare import prepare_pretraining
from symprompt.pretraining.train import pretrain

RESULTS = Path(__file__).parent / "results"
SHAPES: dict[str, ShapeConfig] = {
    "electra-16x256-e128": ShapeConfig("electra", 16, 256, 4, embedding=128),
    "electra-8x384-e128": ShapeConfig("electra", 8, 384, 6, embedding=128),
    "electra-4x512-e192": ShapeConfig("electra", 4, 512, 8, embedding=192),
}


def make_config(name: str, flags: argparse.Namespace) -> PretrainConfig:
    """Return the config of one shape's run on the prepared text."""
    config = load_pretrain_config(flags.config)
    return replace(
        config,
        out=str(Path(flags.runs) / name),
        prepared=str(Path(flags.runs) / "text"),
        evaluate_every=max(1, flags.steps // 4),
        shape=SHAPES[name],
        learning=replace(config.learning, steps=flags.steps, batch=flags.batch),
    )


def prepare(flags: argparse.Namespace) -> None:
    """Tokenise the text, unless that is done."""
    config = load_pretrain_config(flags.config)
    words = replace(config.vocabulary, whole_words=flags.words)
    config = replace(config, out=str(Path(flags.runs) / "text"), vocabulary=words)
    prepare_pretraining(config, flags.text)


def run_one(name: str, flags: argparse.Namespace) -> None:
    """Train one shape on the prepared text, or go on with it."""
    made = pretrain(make_config(name, flags), resume=True)
    print(json.dumps({name: summary(made.training)}), flush=True)


def summary(training: dict[str, Any]) -> dict[str, Any]:
    """Return what is compared."""
    last = training["history"][-1]
    return {
        "validation": last["validation"],
        "loss": last["loss"],
        "tokens_per_second": last["tokens_per_second"],
        "tokens": last["tokens"],
    }


def main() -> None:
    """Run the shapes, several at a time if asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", default="pretrain-small")
    parser.add_argument("--text", nargs="*", default=[], help="none if RUNS/text is prepared")
    parser.add_argument("--words", default="", help="words that must be whole tokens")
    parser.add_argument("--runs", default="runs/shapes")
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--only", nargs="*", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--name", default="", help="results file to write")
    flags = parser.parse_args()
    if flags.text:
        prepare(flags)
    if flags.jobs == 1 or len(flags.only) == 1:
        for name in flags.only:
            run_one(name, flags)
    else:
        keys = ("config", "runs", "steps", "batch")
        shared = [f"--{key}={getattr(flags, key)}" for key in keys]

        def start(name: str) -> int:
            return subprocess.call([sys.executable, __file__, *shared, "--only", name])

        with ThreadPoolExecutor(flags.jobs) as pool:
            codes = list(pool.map(start, flags.only))
        if any(codes):
            raise SystemExit("a run failed")
    if flags.name:
        found = {
            name: summary(json.loads((Path(flags.runs) / name / "training.json").read_text()))
            for name in flags.only
        }
        (RESULTS / f"{flags.name}.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    try:
        main()
    except SympromptError as error:
        raise SystemExit(f"shapes.py: {error}") from None
