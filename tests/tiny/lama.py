"""A made-up LAMA folder, for tests that make many small runs."""

from __future__ import annotations

import json
from pathlib import Path

from symprompt.facts import FactSet, Relation
from tiny.models import CITIES, COUNTRIES, facts_of

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
    folder.mkdir(parents=True)
    for name in make_lama().names:
        texts = ("[X] is the city of [Y] .", "[X] lies in [Y] .")
        lines = [json.dumps({"template": text, "weight": 0.5}) for text in texts]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    return folder
