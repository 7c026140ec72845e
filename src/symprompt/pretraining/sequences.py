"""Sequences of equal length from a tokenised corpus, and the batches of a run's steps.

Sequences are blocks, whole sentences or sentence pairs. Batches are made ahead of their steps.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from symprompt.errors import DataError
from symprompt.pretraining.config import CorpusConfig
from symprompt.pretraining.corpus import Part, Shard
from symprompt.pretraining.tokenizer import LanguageShare, Specials, draw_repeated, plan_sampling
from symprompt.runs.environment import derive_seed, send

_AHEAD = 4
Array = TypeVar("Array", np.ndarray, Tensor)


@dataclass(frozen=True, eq=False)
class Batch(Generic[Array]):
    """Sequences as the corpus gives them, whole and uncorrupted: arrays, or tensors on a device.

    Attributes:
        ids: [b, t] uint16 or uint32 (int64 on a device), special tokens in place, padded.
        starts_word: [b, t] bool, the first token of a word; special tokens are False.
        special: [b, t] bool, tokens that are never corrupted: [CLS], [SEP], padding.
        lengths: [b] int64, tokens before the padding.
        segments: [b, t] uint8 (int64 on a device), 0 or 1; all 0 but in pairs.
        is_next: [b] bool, whether the second sentence follows the first; all True but in pairs.
    """

    ids: Array
    starts_word: Array
    special: Array
    lengths: Array
    segments: Array
    is_next: Array

    def __len__(self) -> int:
        return len(self.ids)

    def to(self: Batch[np.ndarray], device: torch.device) -> Batch[Tensor]:
        """Return the batch as tensors on a device."""
        there = {}
        for name, values in vars(self).items():
            wide = values.astype(np.int64) if values.dtype == np.uint32 else values
            moved = send(wide, device)
            there[name] = moved.long() if name in ("ids", "segments") else moved
        return Batch(**there)


def make_sequences(part: Part, config: CorpusConfig, specials: Specials, seed: int) -> Sequences:
    """Return a part's sequences under a packing; nothing is read until a batch is made.

    Args:
        part: the training or the validation documents.
        config: packing, length and alpha.
        specials: the tokenizer's special ids.
        seed: of the order, and of what pairs draw.

    Raises:
        DataError: a single document is to be cut into pairs.
    """
    kinds: dict[str, type[Sequences]] = {"blocks": Blocks, "sentences": Sentences, "pairs": Pairs}
    return kinds[config.packing](part, config, specials, seed)


class Sequences(ABC):
    """All sequences of a part, by number. Batches depend on (seed, epoch, index) and no state."""

    def __init__(self, part: Part, config: CorpusConfig, specials: Specials, seed: int) -> None:
        self.shards = part.shards
        self.length = config.length
        self.alpha = config.alpha
        self.specials = specials
        self.seed = seed
        self.index = [self._index(shard) for shard in self.shards]
        self.firsts = np.cumsum([0, *map(len, self.index)], dtype=np.int64)

    def __len__(self) -> int:
        """Sequences in one pass."""
        return int(self.firsts[-1])

    @abstractmethod
    def _index(self, shard: Shard) -> Any:
        """Return where a shard's sequences are, an entry for each."""

    @abstractmethod
    def batch(self, indices: np.ndarray, epoch: int = 0) -> Batch[np.ndarray]:
        """Return the sequences with these numbers; only pairs depend on the epoch."""

    def languages(self) -> tuple[LanguageShare, ...]:
        """Return each language's sequences before and after weighing, by equation 11.7."""
        counts: dict[str, int] = {}
        for shard, found in zip(self.shards, self.index, strict=True):
            counts[shard.language] = counts.get(shard.language, 0) + len(found)
        return plan_sampling(counts, self.alpha) if len(self) else ()

    def order(self, epoch: int) -> np.ndarray:
        """Return one pass: a permutation by seed and epoch [n] int64.

        With more than one language, sequences of the small ones are repeated and those of the
        large ones left out, others in every epoch; the pass stays as long as it was.
        """
        generator = np.random.default_rng(derive_seed("order", self.seed, epoch))
        shares = self.languages()
        if len(shares) < 2:
            return generator.permutation(len(self))
        chosen = []
        first = 0
        # Shards, and so sequences, are sorted by language as the shares are.
        for share in shares:
            if share.before:
                chosen.append(first + draw_repeated(share.before, share.after, generator))
            first += share.before
        return generator.permutation(np.concatenate(chosen))

    def _locate(self, indices: np.ndarray) -> np.ndarray:
        """Return the shard of each sequence."""
        return np.searchsorted(self.firsts, indices, side="right") - 1

    def _blank(self, rows: int) -> tuple[np.ndarray, np.ndarray]:
        """Return ids, padded but for [CLS], and word starts, all False."""
        dtype = self.shards[0].tokens.dtype.newbyteorder("=")
        ids = np.full((rows, self.length), self.specials.pad, dtype=dtype)
        ids[:, 0] = self.specials.cls
        return ids, np.zeros((rows, self.length), dtype=np.bool_)

    def _finish(
        self,
        ids: np.ndarray,
        starts_word: np.ndarray,
        lengths: np.ndarray,
        segments: np.ndarray | None = None,
        is_next: np.ndarray | None = None,
    ) -> Batch[np.ndarray]:
        # Text never gives special ids, so their value identifies them.
        special = ids == self.specials.sep
        special[:, 0] = True
        if lengths.min(initial=self.length) < self.length:
            special |= np.arange(self.length) >= lengths[:, None]
        if segments is None:
            segments = np.zeros(ids.shape, dtype=np.uint8)
        if is_next is None:
            is_next = np.ones(len(ids), dtype=np.bool_)
        return Batch(ids, starts_word, special, lengths, segments, is_next)

    def _copy(
        self,
        out: tuple[np.ndarray, np.ndarray],
        shard: np.ndarray,
        begin: np.ndarray,
        count: np.ndarray,
        column: np.ndarray,
    ) -> None:
        """Copy ``count`` tokens from ``begin`` of a shard into each row, from ``column`` on."""
        ids, starts_word = out
        for number, rows in _by_shard(shard):
            counts = count[rows]
            row = np.repeat(rows, counts)
            within = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
            source = np.repeat(begin[rows], counts) + within
            target = np.repeat(column[rows], counts) + within
            ids[row, target] = self.shards[number].tokens[source]
            starts_word[row, target] = self.shards[number].starts_word[source]


class Blocks(Sequences):
    """Full sequences: [CLS], a stretch of the stream of documents, [SEP].

    A separator stands in the stream where a document ends. What is left at the end of a shard and
    does not fill a sequence is dropped: less than one sequence for 64 million tokens, and for the
    last shard of each language.
    """

    def _index(self, shard: Shard) -> range:
        room = self.length - 2
        return range(0, len(shard.tokens) // room * room, room)

    def batch(self, indices: np.ndarray, epoch: int = 0) -> Batch[np.ndarray]:
        room = self.length - 2
        ids, starts_word = self._blank(len(indices))
        ids[:, -1] = self.specials.sep
        for number, rows in _by_shard(self._locate(indices)):
            begin = (indices[rows] - self.firsts[number]) * room
            source = self.shards[number]
            ids[rows, 1:-1] = np.lib.stride_tricks.sliding_window_view(source.tokens, room)[begin]
            words = np.lib.stride_tricks.sliding_window_view(source.starts_word, room)
            starts_word[rows, 1:-1] = words[begin]
        return self._finish(ids, starts_word, np.full(len(indices), self.length, dtype=np.int64))


class Sentences(Sequences):
    """Whole sentences packed while they fit, across documents with a separator between; padded.

    A sentence longer than the room is cut into pieces of that size. Every token is in exactly one
    sequence.
    """

    def _index(self, shard: Shard) -> np.ndarray:
        """Return where each sequence begins and ends in the shard [n, 2]."""
        room = self.length - 2
        begins, ends = _sentence_bounds(shard)
        pieces = -(-(ends - begins) // room)
        within = np.arange(pieces.sum()) - np.repeat(np.cumsum(pieces) - pieces, pieces)
        begins = np.repeat(begins, pieces) + within * room
        ends = np.minimum(begins + room, np.repeat(ends, pieces))
        # The first piece that no longer fits with those from here on.
        following = np.searchsorted(ends, begins + room, side="right")
        chain = _follow(following)
        return np.stack([begins[chain], ends[np.append(chain[1:], len(ends)) - 1]], axis=1)

    def batch(self, indices: np.ndarray, epoch: int = 0) -> Batch[np.ndarray]:
        shard = self._locate(indices)
        begin, end = np.empty((2, len(indices)), np.int64)
        for number, rows in _by_shard(shard):
            begin[rows], end[rows] = self.index[number][indices[rows] - self.firsts[number]].T
        ids, starts_word = self._blank(len(indices))
        self._copy((ids, starts_word), shard, begin, end - begin, np.ones_like(begin))
        ids[np.arange(len(ids)), end - begin + 1] = self.specials.sep
        return self._finish(ids, starts_word, end - begin + 2)


class Pairs(Sequences):
    """BERT's sentence pairs: [CLS] A [SEP] B [SEP], for next-sentence prediction.

    Each document is cut into stretches of sentences that fill the length. A stretch is parted at a
    random sentence end: A is what stands before, and B, with probability one half, what follows,
    or else what follows such a point in another document of the same language. Drawn anew in
    every epoch.

    Differences from BERT's own program: stretches have at least two sentences (the last of a
    document takes one from before it, documents of one sentence are left out), so that half of
    the pairs is true whatever the text; a random B begins where a true one of its own document
    could, not anywhere, and both run on as far as the length and the document allow, so that
    lengths reveal little; what is too long is cut from A's front and B's end, so that a true pair
    stays adjacent.
    """

    def __init__(self, part: Part, config: CorpusConfig, specials: Specials, seed: int) -> None:
        super().__init__(part, config, specials, seed)
        if len(self):
            self._find_ranges()

    def _index(self, shard: Shard) -> np.ndarray:
        """Return each stretch: first sentence, how many, its document, where that ends [n, 4]."""
        target = self.length - 3
        documents = np.asarray(shard.documents)
        begins, ends = _sentence_bounds(shard)
        owner = np.repeat(np.arange(len(documents) - 1), np.diff(documents))
        last = documents[owner + 1]
        # A stretch ends with the sentence that fills it, and has two at least.
        following = np.searchsorted(ends, begins + target, side="left") + 1
        following = np.minimum(np.maximum(following, np.arange(len(begins)) + 2), last)
        first = _follow(following)
        following = following[first]
        # A last sentence that would stand alone takes the one before it; without one it is left.
        first = first - (following - first < 2)
        keep = first >= documents[owner[following - 1]]
        first, following = first[keep], following[keep]
        document = owner[first]
        document_end = ends[documents[document + 1] - 1]
        return np.stack([first, following - first, document, document_end], axis=1)

    def _find_ranges(self) -> None:
        """Find, for every sequence, its document's range and the range to draw another from."""
        ranges = []
        languages = [shard.language for shard in self.shards]
        for number, found in enumerate(self.index):
            document, before = found[:, 2], self.firsts[number]
            same = [at for at, name in enumerate(languages) if name == languages[number]]
            low, high = self.firsts[same[0]], self.firsts[same[-1] + 1]
            start = np.searchsorted(document, document, side="left")
            stop = np.searchsorted(document, document, side="right")
            # A language's only document has to be paired with another language's.
            only = stop - start == high - low
            others = np.where(only, 0, low), np.where(only, len(self), high)
            ranges.append(np.stack([start + before, stop + before, *others]))
        self.ranges = np.concatenate(ranges, axis=1)
        own_first, own_last, low, high = self.ranges
        if (own_last - own_first == high - low).any():
            raise DataError(
                "pairs need two documents of at least two sentences each, and there is one; "
                "give more text, or choose another corpus.packing."
            )

    def batch(self, indices: np.ndarray, epoch: int = 0) -> Batch[np.ndarray]:
        indices = np.asarray(indices, dtype=np.int64)
        is_next = self._draw("next", epoch, indices) % 2 == 0
        own_first, own_last, low, high = self.ranges[:, indices]
        outside = (high - low) - (own_last - own_first)
        other = low + self._draw("other", epoch, indices) % outside
        other += np.where(other >= own_first, own_last - own_first, 0)
        draws = self._draw("part", epoch, indices)
        shard_a, begin, middle_a, _, _ = self._part(indices, draws)
        shard_b, _, middle_b, first_end, end = self._part(np.where(is_next, indices, other), draws)
        target = self.length - 3
        long_a = middle_a - begin
        # B fills what A leaves, and is one sentence at least.
        long_b = np.minimum(end - middle_b, np.maximum(target - long_a, first_end - middle_b))
        # The longer one gives way until both fit, as if token by token.
        count_a = np.minimum(long_a, np.maximum(target - long_b, target - target // 2))
        count_b = np.minimum(long_b, target - count_a)
        out = ids, starts_word = self._blank(len(indices))
        self._copy(out, shard_a, middle_a - count_a, count_a, np.ones_like(count_a))
        self._copy(out, shard_b, middle_b, count_b, count_a + 2)
        rows = np.arange(len(indices))
        ids[rows, count_a + 1] = self.specials.sep
        ids[rows, count_a + count_b + 2] = self.specials.sep
        lengths = count_a + count_b + 3
        columns = np.arange(self.length)
        segments = (columns >= (count_a + 2)[:, None]) & (columns < lengths[:, None])
        return self._finish(ids, starts_word, lengths, segments.astype(np.uint8), is_next)

    def _part(self, chunk: np.ndarray, draws: np.ndarray) -> tuple[np.ndarray, ...]:
        """Part stretches at a drawn sentence end.

        Returns:
            Each one's shard and, in tokens of it, where the first half begins, where the second
            begins, where the second's first sentence ends, and where its document ends [b].
        """
        shard = self._locate(chunk)
        begin, middle, first_end, end = np.empty((4, len(chunk)), np.int64)
        for number, rows in _by_shard(shard):
            found = self.index[number][chunk[rows] - self.firsts[number]]
            first, count, _, end[rows] = found.T
            sentences = self.shards[number].sentences
            after = first + 1 + draws[rows] % (count - 1)
            begin[rows], middle[rows] = sentences[first], sentences[after]
            first_end[rows] = np.minimum(sentences[after + 1], end[rows])
        return shard, begin, middle, first_end, end

    def _draw(self, what: str, epoch: int, indices: np.ndarray) -> np.ndarray:
        """Return a random number from 0 to 2^62 for each index, the same in every batch [b]."""
        state = np.uint64(derive_seed("pairs", what, self.seed, epoch))
        # SplitMix64 (Steele, Lea and Flood 2014): a hash of a counter, computed for all at once.
        value = state + (indices.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        value = value ^ (value >> np.uint64(31))
        return (value >> np.uint64(2)).astype(np.int64)


def _by_shard(shard: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Yield each shard that occurs with the rows that it stands in."""
    for number in np.unique(shard).tolist():
        yield number, np.flatnonzero(shard == number)


def _sentence_bounds(shard: Shard) -> tuple[np.ndarray, np.ndarray]:
    """Return where each sentence begins and ends, the separators left out [s] int64."""
    offsets = np.asarray(shard.sentences)
    ends = offsets[1:].copy()
    ends[np.asarray(shard.documents)[1:] - 1] -= 1
    return offsets[:-1], ends


def _follow(following: np.ndarray) -> np.ndarray:
    """Return 0, following[0], following[following[0]] and so on, up to the end."""
    steps = following.tolist()
    chain = []
    place = 0
    while place < len(steps):
        chain.append(place)
        place = steps[place]
    return np.array(chain, dtype=np.int64)


class Feed:
    """The batches of a run by step, whichever step it starts from; final.

    A batch on the device goes with the number of its tokens, padding left out. Epochs follow each
    other without a gap: a batch may hold the end of one and the start of the next, so no sequence
    is left out.
    """

    def __init__(self, sequences: Sequences, batch: int) -> None:
        self._sequences = sequences
        self._batch = batch
        self._order = lru_cache(maxsize=1)(sequences.order)
        self._thread: ThreadPoolExecutor | None = None
        self._waiting: dict[int, Future[tuple[Batch[Tensor], int]]] = {}

    def rows(self, step: int) -> list[tuple[int, np.ndarray]]:
        """Return the sequences of a step by epoch; mostly that is one."""
        size = len(self._sequences)
        begin, end = step * self._batch, (step + 1) * self._batch
        pieces = []
        while begin < end:
            epoch, place = divmod(begin, size)
            taken = min(size - place, end - begin)
            pieces.append((epoch, self._order(epoch)[place : place + taken]))
            begin += taken
        return pieces

    def make(self, step: int, device: torch.device) -> tuple[Batch[Tensor], int]:
        """Return the batch of a step on a device."""
        pieces = [self._sequences.batch(rows, epoch) for epoch, rows in self.rows(step)]
        batch = pieces[0]
        if len(pieces) > 1:
            parts = [vars(piece) for piece in pieces]
            batch = Batch(**{key: np.concatenate([own[key] for own in parts]) for key in parts[0]})
        return batch.to(device), int(batch.lengths.sum())

    def take(self, step: int, last: int, device: torch.device) -> tuple[Batch[Tensor], int]:
        """Return the batch of a step on a device; those of the next ones are made ahead.

        Args:
            last: how many steps there are.
        """
        if self._thread is None or step not in self._waiting:
            self.close()
            # A thread starts on the first GPU, whichever one its process uses.
            enter = partial(torch.cuda.set_device, device) if device.type == "cuda" else None
            self._thread = ThreadPoolExecutor(1, "batches", initializer=enter)
        for number in range(step, min(step + 1 + _AHEAD, last)):
            if number not in self._waiting:
                self._waiting[number] = self._thread.submit(self.make, number, device)
        return self._waiting.pop(step).result()

    def close(self) -> None:
        """End the thread that makes batches ahead: it holds the corpus."""
        if self._thread is not None:
            self._thread.shutdown(wait=True, cancel_futures=True)
            self._thread = None
        self._waiting.clear()
