"""LAMA-34k: manual prompts, P-tuning and SPE over three seeds, and the papers' own settings.

    python experiments/lama.py --model $MODEL --data $DATA --runs runs/lama [--only spe-34 ...]

Finished runs are not done again; stop it and start it as you like. With --jobs several runs share
one GPU, which a single one leaves waiting for launches; time one alone. Needs no more than the
compute core (no tyro). Afterwards compare them:

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

from symprompt import load_config, train
from symprompt.errors import SympromptError

SEEDS = (34, 35, 36)
JOBS: dict[str, tuple[str, dict[str, int]]] = {
    "manual": ("lama-manual", {}),
    **{f"ptuning-{seed}": ("lama-ptuning", {"seed": seed}) for seed in SEEDS},
    **{f"spe-{seed}": ("lama-spe", {"seed": seed}) for seed in SEEDS},
    "ptuning-20-epochs": ("lama-ptuning", {"epochs": 20}),
    "ptuning-paper": ("lama-ptuning-paper", {}),
    "spe-paper": ("lama-spe-paper", {}),
}


def run_one(name: str, flags: argparse.Namespace) -> None:
    """Train and evaluate one job, and print its figures."""
    config_name, changes = JOBS[name]
    config = load_config(config_name)
    epochs = changes.get("epochs", config.training.epochs)
    config = replace(
        config,
        model=flags.model,
        data=flags.data,
        out=str(Path(flags.runs) / name),
        seed=changes.get("seed", config.seed),
        keep_encoder=False,
        facts=replace(config.facts, templates=flags.templates),
        training=replace(config.training, epochs=epochs),
    )
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
    parser.add_argument("--only", nargs="*", default=list(JOBS), choices=list(JOBS))
    parser.add_argument("--jobs", type=int, default=1)
    flags = parser.parse_args()
    if flags.jobs == 1:
        for name in flags.only:
            run_one(name, flags)
        return
    shared = ["--model", flags.model, "--data", flags.data, "--runs", flags.runs]
    shared += ["--templates", flags.templates]

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
