"""Small helpers for tests that make whole runs, and a made-up LAMA folder for them."""

from __future__ import annotations

import csv
import json
import queue
import shutil
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from safetensors.torch import load_file, save_file

from symprompt import Run
from symprompt.cluster.executor import Event, Executor
from symprompt.errors import SympromptError
from symprompt.facts import FactSet, Relation
from symprompt.papers.jobs import Job
from symprompt.papers.worker import Worker
from symprompt.probing.config import RunConfig
from symprompt.runs.folder import CONFIG, HISTORY, MANIFEST, Folder, Manifest
from tiny.models import CITIES, COUNTRIES, facts_of, overlay, run_config


class Said(NamedTuple):
    """What one call of the command line did."""

    code: int
    out: str
    err: str

    @property
    def done(self) -> str:
        """What it printed, having come to its end."""
        assert self.code == 0, self.err
        return self.out

    @property
    def refusal(self) -> str:
        """The one sentence of a user's mistake: exit code 2, and nothing after its progress."""
        assert (self.code, self.out) == (2, ""), self
        *progress, last = self.err.splitlines()
        assert not any(line.startswith(("symprompt: ", "Traceback")) for line in progress)
        assert last.startswith("symprompt: ")
        assert last.endswith((".", "?"))
        return last


Call = Callable[..., Said]


# A weight that no dev facts choose, so that asking back moves the answers.
SEPARATE = {"vectors": "separate", "weight": 1.7}
Make = Callable[..., RunConfig]


def few_answers(make: Make, folder: Path) -> Make:
    """Return what makes configs with few allowed answers: golds are candidates, and they move."""
    words = folder / "words.txt"
    words.write_text("\n".join((*COUNTRIES, *CITIES)))

    def config(out: Path, **sections: Any) -> RunConfig:
        facts = {"vocabulary": str(words), **sections.pop("facts", {})}
        return make(out, **sections, facts=facts)

    return config


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
    return run_config(**overlay(table, sections))


def begun_run(path: Path) -> Folder:
    """Write what a run has that is in training."""
    folder = Folder(path)
    folder.write(CONFIG, b"")
    folder.write(MANIFEST, Manifest(command="train").to_json())
    return folder


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


class InlineExecutor(Executor):
    """Runs jobs here; final."""

    def run(self, jobs: Sequence[Job]) -> Generator[Event, None, None]:
        told: queue.Queue[Mapping[str, Any]] = queue.Queue()
        worker = Worker("cpu", told.put)
        for job in jobs:
            try:
                worker.make(job.name, job.config, job.source.config.out if job.source else "")
            except SympromptError as error:
                told.put({"job": job.name, "kind": "failed", "note": str(error)})
                worker.forget()
            while not told.empty():
                yield Event(**told.get())


PEOPLE = ("Old York", "San Oslo", "Saint Marino", "New Angeles", "Los Lucia", "Angeles Lima")


def make_lama() -> FactSet:
    """Three relations with LAMA's names, so that rewordings and names are asked too."""
    capital = list(zip(COUNTRIES, CITIES, strict=True))
    country = [(city, place) for place, city in capital]
    country += [("New " + city, "France") for city in CITIES[:4]]
    born = [(name, CITIES[number % 3]) for number, name in enumerate(PEOPLE)]
    born += [("Lima York", "Lima"), ("Oslo San", "Paris"), ("Marino New", "Rome")]
    return FactSet(
        (
            _relation("P17", country, "[X] is located in [Y] ."),
            _relation("P19", born, "[X] was born in [Y] ."),
            _relation("P36", capital, "The capital of [X] is [Y] ."),
        ),
        source="made up",
        layout="lama",
    )


def _relation(name: str, pairs: list[tuple[str, str]], template: str) -> Relation:
    listed = facts_of(name, pairs)
    half = len(listed) // 2
    return Relation(name, listed[:half], listed[1 : half - 1], listed[half:], template=template)


def write_lama(folder: Path, *, without_dev: tuple[str, ...] = ()) -> Path:
    """Write the facts as P*/{train,dev,test}.jsonl, with their templates beside them."""
    lines = []
    for relation in make_lama().relations:
        (folder / relation.name).mkdir(parents=True)
        for split in ("train", "dev", "test"):
            if split == "dev" and relation.name in without_dev:
                continue
            rows = [
                json.dumps({"sub_label": fact.subject, "obj_label": fact.object}) + "\n"
                for fact in relation.split(split)  # type: ignore[arg-type]
            ]
            (folder / relation.name / f"{split}.jsonl").write_text("".join(rows))
        lines.append(json.dumps({"relation": relation.name, "template": relation.template}))
    (folder / "relations.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def write_lama_prompts(folder: Path) -> Path:
    """Write two prompts for each of the relations, as LPAQA's files have them."""
    texts = ("[X] is the city of [Y] .", "[X] lies in [Y] .")
    return write_prompts(folder, dict.fromkeys(make_lama().names, texts))


def accept_files(path: Path) -> None:
    """Have a finished run's manifest state its files as they are now, changed ones too."""
    folder = Folder(path)
    folder._write_manifest(folder.manifest.model_copy(update={"files": folder._files()}))
