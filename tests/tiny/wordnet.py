"""A tiny WordNet, a tiny SemCor and tiny test sets, written in the layouts of the real ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

from symprompt.embeddings.wordnet import WordNet
from tiny.models import CITIES, COUNTRIES

LICENCE = "  1 This is where the licence stands.  \n"


@dataclass(frozen=True)
class Entry:
    """A synset: offset, lexicographer file, kind, lemmas with their keys, pointers, gloss."""

    offset: str
    lexname: int
    kind: str
    lemmas: tuple[str, ...]
    pointers: tuple[tuple[str, str, str], ...]
    gloss: str


ENTRIES = (
    Entry("00000100", 14, "n", ("bank", "depository"), (("@", "00000300", "n"),), "where money is"),
    Entry("00000200", 17, "n", ("bank",), (("@", "00000400", "n"),), "land beside a river"),
    Entry("00000250", 6, "n", ("bank",), (("@", "00000900", "n"),), "a row of things"),
    Entry("00000300", 14, "n", ("institution",), (), "a body of people"),
    Entry("00000400", 17, "n", ("slope",), (), "land that leans"),
    Entry("00000500", 17, "n", ("shore",), (("@", "00000400", "n"),), "land beside water"),
    Entry("00000600", 18, "n", ("prime_minister",), (), "head of a cabinet"),
    Entry("00000700", 14, "n", ("club",), (("@", "00000300", "n"),), "people who meet"),
    Entry("00000900", 6, "n", ("tool",), (), "a thing to work with"),
    Entry("00001100", 30, "v", ("take_place", "happen"), (), "come to pass"),
    Entry("00001200", 38, "v", ("bank",), (), "lean to one side"),
    Entry("00001300", 38, "v", ("lie",), (), "be placed"),
    Entry("00001400", 40, "v", ("take",), (), "get into one's hands"),
    Entry("00002100", 0, "a", ("old",), (("&", "00002200", "a"),), "of long ago"),
    Entry("00002200", 0, "s", ("ancient(a)",), (("&", "00002100", "a"),), "very old"),
    Entry("00003100", 2, "r", ("now",), (), "at this time"),
)
# lemma, part, key, offset, place, count
SENSES = (
    ("bank", "bank%1:14:00::", "00000100", 1, 9),
    ("bank", "bank%1:17:01::", "00000200", 2, 5),
    ("bank", "bank%1:06:00::", "00000250", 3, 0),
    ("depository", "depository%1:14:00::", "00000100", 1, 0),
    ("institution", "institution%1:14:00::", "00000300", 1, 2),
    ("slope", "slope%1:17:00::", "00000400", 1, 0),
    ("shore", "shore%1:17:00::", "00000500", 1, 0),
    ("prime_minister", "prime_minister%1:18:00::", "00000600", 1, 0),
    ("club", "club%1:14:00::", "00000700", 1, 0),
    ("tool", "tool%1:06:00::", "00000900", 1, 0),
    ("take_place", "take_place%2:30:00::", "00001100", 1, 3),
    ("happen", "happen%2:30:00::", "00001100", 1, 1),
    ("take", "take%2:40:00::", "00001400", 1, 8),
    ("bank", "bank%2:38:00::", "00001200", 1, 1),
    ("lie", "lie%2:38:00::", "00001300", 1, 4),
    ("old", "old%3:00:00::", "00002100", 1, 3),
    ("ancient", "ancient%5:00:00:old:00", "00002200", 1, 1),
    ("now", "now%4:02:00::", "00003100", 1, 6),
)
# (lemma, part) -> form
IRREGULAR = {("take", "v"): "took", ("lie", "v"): "lay"}
_QUOTE = {'"': "&quot;"}
FILES = {"n": "noun", "v": "verb", "a": "adj", "r": "adv"}


def write_wordnet(folder: Path) -> Path:
    """Write index.sense, data.* and *.exc."""
    folder.mkdir(parents=True, exist_ok=True)
    for letter, name in FILES.items():
        lines = [LICENCE]
        for entry in ENTRIES:
            if entry.kind == letter or (entry.kind, letter) == ("s", "a"):
                lemmas = " ".join(f"{lemma} 0" for lemma in entry.lemmas)
                pointers = "".join(f" {kind} {to} {pos} 0000" for kind, to, pos in entry.pointers)
                count = f"{len(entry.lemmas):02x} {lemmas} {len(entry.pointers):03d}{pointers}"
                frames = " 01 + 02 00" if letter == "v" else ""
                lines.append(
                    f"{entry.offset} {entry.lexname:02d} {entry.kind} {count}{frames} "
                    f"| {entry.gloss}  \n"
                )
        (folder / f"data.{name}").write_text("".join(lines))
        listed = [(form, lemma) for (lemma, pos), form in IRREGULAR.items() if pos == letter]
        lines = [f"{form} {lemma}\n" for form, lemma in listed]
        (folder / f"{name}.exc").write_text("".join(lines))
    senses = sorted(f"{key} {offset} {place} {count}" for _, key, offset, place, count in SENSES)
    (folder / "index.sense").write_text("\n".join(senses) + "\n")
    return folder


MONEY, RIVER = "bank%1:14:00::", "bank%1:17:01::"
Tagged = tuple[str, str, str]


def bank_sentences(shift: int = 0) -> list[list[str | Tagged]]:
    """Sentences whose other words say which bank is meant; money is the more frequent one.

    With a shift other cities stand beside the countries, so that all sentences are new.
    """
    cities = CITIES[shift:] + CITIES[:shift]
    found: list[list[str | Tagged]] = []
    for number, (city, country) in enumerate(zip(cities, COUNTRIES, strict=True)):
        found.append(["The", city, ("bank", "bank", MONEY), "in", country, "."])
        found.append(["The", country, ("Banks", "bank", MONEY), "of", city])
        if number % 2 == 0:
            found.append(["the", "old", "river", ("bank", "bank", RIVER), "lies", "located", "."])
            found.append(["s", "river", "old", ("bank", "bank", RIVER), "the", "river", city])
        elif number % 3 == 0:
            found.append([("happened", "happen", "happen%2:30:00::"), "in", city])
    return found


def write_semcor(folder: Path, sentences: Sequence[Sequence[str | Tagged]] | None = None) -> Path:
    """Write context files, four sentences each."""
    rows = bank_sentences() if sentences is None else sentences
    folder.mkdir(parents=True, exist_ok=True)
    for start in range(0, len(rows), 4):
        name = f"br-{start:03d}"
        lines = ['<contextfile concordance="brown">', f'<context filename="{name}" paras="yes">']
        for number, row in enumerate(rows[start : start + 4], start=1):
            lines += [f'<s snum="{number}">', *(_context_word(word) for word in row), "</s>"]
        lines += ["</context>", "</contextfile>"]
        (folder / name).write_text("\n".join(lines) + "\n")
    return folder


def _context_word(word: str | Tagged) -> str:
    if isinstance(word, str):
        return f"<punc>{word}</punc>" if word == "." else f'<wf cmd="ignore" pos="DT">{word}</wf>'
    form, lemma, key = word
    sense = key.partition("%")[2]
    return f'<wf cmd="done" pos="NN" lemma="{lemma}" wnsn="1" lexsn="{sense}">{form}</wf>'


def write_test_set(
    folder: Path, name: str, sentences: Sequence[Sequence[str | Tagged]] | None = None
) -> Path:
    """Write NAME/NAME.data.xml and its gold keys, one document; return the folder above."""
    rows = bank_sentences() if sentences is None else sentences
    lines = ['<?xml version="1.0" encoding="UTF-8" ?>', '<corpus lang="en">', '<text id="d000">']
    gold = []
    for number, row in enumerate(rows):
        lines.append(f'<sentence id="d000.s{number:03d}">')
        for place, word in enumerate(row):
            if isinstance(word, str):
                lines.append(f'<wf lemma="{word.lower()}" pos="X">{word}</wf>')
                continue
            form, lemma, key = word
            pos = {"1": "NOUN", "2": "VERB"}[key.partition("%")[2][0]]
            own = f"d000.s{number:03d}.t{place:03d}"
            lines.append(f'<instance id="{own}" lemma="{lemma}" pos="{pos}">{form}</instance>')
            gold.append(f"{own} {key}")
        lines.append("</sentence>")
    lines += ["</text>", "</corpus>"]
    place = folder / name
    place.mkdir(parents=True, exist_ok=True)
    (place / f"{name}.data.xml").write_text("\n".join(lines))
    (place / f"{name}.gold.key.txt").write_text("\n".join(gold) + "\n")
    return folder


def write_lexicon(
    path: Path, wordnet: WordNet, name: str = "oewn", version: str = "2024", *, keys: str = "id"
) -> Path:
    """Write a WordNet as the package wn reads it (WN-LMF), sense keys in ids, notes or nowhere.

    Entries are one for each lemma and part of speech, in lower case; senses stand in their order.
    """
    letters = {key: _letter(key) for key in wordnet.senses}
    synsets: dict[str, str] = {}
    lines = [
        '<?xml version="1.0" encoding="UTF-8"?>',
        '<!DOCTYPE LexicalResource SYSTEM "http://globalwordnet.github.io/schemas/WN-LMF-1.1.dtd">',
        '<LexicalResource xmlns:dc="https://globalwordnet.github.io/schemas/dc/">',
        f'<Lexicon id="{name}" label="tiny" language="en" email="none" license="none" '
        f'version="{version}">',
    ]
    for number, ((lemma, pos), senses) in enumerate(wordnet.by_lemma.items()):
        written = escape(lemma.replace("_", " "), _QUOTE)
        lines.append(
            f'<LexicalEntry id="{name}-e{number}">'
            f'<Lemma writtenForm="{written}" partOfSpeech="{pos}"/>'
        )
        if (lemma, pos) in IRREGULAR:
            lines.append(f'<Form writtenForm="{IRREGULAR[lemma, pos]}"/>')
        for sense in senses:
            own_id, note = f"{name}-s{len(synsets)}-{number}-{sense.number}", ""
            if keys == "id":
                own_id = f"{name}-{_as_id(sense.key)}"
            if keys == "note":
                note = f' dc:identifier="{escape(sense.key, _QUOTE)}"'
            count = f"<Count>{sense.count}</Count>" if sense.count else ""
            target = f"{name}-{sense.synset}"
            lines.append(f'<Sense id="{own_id}" synset="{target}"{note}>{count}</Sense>')
            synsets.setdefault(sense.synset, letters[sense.key])
        lines.append("</LexicalEntry>")
    for own, letter in synsets.items():
        found = wordnet.synset(own)
        assert found is not None
        lines.append(
            f'<Synset id="{name}-{own}" ili="" partOfSpeech="{letter}">'
            f"<Definition>{escape(found.gloss)}</Definition>"
        )
        for kind, targets in (("hypernym", found.hypernyms), ("similar", found.similar)):
            lines += [
                f'<SynsetRelation relType="{kind}" target="{name}-{target}"/>' for target in targets
            ]
        lines.append("</Synset>")
    lines += ["</Lexicon>", "</LexicalResource>"]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def _letter(key: str) -> str:
    return {"1": "n", "2": "v", "3": "a", "4": "r", "5": "s"}[key.rpartition("%")[2][0]]


def _as_id(key: str) -> str:
    """Return a sense key as Open English WordNet writes it into ids."""
    lemma, _, rest = key.rpartition("%")
    for sign, instead in (("'", "-ap-"), ("!", "-ex-"), (",", "-cm-"), ("+", "-pl-")):
        lemma = lemma.replace(sign, instead)
    lemma = lemma.replace(":", "-cn-").replace("/", "-sl-")
    return f"{lemma}__{rest.replace(':', '.').replace('_', '-sp-')}"
