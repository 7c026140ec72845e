"""Time, memory and disk of 10,000 to 1,000,000 facts: ``data check``, ``train``, ``ask --file``.

Facts are made up from the shipped model's vocabulary: subjects of three words, objects of one. The
model that is trained and asked has the shipped tokenizer and random weights, one layer of 32: what
is measured is all but a model's own passes, which ``fact_steps.py`` and ``ask_stream.py`` measure.
Each command runs in a process of its own, one thread; its peak memory and the processor's seconds
are the system's counts, so other work on the machine does not show.

    python benchmarks/many_facts.py --facts 10000 100000 1000000 --json found.json
    python benchmarks/many_facts.py --table found.json --figure many-facts.svg
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from symprompt.files.grid import Grid
from symprompt.models import load_vocabulary

RELATIONS = 2000


def main() -> None:
    """Measure, or show what was measured."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--facts", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--relations", type=int, default=RELATIONS)
    parser.add_argument("--method", default="ptuning")
    parser.add_argument("--steps", nargs="+", default=["check", "train", "ask"])
    parser.add_argument("--json", default="", help="file to write, and to go on with")
    parser.add_argument("--table", default="", help="show what such a file holds")
    parser.add_argument("--figure", default="", help="with --table: draw it, .svg or .png")
    flags = parser.parse_args()
    if flags.table:
        show(json.loads(Path(flags.table).read_text(encoding="utf-8")), flags.figure)
        return
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as place:
        model = make_model(Path(place) / "model")
        for count in flags.facts:
            data = Path(place) / f"{count}.csv"
            make_facts(data, count, flags.relations)
            own = measure(Path(place), data, model, flags.method, flags.steps)
            about = {"facts": count, "relations": flags.relations, "method": flags.method}
            found.append(about | {"load": round(os.getloadavg()[0], 1)} | own)
            print(json.dumps(found[-1]), flush=True)
            if flags.json:
                Path(flags.json).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def make_facts(path: Path, count: int, relations: int) -> None:
    """Write made-up facts; a relation has a hundred objects, and no subject twice."""
    vocabulary, draw = load_vocabulary("shipped"), random.Random(0)
    ids = vocabulary.words(after_space=True)
    words = [text for text in map(vocabulary.text, ids) if text.isalpha() and text.isascii()]
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(("relation", "subject", "object"))
        for place in range(relations):
            objects = draw.sample(words, 100)
            for number in range(place, count, relations):
                subject = f"{draw.choice(words)} {draw.choice(words)} {words[number % len(words)]}"
                writer.writerow((f"R{place}", subject, draw.choice(objects)))


def make_model(folder: Path) -> Path:
    """Write a tiny model with the shipped tokenizer."""
    from transformers import AutoTokenizer, BertConfig, BertForMaskedLM

    import symprompt

    shipped = Path(symprompt.__file__).parent / "models" / "shipped"
    tokenizer = AutoTokenizer.from_pretrained(shipped)
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    more = {"intermediate_size": 64, "max_position_embeddings": 64}
    BertForMaskedLM(BertConfig(vocab_size=len(tokenizer), **sizes, **more)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def measure(
    place: Path, data: Path, model: Path, method: str, steps: list[str]
) -> dict[str, dict[str, float]]:
    """Return seconds, peak MiB and MiB on disk of each command."""
    run, answers = place / f"run-{data.stem}", place / f"answers-{data.stem}.jsonl"
    words = {
        "check": ["data", "check", str(data), "--model", str(model), "--json"],
        "train": ["train", "my-facts", "--data", str(data), "--model", str(model)],
        "ask": ["ask", str(run), "--file", str(data), "--out", str(answers), "--top", "1"],
    }
    words["train"] += ["--method.name", method, "--encoder", "free", "--epochs", "1"]
    words["train"] += ["--out", str(run), "--device", "cpu"]
    words["ask"] += ["--model", str(model), "--device", "cpu"]
    found = {}
    for name in steps:
        seconds, peak = timed(words[name])
        found[name] = {"seconds": round(seconds, 1), "MiB": round(peak)}
        if name == "train":
            found[name]["disk MiB"] = round(size_of(run), 1)
    return found


def timed(words: list[str]) -> tuple[float, float]:
    """Run a command of symprompt; return the processor's seconds and its peak memory in MiB."""
    process = subprocess.Popen(
        [sys.executable, "-m", "symprompt.cli", *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        text=True,
    )
    assert process.stderr is not None
    told = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(words)} failed: {told[-2000:]}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def size_of(folder: Path) -> float:
    """Return the MiB of a folder's files."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 2**20


def show(found: list[dict[str, Any]], figure: str) -> None:
    """Print what was measured as a table, and draw it."""
    rows = []
    for own in found:
        for name in ("check", "train", "ask"):
            if name in own:
                cost = own[name]
                each = cost["MiB"] * 2**10 / own["facts"]
                disk = f"{cost['disk MiB']:,.0f}" if "disk MiB" in cost else ""
                cells = [f"{own['facts']:,}", name, f"{cost['seconds']:,.0f}"]
                rows.append([*cells, f"{cost['MiB']:,}", f"{each:,.1f}", disk])
    columns = ["facts", "command", "seconds", "peak MiB", "KiB a fact", "disk MiB"]
    print(Grid("Many facts", tuple(columns), (tuple(map(tuple, rows)),)).to_markdown())
    if not figure:
        return
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    drawn, axes = pyplot.subplots(1, 2, figsize=(8, 3), layout="constrained")
    for axis, key, title in zip(axes, ("seconds", "MiB"), ("seconds", "peak MiB"), strict=True):
        for name in ("check", "train", "ask"):
            points = [(own["facts"], own[name][key]) for own in found if name in own]
            axis.plot(*zip(*points, strict=True), marker="o", label=name)
        axis.set(xscale="log", yscale="log", xlabel="facts", ylabel=title)
    axes[0].legend()
    drawn.savefig(figure, metadata={"Date": None} if figure.endswith("svg") else None)


if __name__ == "__main__":
    main()
