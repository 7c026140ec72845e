"""Tokenise documents in batches, and append them to the files of a growing shard."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from symprompt.pretrain.sentences import split_sentences
from symprompt.pretrain.text import Document

# Documents are tokenised together up to this many characters, and flushed to disk after as many
# tokens: both bound the memory whatever the size of the corpus.
_BATCH_CHARACTERS = 1 << 22
BUFFER_TOKENS = 1 << 20


@dataclass(frozen=True)
class ShardCard:
    """What corpus.json says of a shard."""

    name: str
    language: str
    tokens: int
    sentences: int
    documents: int


@dataclass(frozen=True, eq=False)
class Tokenised:
    """One document's sentences: ids and word starts one after another, and their lengths."""

    ids: np.ndarray
    starts_word: np.ndarray
    lengths: np.ndarray


class OpenShard:
    """A shard that still grows: buffers that are appended to its files when they are full."""

    def __init__(self, path: Path, language: str, dtype: np.dtype[Any]) -> None:
        self.path = path
        self.language = language
        self.types = {"tokens": dtype, "words": np.dtype(np.bool_)}
        self.types |= {"sentences": np.dtype("<i8"), "documents": np.dtype("<i8")}
        self.buffers: dict[str, list[np.ndarray]] = {name: [] for name in self.types}
        self.held = self.tokens = self.sentences = self.documents = 0

    def add(self, document: Tokenised, separator: int) -> None:
        """Append a document's tokens and the separator after them."""
        begins = self.tokens + np.cumsum(document.lengths) - document.lengths
        # Copies, in the width they are stored in: views would keep a whole batch alive.
        ids = document.ids.astype(self.types["tokens"])
        self.buffers["tokens"] += [ids, np.array([separator], dtype=ids.dtype)]
        self.buffers["words"] += [document.starts_word.copy(), np.array([False])]
        self.buffers["sentences"].append(begins)
        self.buffers["documents"].append(np.array([self.sentences]))
        self.tokens += len(document.ids) + 1
        self.sentences += len(document.lengths)
        self.documents += 1
        self.held += len(document.ids)
        if self.held >= BUFFER_TOKENS:
            self.flush()

    def flush(self) -> None:
        """Append what is held to the files."""
        for name, parts in self.buffers.items():
            if parts:
                with shard_file(self.path, name).open("ab") as stream:
                    stream.write(
                        np.concatenate(parts).astype(self.types[name], copy=False).tobytes()
                    )
            parts.clear()
        self.held = 0

    def close(self) -> ShardCard:
        """Write the rest and the closing offsets, and return what there is."""
        self.buffers["sentences"].append(np.array([self.tokens]))
        self.buffers["documents"].append(np.array([self.sentences]))
        self.flush()
        return ShardCard(self.path.name, self.language, self.tokens, self.sentences, self.documents)


def tokenise(
    documents: Iterable[Document], tokenizer: Tokenizer
) -> Iterator[tuple[Document, Tokenised]]:
    """Yield documents with their tokens; many are encoded at once, on every core."""
    for batch in _batches(documents):
        sentences = [
            [text for line in document.lines for text in split_sentences(line)]
            for document in batch
        ]
        # A space before all but the first: byte-level tokens of foreign tokenizers tell it apart.
        texts = [
            text if place == 0 else " " + text
            for document in sentences
            for place, text in enumerate(document)
        ]
        encodings = tokenizer.encode_batch(texts, add_special_tokens=False)
        lengths = np.array([len(encoding) for encoding in encodings], dtype=np.int64)
        total = int(lengths.sum())
        ids = np.fromiter(chain.from_iterable(e.ids for e in encodings), np.int64, total)
        words = _flat_words([encoding.word_ids for encoding in encodings], total)
        fresh = np.zeros(total, dtype=np.bool_)
        ends = np.cumsum(lengths)
        fresh[(ends - lengths)[lengths > 0]] = True
        fresh[1:] |= words[1:] != words[:-1]
        starts = fresh & (words >= 0)
        first = 0
        for document, own in zip(batch, sentences, strict=True):
            last = first + len(own)
            begin, end = (int(ends[at - 1]) if at else 0 for at in (first, last))
            kept = lengths[first:last]
            yield document, Tokenised(ids[begin:end], starts[begin:end], kept[kept > 0])
            first = last


def _flat_words(words: list[list[int | None]], total: int) -> np.ndarray:
    try:
        return np.fromiter(chain.from_iterable(words), np.int64, total)
    except TypeError:  # Tokens that belong to no word have None.
        flat = (-1 if word is None else word for word in chain.from_iterable(words))
        return np.fromiter(flat, np.int64, total)


def _batches(documents: Iterable[Document]) -> Iterator[list[Document]]:
    batch: list[Document] = []
    size = 0
    for document in documents:
        batch.append(document)
        size += sum(len(line) for line in document.lines)
        if size >= _BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def make_reader(tokenizer: PreTrainedTokenizerFast) -> Tokenizer:
    """Return a copy of the tokenizer's inner part that cuts nothing off and adds nothing."""
    reader = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    reader.no_truncation()
    reader.no_padding()
    reader.encode_special_tokens = True
    return reader


def shard_file(stem: Path, name: str) -> Path:
    """Return the path of one of a shard's files."""
    return stem.with_name(f"{stem.name}.{name}.bin")
