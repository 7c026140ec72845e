"""Make train, dev and test out of facts that come without splits.

Leave facts out on purpose, and count them.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from symprompt.errors import DataError
from symprompt.facts.types import SPLITS, Fact, FactSet, Relation, Split
from symprompt.files.reading import load_text


def split_by_subject(
    name: str, facts: Iterable[Fact], *, seed: int, label: str = "", template: str = ""
) -> Relation:
    """Return a relation whose subjects are dealt 60/20/20 to train, dev and test.

    The split depends on the seed, the relation's name and its set of facts, and on nothing else:
    not on the order of the facts and not on other relations. All facts of one subject stay
    together, so that no subject of test is seen in training. Repeated facts are kept once.

    Args:
        name: the relation's name.
        facts: its facts, with at least three different subjects.
        seed: another seed gives another split.
        label: what people call the relation.
        template: its manual template.
    """
    by_subject: dict[str, list[Fact]] = {}
    for fact in sorted(set(facts), key=lambda fact: (fact.subject, fact.object)):
        by_subject.setdefault(fact.subject, []).append(fact)
    if len(by_subject) < 3:
        raise DataError(
            f"relation {name!r} has {len(by_subject)} subject(s), but at least 3 are needed so "
            "that train, dev and test get one each; add facts or a split column."
        )
    subjects = _shuffled(list(by_subject), f"{seed}/{name}")
    held_out = max(1, round(len(subjects) / 5))
    ordered = {
        "test": subjects[:held_out],
        "dev": subjects[held_out : 2 * held_out],
        "train": subjects[2 * held_out :],
    }
    dealt = {
        split: tuple(fact for subject in chosen for fact in by_subject[subject])
        for split, chosen in ordered.items()
    }
    return Relation(
        name, dealt["train"], dealt["dev"], dealt["test"], label=label, template=template
    )


def _shuffled(items: list[str], seed: str) -> list[str]:
    """Return the items in an order fixed by the seed's text."""
    # Written out, because Python promises the same random() for the same seed in every version,
    # but does not promise the same shuffle().
    generator = random.Random(seed)
    for last in range(len(items) - 1, 0, -1):
        other = int(generator.random() * (last + 1))
        items[last], items[other] = items[other], items[last]
    return items


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
