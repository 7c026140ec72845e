"""Train methods on labelled tasks in one process on one device, within a budget of time.

    python experiments/tasks.py --model $MODEL --packs $PACKS --runs $RUNS --budget 540 \
        --only conll2003:pt2 conll2003:ft rte --seeds 11 12 13 --name ptuning-v2

Tasks are laid out once and shared by all runs. A run that is finished is read back, an unfinished
one goes on; none is started that would end after the budget. Results, with commands, are written to
experiments/results/NAME.json after every run, and ``symprompt table`` prints them.

    python experiments/tasks.py ... --grid conll2003:pt2 --lengths 16 32 64 --rates 3e-3 1e-2 \
        --epochs 10 20 --set 'learning.schedule="linear"' --name conll2003-pt2-grid

tries settings on the split that chooses epochs, never on the reported one. --collect only reads.
"""

from __future__ import annotations

import argparse
import json
import time
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from symprompt.config import flatten, incidental_keys
from symprompt.errors import SympromptError
from symprompt.papers.labelled.recipes import Settings, mixture, recipe
from symprompt.report.tasks import TaskResults, summarise
from symprompt.tasks.config import TuneConfig
from symprompt.tasks.folder import TaskFolder
from symprompt.tasks.multitask import task_configs, tune_mixture
from symprompt.tasks.prepare import Session
from symprompt.tasks.train import tune

RESULTS = Path(__file__).parent / "results"
# Where each task's files are in the folder of packs.
PLACES = {
    "rte": "glue/glue_rte",
    "sst2": "glue/glue_sst2_alps_split",
    "boolq": "boolq/superglue_boolq",
    "conll2003": "ner/conll2003",
    "conll2004": "ner/conll2004",
    "squad": "squad/squad1.1",
    "propbank-ewt": "srl/srl_propbank_ewt",
    "ner": "ner",
}
NER_SETS = [
    "conll2003",
    "conll2004",
    "wikigold=ner_wikigold_gum/wikigold",
    "gum=ner_wikigold_gum/GUM/CONLL-format",
]


@dataclass(frozen=True)
class Job:
    """One run: a task, a method, a seed, and settings that differ from the task's config."""

    task: str
    method: str
    seed: int
    settings: Settings = field(default_factory=dict)
    grid: bool = False

    @property
    def name(self) -> str:
        """The run folder's name, another one for other settings."""
        parts = [f"{key.rpartition('.')[2]}{value}" for key, value in self.settings.items()]
        kind = "grid-" if self.grid else ""
        return "-".join([f"{kind}{self.task}-{self.method}", *parts, str(self.seed)])

    def config(self, flags: argparse.Namespace) -> TuneConfig:
        """Return the run's whole config."""
        changes: Settings = self.settings | {
            "method": self.method,
            "seed": self.seed,
            "model": flags.model,
            "device": flags.device,
            "data": str(Path(flags.packs, PLACES[self.task])),
            "out": str(Path(flags.runs, self.name)),
            # A state of all weights takes longer to write than small runs take to train.
            "checkpoint_seconds": flags.checkpoint_seconds,
        }
        if self.method == "mpt2":
            return mixture("tagging", {"mixture.tasks": NER_SETS} | changes)
        return recipe(self.task, self.method, changes)


def command_of(config: TuneConfig) -> str:
    """Return the command that repeats a run, places as variables; the seed is left open."""
    defaults = flatten(TuneConfig())
    words = ["symprompt tune defaults.toml --model $MODEL --data $DATA --out $RUN --seed $SEED"]
    for key, value in flatten(config).items():
        if value == defaults[key] or key in ("model", "data", "seed", *incidental_keys(TuneConfig)):
            continue
        if isinstance(value, bool):
            outer, _, inner = key.rpartition(".")
            dotted = f"{outer}.{'' if value else 'no-'}{inner}".lstrip(".")
            words.append(f"--{dotted.replace('_', '-')}")
        else:
            values = value if isinstance(value, tuple) else (value,)
            words.append(f"--{key.replace('_', '-')} {' '.join(map(str, values))}")
    return " ".join(words)


def jobs_of(flags: argparse.Namespace) -> list[Job]:
    """Return the runs that the flags ask for, in their order."""
    if flags.grid:
        task, _, method = flags.grid.partition(":")
        return [
            Job(task, method, flags.seeds[0], settings | flags.set, grid=True)
            for settings in grid_of(method, flags.lengths, flags.rates, flags.epochs)
        ]
    jobs = []
    for name in flags.only:
        task, _, method = name.partition(":")
        methods = [method] if method else ["ft", "pt", "pt2", "lora"]
        jobs += [Job(task, one, seed, flags.set) for one in methods for seed in flags.seeds]
    return jobs


def grid_of(
    method: str, lengths: Sequence[int], rates: Sequence[float], epochs: Sequence[int]
) -> list[Settings]:
    """Return the settings of a grid; methods without a prompt have no length."""
    sizes: Sequence[int | None] = lengths if method in ("pt", "pt2", "mpt2") else [None]
    found = []
    for size in sizes:
        for rate in rates:
            for count in epochs:
                settings: Settings = {} if size is None else {"prefix.length": size}
                found.append(settings | {"learning.rate": rate, "learning.epochs": count})
    return found


def run_all(jobs: Sequence[Job], flags: argparse.Namespace) -> list[tuple[Job, dict[str, Any]]]:
    """Make the runs, or read them back; stop starting new ones when the budget is near."""
    begun, session = time.monotonic(), Session()
    took: dict[tuple[str, str], float] = {}
    made: list[tuple[Job, dict[str, Any]]] = []
    for job in jobs:
        config = job.config(flags)
        folder = TaskFolder(config.out)
        if not folder.finished and flags.collect:
            continue
        guess = took.get((job.task, job.method), flags.reserve)
        left = flags.budget - (time.monotonic() - begun)
        if not folder.finished and guess > left:
            print(f"{job.name}: not started, {left:.0f} s are left of the budget", flush=True)
            continue
        started = time.monotonic()
        try:
            if job.method == "mpt2":
                run = tune_mixture(config, resume=True, session=session)
            else:
                asked = ["choice"] if job.grid else None
                run = tune(config, resume=True, session=session, asked=asked)
        except SympromptError as error:
            print(f"{job.name}: {error}", flush=True)
            continue
        spent = time.monotonic() - started
        if spent > 1:
            took[job.task, job.method] = max(spent, took.get((job.task, job.method), 0.0))
        made.append((job, run.metrics))
        print(f"{job.name}: {_short(run.metrics)}, {spent:.1f} s", flush=True)
        write(made, flags)
    return made


def _short(metrics: Mapping[str, Any]) -> str:
    parts = metrics.get("tasks") or {metrics["task"]: metrics}
    return "; ".join(
        f"{name} {split} " + " ".join(f"{key} {value:.2f}" for key, value in numbers.items())
        for name, own in parts.items()
        for split, numbers in own["splits"].items()
    )


def write(made: Sequence[tuple[Job, dict[str, Any]]], flags: argparse.Namespace) -> None:
    """Write the results so far as JSON and Markdown."""
    values: dict[str, Any] = {"note": flags.note, "tasks": []}
    groups: dict[tuple[str, str, str], list[tuple[Job, dict[str, Any]]]] = {}
    for job, metrics in made:
        for name, own in (metrics.get("tasks") or {job.task: metrics}).items():
            key = (name, job.method, json.dumps(job.settings))
            groups.setdefault(key, []).append((job, own))
    for (name, method, _), runs in groups.items():
        job, first = runs[0]
        split = first["chosen_on"] if job.grid else first["reported"]
        entry = summarise([own for _, own in runs], split)
        config = job.config(flags)
        if method == "mpt2":
            config = task_configs(config)[name]
        entry |= {
            "model": flags.model_name,
            "best_epoch": [own["best_epoch"] for _, own in runs],
            "chosen_on": first["chosen_on"],
            "device": first["device"],
            "versions": first["versions"],
            "command": command_of(config),
        }
        if job.settings:
            shown = ", ".join(f"{key.rpartition('.')[2]} {v}" for key, v in job.settings.items())
            entry |= {"settings": job.settings, "label": f"{method} ({shown})"}
        values["tasks"].append(entry)
    if flags.grid:
        _sort_by_first_metric(values["tasks"])
    folder = Path(flags.results)
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(values, indent=1, ensure_ascii=False) + "\n"
    (folder / f"{flags.name}.json").write_text(text, encoding="utf-8")
    commands = dict.fromkeys(
        f"# {e['task']}, {e['method']}\n{e['command']}" for e in values["tasks"]
    )
    table = TaskResults(values).to_markdown()
    about = "The commands (defaults.toml is an empty file: the flags are what is no default):"
    listed = "\n".join(["```", *commands, "```"])
    (folder / f"{flags.name}.md").write_text(f"{table}\n{about}\n\n{listed}\n", encoding="utf-8")


def _sort_by_first_metric(entries: list[dict[str, Any]]) -> None:
    entries.sort(key=lambda entry: -next(iter(entry["metrics"].values()))["value"])


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the flags and make the runs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--model-name", default="", help="what to call the model in the results")
    parser.add_argument("--packs", required=True, help="folder of the packs of data")
    parser.add_argument("--runs", required=True, help="folder of the run folders")
    parser.add_argument("--only", nargs="*", default=["rte"], help="TASK or TASK:METHOD")
    parser.add_argument("--seeds", nargs="*", type=int, default=[11])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--budget", type=float, default=1e9, help="seconds in all")
    parser.add_argument("--reserve", type=float, default=30.0, help="seconds a new run may take")
    parser.add_argument("--checkpoint-seconds", type=float, default=120.0)
    parser.add_argument("--collect", action="store_true", help="read finished runs, make none")
    parser.add_argument("--grid", default="", help="TASK:METHOD whose settings are tried on dev")
    parser.add_argument("--lengths", nargs="*", type=int, default=[16, 32, 64])
    parser.add_argument("--rates", nargs="*", type=float, default=[3e-3, 1e-2])
    parser.add_argument("--epochs", nargs="*", type=int, default=[10, 20])
    parser.add_argument(
        "--set", nargs="*", default=[], metavar="KEY=VALUE", help="other settings, as in TOML"
    )
    parser.add_argument("--name", default="tasks", help="file name of the results")
    parser.add_argument("--results", default=str(RESULTS))
    parser.add_argument("--note", default="")
    flags = parser.parse_args(arguments)
    flags.set = {
        key: tomllib.loads(f"value = {value}")["value"]
        for key, _, value in (entry.partition("=") for entry in flags.set)
    }
    flags.model_name = flags.model_name or Path(flags.model).name
    made = run_all(jobs_of(flags), flags)
    print(f"{len(made)} runs are in {Path(flags.results, flags.name)}.json")


if __name__ == "__main__":
    try:
        main()
    except SympromptError as error:
        raise SystemExit(f"tasks.py: {error}") from None
