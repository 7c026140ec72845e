"""Leave facts out on purpose, and count them."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from symprompt.facts.reading import load_text
from symprompt.facts.types import SPLITS, Fact, FactSet, Split


def uhn(facts: FactSet, splits: Sequence[Split] = SPLITS) -> FactSet:
    """Return the set without facts whose object is named in the subject, as in LAMA-UHN.

    A fact goes when its lower-cased object is a substring of its lower-cased subject ("Apple
    Watch" is made by "Apple"). This is the string filter of E-BERT (Poerner et al., 2020). Their
    second filter, which asks a language model whether a person's name gives the answer away, is
    not included, so that more facts stay than in the published LAMA-UHN.

    Args:
        splits: where to look; other splits are kept as they are.
    """
    return facts.keep(
        lambda fact: fact.object.lower() not in fact.subject.lower(),
        "object named in the subject",
        splits,
    )


def in_word_list(facts: FactSet, words: Collection[str]) -> FactSet:
    """Return the set with only the facts whose object is one of ``words``."""
    allowed = frozenset(words)
    return facts.keep(lambda fact: fact.object in allowed, "object not in the word list")


def at_most(facts: FactSet, limits: Mapping[Split, int], *, seed: int = 0) -> FactSet:
    """Return the set with at most so many facts of each relation in each split, drawn by seed.

    Whether a fact stays depends on the seed, its text and the facts of its own relation's split,
    and on nothing else. Those that stay keep their order; a repeat stays with its like.

    Args:
        limits: facts per relation by split; 0, or a split that is not named, takes all.
    """
    for split, limit in limits.items():
        stays: set[Fact] = set()
        for relation in facts.relations:
            listed = relation.split(split)
            stays.update(sorted(listed, key=lambda fact: _draw(fact, seed))[: limit or None])
        facts = facts.keep(stays.__contains__, f"beyond the {split} limit of {limit}", (split,))
    return facts


def load_word_list(path: str | Path) -> tuple[str, ...]:
    """Return the words of a file with one word per line, in order, each once."""
    lines = (line.strip() for line in load_text(Path(path)).split("\n"))
    return tuple(dict.fromkeys(line for line in lines if line))


def _draw(fact: Fact, seed: int) -> bytes:
    """Return a number of its own for every fact and seed, to sort by."""
    return hashlib.sha256(f"{seed}/{fact.relation}/{fact.subject}/{fact.object}".encode()).digest()
