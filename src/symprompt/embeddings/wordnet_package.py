"""WordNet from the package wn, and the choice between it and WordNet's own files.

The package keeps lexicons in a database of its own. Senses are known by Princeton's sense keys,
which tagged text is written in: Open English WordNet has them in its ids, others in a note.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from symprompt.embeddings.wordnet import (
    GET_IT,
    PART_OF_NUMBER,
    Sense,
    Synset,
    WordNet,
    as_lemma,
    has_wordnet,
)
from symprompt.errors import DataError

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
        DataError: it is not there; the message says how to get it.
    """
    name = str(place)
    if name == PACKAGE or name.startswith(f"{PACKAGE}:"):
        return load_package(name.removeprefix(PACKAGE).removeprefix(":"))
    if not name and not has_wordnet() and _installed():
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
    grouped: dict[tuple[str, str], list[tuple[int, str, str]]] = {}
    for word in lexicon.words():
        for own in word.senses():
            key = key_of(own)
            if key is None or not _KEY.fullmatch(key):
                continue
            lemma, _, rest = key.rpartition("%")
            entry = (sum(own.counts()), key, synset_of[own.id])
            grouped.setdefault((lemma, PART_OF_NUMBER[rest[0]]), []).append(entry)
    if not grouped:
        raise DataError(
            f"{name} has no Princeton sense keys, which tagged text is written in; {GET_IT}."
        )
    by_lemma = {
        (lemma, pos): tuple(
            Sense(key, lemma, pos, synset, number, count)
            # Entries that differ in case are one lemma here; frequency orders their senses.
            for number, (count, key, synset) in enumerate(
                sorted(found, key=lambda entry: -entry[0]), start=1
            )
        )
        for (lemma, pos), found in grouped.items()
    }
    senses = {sense.key: sense for found in by_lemma.values() for sense in found}
    return WordNet(
        senses, by_lemma, _Synsets(lexicon, senses), _irregular_forms(lexicon), f"wn {name}"
    )


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
    """Return what finds the lemmas that have a form; the database is asked when it is needed."""

    @cache
    def of(form: str, pos: str) -> tuple[str, ...]:
        written = form.replace("_", " ")
        letters = ("a", "s") if pos == "a" else (pos,)
        words = [word for letter in letters for word in lexicon.words(written, letter)]
        lemmas = (as_lemma(word.lemma()) for word in words)
        return tuple(dict.fromkeys(lemma for lemma in lemmas if lemma != form))

    return of


class _Synsets(Mapping[str, Synset]):
    """Synsets by name, each read from the database when it is first asked for; final."""

    def __init__(self, lexicon: Any, senses: Mapping[str, Sense]) -> None:
        self._lexicon = lexicon
        self._members: dict[str, list[Sense]] = {}
        for sense in senses.values():
            self._members.setdefault(sense.synset, []).append(sense)
        self._found: dict[str, Synset] = {}

    def __getitem__(self, name: str) -> Synset:
        if name not in self._found:
            self._found[name] = self._make(name, self._members[name])
        return self._found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)

    def _make(self, name: str, members: Sequence[Sense]) -> Synset:
        found = self._lexicon.synset(name)
        hypernyms = found.get_related("hypernym", "instance_hypernym")
        return Synset(
            name,
            tuple(sense.lemma for sense in members),
            # The second number of a sense key is the lexicographer file.
            int(members[0].key.rpartition("%")[2].split(":")[1]),
            found.definition() or "",
            tuple(other.id for other in hypernyms),
            tuple(other.id for other in found.get_related("similar")),
        )
