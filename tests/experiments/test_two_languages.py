"""experiments/two_languages.py: the text of two languages that ships, made by it."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path

from test_nested_names import load_script

SHIPPED = Path(str(resources.files("symprompt") / "examples" / "languages"))


def test_the_text_that_ships_is_what_the_script_makes() -> None:
    made = load_script("two_languages").make_files()
    there = {path.name: path.read_text("utf-8") for path in SHIPPED.iterdir()}
    assert {name: there[name] for name in made} == made
    assert sum(len(text) for text in there.values()) < 300_000
    times = {name: len(re.findall(r"\bdie\b", text, re.I)) for name, text in there.items()}
    assert times["english.txt"] > 2000
    assert times["german.txt"] > 800
    learned = {line for text in made.values() for line in text.splitlines()}
    for name in ("die-verb.txt", "die-noun.txt", "die-article.txt"):
        lines = there[name].splitlines()
        assert len(set(lines)) == times[name] == 36
        # What is looked at was not learned, sentence by sentence.
        assert len(learned & set(lines)) == 0
