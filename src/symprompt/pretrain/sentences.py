"""Cut lines into sentences by rule: no model, no dependency."""

from __future__ import annotations

import re


def split_sentences(line: str) -> list[str]:
    """Return a line's sentences, stripped; joined with spaces they give the line's words again.

    A rule without a model: a sentence ends at ``. ! ?`` (or their like in other scripts), closing
    quotes included, before a space and anything but a small letter. Titles, initials, numbered
    items and decimals do not end one; abbreviations that may (Inc., U.S.) do so only before a
    word that commonly opens a sentence.
    """
    sentences: list[str] = []
    begin = 0
    for match in _END.finditer(line):
        if _ends_sentence(line, begin, match):
            sentences.append(line[begin : match.end()].strip())
            begin = match.end()
    last = line[begin:].strip()
    if last:
        sentences.append(last)
    return sentences


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# In scripts that write no spaces a full stop ends the sentence wherever it stands.
_END = re.compile(r"""[.!?…؟۔।]+["'”’»)\]]*(?=\s)|[。！？]+[」』”’）]*""")
_WORD_BEFORE = re.compile(r"[^\s(\[\"“‘«]*\Z")
_OPENING = "\"'“‘«([¿¡"
_NUMBERED = re.compile(r"\(?[0-9]{1,3}|[a-zA-Z]|[ivxIVX]+")

# Always followed by more: titles before names, Latin short forms.
_NEVER = _words(
    "mr mrs ms dr prof rev hon gen col lt maj capt cmdr adm sgt cpl gov sen rep pres mt "
    "messrs mme mlle vs v cf e.g i.e viz approx"
)
# Followed by more when that is a number; some are also words that end a sentence.
_BEFORE_NUMBERS = _words(
    "no nos fig figs eq eqs art sec ch chap vol vols p pp ca c b d r fl jan feb mar apr jun jul "
    "aug sep sept oct nov dec"
)
# May stand inside a sentence or close one.
_MAYBE = _words(
    "st inc ltd co corp dept univ bros jr sr esq al etc ft ph.d m.d b.a m.a d.c a.m p.m u.s u.k "
    "u.n u.s.a u.s.s.r b.c a.d b.c.e c.e e.u"
)
_OPENERS = _words(
    "The A An In On At It Its He She They We You I This That These Those There His Her Their "
    "Our My Your As After Before During When While Although Though However But And Or So For "
    "From By With Since Until Because If Then Thus Also Other Some Many Most All Both Each One "
    "Two According Despite What Who Where Why How Not No"
)
_OPENER = re.compile(r"([A-Z][a-z]*)(?=[\s,])")


def _ends_sentence(line: str, begin: int, match: re.Match[str]) -> bool:
    mark = match.group()
    if mark[0] in "。！？":
        return True
    after = line[match.end() : match.end() + 40].lstrip()
    if not after:
        return False  # The end of the line ends the sentence anyway.
    first = after.lstrip(_OPENING)[:1] or after[:1]
    if first.islower():
        return False
    if mark[0] != "." or mark.startswith(".."):
        return True
    # Only the last characters are looked at: a long line must not be copied at every period.
    return _period_ends(line[max(begin, match.start() - 40) : match.start()], mark, after)


def _period_ends(before: str, mark: str, after: str) -> bool:
    """Say whether a single period, with what stands on both sides of it, ends a sentence."""
    if _NUMBERED.fullmatch(before.strip()):
        return False
    found = _WORD_BEFORE.search(before)
    word = found.group() if found else ""
    small = word.lower()
    if len(mark) > 1:
        return True  # A closing quote or bracket followed the period.
    if small in _NEVER and not (word.isupper() and len(word) > 1):
        return False
    if small in _BEFORE_NUMBERS and after[:1].isdigit():
        return False
    initial = len(word) == 1 and word.isalpha() and word.isupper()
    dotted = "." in word and all(len(part) <= 1 for part in word.split("."))
    if initial or dotted or small in _MAYBE:
        opener = _OPENER.match(after.lstrip(_OPENING))
        return opener is not None and opener.group(1) in _OPENERS
    return True
