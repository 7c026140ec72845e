"""Small helpers for tests that make whole runs."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from symprompt import Run
from symprompt.facts import FactSet
from symprompt.probing.config import RunConfig
from symprompt.runs.folder import HISTORY, MANIFEST, Folder
from tiny.models import run_config

# A weight that no dev facts choose, so that asking back moves the answers.
SEPARATE = {"vectors": "separate", "weight": 1.7}
Make = Callable[..., RunConfig]


def write_csv(facts: FactSet, path: Path) -> Path:
    """Write facts as a table with splits and templates."""
    with path.open("w", newline="") as stream:
        table = csv.writer(stream)
        table.writerow(["subject", "relation", "object", "split", "template"])
        for relation in facts.relations:
            for split in ("train", "dev", "test"):
                for fact in relation.split(split):
                    row = (fact.subject, fact.relation, fact.object, split, relation.template)
                    table.writerow(row)
    return path


def other_model(model: Path, folder: Path) -> Path:
    """The same model with one weight changed."""
    shutil.copytree(model, folder)
    weights = load_file(folder / "model.safetensors")
    name = min(weights)
    weights[name] = weights[name] + 1
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


class Killed(BaseException):
    """Stands for a kill: nothing on the way catches it."""


def kill_at(stage: str, note: str = "") -> Callable[..., None]:
    """A function to be ticked that ends a run at a stage, and where given, at a note."""

    def tick(now: str, _done: int, _total: int, told: str) -> None:
        if now == stage and told.startswith(note):
            raise Killed

    return tick


def metrics_of(run: Run) -> dict[str, Any]:
    """A run's metrics less what differs between equal runs."""
    left_out = ("seconds", "data", "method")
    return {key: value for key, value in run.metrics.items() if key not in left_out}


# Prompts of different lengths, with the object first, in the middle and glued to a full stop.
PROMPTS = {
    "capital": ("[X] is the old [Y].", "[Y] is the capital of [X] .", "[X] lies in the city [Y] ."),
    "in": ("[Y] river , [X]",),
    "near": ("The city of [X] lies in [Y] .", "[X] is [Y] ."),
}


def write_prompts(folder: Path, prompts: Mapping[str, Sequence[str]] = PROMPTS) -> Path:
    """Write relations' manual templates, by default the made-up ones', as LPAQA's files."""
    folder.mkdir(parents=True, exist_ok=True)
    for relation, templates in prompts.items():
        lines = [json.dumps({"template": template, "weight": 0.5}) for template in templates]
        (folder / f"{relation}.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def soft_config(folder: Path, **sections: Any) -> RunConfig:
    """A small config of SoftPrompt with the prompts in a folder."""
    table: dict[str, Any] = {
        "method": {"name": "softprompt"},
        "prompt": {"encoder": "free", "start": "manual"},
        "ensemble": {"prompts": [str(folder)]},
        "dtype": "float64",
    }
    for key, value in sections.items():
        table[key] = {**table.get(key, {}), **value} if isinstance(value, dict) else value
    return run_config(**table)


def unfinish(path: str | Path) -> None:
    """Make a finished run one that was killed before its last write."""
    folder = Folder(path)
    manifest = folder.manifest.model_copy(update={"state": "begun", "records": ()})
    folder.write(MANIFEST, manifest.to_json())


def timeless(path: str | Path) -> list[dict[str, Any]]:
    """Return what two runs of one config share: the manifest and the history, times left out."""
    folder = Folder(path)
    left_out = {"seconds", "files", "versions"}
    found = [folder.manifest.model_dump(exclude=left_out)]
    if folder.has(HISTORY):
        history = dict(folder.read_json(HISTORY))
        found.append({key: own for key, own in history.items() if key != "seconds"})
    return found
