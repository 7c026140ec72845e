"""Content words of running text and the lemmas they may be of; no part-of-speech tagger is needed.

A stretch of up to four words that WordNet knows as one lemma is taken as one ("took place", "prime
ministers"), the longest first. Words of the closed classes (articles, pronouns, prepositions,
conjunctions, modal and auxiliary verbs) are left out, as are numbers and marks.
"""

from __future__ import annotations

from dataclasses import dataclass

from symprompt.embeddings.senses import Tag
from symprompt.embeddings.wordnet import PARTS, WordNet
from symprompt.embeddings.words import Text

_LONGEST = 4
_CLOSED_WORDS = """
a an the this that these those each every either neither some any no both all such what which
who whom whose i me my mine myself you your yours yourself yourselves he him his himself she her
hers herself it its itself we us our ours ourselves they them their theirs themselves one ones
somebody someone something anybody anyone anything nobody nothing everybody everyone everything
about above across after against along amid among around as at before behind below beneath
beside besides between beyond by concerning despite down during except for from in inside into
like near of off on onto out outside over past per regarding since than through throughout till
to toward towards under underneath until unto up upon via versus with within without and but or
nor so yet if because although though unless whereas while whether when where why how there can
could may might must shall should will would ought not n't am are is was were be been being do
does did have has had having
"""
_CLOSED = frozenset(_CLOSED_WORDS.split())


@dataclass(frozen=True)
class FoundWord:
    """A content word: where it stands, and the (lemma, part of speech) pairs it may be of."""

    word: str
    start: int
    end: int
    names: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class TaggedWord:
    """A content word with its sense.

    Attributes:
        how: "vector", or "first" where no sense of it occurs in the tagged text.
        confidence: probability among the candidates; None where the first sense was taken.
    """

    word: str
    start: int
    end: int
    lemma: str
    pos: str
    sense: str
    gloss: str
    confidence: float | None
    how: str

    @classmethod
    def make(cls, word: FoundWord, tag: Tag, wordnet: WordNet) -> TaggedWord:
        """Put a word and its tag together."""
        sense = tag.sense
        assert sense is not None, "words that WordNet does not know are not looked for"
        return cls(
            word.word,
            word.start,
            word.end,
            sense.lemma,
            PARTS[sense.pos],
            sense.key,
            wordnet.gloss(sense),
            tag.confidence,
            tag.how,
        )


def find_words(text: str, wordnet: WordNet) -> list[FoundWord]:
    """Return the content words of a text that WordNet knows."""
    read = Text.running(text)
    words = read.words()
    found: list[FoundWord] = []
    at = 0
    while at < len(words):
        step = 1
        for length in range(min(_LONGEST, len(words) - at), 0, -1):
            part = words[at : at + length]
            names = _names(part, wordnet)
            if names:
                start, end = int(read.starts[at]), int(read.ends[at + length - 1])
                found.append(FoundWord(text[start:end], start, end, names))
                step = length
                break
        at += step
    return found


def _names(part: list[str], wordnet: WordNet) -> tuple[tuple[str, str], ...]:
    """Return the lemmas that words may be together; none for a word of a closed class."""
    if not all(any(sign.isalpha() for sign in word) for word in part):
        return ()
    if len(part) == 1:
        if part[0].lower() in _CLOSED:
            return ()
        return tuple((form, pos) for pos in PARTS for form in wordnet.base_forms(part[0], pos))
    return tuple((form, pos) for pos in PARTS for form in _joined(part, pos, wordnet))


def _joined(part: list[str], pos: str, wordnet: WordNet) -> tuple[str, ...]:
    """Return a stretch's lemmas: as written, or with the base of a verb's first, a noun's last."""
    lower = [word.lower() for word in part]
    forms = ["_".join(lower)]
    if pos == "v":
        forms += ["_".join([base, *lower[1:]]) for base in wordnet.possible_forms(lower[0], pos)]
    if pos == "n":
        forms += ["_".join([*lower[:-1], base]) for base in wordnet.possible_forms(lower[-1], pos)]
    return tuple(form for form in dict.fromkeys(forms) if (form, pos) in wordnet.by_lemma)
