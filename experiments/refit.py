"""Fit the weights of finished SPE runs anew, without asking the model again.

    python experiments/refit.py --model $MODEL --data $DATA --out runs/fitted runs/spe-34 ...

Reads the stored candidates and backward scores of runs made with ``--choose-weight dev`` (or
fixed), fits weights on their dev facts as ``dev-fit`` does, and writes run folders of the same
names under OUT.
With --without-back the backward scores are zero: the control that shows what the fit and the
objects' frequencies give by themselves, also of runs that are fitted already.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import torch

from symprompt.errors import RunError, SympromptError
from symprompt.facts import FactSet, load_facts
from symprompt.models import LanguageModel
from symprompt.probing.folder import CARD, FACTS, PROMPTS, VOCABULARY, RunFolder
from symprompt.probing.prepare import Problem
from symprompt.probing.results import write_results
from symprompt.prompts import Template
from symprompt.runs.folder import ENVIRONMENT


def refit(source: RunFolder, out: Path, backbone: LanguageModel, data: str, *, back: bool) -> None:
    """Write one run with fitted weights, and print its figures."""
    config = source.load_config()
    if back and source.load_frequency_shares() is not None:
        raise RunError(
            f"{source.path} is fitted already; give a run made with another choose_weight."
        )
    method = replace(config.method, choose_weight="dev-fit")
    config = replace(config, method=method, out=str(out))
    found = {split: source.load_predictions(split) for split in ("dev", "test")}
    card = source.load_card()
    names = list(card["relations"])
    train = source.load_facts() if source.has(FACTS) else load_facts(data, relations=names)
    relations = []
    for name in card["relations"]:
        own = {
            split: tuple(fact for fact in facts if fact.relation == name)
            for split, (_, facts) in found.items()
        }
        relations.append(replace(train[name], dev=own["dev"], test=own["test"]))
    facts = FactSet(tuple(relations), source=data, layout="run")
    templates = tuple(Template.parse(about["template"]) for about in card["relations"].values())
    problem = Problem(backbone, facts, templates, torch.zeros(len(templates), 0).bool(), {})
    predictions = {
        split: stored if back else replace(stored, backward=torch.zeros_like(stored.backward))
        for split, (stored, _) in found.items()
    }
    folder = RunFolder(out)
    folder.start(config, resume=True)
    command = "experiments/refit.py" + ("" if back else " --without-back")
    folder.write_json(ENVIRONMENT, source.load_environment() | {"refitted": command})
    folder.write_json(CARD, card)
    for name in (FACTS, PROMPTS, VOCABULARY):
        if source.has(name):
            folder.write(name, (source.path / name).read_bytes())
    write_results(
        folder,
        config,
        facts,
        predictions,
        problem.text,
        problem.object_counts,
        candidates=None,
        dropped=source.load_metrics()["dropped"],
        seconds=source.load_metrics()["seconds"],
    )
    for split in ("dev", "test"):
        means = folder.load_metrics()[split]["raw"]["realistic"]["mean over relations"]
        print(out.name, split, " / ".join(f"{value:.2f}" for value in means.values()), flush=True)


def main() -> None:
    """Refit the runs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+")
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--without-back", action="store_true")
    flags = parser.parse_args()
    backbone = LanguageModel.load(flags.model, device="cpu")
    for run in flags.runs:
        out = Path(flags.out) / Path(run).name
        refit(RunFolder(run), out, backbone, flags.data, back=not flags.without_back)


if __name__ == "__main__":
    try:
        main()
    except SympromptError as error:
        raise SystemExit(f"refit.py: {error}") from None
