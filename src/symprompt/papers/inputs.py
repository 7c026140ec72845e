"""What the smaller tables ask besides the methods: reworded templates, and what a name gives away.

Both are asked by ordinary manual-prompt runs, whose templates or facts are written here.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence

from symprompt.facts import FactSet

# P-tuning's Table 1 changes P17's template; the other relations' rewordings are our own.
REWORDED: Mapping[str, tuple[str, ...]] = {
    "P17": (
        "[X] is located in which country or state ? [Y] .",
        "[X] is located in which country ? [Y] .",
        "[X] is located in which country ? In [Y] .",
    ),
    "P19": ("[X] was raised in [Y] .", "[X] was born near [Y] .", "[X] , born in [Y] ."),
    "P36": (
        "The capital city of [X] is [Y] .",
        "The capital of [X] was [Y] .",
        "The capital of [X] is called [Y] .",
    ),
    "P103": (
        "The first language of [X] is [Y] .",
        "The native tongue of [X] is [Y] .",
        "The native language of [X] was [Y] .",
    ),
    "P176": ("[X] is made by [Y] .", "[X] is built by [Y] .", "[X] was produced by [Y] ."),
    "P364": (
        "The main language of [X] is [Y] .",
        "The spoken language of [X] is [Y] .",
        "The original language of [X] was [Y] .",
    ),
}

# LAMA-UHN's second filter (Poerner et al., 2020): may the name alone give the answer away?
_NAME = "[X] is a common name in the following {} : [Y] ."
NAMES: Mapping[str, str] = {
    "P19": _NAME.format("city"),
    "P20": _NAME.format("city"),
    "P27": _NAME.format("country"),
    "P103": _NAME.format("language"),
    "P1412": _NAME.format("language"),
}


def reworded(facts: FactSet) -> tuple[dict[str, str], ...]:
    """Return the first, second, ... rewording of each relation of the set that has one."""
    there = {name: REWORDED[name] for name in facts.names if name in REWORDED}
    most = max((len(texts) for texts in there.values()), default=0)
    return tuple(
        {name: texts[number] for name, texts in there.items() if number < len(texts)}
        for number in range(most)
    )


def templates_file(templates: Mapping[str, str]) -> bytes:
    """Return templates as a file that ``facts.templates`` takes."""
    lines = [
        json.dumps({"relation": name, "template": text}, ensure_ascii=False) + "\n"
        for name, text in templates.items()
    ]
    return "".join(lines).encode()


def name_words(subject: str) -> list[str]:
    """Return the words of a person's name, each of which is asked about by itself."""
    return list(dict.fromkeys(subject.split()))


def list_names(facts: FactSet) -> list[tuple[str, ...]]:
    """Return every word of a person's name with the fact's object, as rows of a table of facts."""
    return list(
        dict.fromkeys(
            (word, fact.relation, fact.object, "test", NAMES[fact.relation])
            for fact in facts.facts("test")
            if fact.relation in NAMES
            for word in name_words(fact.subject)
        )
    )


def names_file(rows: Sequence[tuple[str, ...]]) -> bytes:
    """Return names as a file that a run's ``data`` takes."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["subject", "relation", "object", "split", "template"])
    table.writerows(rows)
    return text.getvalue().encode()
