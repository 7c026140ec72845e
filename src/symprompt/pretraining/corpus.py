"""Tokenised text on disk: written once in shards, then read through memory maps."""

from __future__ import annotations

import errno
import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from symprompt.errors import DataError, RunError, counted
from symprompt.files.atomic import making_folder, reason, to_json
from symprompt.files.text import Document, gather, split_sentences
from symprompt.pretraining.tokenizer import find_specials
from symprompt.runs.environment import derive_seed

# Documents are tokenised together up to this many characters, and flushed to disk after as many
# tokens: both bound the memory whatever the size of the corpus.
_BATCH_CHARACTERS = 1 << 22
BUFFER_TOKENS = 1 << 20


Tokenised = tuple[np.ndarray, np.ndarray, np.ndarray]
"""One document's sentences: ids and word starts one after another, and the sentences' lengths."""


class OpenShard:
    """A shard that still grows: buffers that are appended to its files when they are full."""

    def __init__(
        self, path: Path, language: str, dtype: np.dtype[Any], unigrams: np.ndarray | None
    ) -> None:
        self.path = path
        self.language = language
        self.unigrams = unigrams
        self.types = {"tokens": dtype, "words": np.dtype(np.bool_)}
        self.types |= {"sentences": np.dtype("<i8"), "documents": np.dtype("<i8")}
        self.buffers: dict[str, list[np.ndarray]] = {name: [] for name in self.types}
        self.held = self.tokens = self.sentences = self.documents = 0

    def add(self, document: Tokenised, separator: int) -> None:
        """Append a document's tokens and the separator after them."""
        tokens, starts_word, lengths = document
        # Copies, in the width they are stored in: views would keep a whole batch alive.
        ids = tokens.astype(self.types["tokens"])
        self.buffers["tokens"] += [ids, np.array([separator], dtype=ids.dtype)]
        self.buffers["words"] += [starts_word.copy(), np.array([False])]
        self.buffers["sentences"].append(self.tokens + np.cumsum(lengths) - lengths)
        self.buffers["documents"].append(np.array([self.sentences]))
        self.tokens += len(ids) + 1
        self.sentences += len(lengths)
        self.documents += 1
        self.held += len(ids)
        if self.held >= BUFFER_TOKENS:
            self.flush()

    def flush(self) -> None:
        """Append what is held to the files."""
        for name, parts in self.buffers.items():
            if parts:
                whole = np.concatenate(parts).astype(self.types[name], copy=False)
                with shard_file(self.path, name).open("ab") as stream:
                    stream.write(whole.tobytes())
                if name == "tokens" and self.unigrams is not None:
                    self.unigrams += np.bincount(whole, minlength=len(self.unigrams))
            parts.clear()
        self.held = 0

    def close(self) -> dict[str, Any]:
        """Write the rest and the closing offsets, and return the shard's entry in corpus.json."""
        self.buffers["sentences"].append(np.array([self.tokens]))
        self.buffers["documents"].append(np.array([self.sentences]))
        self.flush()
        counts = ("language", "tokens", "sentences", "documents")
        return {"name": self.path.name, **{key: getattr(self, key) for key in counts}}


def tokenise(
    documents: Iterable[Document], tokenizer: Tokenizer
) -> Iterator[tuple[Document, Tokenised]]:
    """Yield documents with their tokens; many are encoded at once, on every core."""
    for batch in gather(documents, lambda own: sum(map(len, own.lines)), _BATCH_CHARACTERS):
        sentences = [
            [text for line in document.lines for text in split_sentences(line)]
            for document in batch
        ]
        # A space before all but the first: byte-level tokens of foreign tokenizers depend on it.
        texts = [
            text if place == 0 else " " + text
            for document in sentences
            for place, text in enumerate(document)
        ]
        encodings = tokenizer.encode_batch(texts, add_special_tokens=False)
        lengths = np.array([len(encoding) for encoding in encodings], dtype=np.int64)
        total = int(lengths.sum())
        ids = np.fromiter(chain.from_iterable(e.ids for e in encodings), np.int64, total)
        found = [encoding.word_ids for encoding in encodings]
        try:
            words = np.fromiter(chain.from_iterable(found), np.int64, total)
        except TypeError:  # Tokens that belong to no word have None.
            flat = (-1 if word is None else word for word in chain.from_iterable(found))
            words = np.fromiter(flat, np.int64, total)
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
            yield document, (ids[begin:end], starts[begin:end], kept[kept > 0])
            first = last


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


FORMAT = 1
CARD = "corpus.json"
UNIGRAMS = "unigrams.bin"
SHARD_TOKENS = 1 << 26
PARTS = ("train", "valid")


@dataclass(frozen=True, eq=False)
class Shard:
    """Whole documents of one language, as memory maps.

    Attributes:
        language: its name; "" when none was given.
        tokens: [t] uint16 or uint32, documents in order, the separator after each.
        starts_word: [t] bool, the first token of a word; separators are not.
        sentences: [s + 1] int64, where each sentence begins; the last is t. The last sentence of a
            document ends one token before the next begins, at the separator.
        documents: [d + 1] int64, the first sentence of each document; the last is s.
    """

    language: str
    tokens: np.ndarray
    starts_word: np.ndarray
    sentences: np.ndarray
    documents: np.ndarray


@dataclass(frozen=True, eq=False)
class Part:
    """The training or the validation documents; shards of one language stand together."""

    shards: tuple[Shard, ...]

    @property
    def documents(self) -> int:
        """Documents."""
        return sum(len(shard.documents) - 1 for shard in self.shards)

    def counts(self) -> dict[str, dict[str, int]]:
        """Return documents, sentences and tokens of each language."""
        counts: dict[str, Counter[str]] = {}
        for shard in self.shards:
            counts.setdefault(shard.language, Counter()).update(
                documents=len(shard.documents) - 1,
                sentences=len(shard.sentences) - 1,
                tokens=len(shard.tokens),
            )
        return {language: dict(count) for language, count in counts.items()}


@dataclass(frozen=True, eq=False)
class Corpus:
    """A tokenised corpus.

    Attributes:
        train, valid: its two parts; the second is empty when no document was held out.
        unigrams: [v] int64, how often each token stands in the training part; special ones 0.
        fingerprint: of the tokenizer it was made with, see `fingerprint`.
        empty: documents that gave no token and were left out.
    """

    train: Part
    valid: Part
    unigrams: np.ndarray
    fingerprint: str
    empty: int

    def counts(self) -> dict[str, int]:
        """Return how many documents and tokens there are."""
        return {
            "documents": self.train.documents + self.valid.documents,
            "held_out_documents": self.valid.documents,
            "empty_documents": self.empty,
            "tokens": sum(len(shard.tokens) for shard in (*self.train.shards, *self.valid.shards)),
        }


def make_corpus(
    documents: Iterable[Document],
    tokenizer: PreTrainedTokenizerFast,
    folder: str | Path,
    *,
    held_out: float,
    seed: int,
    shard_tokens: int = SHARD_TOKENS,
) -> Corpus:
    """Tokenise documents as they stream by, write them as shards, and return the corpus.

    Everything is written into FOLDER.part, which takes the folder's name at the very end: a run
    that is killed leaves nothing that looks finished, and its remains are removed by the next.
    Special tokens spelled out in the text ("[SEP]") are read as text.

    Args:
        documents: the text; consumed once, lazily (its reader reports progress).
        tokenizer: a fast tokenizer.
        folder: where the corpus goes; an earlier corpus there is replaced.
        held_out: share of the documents that goes to the validation part, by a hash of the seed
            and the document's number.
        seed: of the hash.
        shard_tokens: a shard is closed when it has this many.

    Raises:
        DataError: there is no document, or none for training.
        RunError: the disk is full, or the folder cannot be written or holds something else.
    """
    final = Path(folder)
    if final.exists() and not (final / CARD).is_file() and any(final.iterdir()):
        raise RunError(
            f"{final} holds something that is not a corpus; give another folder or empty it."
        )
    try:
        with making_folder(final) as part:
            about = {"seed": seed, "held_out": held_out}
            _write_shards(part, documents, tokenizer, about, shard_tokens)
            if final.exists():
                shutil.rmtree(final)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise RunError(
                f"the disk is full: the tokenised text does not fit under {final.parent}; free "
                "some space (about as much as the text takes) or choose another work folder."
            ) from None
        raise RunError(
            f"the corpus {final} cannot be written ({reason(error)}); give a writable folder."
        ) from None
    return load_corpus(final)


def load_corpus(folder: str | Path) -> Corpus:
    """Return a corpus whose arrays stay on disk.

    Raises:
        RunError: there is no finished corpus, or a file of it is damaged.
    """
    path = Path(folder)
    if not (path / CARD).is_file():
        raise RunError(f"{path} holds no finished corpus ({CARD} is missing); make it first.")
    try:
        card = json.loads((path / CARD).read_text(encoding="utf-8"))
        if card["format"] != FORMAT:
            raise ValueError(f"the format of {CARD} is not {FORMAT}")
        dtype = np.dtype(card["dtype"])
        train, valid = (
            Part(tuple(_load_shard(path / entry["name"], entry, dtype) for entry in card[name]))
            for name in PARTS
        )
        unigrams = np.array(_map(path / UNIGRAMS, "<i8", int(card["vocabulary"])))
        return Corpus(train, valid, unigrams, str(card["fingerprint"]), int(card["empty"]))
    except (OSError, LookupError, TypeError, ValueError, RecursionError) as error:
        raise RunError(
            f"the corpus {path} is damaged ({type(error).__name__}: {error}); remove the folder "
            "and make the corpus again."
        ) from None


def fingerprint(tokenizer: PreTrainedTokenizerFast) -> str:
    """Return a hash of all that decides how a tokenizer reads text."""
    specials = asdict(find_specials(tokenizer))
    text = json.dumps(specials) + make_reader(tokenizer).to_str()
    return hashlib.sha256(text.encode()).hexdigest()


# -- writing --------------------------------------------------------------------------------------


def _write_shards(
    folder: Path,
    documents: Iterable[Document],
    tokenizer: PreTrainedTokenizerFast,
    about: Mapping[str, Any],
    limit: int,
) -> None:
    """Append documents to shards by part and language; the card makes a corpus of the files."""
    reader, separator = make_reader(tokenizer), find_specials(tokenizer).sep
    # Ids of a foreign tokenizer may have gaps.
    size = max(len(tokenizer), 1 + max(reader.get_vocab().values()))
    dtype = np.dtype("<u2") if size < 1 << 16 else np.dtype("<u4")
    unigrams = np.zeros(size, dtype=np.int64)
    opened: dict[tuple[str, str], OpenShard] = {}
    closed: list[tuple[str, dict[str, Any]]] = []
    count = empty = 0
    for count, (document, tokens) in enumerate(tokenise(documents, reader), start=1):
        if not len(tokens[0]):
            empty += 1
            continue
        draw = derive_seed("held out", about["seed"], count - 1) / 2**63
        part = "valid" if draw < about["held_out"] else "train"
        key = (part, document.language)
        if key not in opened:
            path = folder / f"{part}-{len(closed) + len(opened):05d}"
            words = unigrams if part == "train" else None
            opened[key] = OpenShard(path, document.language, dtype, words)
        opened[key].add(tokens, separator)
        if opened[key].tokens >= limit:
            closed.append((part, opened.pop(key).close()))
    closed += [(part, shard.close()) for (part, _), shard in opened.items()]
    if not any(part == "train" for part, _ in closed):
        raise DataError(
            f"{counted(count, 'document')} gave no tokens to train on ({empty} were empty); "
            "give more text, or lower corpus.held_out."
        )
    # Text gives no separators: those that were counted stand between documents.
    unigrams[separator] = 0
    unigrams.astype("<i8").tofile(folder / UNIGRAMS)
    # Shards of one language stand together, so that its documents are one range.
    closed.sort(key=lambda own: (own[1]["language"], own[1]["name"]))
    card = {
        "format": FORMAT,
        "fingerprint": fingerprint(tokenizer),
        "vocabulary": size,
        "dtype": dtype.str,
        "separator": separator,
        **about,
        "empty": empty,
        **{name: [shard for part, shard in closed if part == name] for name in PARTS},
    }
    (folder / CARD).write_bytes(to_json(card))


# -- reading --------------------------------------------------------------------------------------


def _load_shard(stem: Path, card: Mapping[str, Any], dtype: np.dtype[Any]) -> Shard:
    tokens, sentences, documents = (card[name] for name in ("tokens", "sentences", "documents"))
    offsets = {}
    for name, count, last in (
        ("sentences", sentences, tokens),
        ("documents", documents, sentences),
    ):
        own = offsets[name] = _map(shard_file(stem, name), "<i8", count + 1)
        if own[0] != 0 or own[-1] != last or not (own[1:] > own[:-1]).all():
            raise ValueError(f"the offsets in {shard_file(stem, name).name} are out of order")
    return Shard(
        language=card["language"],
        tokens=_map(shard_file(stem, "tokens"), dtype, tokens),
        starts_word=_map(shard_file(stem, "words"), np.bool_, tokens),
        **offsets,
    )


def _map(path: Path, dtype: Any, count: int) -> np.ndarray:
    size, wanted = path.stat().st_size, np.dtype(dtype).itemsize * count
    if size != wanted or not size:
        raise ValueError(f"{path.name} has {size} bytes instead of {wanted}")
    return np.memmap(path, dtype=dtype, mode="r", shape=(count,))
