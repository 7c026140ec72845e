"""The cosine of two word occurrences, and how it goes with a word's frequency."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from symprompt.embeddings.isotropy import Standardiser, unit
from symprompt.embeddings.states import Choice
from symprompt.embeddings.vectors import WordVectors, embed
from symprompt.embeddings.words import Text
from symprompt.errors import DataError, RunError
from symprompt.models import LanguageModel


@dataclass(frozen=True)
class Occurrence:
    """A word in a text: the text with the word marked by brackets, "the [die] is cast"."""

    text: Text
    word: int

    @classmethod
    def parse(cls, marked: str) -> Occurrence:
        """Read a text in which one word stands in brackets.

        Raises:
            DataError: none or several are marked, or what is marked is no single word.
        """
        before, opened, rest = marked.partition("[")
        word, closed, after = rest.partition("]")
        if not opened or not closed or "[" in after or not word.strip():
            raise DataError(
                f"{marked!r} does not mark one word; put it in brackets: the [die] is cast."
            )
        text = Text.running(before + word + after)
        first = len(before) + len(word) - len(word.lstrip())
        at = np.flatnonzero((text.starts <= first) & (text.ends > first))
        if len(at) != 1 or text.words()[int(at[0])] != word.strip():
            raise DataError(f"{word!r} in {marked!r} is no single word; mark one word only.")
        return cls(text, int(at[0]))


def cosine(one: npt.NDArray[np.floating], other: npt.NDArray[np.floating]) -> float:
    """Return the cosine of two vectors; 0 if one of them is zero."""
    return float(unit(one.astype(np.float64)) @ unit(other.astype(np.float64)))


def compare(
    occurrences: Sequence[Occurrence],
    backbone: LanguageModel,
    choice: Choice,
    standardiser: Standardiser | None = None,
) -> npt.NDArray[np.float64]:
    """Return the cosine of every two occurrences, [n, n].

    Raises:
        RunError: the standardiser was fitted on another width or other layers.
    """
    found: WordVectors = embed(
        [occurrence.text for occurrence in occurrences],
        model=backbone,
        layers=choice.layers,
        pool=choice.pool,
    )
    rows = [found.of_text(place)[entry.word] for place, entry in enumerate(occurrences)]
    vectors: npt.NDArray[np.floating] = np.stack(rows).astype(np.float64)
    if standardiser is not None:
        check_standardiser(standardiser, choice, vectors.shape[1], backbone.fingerprint)
        vectors = standardiser.apply(vectors)
    ready = unit(vectors)
    return np.asarray(ready @ ready.T, dtype=np.float64)


def check_standardiser(
    standardiser: Standardiser, choice: Choice, width: int, fingerprint: str
) -> None:
    """Refuse a standardiser that was fitted on other vectors.

    Raises:
        RunError: model, layers, pooling or width differ.
    """
    about: dict[str, Any] = standardiser.about
    wanted = {"fingerprint": fingerprint, "layers": choice.layers, "pool": choice.pool}
    for key, value in wanted.items():
        if about.get(key) != value:
            raise RunError(
                f"the standardiser was fitted with {key} {about.get(key)!r}, not {value!r}; "
                "fit one with: symprompt isotropy."
            )
    if standardiser.mean.shape != (width,):
        raise RunError(f"the standardiser has shape {standardiser.mean.shape}, not ({width},).")


@dataclass(frozen=True)
class FrequencyBand:
    """Words of about the same frequency.

    Attributes:
        low, high: occurrences in the corpus, both included.
        types: how many different words.
        same: mean cosine of two occurrences of the same word, mean over words.
        other: mean cosine of occurrences of two different words of the band.
    """

    low: int
    high: int
    types: int
    same: float
    other: float


def cosine_by_frequency(
    words: Sequence[str] | npt.NDArray[np.str_],
    vectors: npt.NDArray[np.floating],
    standardiser: Standardiser | None = None,
    *,
    base: int = 4,
) -> tuple[FrequencyBand, ...]:
    """Return mean cosines in bands of word frequency, from words seen twice on.

    Words are taken as written, in lower case. All pairs are counted, by sums of unit vectors.

    Args:
        words: every word of a corpus, in which frequencies are counted too.
        vectors: [words, h].
        standardiser: applied first, if given.
        base: each band is this many times as frequent as the one before.
    """
    lower = np.char.lower(np.asarray(words, dtype=np.str_))
    types, owner, counts = np.unique(lower, return_inverse=True, return_counts=True)
    letters = np.array([any(sign.isalnum() for sign in name) for name in types], dtype=bool)
    sums = np.zeros((len(types), vectors.shape[1]), dtype=np.float64)
    for start in range(0, len(owner), 8192):
        part = np.asarray(vectors[start : start + 8192], dtype=np.float32)
        part = unit(part if standardiser is None else standardiser.apply(part))
        np.add.at(sums, owner[start : start + 8192], part)
    own = (sums**2).sum(axis=1)
    bands = []
    low = 2
    while low <= int(counts.max(initial=0)):
        high = low * base - 1
        chosen = np.flatnonzero((counts >= low) & (counts <= high) & letters)
        if len(chosen):
            number = counts[chosen].astype(np.float64)
            same = (own[chosen] - number) / (number * (number - 1))
            total, words_in = sums[chosen].sum(axis=0), number.sum()
            pairs = words_in**2 - (number**2).sum()
            other = (total @ total - own[chosen].sum()) / pairs if len(chosen) > 1 else float("nan")
            bands.append(FrequencyBand(low, high, len(chosen), float(same.mean()), float(other)))
        low *= base
    return tuple(bands)
