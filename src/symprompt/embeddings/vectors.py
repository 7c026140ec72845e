"""Contextual embeddings from Python: texts in, one vector for each of their words out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from symprompt.embeddings.states import Choice, Pool, embed_chunks
from symprompt.embeddings.words import Ints, Text, as_texts
from symprompt.errors import DataError
from symprompt.files.progress import Tick, silent
from symprompt.files.text import find_files, read_documents
from symprompt.models import SHIPPED, LanguageModel

By = Literal["document", "line"]


@dataclass(frozen=True)
class WordVectors:
    """The words of some texts and their vectors, row by row.

    Attributes:
        texts: the texts, in the order they were given.
        vectors: [words, h] (or [words, layers, h]).
        text: [words], the text each word stands in.
        tokens: [words], how many sub-tokens it has; 0 for one the tokenizer left out, whose vector
            is zero.
    """

    texts: tuple[Text, ...]
    vectors: npt.NDArray[np.floating]
    text: Ints
    tokens: Ints

    def words(self) -> list[str]:
        """Return every row's word as it is written."""
        return [word for text in self.texts for word in text.words()]

    def of_text(self, number: int) -> npt.NDArray[np.floating]:
        """Return the vectors of one text's words."""
        first, last = np.searchsorted(self.text, [number, number + 1])
        return self.vectors[first:last]


def embed(
    texts: Iterable[str | Sequence[str] | Text],
    *,
    model: str | LanguageModel = SHIPPED,
    layers: str = "last",
    pool: Pool = "mean",
    window: int = 0,
    device: str = "auto",
    tick: Tick = silent,
) -> WordVectors:
    """Return a contextual embedding of every word of every text, in memory.

    Texts longer than the model reads are cut into windows that overlap by half; each word is taken
    from the window in which it has most context. For more than memory holds, ``write_embeddings``.

    Args:
        texts: strings, whose words are found, or lists of words.
        model: a folder, hub name or "shipped", masked or causal; or a loaded backbone.
        layers: last, mean-last-4, sum-last-4 (or another number), a layer's number, or all.
        pool: a word's first sub-token, or the mean of all of them.
        window: tokens of a window; 0 takes as many as the model reads.
        device: auto, cpu, cuda, cuda:N or mps.
        tick: told of the texts done, stage "embed".

    Raises:
        DataError: there is no text, or one is not text.

    Example:
        >>> found = symprompt.embed(["The die is cast ."])  # doctest: +SKIP
        >>> found.words()[1], found.vectors.shape            # doctest: +SKIP
        ('die', (5, 256))
    """
    if isinstance(texts, str):
        raise DataError("texts is one string; give a list of texts, such as [text].")
    given = list(as_texts(texts))
    if not given:
        raise DataError("there is no text to embed; give at least one.")
    backbone = (
        model if isinstance(model, LanguageModel) else LanguageModel.load(model, device=device)
    )
    choice = Choice(layers, pool, window)
    done, vectors, tokens = 0, [], []
    for found in embed_chunks(backbone, given, choice):
        vectors.append(found.vectors)
        tokens.append(found.tokens)
        done += len(found.texts)
        tick("embed", done, len(given), "texts")
    counts = [len(text) for text in given]
    return WordVectors(
        tuple(given),
        np.concatenate(vectors),
        np.repeat(np.arange(len(given)), counts),
        np.concatenate(tokens),
    )


def read_corpus(
    sources: Sequence[str | Path], by: By = "document", *, holding: Sequence[str] = ()
) -> Iterator[Text]:
    """Yield the texts of files or folders: documents, or each of their lines by itself.

    A source may carry its language in front (``de=FILE``), which becomes the texts' label.

    Args:
        sources: files and folders.
        by: document or line.
        holding: only texts with one of these in them, in upper or lower case; empty takes all.

    Raises:
        DataError: a source is missing, empty or not text.
    """
    wanted = [word.casefold() for word in holding]
    for document in read_documents(sources):
        for part in document.lines if by == "line" else ("\n".join(document.lines),):
            if not wanted or any(word in part.casefold() for word in wanted):
                yield Text.running(part, document.language)


def describe_corpus(sources: Sequence[str | Path], by: By = "document") -> dict[str, Any]:
    """Return what tells one corpus from another: its files with their sizes, and how it is cut."""
    return {"files": [file.label for file in find_files(sources)], "by": by}
