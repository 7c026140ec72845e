"""Questions a second of ``symprompt ask RUN --file``, beside the model's own rate.

Questions are drawn from the run's own facts, all relations mixed, each name's last word taken from
another subject, so that most names are new to the tokenizer. The model's own rate is that of
the passes alone, over the same questions already laid out: the forward passes of the object prompt
and, where the run asks back, of the subject prompt for K candidates. The stream's rate counts
reading the file, tokenising, the passes, ranking and writing; the model is loaded before.

    python benchmarks/ask_stream.py RUN --model MODEL --questions 20000
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
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from measuring import wait

from symprompt import Run, ask_file
from symprompt.accel import compiling
from symprompt.files.stream import BLOCK
from symprompt.probing.ask import Askable, Sentences
from symprompt.probing.evaluate import query_passes
from symprompt.probing.results import load_card, load_facts


def main() -> None:
    """Measure both rates in turn, print their medians."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run")
    parser.add_argument("--model", default="")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--questions", type=int, default=20_000)
    parser.add_argument("--top", type=int, default=1)
    parser.add_argument("--out", default="answers.jsonl", help="its ending is the format")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--compile", action="store_true", help="compile, however few questions")
    parser.add_argument("--profile", action="store_true", help="what the stream spends time on")
    flags = parser.parse_args()
    run = Run.load(flags.run)
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
    if flags.compile:
        compiling.PAYS_AFTER = 0
    run.load_backbone(flags.model, flags.device).accelerate()
    question = run.question(names, flags.model, flags.device, lambda *_: None)
    blocks = []
    for start in range(0, len(drawn), BLOCK):
        some = drawn[start : start + BLOCK]
        places = np.array([names.index(fact.relation) for fact in some])
        blocks.append(question.tensorise(places, [fact.subject for fact in some])[0])
    alone, streamed = [], []
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "questions.csv"
        with path.open("w", newline="") as opened:
            rows = [(fact.relation, fact.subject) for fact in drawn]
            csv.writer(opened).writerows([("relation", "subject"), *rows])
        for turn in range(flags.rounds + 1):
            alone.append(_passes(question, blocks))
            out = Path(place) / f"{turn}-{flags.out}"
            profile = cProfile.Profile()
            if flags.profile and turn == flags.rounds:
                profile.enable()
            begun = time.perf_counter()
            where = {"model": flags.model, "device": flags.device}
            ask_file(run, path, out, top=flags.top, **where)
            streamed.append(time.perf_counter() - begun)
            profile.disable()
            if flags.profile and turn == flags.rounds:
                pstats.Stats(profile).sort_stats("tottime").print_stats(25)
    backbone = question.problem.backbone
    model, whole = (statistics.median(own[1:]) for own in (alone, streamed))
    print(
        f"{flags.questions:,} questions, K = {question.k}, {backbone.device}, {backbone.dtype}, "
        f"{torch.get_num_threads()} threads, median of {flags.rounds}:"
    )
    print(f"  the model alone: {flags.questions / model:,.0f} questions/s")
    print(f"  the stream:      {flags.questions / whole:,.0f} questions/s ({model / whole:.0%})")


@torch.no_grad()
def _passes(question: Askable, blocks: list[Sentences]) -> float:
    """Return how long the passes alone take."""
    method, problem = question.method, question.problem
    back = question.k if question.weights and method.has_subject_prompt else 0
    wait(problem.backbone.device)
    begun = time.perf_counter()
    for sentences in blocks:
        for rows in query_passes(method, sentences, back, problem.max_tokens):
            scores = method.scores(sentences, rows, question.vectors)
            if back:
                candidates = scores[:, :back].argsort(1)
                method.subject_scores(
                    sentences, rows, candidates, question.vectors, max_tokens=problem.max_tokens
                )
    wait(problem.backbone.device)
    return time.perf_counter() - begun


if __name__ == "__main__":
    main()
