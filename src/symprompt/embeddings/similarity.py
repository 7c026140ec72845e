"""The cosine of word occurrences, each marked in its text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from symprompt.embeddings.isotropy import Standardiser, unit
from symprompt.embeddings.vectors import Choice, WordVectors, embed
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
