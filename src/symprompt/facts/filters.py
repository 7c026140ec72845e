"""Leave facts out on purpose, and count them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from symprompt.facts.reading import load_text
from symprompt.facts.types import SPLITS, FactSet, Split


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


def load_word_list(path: str | Path) -> tuple[str, ...]:
    """Return the words of a file with one word per line, in order, each once."""
    lines = (line.strip() for line in load_text(Path(path)).split("\n"))
    return tuple(dict.fromkeys(line for line in lines if line))
