"""WordNet: senses by lemma and part of speech, glosses, relations, base forms.

Read from WordNet's own files, or from a lexicon of the package wn, which keeps them in a database
of its own. Senses are known by Princeton's sense keys, which tagged text is written in: Open
English WordNet has them in its ids, others in a note.
"""

from __future__ import annotations

import os
import re
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from symprompt.errors import DataError
from symprompt.files.reading import refuse_pipe

PARTS = {"n": "noun", "v": "verb", "a": "adj", "r": "adv"}
"""Parts of speech by WordNet's letter; satellite adjectives ("s") count as adjectives."""

# Parts of speech by the first number of a sense key.
_PART_OF_NUMBER = {"1": "n", "2": "v", "3": "a", "4": "r", "5": "a"}
_PLACES = ("/usr/share/wordnet", "/usr/local/share/wordnet", "/usr/share/wordnet/dict")
_HYPERNYMS = ("@", "@i")
_SIMILAR = "&"
GET_IT = (
    "install Debian's wordnet-base and wordnet-sense-index (apt-get install wordnet-base "
    "wordnet-sense-index), or give the dict folder of WordNet 3.0 with --wordnet, or get it for "
    "the package wn (pip install wn; python -m wn download omw-en:1.4)"
)
# Morphy's endings and what takes their place, tried in this order.
_ENDINGS: dict[str, tuple[tuple[str, str], ...]] = {
    "n": (
        *(("s", ""), ("ses", "s"), ("xes", "x"), ("zes", "z")),
        *(("ches", "ch"), ("shes", "sh"), ("men", "man"), ("ies", "y")),
    ),
    "v": (
        *(("s", ""), ("ies", "y"), ("es", "e"), ("es", "")),
        *(("ed", "e"), ("ed", ""), ("ing", "e"), ("ing", "")),
    ),
    "a": (("er", ""), ("est", ""), ("er", "e"), ("est", "e")),
    "r": (),
}


@dataclass(frozen=True)
class Sense:
    """One sense of a lemma.

    Attributes:
        key: the sense key, lemma%type:file:id:head:headid.
        lemma: in lower case, words joined by "_".
        pos: n, v, a or r.
        synset: the synset's name: offset and letter ("02084071n"), or a lexicon's own id.
        number: its place among the lemma's senses, from 1; by frequency in tagged text.
        count: how often it was tagged when WordNet was made.
    """

    key: str
    lemma: str
    pos: str
    synset: str
    number: int
    count: int


@dataclass(frozen=True)
class Synset:
    """A meaning: its lexicographer file (a broad class), gloss and relations."""

    lexname: int
    gloss: str
    hypernyms: tuple[str, ...]
    similar: tuple[str, ...]


@dataclass(frozen=True)
class WordNet:
    """The inventory of senses, from whichever source; final.

    Attributes:
        senses: sense key -> sense.
        synset: returns the synset of a name; None for one that no sense has.
        irregular: (form, part of speech) -> the lemmas that it is listed as an irregular form of.
        source: where it was read.

    Example:
        >>> wordnet = WordNet.load()                                     # doctest: +SKIP
        >>> [wordnet.gloss(sense) for sense in wordnet.of("die", "n")]   # doctest: +SKIP
    """

    senses: dict[str, Sense]
    synset: Callable[[str], Synset | None]
    irregular: Callable[[str, str], tuple[str, ...]]
    source: str

    @classmethod
    def load(cls, folder: str | Path = "") -> WordNet:
        """Read index.sense, data.* and *.exc.

        Args:
            folder: where they lie; empty looks at $WNSEARCHDIR, $WNHOME/dict and where Debian's
                packages put them.

        Raises:
            DataError: they are not there, or not WordNet's.
        """
        place = find_wordnet(folder)
        senses = {sense.key: sense for sense in _read_senses(place / "index.sense")}
        synsets = {
            name: synset
            for letter, part in PARTS.items()
            for name, synset in _read_synsets(place / f"data.{part}", letter)
        }
        exceptions: dict[tuple[str, str], tuple[str, ...]] = {}
        for letter, part in PARTS.items():
            path = place / f"{part}.exc"
            for _, line in _lines(path) if path.is_file() else ():
                form, *lemmas = line.split()
                exceptions[form, letter] = tuple(lemmas)

        def irregular(form: str, pos: str) -> tuple[str, ...]:
            return exceptions.get((form, pos), ())

        return cls(senses, synsets.get, irregular, "WordNet's files")

    @cached_property
    def by_lemma(self) -> dict[tuple[str, str], list[Sense]]:
        """(lemma, part of speech) -> its senses, the most frequent first."""
        found: dict[tuple[str, str], list[Sense]] = {}
        for sense in sorted(self.senses.values(), key=lambda sense: sense.number):
            found.setdefault((sense.lemma, sense.pos), []).append(sense)
        return found

    def of(self, lemma: str, pos: str) -> Sequence[Sense]:
        """Return a lemma's senses as one part of speech, the most frequent first."""
        return self.by_lemma.get((as_lemma(lemma), pos), ())

    def gloss(self, sense: Sense) -> str:
        """Return what a sense means, in words."""
        found = self.synset(sense.synset)
        return found.gloss if found else ""

    def base_forms(self, word: str, pos: str) -> tuple[str, ...]:
        """Return the lemmas a written form may be of: itself, Morphy's exceptions or endings."""
        forms = self.possible_forms(word, pos)
        return tuple(form for form in forms if (form, pos) in self.by_lemma)

    def possible_forms(self, word: str, pos: str) -> tuple[str, ...]:
        """Return the same with those that are no lemma by themselves, but may be part of one."""
        form = as_lemma(word)
        whole, full = (form[: -len("ful")], "ful") if form.endswith("ful") else (form, "")
        # -ss is no plural: "glass" is not several of "glas".
        without_endings = (
            whole[: len(whole) - len(ending)] + instead + full
            for ending, instead in _ENDINGS[pos]
            if whole.endswith(ending) and len(whole) > len(ending) and not whole.endswith("ss")
        )
        return tuple(dict.fromkeys((form, *(self.irregular(form, pos) or without_endings))))


def name_of(key: str) -> tuple[str, str]:
    """Return the lemma and the part of speech that a sense key names."""
    lemma, _, rest = key.rpartition("%")
    return lemma, _PART_OF_NUMBER[rest[0]]


def as_lemma(word: str) -> str:
    """Return a word as WordNet writes lemmas."""
    return word.strip().lower().replace(" ", "_")


def find_wordnet(folder: str | Path = "") -> Path:
    """Return the folder of WordNet's files; empty looks in the usual places.

    Raises:
        DataError: there is none; the message names what to install.
    """
    places = [folder] if folder else _usual_places()
    found = next((Path(place) for place in places if (Path(place) / "data.noun").is_file()), None)
    if found is None:
        raise DataError(f"WordNet is not in {' or '.join(map(str, places))}; {GET_IT}.")
    if not (found / "index.sense").is_file():
        raise DataError(f"{found} holds WordNet but no index.sense; {GET_IT}.")
    return found


def _usual_places() -> list[str]:
    homes = [os.environ.get("WNSEARCHDIR", ""), os.environ.get("WNHOME", "")]
    listed = [homes[0], homes[1] and f"{homes[1]}/dict", *_PLACES]
    return [place for place in listed if place]


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    refuse_pipe(path)
    try:
        with path.open(encoding="utf-8") as stream:
            for number, line in enumerate(stream, start=1):
                # The licence at the head of a file is indented.
                if line.strip() and not line.startswith("  "):
                    yield number, line
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read ({error}); {GET_IT}.") from None


def _read_senses(path: Path) -> Iterator[Sense]:
    for number, line in _lines(path):
        try:
            key, offset, place, count = line.split()
            lemma, pos = name_of(key)
            yield Sense(key, lemma, pos, offset + pos, int(place), int(count))
        except (ValueError, KeyError, IndexError):
            raise _garbled(path, number, line) from None


def _read_synsets(path: Path, letter: str) -> Iterator[tuple[str, Synset]]:
    for number, line in _lines(path):
        head, _, gloss = line.partition("|")
        words = head.split()
        try:
            # Lemmas, each with a number, stand before the pointers.
            at = 4 + 2 * int(words[3], 16)
            pointers = [
                words[at + 1 + 4 * place : at + 5 + 4 * place] for place in range(int(words[at]))
            ]
            hypernyms, similar = _targets(pointers, _HYPERNYMS), _targets(pointers, (_SIMILAR,))
            yield words[0] + letter, Synset(int(words[1]), gloss.strip(), hypernyms, similar)
        except (ValueError, IndexError):
            raise _garbled(path, number, line) from None


def _targets(pointers: Sequence[Sequence[str]], kinds: Sequence[str]) -> tuple[str, ...]:
    return tuple(
        offset + ("a" if pos == "s" else pos) for kind, offset, pos, _ in pointers if kind in kinds
    )


def _garbled(path: Path, number: int, line: str) -> DataError:
    return DataError(f"{path}, line {number}: {line[:60]!r} is not WordNet's; {GET_IT}.")


PACKAGE = "wn"
# WordNet 3.0, whose keys SemCor and the test sets are tagged with, comes before newer ones.
_FIRST = "omw-en"
_KEY = re.compile(r"[^%]+%[1-5]:\d\d:\d\d:[^:]*:\d*")
KeyOf = Callable[[Any], str | None]


def load_wordnet(place: str | Path = "") -> WordNet:
    """Read WordNet from its files, or from a lexicon of the package wn.

    Args:
        place: the folder of the files; "wn" or "wn:NAME", such as "wn:omw-en:1.4", for a lexicon of
            the package; empty takes the files where Debian's packages put them and, where they
            are not, the package.

    Raises:
        DataError: it is not there; the message explains how to get it.
    """
    name = str(place)
    if name == PACKAGE or name.startswith(f"{PACKAGE}:"):
        return load_package(name.removeprefix(PACKAGE).removeprefix(":"))
    has_files = any((Path(usual) / "data.noun").is_file() for usual in _usual_places())
    if not name and not has_files and _installed():
        return load_package()
    return WordNet.load(place)


def load_package(name: str = "") -> WordNet:
    """Read a lexicon of the package wn.

    Args:
        name: the lexicon, such as "oewn:2024", or "oewn" for any version; empty takes an English
            one, WordNet 3.0 (omw-en) if it is there.

    Raises:
        DataError: the package or the lexicon is not there, or it has no sense keys.
    """
    wn = _package()
    if wn is None:
        raise DataError(f"the package wn is not installed; {GET_IT}.")
    chosen = _choose(name, _installed())
    try:
        return _read(wn.Wordnet(chosen, expand="", normalizer=None), chosen)
    except (wn.Error, sqlite3.Error) as error:
        raise DataError(f"wn cannot read {chosen} ({error}); {GET_IT}.") from None


def _package() -> Any:
    """Return the package wn, which is optional; None where it is not installed."""
    try:
        import wn
    except ImportError:
        return None
    return wn


def _installed() -> list[Any]:
    """Return the lexicons that the package holds; none without the package."""
    wn = _package()
    # Asking for lexicons would write a database where there is none.
    if wn is None or not Path(wn.config.database_path).is_file():
        return []
    try:
        return list(wn.lexicons())
    except (wn.Error, sqlite3.Error) as error:
        said = " ".join(str(error).split())
        raise DataError(f"the database of wn cannot be read ({said}); {GET_IT}.") from None


def _choose(name: str, present: Sequence[Any]) -> str:
    """Return the lexicon that is meant, the last added of several."""
    if name:
        found = [own for own in present if name in (own.specifier(), own.id)]
    else:
        english = [own for own in present if own.language == "en"]
        found = [own for own in english if own.id == _FIRST] or english
    if not found:
        wanted = f"no lexicon {name}" if name else "no English lexicon"
        names = ", ".join(own.specifier() for own in present)
        held = f", only {names}" if present else ""
        raise DataError(f"the package wn holds {wanted}{held}; {GET_IT}.")
    return str(found[-1].specifier())


def _read(lexicon: Any, name: str) -> WordNet:
    key_of = _key_getter(name)
    synset_of = {own.id: synset.id for synset in lexicon.synsets() for own in synset.senses()}
    entries = [
        (sum(own.counts()), key, synset_of[own.id])
        for word in lexicon.words()
        for own in word.senses()
        for key in [key_of(own)]
        if key is not None and _KEY.fullmatch(key)
    ]
    if not entries:
        raise DataError(
            f"{name} has no Princeton sense keys, which tagged text is written in; {GET_IT}."
        )
    senses: dict[str, Sense] = {}
    numbers: Counter[tuple[str, str]] = Counter()
    # Entries that differ in case are one lemma here; frequency orders their senses.
    for count, key, synset in sorted(entries, key=lambda entry: -entry[0]):
        numbers[name_of(key)] += 1
        senses[key] = Sense(key, *name_of(key), synset, numbers[name_of(key)], count)
    synset_of_name = _synset_reader(lexicon, senses.values())
    return WordNet(senses, synset_of_name, _irregular_forms(lexicon), f"wn {name}")


def _key_getter(name: str) -> KeyOf:
    """Return what finds a sense's key: as the package knows it, or in a note ("identifier")."""
    from wn import Error
    from wn.compat import sensekey

    try:
        getter: KeyOf = sensekey.sense_key_getter(name)
    except Error:
        return lambda sense: sense.metadata().get("identifier")
    return getter


def _irregular_forms(lexicon: Any) -> Callable[[str, str], tuple[str, ...]]:
    """Return what finds the lemmas that have a form; the database is read when it is needed."""

    @cache
    def of(form: str, pos: str) -> tuple[str, ...]:
        written = form.replace("_", " ")
        letters = ("a", "s") if pos == "a" else (pos,)
        words = [word for letter in letters for word in lexicon.words(written, letter)]
        lemmas = (as_lemma(word.lemma()) for word in words)
        return tuple(dict.fromkeys(lemma for lemma in lemmas if lemma != form))

    return of


def _synset_reader(lexicon: Any, senses: Iterable[Sense]) -> Callable[[str], Synset | None]:
    """Return a function from a synset's name to the synset, read from the database when needed."""
    # The second number of a sense key is the lexicographer file.
    classes = {sense.synset: int(sense.key.rpartition("%")[2].split(":")[1]) for sense in senses}

    @cache
    def synset(name: str) -> Synset | None:
        if name not in classes:
            return None
        found = lexicon.synset(name)
        hypernyms = found.get_related("hypernym", "instance_hypernym")
        return Synset(
            classes[name],
            found.definition() or "",
            tuple(other.id for other in hypernyms),
            tuple(other.id for other in found.get_related("similar")),
        )

    return synset
