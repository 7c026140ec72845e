"""Make train, dev and test out of facts that come without splits."""

from __future__ import annotations

import random
from collections.abc import Iterable

from symprompt.errors import DataError
from symprompt.facts.types import Fact, Relation


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
