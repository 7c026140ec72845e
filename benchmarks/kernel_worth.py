"""Measure what each acceleration is worth: time with its plain PyTorch twin instead.

    python benchmarks/kernel_worth.py --model $MODEL --data $DATA [--only gelu norm] [--random-base]

For each acceleration in turn it times an SPE step, a P-tuning step and asking back without it, and
in the same minute, in turns, with everything on: a GPU that has worked for seconds is slower by 1
to 3 %. Steps are recorded and layers compiled but where it is these that are left out ("recording",
"compiling"). One line of JSON each: milliseconds with and without, and the percent lost without.
The line "nothing" is two equal runs, and shows how far figures of one run can be trusted.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch
from fact_steps import Case, asking_back, random_base
from measuring import wait

from symprompt.accel import without
from symprompt.accel.compiling import SWITCHES
from symprompt.facts import FactSet, load_facts
from symprompt.models import LanguageModel

STAGES = ("spe step", "ptuning step", "ask back")
VARIANTS = ("nothing", *SWITCHES, "recording", "compiling")


class Variant:
    """A model and both methods, made and run without one acceleration."""

    def __init__(self, left_out: str, facts: FactSet, flags: argparse.Namespace) -> None:
        self._left_out = [left_out] if left_out in SWITCHES else []
        begun = time.perf_counter()
        with ExitStack() as stack:
            stack.enter_context(without(*self._left_out))
            backbone = LanguageModel.load(flags.path, device=flags.device, dtype=flags.dtype)
            if left_out != "compiling" and backbone.device.type == "cuda":
                backbone.compile_layers()
            capture = False if left_out == "recording" else None
            spe, ptuning = (
                Case(name, backbone, facts, capture=capture) for name in ("spe", "ptuning")
            )
            ask, _ = asking_back(spe.problem, spe.method, flags.facts)
        self.device = backbone.device
        self.work: dict[str, tuple[Callable[[int], Any], int]] = {
            "spe step": (spe.step, flags.steps),
            "ptuning step": (ptuning.step, flags.steps),
            "ask back": (ask, 1),
        }
        self.recorded = bool(spe.seconds)
        for stage in STAGES:
            self.seconds(stage)
        self.preparing = time.perf_counter() - begun

    def seconds(self, stage: str) -> float:
        """Return the time of one call among others that nobody waits for."""
        work, calls = self.work[stage]
        with without(*self._left_out):
            wait(self.device)
            begun = time.perf_counter()
            for turn in range(calls):
                work(turn)
            wait(self.device)
        return (time.perf_counter() - begun) / calls


def compare(whole: Variant, other: Variant, rounds: int) -> dict[str, dict[str, float]]:
    """Return milliseconds of each stage with and without, measured in turns, and percent lost."""
    found = {}
    for stage in STAGES:
        pairs = [(whole.seconds(stage), other.seconds(stage)) for _ in range(rounds)]
        with_all, left_out = np.median(np.array(pairs), axis=0)
        ratios = [one / both for both, one in pairs]
        found[stage] = {
            "with, ms": round(1e3 * float(with_all), 3),
            "without, ms": round(1e3 * float(left_out), 3),
            "lost, %": round(100 * (float(np.median(ratios)) - 1), 2),
        }
    return found


def main() -> None:
    """Measure and print one line of JSON an acceleration."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--relations", nargs="*", default=[])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--steps", type=int, default=20, help="steps in a round")
    parser.add_argument("--rounds", type=int, default=9, help="rounds with and without, in turns")
    parser.add_argument("--facts", type=int, default=2048, help="test facts to ask back")
    parser.add_argument("--random-base", action="store_true", help="a random model like BERT-base")
    parser.add_argument("--only", nargs="*", default=VARIANTS, choices=VARIANTS)
    flags = parser.parse_args()
    flags.path = random_base(flags.model) if flags.random_base else flags.model
    facts = load_facts(flags.data, relations=flags.relations)
    whole = Variant("nothing", facts, flags)
    print(json.dumps({"device": str(whole.device), "recorded": whole.recorded}), flush=True)
    for name in flags.only:
        try:
            other = Variant(name, facts, flags)
            found: dict[str, Any] = {"without": name, "recorded": other.recorded}
            found |= compare(whole, other, flags.rounds)
            found["prepared in, s"] = round(other.preparing, 1)
            print(json.dumps(found), flush=True)
            del other
        except (RuntimeError, TypeError) as error:
            # A twin that needs too much memory, or fails: the others are measured all the same.
            print(json.dumps({"without": name, "failed": str(error)[:500]}), flush=True)
            print(f"{name}: {error!r}", file=sys.stderr)
        gc.collect()
        if whole.device.type == "cuda":
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
