"""How far all vectors of a model point one way, and what to do where all cosines are high.

The anisotropy of a model (Ethayarajh 2019) is the expected cosine of two random words of a corpus.
It needs no sampling: with unit vectors u, the mean over all pairs of different occurrences is
(|sum u|^2 - n) / (n (n - 1)), and each dimension's term of that sum is its share (Timkey and van
Schijndel 2021, who call dimensions with a large share rogue). Standardising is equations 11.10 to
11.12 of Jurafsky and Martin's chapter: subtract each dimension's mean, divide by its deviation.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from symprompt.embeddings.vectors import (
    Choice,
    Pool,
    Text,
    WordVectors,
    embed_chunks,
    layer_count,
)
from symprompt.errors import DataError, RunError
from symprompt.files.atomic import read_finite_arrays, write_arrays
from symprompt.files.progress import Tick, silent
from symprompt.files.text import read_documents
from symprompt.models import LanguageModel
from symprompt.runs.environment import derive_seed, describe_environment, made_with
from symprompt.runs.folder import Folder, Manifest, Record

Floats = npt.NDArray[np.float64]
_ROWS = 8192
_LAST = 4
_TOP = 3


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
        write_arrays(Path(path), {"mean": self.mean, "deviation": self.deviation}, self.about)

    @classmethod
    def load(cls, path: str | Path) -> Standardiser:
        """Read it back.

        Raises:
            RunError: it is missing, not one, or not finite.
        """
        try:
            arrays, about = read_finite_arrays(Path(path))
            return cls(arrays["mean"], arrays["deviation"], about)
        except (RunError, KeyError):
            raise RunError(
                f"{path} holds no finite mean and deviation; give a file that symprompt isotropy "
                "wrote."
            ) from None


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
        """Add vectors [n, h] or [n, layers, h]."""
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

    def standardiser(self) -> Standardiser:
        """Return mean and deviation of what was added.

        Raises:
            DataError: it was less than two vectors.
        """
        if self.count < 2:
            raise DataError(f"{self.count} vectors are too few to standardise by; give more text.")
        return Standardiser(self._mean, np.sqrt(self._squares / self.count), {"words": self.count})


class Directions:
    """Sums of unit vectors over a stream: the expected cosine and each dimension's share; final."""

    def __init__(self) -> None:
        self.count = 0
        self._sum: Any = 0.0
        self._squares: Any = 0.0

    def add(self, vectors: npt.NDArray[np.floating]) -> None:
        """Add vectors [n, h] or [n, layers, h]."""
        units = unit(vectors.astype(np.float64))
        self._sum = self._sum + units.sum(axis=0)
        self._squares = self._squares + (units**2).sum(axis=0)
        self.count += len(vectors)

    def contributions(self) -> Floats:
        """Return what each dimension adds to the expected cosine, [h] or [layers, h].

        Raises:
            DataError: there were less than two vectors.
        """
        if self.count < 2:
            raise DataError(f"{self.count} vectors make no pair; give more text.")
        pairs = self.count * (self.count - 1)
        found: Floats = (self._sum**2 - self._squares) / pairs
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
    plain: Directions, scaled: Directions, names: Sequence[str]
) -> tuple[LayerIsotropy, ...]:
    """Return each layer's expected cosine before and after standardising.

    Args:
        plain: of vectors [n, layers, h].
        scaled: of the same, standardised by what was fitted on another corpus.
        names: of the layers.
    """
    after = scaled.contributions().sum(axis=-1)
    found = []
    for number, (name, terms) in enumerate(zip(names, plain.contributions(), strict=True)):
        order = np.argsort(terms)[::-1][:_TOP]
        total = float(terms.sum())
        shares = tuple((int(place), float(terms[place] / total)) for place in order)
        found.append(LayerIsotropy(name, total, float(after[number]), shares))
    return tuple(found)


def layer_vectors(
    chunks: Iterable[WordVectors], last: int = _LAST, *, limit: int = 0
) -> Iterator[tuple[list[str], npt.NDArray[np.floating]]]:
    """Yield words and their vectors [n, layers + 1, h]: every layer, then the last ones' sum.

    Words without sub-tokens are left out. So few are yielded at a time that they fit in float64.

    Args:
        chunks: made with layers "all".
        last: how many layers are summed.
        limit: at most so many words; 0 takes all.
    """
    left = limit or None
    for found in chunks:
        there = found.tokens > 0
        words = list(compress(found.words(), there))[:left]
        vectors = found.vectors[there][:left]
        for start in range(0, len(words), _ROWS):
            part = vectors[start : start + _ROWS]
            total = part[:, -last:].sum(axis=1, keepdims=True)
            yield words[start : start + _ROWS], np.concatenate([part, total], axis=1)
        if left is not None:
            left -= len(words)
            if left <= 0:
                return


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
    for start in range(0, len(owner), _ROWS):
        part = np.asarray(vectors[start : start + _ROWS], dtype=np.float32)
        part = unit(part if standardiser is None else standardiser.apply(part))
        np.add.at(sums, owner[start : start + _ROWS], part)
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


def draw_lines(sources: Sequence[str], limit: int, seed: int = 0) -> list[Text]:
    """Return lines drawn from all over a corpus, with about so many words together; 0 takes all.

    The words of one document are about one thing, so a few whole documents are no sample of random
    words. Each line is kept or not by a number drawn for it.
    """
    generator = random.Random(derive_seed("lines", seed))
    kept: list[tuple[float, int, int, str]] = []
    total = 0
    lines = (line for document in read_documents(sources) for line in document.lines)
    for number, line in enumerate(lines):
        words = len(line.split())
        heapq.heappush(kept, (-generator.random(), number, words, line))
        total += words
        while limit and len(kept) > 1 and total - kept[0][2] >= limit:
            total -= heapq.heappop(kept)[2]
    return [Text.running(line) for _, _, _, line in sorted(kept, key=lambda entry: entry[1])]


def measure_model(
    backbone: LanguageModel,
    fit_on: Sequence[str],
    measure_on: Sequence[str],
    out: str | Path,
    *,
    pool: Pool = "mean",
    limit: int = 100_000,
    seed: int = 0,
    tick: Tick = silent,
) -> dict[str, Any]:
    """Fit standardisers on one text and measure how isotropic the model is on another.

    Written to OUT: ``isotropy.json``, and a standardiser for the last layer and for the sum of the
    last four (of all, if there are fewer), to be given to ``symprompt similarity``.

    Args:
        backbone: the model.
        fit_on: files or folders whose words' means and deviations are taken.
        measure_on: other files; cosines are of these words.
        out: the folder to write.
        pool: how a word's sub-tokens become one vector; or how a text's do: each line is one then.
        limit: at most so many words of each, in lines drawn from all over it; 0 takes all.
        seed: of the draw.
        tick: called with the words done, stages "fit" and "measure".

    Returns:
        What is written to ``isotropy.json``: "layers", a `LayerIsotropy` for every layer from the
        embeddings on and for the sum of the last ones; "before" and "after", a `FrequencyBand` for
        cosines of the sum by word frequency (none for texts); "standardisers", name of the layers
        -> file.
    """
    folder = Folder(out)
    manifest = Manifest(
        command="isotropy",
        model=backbone.source,
        model_fingerprint=backbone.fingerprint,
        data=", ".join(Path(name).name for name in measure_on),
        method=pool,
        seeds=(seed,),
        positions=backbone.max_length,
        **made_with(backbone.device, backbone.dtype),
    )
    folder.start(None, manifest)
    count = layer_count(backbone)
    last = min(_LAST, count)
    names = [*(str(number) for number in range(count + 1)), f"sum-last-{last}"]

    def read(sources: Sequence[str]) -> Iterator[tuple[list[str], npt.NDArray[np.floating]]]:
        lines = draw_lines(sources, limit, seed)
        chunks = embed_chunks(backbone, lines, Choice("all", pool))
        return layer_vectors(chunks, last, limit=limit)

    moments = Moments()
    for _, vectors in read(fit_on):
        moments.add(vectors)
        tick("fit", moments.count, max(limit, moments.count), "words")
    fitted = moments.standardiser()
    words: list[str] = []
    sums: list[npt.NDArray[np.floating]] = []
    plain, scaled = Directions(), Directions()
    for own_words, vectors in read(measure_on):
        plain.add(vectors)
        scaled.add(fitted.apply(vectors))
        words += own_words
        sums.append(vectors[:, -1].copy())
        tick("measure", len(words), max(limit, len(words)), "words")
    layers = measure_isotropy(plain, scaled, names)
    about = {"model": backbone.source, "fingerprint": backbone.fingerprint, "pool": pool}
    fits = {
        name: Standardiser(
            fitted.mean[place],
            fitted.deviation[place],
            {**about, "layers": name, "words": moments.count},
        )
        for place, name in ((-2, "last"), (-1, names[-1]))
    }
    paths = {name: folder.path / f"standardiser-{name}.safetensors" for name in fits}
    for name, own in fits.items():
        own.save(paths[name])
    bands: dict[str, list[dict[str, Any]]] = {"before": [], "after": []}
    if not Choice(pool=pool).of_texts:
        whole = np.concatenate(sums)
        for key, fit in {"before": None, "after": fits[names[-1]]}.items():
            bands[key] = [asdict(band) for band in cosine_by_frequency(words, whole, fit)]
    report = {
        "layers": [asdict(layer) for layer in layers],
        **bands,
        "standardisers": {name: str(path) for name, path in paths.items()},
        "about": {
            "model": backbone.source,
            "pool": pool,
            "seed": seed,
            "words fitted on": moments.count,
            "words measured on": len(words),
            "fitted on": [Path(name).name for name in fit_on],
            "measured on": [Path(name).name for name in measure_on],
            "environment": describe_environment(backbone.device),
        },
    }
    folder.write_json("isotropy.json", report)
    kinds = {"expected cosine": "before", "expected cosine, standardised": "after"}
    records = [
        Record(metric=metric, value=getattr(layer, key), n=len(words), label=layer.layer)
        for layer in layers
        for metric, key in kinds.items()
    ]
    folder.finish(records=records)
    return report
