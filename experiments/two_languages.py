"""A small text of two languages, made by two grammars, in which *die* has three uses.

    python experiments/two_languages.py OUT

writes OUT/english.txt and OUT/german.txt: documents of six sentences about one thing, four times as
many in English. They ship with the package (symprompt examples FOLDER, folder languages), beside
sentences with *die* that were written by hand, no two alike, to look at what was learned.
"""

from __future__ import annotations

import argparse
import random
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

DOCUMENTS = {"english": 800, "german": 200}
SENTENCES = 6
_SLOT = re.compile(r"\{(\w+)\}")

NAMES = "Anna|Paul|Clara|Max|Ida|Oskar|Lena|Emil|Rosa|Hugo|Nora|Anton|Marta|Felix"
TOWNS = "Berlin|London|Vienna|Hamburg|Paris|Dublin|Leipzig|Oslo|Bern|York"

ENGLISH = {
    "name": NAMES,
    "town": TOWNS,
    "number": "one|two|three|four|five|six",
    "several": "two|three|four|five|six|some|no",
    "colour": "red|green|blue|white|black|yellow",
    "material": "wood|bone|glass|stone|iron|paper",
    "plant": "roses|trees|tulips|oaks|weeds|vines|ferns|herbs|apple trees|young plants",
    "animal": "bees|mice|fish|birds|sheep|wolves|horses|frogs|flies|hens|young foxes",
    "people": "soldiers|sailors|farmers|old men|old women|children|prisoners|travellers|kings",
    "person": "king|queen|soldier|sailor|patient|farmer|old man|old woman|prisoner|poet",
    "season": "winter|summer|autumn|spring",
    "need": "water|light|food|air|salt|sun|warmth|rain",
    "illness": "fever|hunger|thirst|cold|old age|the plague|a broken heart|smoke",
    "place": "garden|forest|house|kitchen|market|harbour|church|mountains|village|valley",
    "thing": "table|chair|box|bag|cup|carpet|shelf|cupboard|bench|basket",
    "card": "cards|coins|stones|counters|tokens",
    "quality": "old|small|large|strange|quiet|new|famous|poor|rich|happy",
    "fast": "slowly|quickly|early|young|alone|in silence|at night|in the end",
    "time": "the war|the harvest|morning|his son returned|the ship came|the snow melts",
    "do": "sell the farm|leave the village|beg for bread|give up|serve the king|lie to a friend",
    "play": "move again|take a card|start the game|change places|win the round|pass the turn",
    "ware": "bread|milk|apples|shoes|paper|candles|wool|honey|cheese|books",
}
ENGLISH_TOPICS: Mapping[str, Sequence[str]] = {
    "death": (
        "{plant} die without {need} .",
        "most {plant} die in {season} .",
        "many {people} die of {illness} .",
        "some {animal} die soon after they are born .",
        "the {person} did not want to die in {town} .",
        "{name} feared that the {person} would die of {illness} .",
        "the {quality} {animal} die {fast} .",
        "they would rather die than {do} .",
        "the {person} will die before {time} .",
        "if {animal} get no {need} , they die {fast} .",
        "the doctor in {town} said that {name} might die .",
        "{people} live and die in the {place} .",
        "the {person} fell ill in {season} and was buried in {town} .",
        "{people} need {need} , and so do {animal} .",
        "the {animal} in the {place} were weak and hungry .",
        "{name} wept when the {person} was gone .",
    ),
    "game": (
        "{name} rolled the die and got a {number} .",
        "the die shows a {number} .",
        "the {colour} die fell under the {thing} .",
        "each player has one die and {several} {card} .",
        "this die is made of {material} .",
        "{name} put the {colour} die on the {thing} .",
        "if the die shows {number} , you may {play} .",
        "a {colour} die lies in the {thing} .",
        "{name} threw the die on the {thing} .",
        "{name} bought a {quality} die in {town} .",
        "with a {material} die the game is {quality} .",
        "you need a die , a board and {several} {card} .",
        "{name} won the game by {number} points .",
        "the {card} lie on the {colour} board .",
        "you may {play} if you have {several} {card} .",
        "{name} and {name} play with {several} {colour} {card} .",
    ),
    "town": (
        "{name} went to the market in {town} to buy {ware} .",
        "the {place} of {town} is {quality} in {season} .",
        "{name} sells {ware} and {ware} at the {place} .",
        "there are {several} {quality} bridges in {town} .",
        "in {season} the {people} go to the {place} .",
        "the {quality} road leads from {town} to {town} .",
        "{name} lives in a {quality} house near the {place} .",
        "the {person} walked through the {place} in {season} .",
        "the {ware} on the {thing} came from {town} .",
        "{name} reads a {quality} book about {town} .",
        "{people} from {town} bring {ware} to the {place} .",
        "the {thing} of {name} is {colour} and {quality} .",
    ),
}

GERMAN = {
    "name": NAMES,
    "town": TOWNS,
    "number": "zwei|drei|vier|fünf|sechs",
    "woman": "Frau|Lehrerin|Ärztin|Bäuerin|Königin|Freundin|Tante|Köchin",
    "fem": "Katze|Brücke|Straße|Kirche|Lampe|Blume|Tasche|Stadt|Schule|Tür|Uhr|Karte",
    "man": "Mann|König|Bäcker|Lehrer|Arzt|Koch|Freund|Onkel",
    "masc": "Hund|Tisch|Garten|Fluss|Baum|Brief|Turm|Ofen|Wagen|Markt",
    "neut": "Haus|Buch|Dorf|Pferd|Fenster|Boot|Bild|Bett",
    "plural": "Kinder|Blumen|Bäume|Vögel|Leute|Häuser|Schiffe|Bücher|Bauern|Äpfel|Pferde|Straßen",
    "quality": "alt|klein|groß|neu|schön|still|arm|reich|bekannt|schwer",
    "weak": "alte|kleine|große|neue|schöne|stille|arme|reiche|bekannte|schwere",
    "season": "Winter|Sommer|Herbst|Frühling",
    "where": "im Garten|im Dorf|am Fluss|auf dem Markt|im Haus|hinter dem Turm|in {town}",
    "take": "sieht|sucht|malt|kennt|findet|kauft|liebt|zeichnet",
    "do": "schlafen|warten|stehen|bleiben|liegen|fehlen",
    "ware": "Brot|Milch|Honig|Käse|Papier|Wolle|Salz",
}
GERMAN_TOPICS: Mapping[str, Sequence[str]] = {
    "town": (
        "die {fem} ist {quality} .",
        "die {woman} ist {quality} .",
        "die {plural} sind {quality} .",
        "{name} {take} die {fem} .",
        "der {masc} steht neben der {fem} .",
        "die {plural} {do} {where} .",
        "{name} {take} die {weak} {fem} {where} .",
        "das {neut} und die {fem} sind {quality} .",
        "im {season} {do} die {plural} {where} .",
        "{name} fragt die {woman} , die {where} wohnt .",
        "der {weak} {masc} gehört dem {man} .",
        "{name} bringt die {plural} nach {town} .",
        "das {neut} von {name} ist {quality} .",
        "{name} kauft {ware} und {ware} {where} .",
        "die {weak} {fem} von {town} ist {quality} .",
        "{name} hat {number} {plural} {where} .",
        "der {man} {take} die {plural} nicht .",
    ),
}


def fill(rule: str, words: Mapping[str, str], drawn: random.Random) -> str:
    """Return a sentence of a rule, each slot filled by a word drawn for it."""

    def draw(found: re.Match[str]) -> str:
        choices = words[found[1]].split("|")
        return fill(choices[int(drawn.random() * len(choices))], words, drawn)

    made = _SLOT.sub(draw, rule)
    return made[0].upper() + made[1:] if rule.endswith((".", "?")) else made


def make_text(
    topics: Mapping[str, Sequence[str]], words: Mapping[str, str], documents: int, seed: int
) -> str:
    """Return documents, each about one topic, parted by blank lines."""
    drawn = random.Random(seed)
    every = list(topics.values())
    made = []
    for number in range(documents):
        rules = every[number % len(every)]
        chosen = [rules[int(drawn.random() * len(rules))] for _ in range(SENTENCES)]
        made.append("\n".join(fill(rule, words, drawn) for rule in chosen))
    return "\n\n".join(made) + "\n"


def make_files() -> dict[str, str]:
    """Return the text of every file by its name."""
    english = make_text(ENGLISH_TOPICS, ENGLISH, DOCUMENTS["english"], 1)
    german = make_text(GERMAN_TOPICS, GERMAN, DOCUMENTS["german"], 2)
    return {"english.txt": english, "german.txt": german}


def main() -> None:
    """Write the files to the folder named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    for name, text in make_files().items():
        (out / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
