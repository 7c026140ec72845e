"""Compare groups of runs, each a method over several seeds, and write JSON and Markdown.

    python experiments/compare.py --name lama34k --note "..." \
        manual=runs/manual ptuning=runs/pt34,runs/pt35 spe=runs/spe34,runs/spe35

Metrics are averaged over the seeds of a group; the paired bootstrap resamples facts within
relations, the same facts for every seed, and compares each group with the one named by --base.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

import numpy as np

from symprompt.ranking import METRICS, bootstrap, paired_bootstrap, summarise
from symprompt.report import load_scores
from symprompt.runs import ENVIRONMENT, RunFolder
from symprompt.runs import METRICS as METRICS_FILE


def read_group(paths: list[str], split: str) -> dict[str, object]:
    """Return a group's ranks [seeds, facts], what they are about, and how they were made."""
    scores = [load_scores(path, split=split) for path in paths]
    if any(score.key != scores[0].key for score in scores):
        raise SystemExit(f"the runs {', '.join(paths)} are about different facts")
    folders = [RunFolder(path) for path in paths]
    made = [folder.read_json(METRICS_FILE) for folder in folders]
    return {
        "rank": np.stack([score.rank for score in scores]),
        "relation": scores[0].relation,
        "key": scores[0].key,
        "seeds": [entry["seed"] for entry in made],
        "seconds": [entry["seconds"] for entry in made],
        "weights": [sorted(set((entry["weights"] or {}).values())) for entry in made],
        "environment": {
            key: value
            for key, value in folders[0].read_json(ENVIRONMENT).items()
            if key in ("device", "dtype", "torch", "transformers", "model_fingerprint")
        },
    }


def main() -> None:
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
    flags = parser.parse_args()
    named = dict(group.split("=", 1) for group in flags.groups)
    groups = {label: read_group(paths.split(","), flags.split) for label, paths in named.items()}
    base = groups[flags.base]
    report: dict[str, object] = {"note": flags.note, "split": flags.split, "draws": flags.draws}
    lines = [
        f"{flags.note}",
        "",
        "| method | seeds | mean over | P@1 | P@10 | MRR |",
        "|" + "---|" * 6,
    ]
    for label, group in groups.items():
        rank, relation = group["rank"], group["relation"]
        means = summarise(rank, relation)
        intervals = bootstrap(rank, relation, draws=flags.draws)
        entry = {key: group[key] for key in ("seeds", "seconds", "weights", "environment")}
        entry["metrics"] = {
            mean: {
                metric: {"value": getattr(summary, metric), **asdict(intervals[mean][metric])}
                for metric in METRICS
            }
            for mean, summary in means.items()
        }
        for mean, summary in means.items():
            cells = [f"{getattr(summary, metric):.2f}" for metric in METRICS]
            seeds = len(group["seeds"])
            lines.append(f"| {label} | {seeds} | {mean[10:]} | {' | '.join(cells)} |")
        if label != flags.base and group["key"] == base["key"]:
            paired = paired_bootstrap(base["rank"], rank, relation, draws=flags.draws)
            entry["minus " + flags.base] = {
                mean: {metric: asdict(value) for metric, value in metrics.items()}
                for mean, metrics in paired.items()
            }
            for mean, metrics in paired.items():
                cells = [
                    f"{v.difference:+.2f} ({v.low:+.2f} to {v.high:+.2f}; p = {v.p:.4f})"
                    for v in metrics.values()
                ]
                lines.append(f"| {label} - {flags.base} | | {mean[10:]} | {' | '.join(cells)} |")
        report[label] = entry
    folder = Path(__file__).parent / "results"
    folder.mkdir(exist_ok=True)
    (folder / f"{flags.name}.json").write_text(json.dumps(report, indent=1) + "\n")
    (folder / f"{flags.name}.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
