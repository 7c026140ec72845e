"""Compare the speed of two working trees, their benchmarks run in turns on the same machine.

    python benchmarks/alternate.py OLD_TREE NEW_TREE [--rounds 2] [--model $MODEL --data $DATA]

Each tree's own benchmark scripts run in processes of their own, with the package of that tree: old,
new, old, new and so on, so that a machine that slows down slows both. Printed are the median over
rounds of every measure and the time of the new tree in times of the old one's (above 1 is slower).
A script that fails is reported with the end of its output; the others go on, the exit code is 1.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Measures = dict[str, float]


@dataclass(frozen=True)
class Benchmark:
    """A script of a tree's benchmarks folder; final.

    Attributes:
        arguments: its command line, given the flags and a file it may write.
        read: from what it printed and that file to seconds (or tokens a second) by measure.
    """

    script: str
    arguments: Callable[[argparse.Namespace, Path], list[str]]
    read: Callable[[str, Path], Measures]


def fact_arguments(flags: argparse.Namespace, _: Path) -> list[str]:
    """Return the command line of fact_steps.py."""
    words = ["--model", flags.model, "--data", flags.data, "--device", flags.device]
    words += ["--steps", str(flags.steps), "--facts", str(flags.facts)]
    words += ["--compile"] * flags.compile + ["--random-base"] * flags.random_base
    return words + (["--relations", *flags.relations] if flags.relations else [])


def read_facts(printed: str, _: Path) -> Measures:
    """Return the seconds of a P-tuning step, an SPE step and scoring candidates backward."""
    names = {"ptuning": "P-tuning step, s", "spe": "SPE step, s", "ask": "asking back, s"}
    return {
        name: float(line["seconds"])
        for line in json_lines(printed)
        for start, name in names.items()
        if str(line.get("stage", "")).startswith(start)
    }


def pretrain_arguments(flags: argparse.Namespace, _: Path) -> list[str]:
    """Return the command line of pretrain_speed.py."""
    words = [flags.pretrain, "--steps", str(flags.pretrain_steps), "--device", flags.device]
    return [*words, "--json"] + (["--batch", str(flags.batch)] if flags.batch else [])


def read_pretrain(printed: str, _: Path) -> Measures:
    """Return the tokens a second of pretraining."""
    *_, last = json_lines(printed)
    return {"pretraining, tokens/s": float(last["tokens_per_second"])}


def task_arguments(flags: argparse.Namespace, file: Path) -> list[str]:
    """Return the command line of task_methods.py."""
    words = ["--model", flags.model, "--device", flags.device, "--methods", "ft", "pt2"]
    return [*words, "--widths", str(flags.width), "--steps", str(flags.steps), "--out", str(file)]


def read_tasks(_: str, file: Path) -> Measures:
    """Return the seconds of a P-tuning v2 step and of a fine-tuning step."""
    names = {"pt2": "P-tuning v2 step, s", "ft": "fine-tuning step, s"}
    [rows] = json.loads(file.read_text(encoding="utf-8"))["widths"].values()
    return {name: rows[method]["milliseconds"] / 1000 for method, name in names.items()}


BENCHMARKS = {
    "facts": Benchmark("fact_steps.py", fact_arguments, read_facts),
    "pretrain": Benchmark("pretrain_speed.py", pretrain_arguments, read_pretrain),
    "tasks": Benchmark("task_methods.py", task_arguments, read_tasks),
}


def json_lines(printed: str) -> list[dict[str, Any]]:
    """Return the lines that are JSON objects."""
    return [json.loads(line) for line in printed.splitlines() if line.startswith("{")]


def measure(tree: Path, benchmark: Benchmark, flags: argparse.Namespace) -> Measures:
    """Run one script of a tree and return what it measured.

    Raises:
        RuntimeError: the script failed or printed nothing of use; holds the end of its output.
    """
    script = tree / "benchmarks" / benchmark.script
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "measured.json"
        words = [sys.executable, str(script), *benchmark.arguments(flags, file)]
        paths = [str(tree / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "HF_HUB_OFFLINE": "1"}
        done = subprocess.run(
            words, cwd=tree, env=environment, capture_output=True, text=True, check=False
        )
        try:
            done.check_returncode()
            return benchmark.read(done.stdout, file)
        except (subprocess.CalledProcessError, OSError, ValueError, KeyError) as error:
            end = "\n".join((done.stdout + done.stderr).splitlines()[-12:])
            raise RuntimeError(f"{script}: {error!r}\n{end}") from error


def table(found: dict[str, tuple[list[float], list[float]]]) -> str:
    """Return the measures of both trees as Markdown, with the ratio of their times."""
    lines = ["| measure | old | new | new time / old time |", "|---|---:|---:|---:|"]
    for name, both in found.items():
        if not all(both):
            continue
        old, new = (statistics.median(values) for values in both)
        ratio = old / new if name.endswith("tokens/s") else new / old
        lines.append(f"| {name} | {old:,.5g} | {new:,.5g} | {ratio:.3f} |")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    """Measure both trees in turns, print the table, write JSON if asked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only", nargs="*", choices=list(BENCHMARKS), default=list(BENCHMARKS))
    parser.add_argument("--model", default="shipped", help="folder of a masked model")
    parser.add_argument("--data", default="world", help="facts, such as the folder of LAMA")
    parser.add_argument("--relations", nargs="*", default=[])
    parser.add_argument("--facts", type=int, default=2048, help="test facts to ask back")
    parser.add_argument("--steps", type=int, default=20, help="of prompts and of tasks")
    parser.add_argument("--width", type=int, default=128, help="tokens of a task's inputs")
    parser.add_argument("--pretrain", default="pretrain-medium", help="config to pretrain with")
    parser.add_argument("--pretrain-steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=0, help="of pretraining; 0 is the config's")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--compile", action="store_true", help="compile the layers of fact_steps")
    parser.add_argument("--random-base", action="store_true", help="as fact_steps.py has it")
    parser.add_argument("--json", type=Path, help="file to write every single figure to")
    flags = parser.parse_args(arguments)
    found: dict[str, tuple[list[float], list[float]]] = {}
    failed = False
    for number in range(flags.rounds):
        for key in flags.only:
            for place, tree in enumerate((flags.old.resolve(), flags.new.resolve())):
                try:
                    measures = measure(tree, BENCHMARKS[key], flags)
                except RuntimeError as error:
                    failed = True
                    print(error, file=sys.stderr, flush=True)
                    continue
                for name, value in measures.items():
                    found.setdefault(name, ([], []))[place].append(value)
                shown = ", ".join(f"{name} {value:.5g}" for name, value in measures.items())
                print(f"round {number + 1}, {('old', 'new')[place]}: {shown}", flush=True)
    print(table(found))
    if flags.json:
        stored = {name: {"old": old, "new": new} for name, (old, new) in found.items()}
        flags.json.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")
    if failed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
