"""Cosines of words where they stand and of whole texts: all of some, pairs, nearest neighbours."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from symprompt.embeddings.isotropy import Floats, Standardiser, unit
from symprompt.embeddings.store import EmbeddingStore
from symprompt.embeddings.vectors import Choice, Ints, Text, WordVectors, embed_chunks
from symprompt.errors import DataError, RunError
from symprompt.files.progress import Tick, silent
from symprompt.files.reading import (
    load_rows,
    number_in,
    read_columns,
    rename,
    text_in,
)
from symprompt.models import LanguageModel

# Rows of a store that are read at once.
_ROWS = 8192
Vectors = npt.NDArray[np.floating]
Place = tuple[str, str, int, int]
Show = Callable[[int], Place]
_ROLES = {
    "first": ("first", "sentence1", "text1"),
    "second": ("second", "sentence2", "text2"),
    "score": ("score",),
}


@dataclass(frozen=True)
class Pairs:
    """Texts two by two, a word marked in each if words are compared.

    Attributes:
        first, second: [n] each.
        scores: [n], how alike people find them; empty if nobody was asked.
    """

    first: tuple[str, ...]
    second: tuple[str, ...]
    scores: tuple[float, ...] = ()


def read_pairs(path: str | Path, columns: Mapping[str, str] | Sequence[str] = ()) -> Pairs:
    """Read a .jsonl, .csv or .tsv file with the columns first, second and, if wanted, score.

    Args:
        path: the file.
        columns: what it calls its columns, as {"first": "question"} or ["first=question"].

    Raises:
        DataError: a line has no two texts, or not every line a score, or it has one that is no
            number.
        ConfigError: columns names no role.
    """
    file = Path(path)
    called = read_columns(columns, _ROLES)
    first, second, scores = [], [], []
    scored = False
    for number, row in load_rows(file, any_case=True):
        row = rename(row, called, _ROLES, file, number)
        first.append(text_in(row, _ROLES["first"], file, number))
        second.append(text_in(row, _ROLES["second"], file, number))
        scored = scored or "score" in row
        if scored:
            scores.append(number_in(row, "score", file, number))
    if not first:
        raise DataError(f"{file} holds no pair; give a line for each.")
    return Pairs(tuple(first), tuple(second), tuple(scores))


def spearman(one: npt.ArrayLike, other: npt.ArrayLike) -> float | None:
    """Return the correlation of two lists' ranks, ties at their mean; None if one is constant."""
    ranks = []
    for values in (one, other):
        _, place, counts = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
        rank = (np.cumsum(counts) - (counts - 1) / 2)[place]
        ranks.append(rank - rank.mean())
    norms = [float(np.sqrt((rank**2).sum())) for rank in ranks]
    return float(ranks[0] @ ranks[1]) / (norms[0] * norms[1]) if all(norms) else None


@dataclass(frozen=True)
class Neighbour:
    """A text, its word in brackets if words are compared, its label and its cosine with a query."""

    cosine: float
    text: str
    label: str


@dataclass(frozen=True)
class Comparer:
    """Compares texts, or the word that each holds, by what a model makes of them; final.

    Attributes:
        choice: what has a vector, the layers, and how its tokens are pooled.
        standardiser: subtracts a mean and divides by a deviation first, if given.
    """

    backbone: LanguageModel
    choice: Choice
    standardiser: Standardiser | None = None

    def __post_init__(self) -> None:
        self.choice.check(self.backbone)
        if self.standardiser is None:
            return
        self._check(self.standardiser.about, "the standardiser was fitted", "symprompt isotropy")
        fitted = self.standardiser.mean.shape
        width = (int(self.backbone.model.config.get_text_config().hidden_size),)
        if fitted != width:
            raise RunError(f"the standardiser has shape {fitted}, not {width}.")

    def _check(self, about: Mapping[str, Any], made: str, command: str) -> None:
        """Refuse what was made with another model, layers or pooling."""
        own = {"fingerprint": self.backbone.fingerprint}
        own |= {"layers": self.choice.layers, "pool": self.choice.pool}
        for key, value in own.items():
            if about.get(key) != value:
                raise RunError(
                    f"{made} with {key} {about.get(key)!r}, not {value!r}; give the same, or make "
                    f"one with: {command}."
                )

    def _units(self, vectors: Vectors) -> Floats:
        """Return vectors standardised and of length one."""
        wide: Vectors = vectors.astype(np.float64)
        if self.standardiser is not None:
            # What has no token keeps its vector of zeros.
            wide = self.standardiser.apply(wide) * wide.any(axis=1, keepdims=True)
        return np.asarray(unit(wide), dtype=np.float64)

    def vectors(self, texts: Sequence[Text], tick: Tick = silent) -> Floats:
        """Return the vectors of texts with one word each, standardised, of length one: [n, h]."""
        chunks = embed_chunks(self.backbone, texts, self.choice, total=len(texts), tick=tick)
        return np.concatenate([self._units(found.vectors) for found in chunks])

    def table(self, texts: Sequence[Text]) -> Floats:
        """Return the cosine of every two texts (or words in them), [n, n]."""
        found = self.vectors(texts)
        return np.asarray(found @ found.T)

    def pairs(self, pairs: Pairs, tick: Tick = silent) -> Floats:
        """Return the cosine of the two texts (or words in them) of each pair, [n]."""
        every = dict.fromkeys(pairs.first + pairs.second)
        found = self.vectors([self.choice.read(text) for text in every], tick)
        row = {text: place for place, text in enumerate(every)}
        one, other = (found[[row[text] for text in own]] for own in (pairs.first, pairs.second))
        return np.asarray((one * other).sum(axis=1))

    def nearest(
        self,
        queries: Sequence[Text],
        among: Iterable[Text] | EmbeddingStore,
        top: int = 10,
        tick: Tick = silent,
    ) -> list[list[Neighbour]]:
        """Return those texts (or words in texts) whose cosine with each query is highest.

        A text that stands there several times is returned once.

        Args:
            queries: with one word each.
            among: texts, whose words, or which as a whole, are compared; or stored vectors.
            top: how many for each query, the nearest first.
            tick: called with the texts done, stage "embed".

        Raises:
            RunError: vectors were stored with another model, layers or pooling.
        """
        asked = self.vectors(queries)
        best: list[dict[tuple[str, str], float]] = [{} for _ in queries]
        for vectors, show in (
            self._stored(among) if isinstance(among, EmbeddingStore) else self._made(among, tick)
        ):
            cosines = asked @ self._units(vectors).T
            for own, row in zip(best, cosines, strict=True):
                most = len(own) + top
                for place in np.argsort(-row, kind="stable").tolist():
                    text, label, start, end = show(place)
                    if not self.choice.of_texts:
                        text = f"{text[:start]}[{text[start:end]}]{text[end:]}"
                    own.setdefault((text, label), float(row[place]))
                    if len(own) == most:
                        break
                kept = sorted(own.items(), key=lambda entry: -entry[1])[:top]
                own.clear()
                own.update(kept)
        return [[Neighbour(cosine, *named) for named, cosine in own.items()] for own in best]

    def _made(self, texts: Iterable[Text], tick: Tick) -> Iterator[tuple[Vectors, Show]]:
        """Yield vectors, and what says of a row its text, label, first character and end."""
        for found in embed_chunks(self.backbone, texts, self.choice, tick=tick):
            ends = np.cumsum([len(text) for text in found.texts])

            def show(row: int, found: WordVectors = found, ends: Ints = ends) -> Place:
                place = int(np.searchsorted(ends, row, side="right"))
                text, word = found.texts[place], row - int(ends[place])
                return text.text, text.label, int(text.starts[word]), int(text.ends[word])

            yield found.vectors, show

    def _stored(self, store: EmbeddingStore) -> Iterator[tuple[Vectors, Show]]:
        """Yield stored vectors, with the same beside them."""
        self._check(store.about, f"the vectors in {store.folder} were made", "symprompt embed")
        for first in range(0, len(store), _ROWS):

            def show(row: int, first: int = first) -> Place:
                word = store.word(first + row)
                text = store.texts[word.text]
                return text["text"], text["label"], word.start, word.end

            yield store.vectors[first : first + _ROWS], show
