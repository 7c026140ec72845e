"""LAMA-34k: every method of the tables, the continuous ones over three seeds.

    python experiments/lama.py --model $MODEL --data $DATA --runs runs/lama [--only spe-34 ...]

Finished runs are not done again; stop it and start it as you like. With --jobs several runs share
one GPU, which a single one leaves waiting for launches; time one alone. Needs no more than the
compute core (no rich). Afterwards compare them:

    python experiments/compare.py --name lama34k --base ptuning --note "..." \
        manual=runs/lama/manual ptuning=runs/lama/ptuning-34,... spe=runs/lama/spe-34,...
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from symprompt import load_config
from symprompt.errors import SympromptError
from symprompt.probing import trainer as train

SEEDS = (34, 35, 36)
SEEDED = {
    "ptuning": "lama-ptuning",
    "spe": "lama-spe",
    "optiprompt": "lama-optiprompt",
    "optiprompt-manual": "lama-optiprompt-manual",
    "softprompt": "lama-softprompt",
}
JOBS: dict[str, tuple[str, dict[str, Any]]] = {
    "majority": ("lama-majority", {}),
    "manual": ("lama-manual", {}),
    "lpaqa-top1": ("lama-lpaqa", {"ensemble.combine": "top1"}),
    "lpaqa-uniform": ("lama-lpaqa", {"ensemble.combine": "uniform"}),
    "lpaqa": ("lama-lpaqa", {}),
    "autoprompt": ("lama-autoprompt", {}),
    "ft": ("lama-ft", {}),
    "ft-lora": ("lama-ft-lora", {}),
    "mp-ft": ("lama-mp-ft", {}),
    "mp-lora": ("lama-mp-lora", {}),
    **{
        f"{name}-{seed}": (config, {"seed": seed})
        for name, config in SEEDED.items()
        for seed in SEEDS
    },
    **{
        f"{name}-{seed}": (config, {"seed": seed, **changes})
        for name, config, changes in (
            # As many vectors as SPE learns for both ways.
            ("ptuning-18-vectors", "lama-ptuning", {"prompt.template": "<6> [X] <6> [Y] <6>"}),
            ("ptuning-12-epochs", "lama-ptuning", {"learning.epochs": 12}),
            ("spe-12-epochs", "lama-spe", {"learning.epochs": 12}),
        )
        for seed in SEEDS
    },
    "ptuning-paper": ("lama-ptuning-paper", {}),
    "spe-paper": ("lama-spe-paper", {}),
}


def change(config: Any, key: str, value: Any) -> Any:
    """Return a config with another value of a dotted key."""
    first, _, rest = key.partition(".")
    new = change(getattr(config, first), rest, value) if rest else value
    return replace(config, **{first: new})


def run_one(name: str, flags: argparse.Namespace) -> None:
    """Train and evaluate one job, and print its figures."""
    config_name, changes = JOBS[name]
    given = {
        "model": flags.model,
        "data": flags.data,
        "out": str(Path(flags.runs) / name),
        "keep_encoder": False,
        "compile": flags.compile,
        "facts.templates": flags.templates,
    }
    if flags.prompts and config_name in ("lama-lpaqa", "lama-softprompt"):
        given["ensemble.prompts"] = tuple(flags.prompts)
    if flags.relations:
        given["facts.relations"] = tuple(flags.relations)
    if flags.epochs:
        given["learning.epochs"] = flags.epochs
    config = load_config(config_name)
    for key, value in {**changes, **given}.items():
        config = change(config, key, value)
    metrics = train(config, resume=True).metrics
    means = metrics["test"]["raw"]["realistic"]["mean over relations"]
    shown = " / ".join(f"{value:.2f}" for value in means.values())
    print(f"{name}: {shown}  {metrics['seconds']}", flush=True)


def main() -> None:
    """Run the jobs, several at a time if asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--runs", default="runs/lama")
    parser.add_argument("--templates", default="", help="manual templates, if not beside the data")
    parser.add_argument("--prompts", nargs="*", default=[], help="folders of written prompts")
    parser.add_argument("--relations", nargs="*", default=[], help="these only, for a trial")
    parser.add_argument("--epochs", type=int, default=0, help="other epochs, for a trial")
    parser.add_argument("--compile", default="auto", help="auto, on, off or max-autotune")
    parser.add_argument("--only", nargs="*", default=list(JOBS), choices=list(JOBS))
    parser.add_argument("--jobs", type=int, default=1)
    flags = parser.parse_args()
    if flags.jobs == 1:
        for name in flags.only:
            run_one(name, flags)
        return
    keys = ("model", "data", "runs", "templates", "epochs")
    shared = [f"--{key}={getattr(flags, key)}" for key in keys]
    for key in ("prompts", "relations"):
        shared += [f"--{key}", *getattr(flags, key)]
    shared += ["--compile", flags.compile]

    def start(name: str) -> int:
        return subprocess.call([sys.executable, __file__, *shared, "--only", name])

    with ThreadPoolExecutor(flags.jobs) as pool:
        codes = list(pool.map(start, flags.only))
    failed = [name for name, code in zip(flags.only, codes, strict=True) if code]
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    try:
        main()
    except SympromptError as error:
        raise SystemExit(f"lama.py: {error}") from None
