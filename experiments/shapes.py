"""Short pretraining runs of several model shapes on the same text: which knows most per megabyte.

    python experiments/shapes.py --text wiki.txt passages.txt --words words.txt --runs runs/shapes

The text is tokenised once. All shapes share the vocabulary, so their validation losses compare.
With --jobs several runs share one GPU. Needs no more than the compute core (no tyro). Writes
experiments/results/NAME.json with --name.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from symprompt.errors import SympromptError
from symprompt.files import read_json
from symprompt.pretrain import folders as places
from symprompt.pretrain import prepare, run
from symprompt.pretrain.distributed import join_group
from symprompt.pretrain.folders import RunFolders
from symprompt.pretrain.settings import PretrainConfig, ShapeConfig, load_pretrain_config

RESULTS = Path(__file__).parent / "results"
SHAPES: dict[str, ShapeConfig] = {
    "electra-16x256-e128": ShapeConfig("electra", 16, 256, 4, embedding=128),
    "electra-8x384-e128": ShapeConfig("electra", 8, 384, 6, embedding=128),
    "electra-4x512-e192": ShapeConfig("electra", 4, 512, 8, embedding=192),
}


def make_config(name: str, flags: argparse.Namespace) -> PretrainConfig:
    """Return the config of one shape's run."""
    config = load_pretrain_config(flags.config)
    return replace(
        config,
        out=str(Path(flags.runs) / name),
        evaluate_every=max(1, flags.steps // 4),
        vocabulary=replace(config.vocabulary, whole_words=flags.words),
        shape=SHAPES[name],
        optimizer=replace(config.optimizer, steps=flags.steps, batch=flags.batch),
    )


def prepare_once(flags: argparse.Namespace) -> Path:
    """Tokenise the text, unless that is done, and return the work folder."""
    config = replace(make_config(next(iter(SHAPES)), flags), out=str(Path(flags.runs) / "text"))
    folders = RunFolders(config)
    if not (folders.work / places.CORPUS / "corpus.json").is_file():
        folders.begin(prepare.fingerprint_inputs(config, flags.text))
        prepare.prepare_text(config, flags.text, folders)
    return folders.work


def run_one(name: str, flags: argparse.Namespace) -> None:
    """Train one shape on the prepared text."""
    config = make_config(name, flags)
    work, source = RunFolders(config), prepare_once(flags)
    if not (work.work / places.CONFIG).is_file() and not work.out.exists():
        inputs: dict[str, Any] = read_json(source / places.INPUTS)
        work.begin(inputs)
        for part in (places.TOKENIZER, places.CORPUS):
            shutil.copytree(source / part, work.work / part, copy_function=os.link)
        os.link(source / places.VOCABULARY, work.work / places.VOCABULARY)
    if not work.out.exists():
        with join_group(config.device) as group:
            run._train(config, work, group, run.silent)
    training = work.load_training()
    print(json.dumps({name: summary(training)}), flush=True)


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
    parser.add_argument("--text", nargs="+", required=True)
    parser.add_argument("--words", default="", help="words that must be whole tokens")
    parser.add_argument("--runs", default="runs/shapes")
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--only", nargs="*", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--name", default="", help="results file to write")
    flags = parser.parse_args()
    prepare_once(flags)
    if flags.jobs == 1 or len(flags.only) == 1:
        for name in flags.only:
            run_one(name, flags)
    else:
        shared = [f"--{key}={getattr(flags, key)}" for key in ("config", "words", "runs")]
        shared += [f"--{key}={getattr(flags, key)}" for key in ("steps", "batch")]
        shared += ["--text", *flags.text]

        def start(name: str) -> int:
            return subprocess.call([sys.executable, __file__, *shared, "--only", name])

        with ThreadPoolExecutor(flags.jobs) as pool:
            codes = list(pool.map(start, flags.only))
        if any(codes):
            raise SystemExit("a run failed")
    if flags.name:
        found = {
            name: summary(read_json(Path(flags.runs) / name / places.TRAINING))
            for name in flags.only
        }
        (RESULTS / f"{flags.name}.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    try:
        main()
    except SympromptError as error:
        raise SystemExit(f"shapes.py: {error}") from None
