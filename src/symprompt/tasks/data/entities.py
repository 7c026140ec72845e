"""Named entities: CoNLL-2003, CoNLL-2004, Wikigold, GUM and OntoNotes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from symprompt.errors import DataError
from symprompt.runs.environment import derive_seed
from symprompt.tasks.data.build import Read, find_files
from symprompt.tasks.data.columns import read_tagged
from symprompt.tasks.data.ontonotes import find_ontonotes, read_entities
from symprompt.tasks.data.spans import with_spans


@dataclass(frozen=True)
class _Set:
    files: Mapping[str, Sequence[str]]
    word: int = 0
    tag: int = -1


_ENDINGS = (".txt", ".conll", ".tsv", ".bio", ".ner")
ENTITY_SETS = {
    "conll2003": _Set(
        {
            "train": ("eng.train", "train.txt"),
            "dev": ("eng.testa", "valid.txt", "dev.txt"),
            "test": ("eng.testb", "test.txt"),
        }
    ),
    "conll2004": _Set(
        {"train": ("train.txt",), "dev": ("dev.txt",), "test": ("test.txt",)}, word=1, tag=2
    ),
    "wikigold": _Set({"train": ("wikigold.conll.txt",)}),
    "gum": _Set({"train": ("data/train/gum-train.conll",), "test": ("data/test/gum-test.conll",)}),
    "ontonotes": _Set(
        {
            "train": tuple(f"train{ending}" for ending in _ENDINGS),
            "dev": tuple(
                name + ending for name in ("dev", "development", "valid") for ending in _ENDINGS
            ),
            "test": tuple(f"test{ending}" for ending in _ENDINGS),
        }
    ),
}


def read_entity_set(name: str, folder: Path, seed: int) -> dict[str, Read]:
    """Read a set of named entities from its folder, in IOB2.

    OntoNotes is read from CoNLL-2012's *gold_conll files below folders train, development and
    test, or from files in columns (the word first, the tag last). Wikigold is one file, whose
    documents are parted 80/10/10 by the seed; GUM has no dev set.
    """
    if name == "ontonotes" and find_ontonotes(folder):
        return {
            split: read_entities(files, split) for split, files in find_ontonotes(folder).items()
        }
    chosen = ENTITY_SETS[name]
    parts = {}
    for split, files in find_files(folder, chosen.files, name).items():
        part, documents = read_tagged(files[0], split, word=chosen.word, tag=chosen.tag)
        parts[split] = part
        if name == "wikigold":
            parts = split_by_document(part, documents, seed=seed)
    return parts


def split_by_document(
    part: Read, documents: Sequence[int], *, seed: int, shares: Sequence[float] = (0.1, 0.1)
) -> dict[str, Read]:
    """Part examples into train, dev and test, whole documents at a time, drawn by the seed."""
    names = sorted(set(documents))
    if len(names) < 3:
        path, line = part.places[0]
        raise DataError(
            f"{path}, line {line}: {len(names)} document(s) cannot be parted into train, dev and "
            "test; give files for the splits."
        )
    order = np.random.default_rng(derive_seed(seed, "documents")).permutation(len(names))
    sizes = [max(1, round(share * len(names))) for share in shares]
    place = {names[index]: "train" for index in order}
    place |= {names[index]: "dev" for index in order[: sizes[0]]}
    place |= {names[index]: "test" for index in order[sizes[0] : sizes[0] + sizes[1]]}
    parts = {split: Read(in_columns=part.in_columns) for split in ("train", "dev", "test")}
    for example, where, document in zip(part.examples, part.places, documents, strict=True):
        parts[place[document]].add(example, *where)
    return parts


def read_entity_spans(name: str, folder: Path, seed: int) -> dict[str, Read]:
    """Read a set of named entities as spans."""
    return {split: with_spans(own) for split, own in read_entity_set(name, folder, seed).items()}
