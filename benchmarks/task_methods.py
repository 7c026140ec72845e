"""Time a training step of every method on a labelled task, side by side, with memory.

    python benchmarks/task_methods.py --model $MODEL [--widths 32 128] [--batch 32] [--device cpu]

Every method trains on the same made-up tagging inputs in one process, the methods in turn, several
times over, so that none has the machine for itself. Told are the numbers that are trained, the
median time of a step (as it is recorded on a GPU), the peak of memory while training beyond what
the model itself takes, ratios to fine-tuning, and the arithmetic floor: with a body of P weights 2P
floating-point operations a token forward, 2P more where activations have gradients and 2P more
where weights have, divided by the rate of a large product in bfloat16 (a GPU) or float32.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measuring import body_weights, product_rate, wait

from symprompt.accel.compiling import quick_products
from symprompt.config import build
from symprompt.models import LanguageModel
from symprompt.runs.environment import choose_device, describe_environment
from symprompt.tasks.config import TuneConfig
from symprompt.tasks.data.examples import LabelSet
from symprompt.tasks.features import Batch
from symprompt.tasks.kinds import KINDS, Target
from symprompt.tasks.trainables import TRAINABLES, TaskModel, make_task_head
from symprompt.tasks.training import TaskTraining

METHODS = ("ft", "lora", "pt2", "pt")
LABELS = 9
TARGET = Target(LabelSet(tuple(map(str, range(LABELS)))))


@dataclass
class Timed:
    """One method at one width: its trainer, and what was measured of it."""

    method: str
    trainer: TaskTraining
    trained: int
    seconds: list[float]
    peak: int = 0


def config_of(method: str, flags: argparse.Namespace) -> TuneConfig:
    """Return a method's settings."""
    return build(
        TuneConfig,
        {
            "method": method,
            "device": flags.device,
            "prefix": {"length": flags.length},
            "lora": {"rank": flags.rank, "alpha": 2.0 * flags.rank},
            "learning": {"batch": flags.batch, "rate": 1e-4},
        },
    )


def make_inputs(backbone: LanguageModel, batch: int, width: int) -> Batch:
    """Return inputs of random tokens that fill the width, with random tags."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(5, len(backbone.vocabulary), (batch, width), generator=generator)
    tags = torch.randint(0, LABELS, (batch, width), generator=generator)
    lengths = torch.full((batch,), width)
    ids, lengths, tags = (own.to(backbone.device) for own in (ids, lengths, tags))
    return Batch(ids, lengths, targets={"labels": tags})


def make_timed(
    method: str, backbone: LanguageModel, flags: argparse.Namespace, width: int
) -> Timed:
    """Return a method ready to be timed."""
    config = config_of(method, flags)
    room = backbone.max_length - (flags.length if method == "pt" else 0)
    inputs = make_inputs(backbone, flags.batch, min(width, room))
    body = TRAINABLES[method](backbone, config, seed=(0,))
    head = make_task_head(KINDS["tagging"], TARGET, body.backbone, seed=(0,))
    model = TaskModel(body, {"made up": head}, {"made up": inputs})
    size = int(inputs.ids.shape[1])
    trainer = TaskTraining(
        model,
        {"made up": np.full(flags.batch, size)},
        config.learning,
        lambda: (0.0, 0.0, {}),
        seed=0,
        record=not flags.plain,
    )
    return Timed(method, trainer, model.size, [])


def time_steps(timed: Timed, steps: int, device: torch.device) -> None:
    """Run some steps and note the median time of one, as the device has it: its rows are there."""
    trainer = timed.trainer
    times = []
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), trainer.training():
        trainer.step(0)
        [replay] = trainer._replays.values()
        for turn in range(steps + 2):
            wait(device)
            begun = time.perf_counter()
            replay()
            wait(device)
            if turn > 1:
                times.append(time.perf_counter() - begun)
    timed.seconds.append(float(np.median(times)))


def floor_seconds(
    method: str, weights: int, flags: argparse.Namespace, width: int, rate: float
) -> float:
    """Return the arithmetic floor of a step; prompts at the input are tokens too."""
    tokens = flags.batch * (width + (flags.length if method == "pt" else 0))
    each = 6 if method == "ft" else 4
    return each * weights * tokens / rate


def measure_peak(
    method: str, backbone: LanguageModel, flags: argparse.Namespace, width: int
) -> int | None:
    """Return the bytes that training takes beyond the model, at their peak; None without a GPU."""
    if backbone.device.type != "cuda":
        return None
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated(backbone.device)
    torch.cuda.reset_peak_memory_stats(backbone.device)
    timed = make_timed(method, backbone, flags, width)
    # A recorded step keeps its memory apart from what is counted, so plain ones are looked at.
    timed.trainer.recorder.active = False
    time_steps(timed, 1, backbone.device)
    return torch.cuda.max_memory_allocated(backbone.device) - before


def compare(flags: argparse.Namespace) -> dict[str, Any]:
    """Measure every method at every width; return plain values."""
    frozen = LanguageModel.load(flags.model, device=flags.device)
    whole = LanguageModel.load(flags.model, device=flags.device, dtype="float32")
    device, weights = frozen.device, body_weights(frozen)
    rate = product_rate(device, torch.bfloat16 if device.type == "cuda" else torch.float32)
    found: dict[str, Any] = {
        "environment": describe_environment(device),
        "body_weights": weights,
        "product_rate": rate,
        "batch": flags.batch,
        "prefix_length": flags.length,
        "lora_rank": flags.rank,
        "widths": {},
    }
    for width in flags.widths:
        backbones = {name: whole if name == "ft" else frozen for name in flags.methods}
        peaks = {name: measure_peak(name, backbones[name], flags, width) for name in flags.methods}
        timed = [make_timed(name, backbones[name], flags, width) for name in flags.methods]
        for _ in range(flags.rounds):
            for one in timed:
                time_steps(one, flags.steps, device)
        rows = {}
        for one in timed:
            seconds = float(np.median(one.seconds))
            floor = floor_seconds(one.method, weights, flags, width, rate)
            rows[one.method] = {
                "trained": one.trained,
                "milliseconds": 1000 * seconds,
                "peak_bytes": peaks[one.method],
                "recorded": one.trainer.recorder.active,
                "floor_milliseconds": 1000 * floor,
                "times_floor": seconds / floor,
            }
        _add_ratios(rows)
        found["widths"][str(width)] = rows
        del timed
    return found


def _add_ratios(rows: dict[str, dict[str, Any]]) -> None:
    base = rows.get("ft")
    for row in rows.values():
        if base is None:
            continue
        row["time_to_ft"] = row["milliseconds"] / base["milliseconds"]
        row["trained_to_ft"] = row["trained"] / base["trained"]
        if row["peak_bytes"] is not None:
            row["peak_to_ft"] = row["peak_bytes"] / base["peak_bytes"]


HEADER = ["method", "trained", "of FT", "ms a step", "of FT", "MiB", "of FT", "floor ms", "x floor"]


def tables_of(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the measurements as tables of text, which ``symprompt table`` prints."""
    return [
        {
            "title": f"{found['batch']} inputs of {width} tokens",
            "header": HEADER,
            "rows": [_cells(method, row) for method, row in rows.items()],
        }
        for width, rows in found["widths"].items()
    ]


def _cells(method: str, row: dict[str, Any]) -> list[str]:
    peak, of_ft = row["peak_bytes"], row.get("peak_to_ft")
    return [
        method,
        f"{row['trained']:,}",
        f"{row.get('trained_to_ft', 1):.4f}",
        f"{row['milliseconds']:.2f}",
        f"{row.get('time_to_ft', 1):.2f}",
        "" if peak is None else f"{peak / 2**20:.0f}",
        "" if of_ft is None else f"{of_ft:.2f}",
        f"{row['floor_milliseconds']:.2f}",
        f"{row['times_floor']:.1f}",
    ]


def as_markdown(tables: list[dict[str, Any]]) -> str:
    """Return tables as Markdown."""
    lines = []
    for table in tables:
        ruler = ["---", *["---:"] * (len(HEADER) - 1)]
        rows = [table["header"], ruler, *table["rows"]]
        lines += [f"**{table['title']}**", ""]
        lines += ["| " + " | ".join(row) + " |" for row in rows]
        lines.append("")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    """Read the flags, measure, print, and write JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--methods", nargs="*", default=list(METHODS), choices=METHODS)
    parser.add_argument("--widths", nargs="*", type=int, default=[32, 128])
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--length", type=int, default=20, help="of the prompts")
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--plain", action="store_true", help="do not record steps")
    parser.add_argument("--out", default="", help="JSON file to write")
    flags = parser.parse_args(arguments)
    with quick_products(choose_device(flags.device)):
        found = compare(flags)
    found["tables"] = tables_of(found)
    print(as_markdown(found["tables"]))
    if flags.out:
        Path(flags.out).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
