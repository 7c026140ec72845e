"""Compare groups of runs, each a method over several seeds, and write JSON and Markdown.

    python experiments/compare.py --name lama34k --base ptuning --note "..." \
        manual=runs/manual ptuning=runs/pt34,runs/pt35 spe=runs/spe34,runs/spe35

Metrics are averaged over the seeds of a group; the paired bootstrap resamples facts within
relations, the same facts for every seed, and compares each group with the one named by --base.
"""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from symprompt.config import flatten, incidental_keys
from symprompt.probing.config import RunConfig
from symprompt.probing.folder import RunFolder
from symprompt.report import load_scores
from symprompt.runs.statistics import METRICS, bootstrap, paired_bootstrap, summarise

RESULTS = Path(__file__).parent / "results"
ENVIRONMENT = ("device", "dtype", "torch", "transformers", "model_fingerprint")
# Where things are on the machine that made a run says nothing to anyone else.
PLACES = {
    "facts.templates": "$TEMPLATES",
    "facts.vocabulary": "$VOCABULARY",
    "start_from": "$START",
    "ensemble.prompts": "$PROMPTS",
}
P_NOTE = "p is one-sided: how often a draw shows no gain of the row over the one it is paired with."
COMMANDS_NOTE = "The commands (defaults.toml is an empty file: the flags are what is no default):"

Group = dict[str, Any]


def train_command(config: RunConfig) -> str:
    """Return a train command with every setting that is not the default, places as variables."""
    words = ["symprompt train defaults.toml --model $MODEL --data $DATA --out $RUN"]
    defaults = flatten(RunConfig())
    for key, value in flatten(config).items():
        if value == defaults[key] or key in ("model", "data", *incidental_keys(RunConfig)):
            continue
        flag = key.rpartition(".")[2].replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        elif key in PLACES and value != "objects":
            words.append(f"--{flag} {PLACES[key]}")
        else:
            values = value if isinstance(value, tuple) else (value,)
            words.append(f"--{flag} {shlex.join(str(entry) for entry in values)}")
    return " ".join(words)


def group_command(configs: Sequence[RunConfig]) -> str:
    """Return the one command that made all runs of a group, which differ in the seed alone."""
    default = RunConfig().seed
    commands = {train_command(RunConfig(**{**vars(one), "seed": default})) for one in configs}
    if len(commands) > 1:
        raise SystemExit(f"the runs of a group differ in more than the seed: {sorted(commands)}")
    seeds = ", ".join(str(config.seed) for config in configs)
    return f"{commands.pop()} --seed $SEED  # SEED: {seeds}"


def _command(folders: Sequence[RunFolder], environment: Mapping[str, Any]) -> str:
    """Return what made the runs of a group, also where stored scores were only weighed anew."""
    configs = [folder.load_config() for folder in folders]
    refitted = environment.get("refitted")
    if not refitted:
        return group_command(configs)
    before = [
        RunConfig(**{**vars(one), "method": replace(one.method, choose_weight="dev")})
        for one in configs
    ]
    return (
        f"python {refitted} --model $MODEL --data $DATA --out $FITTED $RUNS  # RUNS made by: "
        f"{group_command(before)}"
    )


def read_group(paths: list[str], split: str) -> Group:
    """Return a group's ranks [seeds, facts], what they are about, and how they were made."""
    scores = [load_scores(path, split=split) for path in paths]
    if any(score.key != scores[0].key for score in scores):
        raise SystemExit(f"the runs {', '.join(paths)} are about different facts")
    folders = [RunFolder(path) for path in paths]
    made = [folder.load_metrics() for folder in folders]
    environment = folders[0].load_environment()
    return {
        "rank": np.stack([score.rank for score in scores]),
        "relation": scores[0].relation,
        "key": scores[0].key,
        "command": _command(folders, environment),
        "seeds": [entry["seed"] for entry in made],
        "seconds": [entry["seconds"] for entry in made],
        "weights": [sorted(set((entry["weights"] or {}).values())) for entry in made],
        "environment": {key: environment[key] for key in ENVIRONMENT if key in environment},
    }


def measure_group(label: str, group: Group, draws: int) -> tuple[dict[str, Any], list[str]]:
    """Return a group's entry of the report, and its rows of the table."""
    rank, relation = group["rank"], group["relation"]
    means = summarise(rank, relation)
    intervals = bootstrap(rank, relation, draws=draws)
    entry = {key: group[key] for key in ("command", "seeds", "seconds", "weights", "environment")}
    entry["metrics"] = {
        mean: {
            metric: {"value": getattr(summary, metric), **asdict(intervals[mean][metric])}
            for metric in METRICS
        }
        for mean, summary in means.items()
    }
    seeds = len(group["seeds"])
    rows = []
    for mean, summary in means.items():
        cells = [f"{getattr(summary, metric):.2f}" for metric in METRICS]
        rows.append(f"| {label} | {seeds} | {mean[10:]} | {' | '.join(cells)} |")
    return entry, rows


def pair_groups(title: str, base: Group, group: Group, draws: int) -> tuple[Any, list[str]]:
    """Return a group minus the base, for the report and as rows of the table."""
    paired = paired_bootstrap(base["rank"], group["rank"], group["relation"], draws=draws)
    entry = {
        mean: {metric: asdict(value) for metric, value in metrics.items()}
        for mean, metrics in paired.items()
    }
    rows = []
    for mean, metrics in paired.items():
        cells = [
            f"{v.difference:+.2f} ({v.low:+.2f} to {v.high:+.2f}; p = {v.p:.4f})"
            for v in metrics.values()
        ]
        rows.append(f"| {title} | | {mean[10:]} | {' | '.join(cells)} |")
    return entry, rows


def compare(
    groups: Mapping[str, Group], base: str, *, note: str, split: str, draws: int
) -> tuple[dict[str, Any], str]:
    """Return the comparison as plain values and as Markdown."""
    report: dict[str, Any] = {"note": note, "split": split, "draws": draws}
    table = ["| method | seeds | mean over | P@1 | P@10 | MRR |", "|" + "---|" * 6]
    for label, group in groups.items():
        report[label], rows = measure_group(label, group, draws)
        table += rows
        if label != base and group["key"] == groups[base]["key"]:
            title = f"{label} - {base}"
            report[label][f"minus {base}"], rows = pair_groups(title, groups[base], group, draws)
            table += rows
    commands = [
        group["command"].replace("  # ", f"  # {label}; ", 1) for label, group in groups.items()
    ]
    lines = [note, "", *table, "", P_NOTE, "", COMMANDS_NOTE, "", "```", *commands, "```"]
    return report, "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None, folder: Path = RESULTS) -> None:
    """Read the groups, print the table, write the files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("groups", nargs="+", help="label=RUN,RUN,...")
    parser.add_argument("--name", required=True, help="file name under experiments/results")
    parser.add_argument(
        "--base", required=True, help="label of the group the others are paired with"
    )
    parser.add_argument(
        "--note", default="", help="model, data and caveats, printed with the table"
    )
    parser.add_argument("--split", default="test", choices=("dev", "test"))
    parser.add_argument("--draws", type=int, default=10_000)
    flags = parser.parse_args(arguments)
    named = dict(group.split("=", 1) for group in flags.groups)
    groups = {label: read_group(paths.split(","), flags.split) for label, paths in named.items()}
    report, text = compare(
        groups, flags.base, note=flags.note, split=flags.split, draws=flags.draws
    )
    folder.mkdir(exist_ok=True)
    (folder / f"{flags.name}.json").write_text(
        json.dumps(report, indent=1) + "\n", encoding="utf-8"
    )
    (folder / f"{flags.name}.md").write_text(text, encoding="utf-8")
    print(text, end="")


if __name__ == "__main__":
    main()
