"""BEAR (Wiland et al., 2024, arXiv 2404.04113): balanced answer spaces, three templates each.

A folder with a ``metadata_relations.json`` and a file of facts for each relation. The metadata has
each relation's templates and, in BEAR, its answer space; in BEAR-big that is every object of the
relation's facts. Its facts have no split, since its own protocol learns nothing: where prompts are
learned they are dealt 40/20/40 by subject. Answer spaces are of all facts, whatever the split; so
an answer says nothing of the split that its fact is in, and a one-to-one relation can be asked for
objects that no training fact has.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from symprompt.errors import DataError
from symprompt.facts.templates import template_in
from symprompt.facts.types import (
    BAD_ROW,
    Dropped,
    Fact,
    FactSet,
    Relation,
    choose_names,
    compose,
    deal_by_subject,
    fact_in,
)
from symprompt.files.reading import collect_bad, load_rows, load_text, refuse_bad

METADATA = "metadata_relations.json"
_KEYS = ("sub_label",), ("obj_label",)
SHARES = (40, 20, 40)
"""Percent of a relation's subjects in train, dev and test."""


def find_bear(folder: Path) -> list[Path]:
    """Return the folder itself, or those right below it, that hold BEAR's kind of files."""
    if (folder / METADATA).is_file():
        return [folder]
    return sorted(found.parent for found in folder.glob(f"*/{METADATA}"))


def load_bear(
    folder: Path,
    *,
    relations: Sequence[str] = (),
    seed: int = 0,
    shares: Sequence[int] = (),
    bad_rows: str = "refuse",
    skip_unusable: bool = False,
) -> FactSet:
    """Return the facts of BEAR or BEAR-big with answer spaces and all templates.

    A line without a subject (BEAR-big has one) is left out, counted and named. Aliases are not
    read: the protocol has none.

    Args:
        folder: with ``metadata_relations.json``, or the one above if it holds just one such.
        relations: names to load; none means all.
        seed: makes the split.
        shares: percent of the subjects in train, dev and test; empty is 40, 20, 40.
        bad_rows: "skip" leaves rows that cannot be used out and counts them; "refuse" names them.
        skip_unusable: leave out relations with too few subjects.

    Raises:
        DataError: naming the file, and the line where there is one.
    """
    homes = find_bear(folder)
    if len(homes) != 1:
        listed = ", ".join(map(str, homes)) or "none"
        raise DataError(
            f"{folder} must hold one set of BEAR's files, told by its {METADATA}; it holds "
            f"{listed}; give the folder of one."
        )
    (home,) = homes
    about = _load_metadata(home / METADATA)
    # The metadata of BEAR-big names a relation that it has no facts of.
    known = [name for name in about if (home / f"{name}.jsonl").is_file()]
    if not known:
        raise DataError(
            f"{home / METADATA} names relations, but none has a file such as "
            f"{next(iter(about), 'P36')}.jsonl beside it; give BEAR's folder as it was released."
        )
    grouped: dict[str, list[Fact]] = {}
    dropped: list[Dropped] = []
    bad: list[str] = []
    composed = 0
    for name in choose_names(known, relations, str(folder)):
        path, before = home / f"{name}.jsonl", len(bad)
        grouped[name] = []
        for number, row in load_rows(path, any_case=True, bad=bad):
            if row.get("sub_label") == "":
                reason = f"line has no subject ({path.name}, line {number})"
                dropped.append(Dropped(name, "train", reason, 1))
                continue
            with collect_bad(bad):
                fact, changed = fact_in(row, _KEYS, name, path, number)
                grouped[name].append(fact)
                composed += changed
        if len(bad) > before:
            dropped.append(Dropped(name, "train", BAD_ROW, len(bad) - before))
    if bad_rows == "refuse":
        refuse_bad(bad, folder)
    dealt, left_out, skipped = deal_by_subject(
        grouped, folder, seed=seed, shares=shares or SHARES, skip_unusable=skip_unusable
    )
    loaded: list[Relation] = []
    for name, relation in dealt.items():
        first, *others = _templates(home / METADATA, name, about[name])
        stated = map(compose, about[name].get("answer_space_labels") or ())
        answers = dict.fromkeys((*stated, *sorted(fact.object for fact in grouped[name])))
        loaded.append(
            replace(relation, template=first, rewordings=tuple(others), answers=tuple(answers))
        )
    dropped += left_out
    return FactSet(tuple(loaded), str(folder), "bear", tuple(dropped), composed, skipped)


def _load_metadata(path: Path) -> Mapping[str, Mapping[str, Any]]:
    """Return what the metadata says of each relation.

    Raises:
        DataError: it is not JSON, or not of BEAR's form.
    """
    try:
        found = json.loads(load_text(path))
    except (json.JSONDecodeError, RecursionError) as error:
        raise DataError(f"{path} is not JSON ({error}); restore BEAR's own file.") from None
    for name, entry in found.items() if isinstance(found, dict) else [("", None)]:
        spaces = entry.get("answer_space_labels", []) if isinstance(entry, dict) else None
        lists = (entry.get("templates"), spaces) if isinstance(entry, dict) else (None,)
        if not all(
            isinstance(own, list) and all(isinstance(text, str) for text in own) for own in lists
        ):
            raise DataError(
                f"{path}: {name or 'the file'} must have templates, and perhaps "
                "answer_space_labels, as lists of texts; restore BEAR's own file."
            )
    metadata: Mapping[str, Mapping[str, Any]] = found
    return metadata


def _templates(path: Path, name: str, entry: Mapping[str, Any]) -> list[str]:
    found = [
        template_in({"template": text}, path, number)
        for number, text in enumerate(entry["templates"], 1)
    ]
    if not found:
        raise DataError(f"{path}: relation {name} has no template; add one.")
    # Repeats are kept: P103 has one, and published figures are means over three templates.
    return found
