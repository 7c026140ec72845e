"""Text whose words are tagged with WordNet senses: SemCor and the five standard test sets."""

from __future__ import annotations

import html
import re
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from symprompt.embeddings.wordnet import name_of
from symprompt.errors import DataError
from symprompt.files.reading import load_text

SETS = ("senseval2", "senseval3", "semeval2007", "semeval2013", "semeval2015")
"""The five all-words test sets, as Raganato et al. (2017) unified them."""

NOT_KNOWN = "sense not in WordNet"
_POS = {"NOUN": "n", "VERB": "v", "ADJ": "a", "ADV": "r"}
# How the Penn Treebank writes what people write otherwise; models have read the latter.
_WRITTEN = {
    "``": '"',
    "''": '"',
    "-LRB-": "(",
    "-RRB-": ")",
    "-LCB-": "{",
    "-RCB-": "}",
    "-LSB-": "[",
    "-RSB-": "]",
}
_TAGGED = re.compile(r"<(?:wf|punc)\b([^>]*)>([^<]*)</")
_ATTRIBUTE = re.compile(r"""(\w+)=(?:"([^"]*)"|([^\s>]+))""")
# Old releases write the syntactic mark of an adjective into the head of a satellite's key.
_MARK = re.compile(r"\((?:a|p|ip)\)")
_CONTEXT = re.compile(r"<contextfile\b")


@dataclass(frozen=True)
class Instance:
    """A word, or several that are one lemma, and what it means.

    Attributes:
        first, last: its words in the sentence, last not included.
        lemma: in lower case, joined by "_".
        pos: n, v, a or r.
        keys: right sense keys.
    """

    first: int
    last: int
    lemma: str
    pos: str
    keys: tuple[str, ...]


@dataclass(frozen=True)
class Sentence:
    """The words of a sentence and those that are tagged."""

    document: str
    words: tuple[str, ...]
    instances: tuple[Instance, ...]


@dataclass(frozen=True)
class SenseCorpus:
    """Sentences in order, and what was left out of the tags with the reason and number."""

    name: str
    sentences: tuple[Sentence, ...]
    dropped: dict[str, int] = field(default_factory=dict)

    @property
    def instances(self) -> list[Instance]:
        """Every tagged word in order."""
        return [instance for sentence in self.sentences for instance in sentence.instances]


def load_sense_corpus(path: str | Path, known: Collection[str]) -> SenseCorpus:
    """Read sense-tagged text in either layout.

    Args:
        path: a folder of SemCor's context files (``<contextfile>``, one document each, WordNet 3.0
            sense numbers), or a file NAME.data.xml with NAME.gold.key.txt beside it, or a folder
            that holds one such pair.
        known: WordNet's sense keys; tags that are not among them are left out and counted.

    Raises:
        DataError: nothing of the kind is there, or it is garbled.
    """
    place = Path(path)
    if place.is_file() and place.name.endswith(".data.xml"):
        return _load_unified(place, known)
    if not place.is_dir():
        raise DataError(f"{place} is no folder of tagged text; give SemCor's or a test set's.")
    pairs = sorted(place.glob("*.data.xml"))
    if pairs:
        return _load_unified(pairs[0], known)
    return _load_context_files(place, known)


def load_test_sets(
    folder: str | Path, known: Collection[str], wanted: Sequence[str] = ()
) -> dict[str, SenseCorpus]:
    """Read the standard test sets that a folder holds, each in a folder of its name.

    Args:
        folder: where they lie.
        known: WordNet's sense keys.
        wanted: only these, all of which must be there; empty takes those that are.

    Raises:
        DataError: it holds none, or one that is wanted is not there.
    """
    place = Path(folder)
    there = [name for name in SETS if (place / name / f"{name}.data.xml").is_file()]
    missing = [name for name in wanted or SETS if name not in there]
    if missing and (wanted or not there):
        raise DataError(
            f"{place} holds no test set {', '.join(missing)}, each as NAME/NAME.data.xml with "
            f"NAME/NAME.gold.key.txt; give the folder they lie in, and names among "
            f"{', '.join(there or SETS)}."
        )
    return {
        name: load_sense_corpus(place / name / f"{name}.data.xml", known)
        for name in there
        if not wanted or name in wanted
    }


def _load_context_files(folder: Path, known: Collection[str]) -> SenseCorpus:
    sentences: list[Sentence] = []
    dropped: Counter[str] = Counter()
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size)
    for path in files:
        text = load_text(path)
        if _CONTEXT.match(text.lstrip()):
            sentences += _context_sentences(path.name, text, known, dropped)
    if not any(sentence.instances for sentence in sentences):
        raise DataError(
            f"{folder} holds no SemCor files whose tags WordNet knows; give the folder of files "
            "that begin with <contextfile>, tagged with WordNet 3.0 senses."
        )
    return SenseCorpus(folder.name, tuple(sentences), dict(dropped))


def _context_sentences(
    name: str, text: str, known: Collection[str], dropped: Counter[str]
) -> Iterator[Sentence]:
    entries: list[_Entry] = []
    for line in [*text.splitlines(), "</s>"]:
        if line.startswith("</s") and entries:
            yield _make_sentence(name, entries, known, dropped)
            entries = []
        match = _TAGGED.match(line)
        if match is None:
            continue
        tags = {
            key: html.unescape(one or other) for key, one, other in _ATTRIBUTE.findall(match[1])
        }
        keys = None
        if "lexsn" in tags:
            senses = _MARK.sub("", tags["lexsn"]).split(";")
            keys = [f"{tags['lemma'].lower()}%{sense}" for sense in senses]
        entries.append((html.unescape(match[2]).split("_"), keys, None))


def _load_unified(path: Path, known: Collection[str]) -> SenseCorpus:
    name = path.name.removesuffix(".data.xml")
    lines = load_text(path.with_name(f"{name}.gold.key.txt")).splitlines()
    gold = {line.split()[0]: line.split()[1:] for line in lines if line.strip()}
    sentences: list[Sentence] = []
    dropped: Counter[str] = Counter()
    try:
        for document in ElementTree.fromstring(load_text(path).encode()):
            for node in document:
                entries: list[_Entry] = []
                for entry in node:
                    own, tags = re.split(r"[ _]", entry.text or ""), entry.attrib
                    if entry.tag == "instance":
                        lemma = (tags["lemma"].lower(), _POS[tags["pos"]])
                        entries.append((own, gold[tags["id"]], lemma))
                    else:
                        entries.append((own, None, None))
                place = f"{name}.{document.get('id')}"
                sentences.append(_make_sentence(place, entries, known, dropped))
    except (ElementTree.ParseError, KeyError) as error:
        raise DataError(f"{path} is garbled ({error}); give the file as it was released.") from None
    return SenseCorpus(name, tuple(sentences), dict(dropped))


_Entry = tuple[Sequence[str], Sequence[str] | None, tuple[str, str] | None]
"""Words that are one lemma if they are tagged; right sense keys, None without a tag; lemma and part
of speech, None takes those of the first key."""


def _make_sentence(
    document: str, entries: Sequence[_Entry], known: Collection[str], dropped: Counter[str]
) -> Sentence:
    """Return a sentence; tags that WordNet does not know are counted, empty words left out."""
    words: list[str] = []
    instances: list[Instance] = []
    for written, keys, lemma in entries:
        own = [_WRITTEN.get(word, word) for word in written if word]
        words += own
        there = tuple(key for key in keys or () if key in known)
        if keys is None or not own:
            continue
        if not there:
            dropped[NOT_KNOWN] += 1
            continue
        name, pos = lemma or name_of(there[0])
        instances.append(Instance(len(words) - len(own), len(words), name, pos, there))
    return Sentence(document, tuple(words), tuple(instances))
