"""P-tuning against manual patterns on the seven FewGLUE tasks, in one process on one device.

    python experiments/fewglue.py --model bert=$MODEL --model smollm2=$GGUF \
        --data $DATA/FewGLUE_32dev --cells $CELLS --budget 540 --name fewglue

Rows: zero-shot (a manual pattern, nothing trained), mp (fine-tuning through the manual pattern
whose words are P-tuning's anchors), ptuning, pet (all of PET's patterns), cls (a head on [CLS]),
table6 (the patterns of P-tuning's Table 6, RTE), frozen (P-tuning, the vectors alone),
pt2-verbalizer (with --supervised: P-tuning v2's prefixes, trained as with its head on [CLS], but
words answer). Each row's seeds are trained one after the other through the same recordings; what
came of a seed is added to CELLS/cells.jsonl at once, so that the same command goes on after a stop,
and no seed is begun that would end after the budget. Dev32 chooses step, rate and batch; the
validation set is asked once. A row that cannot be made is named in the results, the others go on,
and the exit code is 1.

    python experiments/fewglue.py ... --supervised boolq=$BOOLQ rte=$RTE --rows mp ptuning cls

trains on all of a task's training examples, over the paper's grid of rates and batches.
--collect only writes the results, experiments/results/NAME.json, which ``symprompt table`` prints.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from symprompt.errors import SympromptError
from symprompt.models import LanguageModel
from symprompt.papers.labelled.recipes import verbalized
from symprompt.report.tasks import TaskResults
from symprompt.runs.environment import describe_environment
from symprompt.tasks.patterns.config import LearningConfig, PatternConfig, load_pattern_config
from symprompt.tasks.patterns.data import load_verbal
from symprompt.tasks.patterns.prepare import VerbalProblem
from symprompt.tasks.patterns.published import manual_patterns, reference_pattern
from symprompt.tasks.patterns.superglue import TASKS, VerbalData, find_task
from symprompt.tasks.patterns.tuner import ask_zero_shot, tuning

sys.path.insert(0, str(Path(__file__).parent))
from fewglue_entries import Cell, entries_of

RESULTS = Path(__file__).parent / "results"
ROWS = ("zero-shot", "mp", "ptuning", "pet", "cls", "table6", "frozen", "pt2-verbalizer")
# What is made first when time is short.
ORDER = (
    ("zero-shot", "mp", "ptuning"),
    ("pet",),
    ("cls",),
    ("table6",),
    ("frozen",),
    ("pt2-verbalizer",),
)
TABLE6 = ("agree-1", "agree-2", "named", "truth")


@dataclass(frozen=True)
class Row:
    """One method with one pattern on one task and model, all its seeds."""

    model: str
    task: str
    full: bool
    row: str
    pattern: str
    seeds: tuple[int, ...]

    def key(self, seed: int) -> tuple[Any, ...]:
        """What a cell of this row is known by."""
        return (self.model, self.task, self.full, self.row, self.pattern, seed)


def key_of(cell: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(cell[name] for name in ("model", "task", "full", "row", "pattern", "seed"))


def read_cells(path: Path) -> list[Cell]:
    """Read what was made so far; a line that a kill cut off is left out."""
    if not path.is_file():
        return []
    cells = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            cells.append(json.loads(line))
        except ValueError:
            continue
    return cells


def patterns_of(row: str, task: str, *, causal: bool) -> list[str]:
    """Return the names of a row's patterns; "" is the row's own."""
    spec = find_task(task)
    names = [one.name for one in manual_patterns(spec, causal=causal)]
    if row == "pet":
        # The manual row's own pattern is not trained twice.
        return [name for name in names if name.startswith("pet-") and name != own_pattern(task)]
    if row == "table6":
        return [name for name in names if name in TABLE6] if task == "rte" else []
    return [own_pattern(task) if row in ("mp", "zero-shot") else ""]


def own_pattern(task: str) -> str:
    return reference_pattern(find_task(task)).name


def make_rows(options: argparse.Namespace, causal: Mapping[str, bool]) -> list[Row]:
    """Return every row of the grid, the most wanted first."""
    places = [(task, True) for task in options.supervised] or [(t, False) for t in options.tasks]
    rows = []
    for group in ORDER:
        for model in options.models:
            for task, full in places:
                for row in group:
                    if row not in options.rows:
                        continue
                    count = 1 if row == "zero-shot" else options.seeds
                    if row == "pet":
                        count = min(count, options.pet_seeds)
                    seeds = tuple(range(42, 42 + count))
                    for pattern in patterns_of(row, task, causal=causal[model]):
                        rows.append(Row(model, task, full, row, pattern, seeds))
    return rows


def settings_of(row: Row, options: argparse.Namespace) -> tuple[PatternConfig, LearningConfig]:
    """Return the shipped config's settings with what the command line changes."""
    if row.row == "pt2-verbalizer":
        config = verbalized(row.task, "pt2")
        pattern = replace(config.pattern, test_limit=options.val_limit)
    else:
        name = f"superglue-{row.task}" if row.full else f"fewglue-{row.task}"
        config = load_pattern_config(name)
        method: Any = {"pet": "mp", "table6": "mp", "frozen": "ptuning"}.get(row.row, row.row)
        pattern = replace(
            config.pattern,
            method=method,
            template=row.pattern or ("" if method == "cls" else config.pattern.template),
            train_model=row.row != "frozen",
            test_limit=options.val_limit,
        )
    changes: dict[str, Any] = {}
    for key in ("steps", "patience", "evaluate_every", "micro_batch", "epochs"):
        if getattr(options, key) is not None:
            changes[key] = getattr(options, key)
    if options.rates:
        changes["rates"] = tuple(options.rates)
    if options.batches:
        changes["batches"] = tuple(options.batches)
    if options.prompt_rate:
        changes["prompt_rate"] = options.prompt_rate
    return pattern, replace(config.learning, **changes)


class Grid:
    """Makes the cells that are missing, within the budget."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.began = time.monotonic()
        self.path = Path(options.cells) / "cells.jsonl"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.done = {key_of(cell) for cell in read_cells(self.path)}
        self.backbones: dict[str, LanguageModel] = {}
        self.data: dict[tuple[str, bool], VerbalData] = {}
        self.longest: dict[str, float] = {}
        self.failed: list[str] = []

    def backbone(self, name: str) -> LanguageModel:
        if name not in self.backbones:
            place = self.options.models[name]
            self.backbones[name] = LanguageModel.load(
                place, device=self.options.device, dtype="float32"
            )
        return self.backbones[name]

    def load(self, task: str, full: bool) -> VerbalData:
        if (task, full) not in self.data:
            place = self.options.supervised[task] if full else self.options.data
            self.data[task, full] = load_verbal(task, place)
        return self.data[task, full]

    def left(self) -> float:
        return float(self.options.budget - (time.monotonic() - self.began))

    def make(self, row: Row) -> bool:
        """Make a row's missing seeds; return whether there was time for all."""
        missing = [seed for seed in row.seeds if row.key(seed) not in self.done]
        if not missing:
            return True
        if self.left() < self.longest.get(row.model, 0.0):
            return False
        try:
            return self._make(row, missing)
        except SympromptError as error:
            about = f"{row.model} {row.task} {row.row} {row.pattern}"
            self.failed.append(f"{' '.join(about.split())}: {error}")
            print(self.failed[-1], flush=True)
            return True

    def _make(self, row: Row, missing: Sequence[int]) -> bool:
        pattern, learning = settings_of(row, self.options)
        backbone = self.backbone(row.model)
        problem = VerbalProblem(
            backbone,
            self.load(row.task, row.full),
            pattern,
            max_tokens=self.options.max_tokens,
        )
        for seed, outcome, seconds in self._outcomes(row, problem, learning, missing):
            longest = self.longest[row.model] = max(self.longest.get(row.model, 0.0), seconds)
            cell = {**vars(row), "seed": seed, **outcome.to_json(), "wall": round(seconds, 2)}
            cell.pop("seeds")
            cell |= {"cut": problem.cuts(), "text": problem.worded.text}
            cell["words"] = list(problem.worded.words)
            with self.path.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(cell) + "\n")
            self.done.add(row.key(seed))
            main = problem.task.metrics[0]
            steps = sum(entry["steps"] for entry in outcome.tried)
            print(
                f"{row.model} {row.task} {row.row} {row.pattern} seed {seed}: "
                f"{main} {outcome.metrics[main]:.1f}, dev {outcome.dev.accuracy:.1f} at step "
                f"{outcome.dev.step}, {steps} steps, {seconds:.1f} s",
                flush=True,
            )
            if self.left() < longest and seed != missing[-1]:
                return False
        return True

    def _outcomes(
        self, row: Row, problem: VerbalProblem, learning: LearningConfig, seeds: Sequence[int]
    ) -> Iterator[tuple[int, Any, float]]:
        if row.row == "zero-shot":
            began = time.monotonic()
            yield seeds[0], ask_zero_shot(problem, seeds[0]), time.monotonic() - began
            return
        with tuning(problem, learning, record=self.options.capture) as tuner:
            for seed in seeds:
                began = time.monotonic()
                outcome = tuner.run(seed)
                yield seed, outcome, time.monotonic() - began
            if self.options.capture and problem.backbone.device.type == "cuda":
                print(f"recorded: {tuner.training.recorder.active}", flush=True)


def write_results(grid: Grid, cells: Sequence[Cell], device: str) -> None:
    """Write NAME.json and NAME.md."""
    options = grid.options
    values = {
        "note": " ".join([options.note, *(f"Not made: {one}" for one in grid.failed)]).strip(),
        "command": "python experiments/fewglue.py " + shlex.join(_shown(options)),
        "device": device,
        "tasks": entries_of(cells),
    }
    RESULTS.mkdir(exist_ok=True)
    target = Path(options.results) / f"{options.name}.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")
    target.with_suffix(".md").write_text(
        f"# {options.name}\n\n" + TaskResults(values).to_markdown(), encoding="utf-8"
    )
    print(f"results: {target}")


def _shown(options: argparse.Namespace) -> list[str]:
    """Return the command's words, places as variables."""
    words = []
    for word in options.words:
        name, _, place = word.rpartition("=")
        held = place.startswith("/") or place.endswith(".gguf")
        words.append(f"{name}=${name.upper().replace('-', '_')}" if held and name else word)
        if held and not name:
            words[-1] = "$PLACE"
    return words


def read_options(words: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--model", action="append", required=True, metavar="NAME=PLACE")
    parser.add_argument("--data", default="", help="FewGLUE_32dev")
    parser.add_argument("--supervised", nargs="*", default=[], metavar="TASK=PLACE")
    parser.add_argument("--cells", required=True, help="folder of what was made so far")
    parser.add_argument("--tasks", nargs="*", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--rows", nargs="*", default=list(ROWS[:5]), choices=ROWS)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--pet-seeds", type=int, default=5)
    parser.add_argument("--budget", type=float, default=1e9, help="seconds")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--patience", type=int)
    parser.add_argument("--evaluate-every", type=int)
    parser.add_argument("--micro-batch", type=int)
    parser.add_argument("--rates", nargs="*", help="the model's; several are tried on dev32")
    parser.add_argument("--batches", nargs="*")
    parser.add_argument("--prompt-rate", type=float)
    parser.add_argument("--val-limit", type=int, default=0)
    parser.add_argument("--max-tokens", type=int, default=0)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--no-capture", dest="capture", action="store_false")
    parser.add_argument("--collect", action="store_true")
    parser.add_argument("--results", default=str(RESULTS))
    parser.add_argument("--name", default="fewglue")
    parser.add_argument("--note", default="")
    options = parser.parse_args(words)
    if "pt2-verbalizer" in options.rows and not options.supervised:
        parser.error("the row pt2-verbalizer is of whole training sets; give --supervised.")
    options.words = list(words)
    options.models = dict(entry.split("=", 1) for entry in options.model)
    options.supervised = dict(entry.split("=", 1) for entry in options.supervised)
    return options


def main() -> None:
    """Make what is missing and write the results."""
    options = read_options(sys.argv[1:])
    grid = Grid(options)
    if not options.collect:
        causal = {name: grid.backbone(name).causal for name in options.models}
        for row in make_rows(options, causal):
            if grid.left() <= 0 or not grid.make(row):
                print("the budget is spent; the same command goes on", flush=True)
                break
    cells = [cell for cell in read_cells(grid.path) if cell["model"] in options.models]
    devices = [backbone.device for backbone in grid.backbones.values()]
    device = describe_environment(devices[0])["device"] if devices else ""
    write_results(grid, cells, device)
    if grid.failed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
