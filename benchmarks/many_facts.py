"""Time, memory and disk of 10,000 to 1,000,000 facts: ``data check``, ``train``, ``ask --file``.

Facts are made up of a thousand of the shipped model's words: subjects of three, objects of one. The
model that is trained and asked knows these words alone and has random weights, one layer of 32:
what is measured is all but a model's own passes, which ``fact_steps.py`` and ``ask_stream.py``
measure. At most 100,000 questions are asked, as memory and a question's time depend on no more.
Each command runs in a process of its own, one thread; its peak memory and the processor's seconds
are the system's counts, so other work on the machine does not show.

    python benchmarks/many_facts.py --facts 10000 100000 1000000 --json found.json
    python benchmarks/many_facts.py --json found.json --figure many-facts.svg
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
from itertools import islice
from pathlib import Path
from typing import Any

from transformers import BertConfig, BertForMaskedLM

from symprompt.models import load_vocabulary

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from tiny.models import make_wordpiece

RELATIONS = 2000
QUESTIONS = 100_000


def main() -> None:
    """Measure, or draw what was measured."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--facts", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--relations", type=int, default=RELATIONS)
    parser.add_argument("--method", default="ptuning")
    parser.add_argument("--steps", nargs="+", default=["check", "train", "ask"])
    parser.add_argument("--json", default="", help="file to write")
    parser.add_argument("--figure", default="", help="draw what --json holds, .svg or .png")
    flags = parser.parse_args()
    if flags.figure:
        draw(json.loads(Path(flags.json).read_text(encoding="utf-8")), flags.figure)
        return
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as place:
        words = choose_words()
        model = make_model(Path(place) / "model", words)
        for count in flags.facts:
            data = Path(place) / f"{count}.csv"
            make_facts(data, count, flags.relations, words)
            own = measure(Path(place), data, model, flags.method, flags.steps)
            about = {"facts": count, "relations": flags.relations, "method": flags.method}
            found.append(about | {"load": round(os.getloadavg()[0], 1)} | own)
            print(json.dumps(found[-1]), flush=True)
            if flags.json:
                Path(flags.json).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def choose_words() -> list[str]:
    """Return a thousand words of the shipped model."""
    vocabulary = load_vocabulary("shipped")
    texts = map(vocabulary.text, vocabulary.words(after_space=True))
    known = [text for text in texts if text.isalpha() and text.isascii()]
    return random.Random(0).sample(known, 1000)


def make_facts(path: Path, count: int, relations: int, words: list[str]) -> None:
    """Write made-up facts; a relation has a hundred objects, and hardly a subject twice."""
    draw = random.Random(0)
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(("relation", "subject", "object"))
        for place in range(relations):
            objects = draw.sample(words, 100)
            for _ in range(place, count, relations):
                subject = " ".join(draw.choices(words, k=3))
                writer.writerow((f"R{place}", subject, draw.choice(objects)))


def make_model(folder: Path, words: list[str]) -> Path:
    """Write a tiny model of these words."""
    tokenizer = make_wordpiece(words=words)
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
    questions = place / f"questions-{data.stem}.csv"
    with data.open(encoding="utf-8") as all_facts, questions.open("w", encoding="utf-8") as some:
        some.writelines(islice(all_facts, QUESTIONS + 1))
    words = {
        "check": ["data", "check", str(data), "--model", str(model), "--json"],
        "train": ["train", "my-facts", "--data", str(data), "--model", str(model)],
        "ask": ["ask", str(run), "--file", str(questions), "--out", str(answers), "--top", "1"],
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


def draw(found: list[dict[str, Any]], figure: str) -> None:
    """Draw what was measured."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    drawn, axes = pyplot.subplots(1, 2, figsize=(8, 3), layout="constrained")
    titles = ("CPU seconds", "peak MiB")
    for axis, key, title in zip(axes, ("seconds", "MiB"), titles, strict=True):
        for name in ("check", "train", "ask"):
            points = [(own["facts"] / 1000, own[name][key]) for own in found if name in own]
            axis.plot(*zip(*points, strict=True), marker="o", label=name)
        axis.set(xlabel="thousands of facts", ylabel=title, xlim=(0, None), ylim=(0, None))
    axes[0].legend(frameon=False)
    drawn.savefig(figure, metadata={"Date": None} if figure.endswith("svg") else None)


if __name__ == "__main__":
    main()
