"""Questions a second of ``symprompt ask RUN --file``, beside the model's own rate.

Questions are drawn from the run's own facts, all relations mixed, each name's last word taken from
another subject, so that most names are new to the tokenizer, which forgets them between rounds. The
model's own rate is that of asking alone, over the same questions already laid out: passes of the
object prompt and, where the run asks back, of its subject prompts, and the ranks by both. The
stream's rate counts reading the file, tokenising and writing too; the model is loaded before. With
--jobs the same file is asked once more by so many processes, their start included. --waits lists
where the host waits for a GPU.

    python benchmarks/ask_stream.py PTUNING SPE --model MODEL --questions 200000 --jobs 6
"""

from __future__ import annotations

import argparse
import cProfile
import csv
import pstats
import random
import statistics
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measuring import wait

from symprompt import Run, ask_file
from symprompt.accel import compiling
from symprompt.cluster.machine import Jobs
from symprompt.files.stream import BLOCK
from symprompt.papers.shards import AskShard, ShardedFile
from symprompt.probing.ask import Askable, Sentences, rank_objects
from symprompt.probing.results import load_card, load_facts


def main() -> None:
    """Measure each run's rates in turn, print their medians."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("runs", nargs="+", metavar="RUN")
    parser.add_argument("--model", default="")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--questions", type=int, default=20_000)
    parser.add_argument("--top", type=int, default=1)
    parser.add_argument("--out", default="answers.jsonl", help="its ending is the format")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=0, help="ask by so many processes too")
    parser.add_argument("--compile", action="store_true", help="compile, however few questions")
    parser.add_argument("--profile", action="store_true", help="what the stream spends time on")
    parser.add_argument("--waits", action="store_true", help="where the host waits for a GPU")
    flags = parser.parse_args()
    if flags.compile:
        compiling.PAYS_AFTER = 0
    for path in flags.runs:
        with tempfile.TemporaryDirectory() as place:
            measure(Run.load(path), Path(place), flags)


def measure(run: Run, place: Path, flags: argparse.Namespace) -> None:
    """Measure one run's rates and print them."""
    names = list(load_card(run.folder)["relations"])
    facts = [fact for own in load_facts(run.folder).relations for fact in own.all()]
    generator = random.Random(0)
    drawn = [
        replace(fact, subject=" ".join([*fact.subject.split()[:-1], other.subject.split()[-1]]))
        for fact, other in zip(
            generator.choices(facts, k=flags.questions),
            generator.choices(facts, k=flags.questions),
            strict=True,
        )
    ]
    run.load_backbone(flags.model, flags.device).accelerate()
    question = run.question(names, flags.model, flags.device, lambda *_: None)
    blocks = []
    for start in range(0, len(drawn), BLOCK):
        some = drawn[start : start + BLOCK]
        places = np.array([names.index(fact.relation) for fact in some])
        blocks.append(question.tensorise(places, [fact.subject for fact in some])[0])
    backbone = question.problem.backbone
    alone, streamed, worked = [], [], []
    asked: Any = {"top": flags.top, "model": flags.model, "device": flags.device}
    path = place / "questions.csv"
    with path.open("w", newline="") as opened:
        rows = [(fact.relation, fact.subject) for fact in drawn]
        csv.writer(opened).writerows([("relation", "subject"), *rows])
    for turn in range(flags.rounds + 1):
        alone.append(_alone(question, blocks))
        backbone.vocabulary._read.clear()
        out = place / f"{turn}-{flags.out}"
        profile = cProfile.Profile()
        if flags.profile and turn == flags.rounds:
            profile.enable()
        begun, worked_before = time.perf_counter(), time.thread_time()
        ask_file(run, path, out, **asked)
        streamed.append(time.perf_counter() - begun)
        worked.append(time.thread_time() - worked_before)
        profile.disable()
        if flags.profile and turn == flags.rounds:
            pstats.Stats(profile).sort_stats("tottime").print_stats(25)
    model, whole, own = (statistics.median(each[1:]) for each in (alone, streamed, worked))
    print(
        f"{run.folder.path}: {flags.questions:,} questions, K = {question.k}, {backbone.device}, "
        f"{backbone.dtype}, {torch.get_num_threads()} threads, median of {flags.rounds}:"
    )
    print(f"  the model alone: {flags.questions / model:,.0f} questions/s")
    print(f"  the stream:      {flags.questions / whole:,.0f} questions/s ({model / whole:.0%})")
    print(f"  its thread:      {own / flags.questions * 1e6:.1f} µs of CPU a question")
    if flags.waits and backbone.device.type == "cuda":
        _list_waits(lambda: ask_file(run, path, place / "waits.jsonl", **asked))
    if flags.jobs:
        where: Any = {"run": str(run.folder.path), "file": str(path), "out": str(place / flags.out)}
        config = AskShard(**where, **asked)
        done, _ = ShardedFile(config, Jobs(jobs=flags.jobs)).make()
        print(f"  {flags.jobs} jobs:          {done.rows / done.seconds:,.0f} questions/s", end="")
        print(f", {done.seconds:.1f} s with their start")


def _list_waits(work: Callable[[], object]) -> None:
    """Print the lines at which a GPU is waited for, and how often."""
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            work()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    places = Counter(f"{Path(own.filename).name}:{own.lineno}" for own in caught)
    for where, count in places.most_common(20):
        print(f"  waits at {where}: {count}")


def _alone(question: Askable, blocks: list[Sentences]) -> float:
    """Return how long asking alone takes."""
    wait(question.problem.backbone.device)
    begun = time.perf_counter()
    for sentences in blocks:
        rank_objects(question, sentences, 1)()
    return time.perf_counter() - begun


if __name__ == "__main__":
    main()
