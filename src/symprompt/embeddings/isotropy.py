"""How much all word vectors point one way, which dimensions make them, and how to undo it.

The anisotropy of a model (Ethayarajh 2019) is the expected cosine of two random words of a corpus.
It needs no sampling: with unit vectors u, the mean over all pairs of different occurrences is
(|sum u|^2 - n) / (n (n - 1)), and each dimension's term of that sum is its share (Timkey and van
Schijndel 2021, who call dimensions with a large share rogue). Standardising is equations 11.10 to
11.12 of Jurafsky and Martin's chapter: subtract each dimension's mean, divide by its deviation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from symprompt.embeddings.states import Vectors
from symprompt.errors import DataError, RunError
from symprompt.files.atomic import read_tensors, write_tensors

Floats = npt.NDArray[np.float64]
_ROWS = 8192


def unit(vectors: npt.NDArray[np.floating]) -> npt.NDArray[np.floating]:
    """Return vectors of length one; those of zeros stay zeros."""
    norms = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / np.where(norms > 0, norms, 1)


@dataclass(frozen=True)
class Standardiser:
    """Mean and deviation of every dimension, [h] or [layers, h]; final.

    Attributes:
        mean: equation 11.10.
        deviation: equation 11.11; dimensions that never change are not divided.
        about: where it was fitted: model, layers, words.
    """

    mean: Floats
    deviation: Floats
    about: dict[str, Any]

    def apply(self, vectors: npt.NDArray[np.floating]) -> npt.NDArray[np.floating]:
        """Return standardised vectors (equation 11.12), in the dtype given, at least float32."""
        kind = np.promote_types(vectors.dtype, np.float32)
        scale = np.where(self.deviation > 0, self.deviation, 1)
        found: npt.NDArray[np.floating] = (
            vectors.astype(kind) - self.mean.astype(kind)
        ) / scale.astype(kind)
        return found

    def save(self, path: str | Path) -> None:
        """Write it as one safetensors file."""
        tensors = {
            "mean": torch.from_numpy(self.mean),
            "deviation": torch.from_numpy(self.deviation),
        }
        write_tensors(Path(path), tensors, self.about)

    @classmethod
    def load(cls, path: str | Path) -> Standardiser:
        """Read it back.

        Raises:
            RunError: it is missing or not one.
        """
        try:
            tensors, about = read_tensors(Path(path))
            return cls(tensors["mean"].numpy(), tensors["deviation"].numpy(), about)
        except (RunError, KeyError):
            raise RunError(
                f"{path} holds no mean and deviation; give a file that symprompt isotropy wrote."
            ) from None

    def at(self, layer: int) -> Standardiser:
        """Return one layer's part of a standardiser of all layers."""
        return Standardiser(self.mean[layer], self.deviation[layer], {**self.about, "layer": layer})


class Moments:
    """Mean and squares over a stream of vectors, [h] or [layers, h] each; final.

    The running mean and squares are merged chunk by chunk (Chan et al.), as a plain sum of squares
    loses its digits on a rogue dimension whose mean is far from zero.
    """

    def __init__(self) -> None:
        self.count = 0
        self._mean: Any = 0.0
        self._squares: Any = 0.0

    def add(self, vectors: npt.NDArray[np.floating]) -> None:
        """Count vectors [n, h] or [n, layers, h] in."""
        for start in range(0, len(vectors), _ROWS):
            part = vectors[start : start + _ROWS].astype(np.float64)
            count = len(part)
            mean = part.mean(axis=0)
            step = mean - self._mean
            total = self.count + count
            self._squares = (
                self._squares
                + ((part - mean) ** 2).sum(axis=0)
                + step**2 * (self.count * count / total)
            )
            self._mean = self._mean + step * (count / total)
            self.count = total

    def standardiser(self, about: dict[str, Any] | None = None) -> Standardiser:
        """Return mean and deviation of what was counted.

        Raises:
            DataError: it was less than two vectors.
        """
        if self.count < 2:
            raise DataError(f"{self.count} words are too few to standardise by; give more text.")
        deviation = np.sqrt(self._squares / self.count)
        return Standardiser(self._mean, deviation, {**(about or {}), "words": self.count})


class Directions:
    """Sums of unit vectors over a stream: the expected cosine and each dimension's share; final."""

    def __init__(self) -> None:
        self.count = 0
        self._sum: Any = 0.0
        self._squares: Any = 0.0

    def add(self, vectors: npt.NDArray[np.floating]) -> None:
        """Count vectors [n, h] or [n, layers, h] in."""
        for start in range(0, len(vectors), _ROWS):
            part = unit(vectors[start : start + _ROWS].astype(np.float64))
            self._sum = self._sum + part.sum(axis=0)
            self._squares = self._squares + (part**2).sum(axis=0)
        self.count += len(vectors)

    def contributions(self) -> Floats:
        """Return what each dimension adds to the expected cosine, [h] or [layers, h].

        Raises:
            DataError: there were less than two vectors.
        """
        if self.count < 2:
            raise DataError(f"{self.count} words make no pair; give more text.")
        pairs = self.count * (self.count - 1)
        found: Floats = (self._sum**2 - self._squares) / pairs
        return found

    def expected_cosine(self) -> Floats:
        """Return the mean cosine of two different words, [] or [layers]."""
        found: Floats = self.contributions().sum(axis=-1)
        return found


@dataclass(frozen=True)
class LayerIsotropy:
    """One layer's expected cosine before and after standardising, and its rogue dimensions.

    Attributes:
        layer: its name: a number from 0 (the embeddings) on, or the sum of the last ones.
        before, after: expected cosine of two random words.
        shares: the largest shares of ``before``, as (dimension, share), the largest first.
    """

    layer: str
    before: float
    after: float
    shares: tuple[tuple[int, float], ...]


def measure_isotropy(
    chunks: Iterable[npt.NDArray[np.floating]],
    standardiser: Standardiser,
    names: Sequence[str],
    *,
    top: int = 3,
) -> tuple[LayerIsotropy, ...]:
    """Return each layer's expected cosine before and after standardising.

    Args:
        chunks: vectors [n, layers, h] of another corpus than the standardiser was fitted on.
        standardiser: [layers, h].
        names: of the layers.
        top: how many dimensions to name.
    """
    plain, scaled = Directions(), Directions()
    for vectors in chunks:
        for start in range(0, len(vectors), _ROWS):
            part = vectors[start : start + _ROWS]
            plain.add(part)
            scaled.add(standardiser.apply(part))
    after = scaled.expected_cosine()
    found = []
    for number, (name, terms) in enumerate(zip(names, plain.contributions(), strict=True)):
        order = np.argsort(terms)[::-1][:top]
        total = float(terms.sum())
        shares = tuple((int(place), float(terms[place] / total)) for place in order)
        found.append(LayerIsotropy(name, total, float(after[number]), shares))
    return tuple(found)


def with_sum(vectors: npt.NDArray[np.floating], count: int = 4) -> npt.NDArray[np.floating]:
    """Return [n, layers + 1, h]: every layer, then the sum of the last ``count``."""
    total = vectors[:, -count:].sum(axis=1, keepdims=True)
    return np.concatenate([vectors, total], axis=1)


def layer_vectors(
    chunks: Iterable[Vectors], last: int = 4, *, limit: int = 0
) -> Iterator[npt.NDArray[np.floating]]:
    """Yield vectors of all layers and of the last ones' sum, words without sub-tokens left out.

    Args:
        chunks: made with layers "all".
        last: how many layers are summed.
        limit: at most so many words; 0 takes all.
    """
    left = limit or None
    for found in chunks:
        vectors = found.vectors[found.tokens > 0][:left]
        yield with_sum(vectors, last)
        if left is not None:
            left -= len(vectors)
            if left <= 0:
                return
