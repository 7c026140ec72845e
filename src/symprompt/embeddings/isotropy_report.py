"""The command about isotropy: fit on one text, measure on another, every layer."""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from symprompt.embeddings.isotropy import (
    LayerIsotropy,
    Moments,
    Standardiser,
    layer_vectors,
    measure_isotropy,
)
from symprompt.embeddings.similarity import FrequencyBand, cosine_by_frequency
from symprompt.embeddings.states import Choice, Pool, Vectors, embed_chunks, layer_count
from symprompt.embeddings.words import Text
from symprompt.errors import ConfigError
from symprompt.files.atomic import write_json
from symprompt.files.progress import Tick, silent
from symprompt.files.text import read_documents
from symprompt.models import LanguageModel
from symprompt.runs.environment import derive_seed, describe_environment

LAST = 4


@dataclass(frozen=True)
class IsotropyReport:
    """What was measured, layer by layer and by word frequency, and where the files are.

    Attributes:
        layers: every layer from the embeddings on, then the sum of the last ones.
        before, after: cosines by word frequency of the sum of the last layers.
        standardisers: name of the layers -> file.
    """

    layers: tuple[LayerIsotropy, ...]
    before: tuple[FrequencyBand, ...]
    after: tuple[FrequencyBand, ...]
    standardisers: dict[str, str]
    about: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return asdict(self)


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
) -> IsotropyReport:
    """Fit standardisers on one text and say how isotropic the model is on another.

    Written to OUT: ``isotropy.json``, and a standardiser for the last layer and for the sum of the
    last four (of all, if there are fewer), to be given to ``symprompt similarity``.

    Args:
        backbone: the model.
        fit_on: files or folders whose words' means and deviations are taken.
        measure_on: other files; cosines are of these words.
        out: the folder to write.
        pool: how a word's sub-tokens become one vector.
        limit: at most so many words of each, in lines drawn from all over it; 0 takes all.
        seed: of the draw.
        tick: told of the words done, stages "fit" and "measure".

    Raises:
        ConfigError: the limit is negative.
    """
    if limit < 0:
        raise ConfigError(f"limit is {limit}; give 0 for all words, or how many.")
    folder = Path(out)
    last = min(LAST, layer_count(backbone))
    names = [*(str(number) for number in range(layer_count(backbone) + 1)), f"sum-last-{last}"]
    moments = Moments()
    for vectors in layer_vectors(_chunks(backbone, fit_on, pool, limit, seed), last, limit=limit):
        moments.add(vectors)
        tick("fit", moments.count, max(limit, moments.count), "words")
    fitted = moments.standardiser()
    words: list[str] = []
    sums: list[npt.NDArray[np.floating]] = []
    held = _keeping(
        _chunks(backbone, measure_on, pool, limit, seed), words, sums, last, limit, tick
    )
    layers = measure_isotropy(held, fitted, names)
    paths = _save(fitted, backbone, pool, names, folder)
    whole = np.concatenate(sums)
    report = IsotropyReport(
        layers,
        cosine_by_frequency(words, whole),
        cosine_by_frequency(words, whole, fitted.at(-1)),
        paths,
        {
            "model": backbone.source,
            "pool": pool,
            "seed": seed,
            "words fitted on": moments.count,
            "words measured on": len(words),
            "fitted on": [Path(name).name for name in fit_on],
            "measured on": [Path(name).name for name in measure_on],
            "environment": describe_environment(backbone.device),
        },
    )
    write_json(folder / "isotropy.json", report.to_dict())
    return report


def _chunks(
    backbone: LanguageModel, sources: Sequence[str], pool: Pool, limit: int, seed: int
) -> Iterator[Vectors]:
    return embed_chunks(backbone, draw_lines(sources, limit, seed), Choice("all", pool))


def _keeping(
    chunks: Iterable[Vectors],
    words: list[str],
    sums: list[npt.NDArray[np.floating]],
    last: int,
    limit: int,
    tick: Tick,
) -> Iterator[npt.NDArray[np.floating]]:
    """Yield the chunks' vectors, keeping their words and the sums of the last layers."""
    for found in chunks:
        (vectors,) = layer_vectors([found], last)
        there = (found.tokens > 0).tolist()
        own = [word for text in found.texts for word in text.words()]
        room = limit - len(words) if limit else None
        kept = [word for word, has in zip(own, there, strict=True) if has][:room]
        words += kept
        sums.append(vectors[: len(kept), -1])
        tick("measure", len(words), max(limit, len(words)), "words")
        yield vectors[: len(kept)]


def _save(
    fitted: Standardiser, backbone: LanguageModel, pool: Pool, names: Sequence[str], folder: Path
) -> dict[str, str]:
    paths = {}
    for place, layers in ((-2, "last"), (-1, names[-1])):
        path = folder / f"standardiser-{layers}.safetensors"
        about = {
            "model": backbone.source,
            "fingerprint": backbone.fingerprint,
            "layers": layers,
            "pool": pool,
            "words": fitted.about["words"],
        }
        Standardiser(fitted.mean[place], fitted.deviation[place], about).save(path)
        paths[layers] = str(path)
    return paths
