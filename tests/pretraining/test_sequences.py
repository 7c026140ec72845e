"""Sequences from a corpus: blocks, sentences and pairs against slow readings of the same text."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain, pairwise

import numpy as np
import pytest

from symprompt.errors import DataError
from symprompt.pretraining.config import CorpusConfig
from symprompt.pretraining.corpus import Part, Shard
from symprompt.pretraining.sequences import Batch, Sequences, make_sequences
from tiny.text import SPECIALS

TEXT = 10  # The first id of text; each token names its document and sentence, see `locate`.
PACKINGS = ("blocks", "sentences", "pairs")


def make_shard(documents: int, *, seed: int, first: int = 0, language: str = "") -> Shard:
    """Return a shard in which every token is numbered: no two are the same."""
    generator = np.random.default_rng(seed)
    tokens: list[int] = []
    sentences, starts = [], []
    token = TEXT + first
    for _ in range(documents):
        starts.append(len(sentences))
        for _ in range(int(generator.integers(1, 12))):
            sentences.append(len(tokens))
            size = int(generator.integers(1, 20)) if generator.random() < 0.95 else 70
            tokens += range(token, token + size)
            token += size
        tokens.append(SPECIALS.sep)
    ids = np.array(tokens, dtype=np.uint32)
    return Shard(
        language=language,
        tokens=ids,
        starts_word=(ids % 3 == 0) & (ids != SPECIALS.sep),
        sentences=np.array([*sentences, len(tokens)], dtype=np.int64),
        documents=np.array([*starts, len(sentences)], dtype=np.int64),
    )


@pytest.fixture(scope="module")
def part() -> Part:
    return Part((make_shard(150, seed=1), make_shard(90, seed=2, first=1_000_000)))


def make(part: Part, packing: str, length: int = 32, **options: float) -> Sequences:
    config = replace(CorpusConfig(length=length), packing=packing, **options)  # type: ignore[arg-type]
    return make_sequences(part, config, SPECIALS, seed=7)


def everything(sequences: Sequences, epoch: int = 0) -> Batch[np.ndarray]:
    return sequences.batch(np.arange(len(sequences)), epoch)


class Reading:
    """The text read slowly: each token's document and sentence, and what follows it."""

    def __init__(self, part: Part) -> None:
        self.document: dict[int, int] = {}
        self.sentence: dict[int, int] = {}
        self.first: dict[int, bool] = {}
        self.following: dict[int, int] = {}
        document = sentence = -1
        for shard in part.shards:
            for at in range(len(shard.documents) - 1):
                document += 1
                before = None
                for place in range(shard.documents[at], shard.documents[at + 1]):
                    sentence += 1
                    begin, end = shard.sentences[place], shard.sentences[place + 1]
                    for offset, token in enumerate(shard.tokens[begin:end].tolist()):
                        if token == SPECIALS.sep:
                            continue
                        self.document[token], self.sentence[token] = document, sentence
                        self.first[token] = offset == 0
                        if before is not None:
                            self.following[before] = token
                        before = token


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("length", [8, 32, 128, 512])
def test_every_batch_keeps_the_promises_of_its_fields(
    part: Part, packing: str, length: int
) -> None:
    sequences = make(part, packing, length)
    batch = everything(sequences)
    assert len(batch) == len(sequences) > 0
    assert batch.ids.shape == (len(batch), length)
    assert (batch.ids.dtype, batch.segments.dtype) == (np.uint32, np.uint8)
    assert (batch.starts_word.dtype, batch.special.dtype) == (np.bool_, np.bool_)
    assert (batch.lengths.dtype, batch.is_next.dtype) == (np.int64, np.bool_)
    columns = np.arange(length)
    padding = columns >= batch.lengths[:, None]
    assert (batch.ids[padding] == SPECIALS.pad).all()
    assert (batch.ids[~padding] != SPECIALS.pad).all()
    assert (batch.ids[:, 0] == SPECIALS.cls).all()
    assert (batch.ids[np.arange(len(batch)), batch.lengths - 1] == SPECIALS.sep).all()
    assert np.array_equal(batch.special, batch.ids < TEXT)
    expected = (batch.ids % 3 == 0) & ~batch.special
    assert np.array_equal(batch.starts_word, expected)
    if packing != "pairs":
        assert batch.segments.max() == 0
        assert batch.is_next.all()
    # Indices and epoch decide, whichever batch they are in.
    some = np.array([5, 0, len(sequences) - 1, 5])
    again = make(part, packing, length).batch(some)
    for name, values in vars(batch).items():
        assert np.array_equal(getattr(again, name), values[some]), name
    empty = make(Part(()), packing, length)
    assert len(empty) == len(empty.order(0)) == 0


def test_blocks_are_the_stream_of_documents(part: Part) -> None:
    sequences = make(part, "blocks")
    batch = everything(sequences)
    assert (batch.lengths == 32).all()
    stream = [shard.tokens[: len(shard.tokens) // 30 * 30] for shard in part.shards]
    assert batch.ids[:, 1:-1].ravel().tolist() == np.concatenate(stream).tolist()


def test_sentences_hold_every_token_once_and_begin_with_a_sentence(part: Part) -> None:
    reading = Reading(part)
    sequences = make(part, "sentences")
    batch = everything(sequences)
    texts = [row[row >= TEXT].tolist() for row in batch.ids]
    assert list(chain.from_iterable(texts)) == sorted(reading.document)
    long = {
        sentence
        for sentence, count in zip(
            *np.unique(list(reading.sentence.values()), return_counts=True), strict=True
        )
        if count > 30
    }
    for text in texts:
        assert reading.first[text[0]] or reading.sentence[text[0]] in long


def test_sentences_fit_no_more_and_documents_are_parted(part: Part) -> None:
    reading = Reading(part)
    batch = everything(make(part, "sentences"))
    sizes = np.bincount(list(reading.sentence.values()))
    for row, length, below in zip(batch.ids, batch.lengths, batch.ids[1:], strict=False):
        inner = row[1 : length - 1].tolist()
        for token, following in pairwise(inner):
            if SPECIALS.sep not in (token, following):
                assert reading.following[token] == following
        head = int(below[1])
        if head > 999_999 > inner[-1]:
            continue  # Sequences do not cross shards.
        new = reading.document[head] != reading.document[inner[-1]]
        size = min(int(sizes[reading.sentence[head]]), 30)
        assert length + new + size > 32


def test_half_of_the_pairs_are_true_and_the_rest_come_from_another_document(part: Part) -> None:
    reading = Reading(part)
    sequences = make(part, "pairs")
    truths = []
    for epoch in range(12):
        batch = everything(sequences, epoch)
        truths.append(batch.is_next.mean())
        for row, segments, length, is_next in zip(
            batch.ids, batch.segments, batch.lengths, batch.is_next, strict=True
        ):
            ends = np.flatnonzero(row == SPECIALS.sep)
            assert ends.tolist() == [ends[0], length - 1]
            a, b = row[1 : ends[0]].tolist(), row[ends[0] + 1 : length - 1].tolist()
            assert a
            assert b
            expected = [0] * (len(a) + 2) + [1] * (len(b) + 1) + [0] * (32 - length)
            assert segments.tolist() == expected
            for half in (a, b):
                assert all(reading.following[x] == y for x, y in pairwise(half))
            assert reading.first[b[0]]
            if is_next:
                assert reading.following[a[-1]] == b[0]
            else:
                assert reading.document[a[-1]] != reading.document[b[0]]
    assert len(set(truths)) > 1, "pairs are drawn anew in every epoch"
    count = len(truths) * len(sequences)
    assert abs(np.mean(truths) - 0.5) < 4 * 0.5 / np.sqrt(count)


def test_pairs_fill_the_length_where_documents_are_long_enough() -> None:
    sequences = make(Part((make_shard(40, seed=3),)), "pairs", 16)
    batch = everything(sequences)
    assert np.mean(batch.lengths == 16) > 0.8
    # Neither kind can be told by its length.
    true, false = batch.lengths[batch.is_next].mean(), batch.lengths[~batch.is_next].mean()
    assert abs(true - false) < 1


def test_one_document_gives_no_pairs_but_two_languages_of_one_do() -> None:
    shard = make_shard(1, seed=4)
    with pytest.raises(DataError, match="pairs need two documents"):
        make(Part((shard,)), "pairs")
    other = make_shard(1, seed=6, first=500_000, language="b")
    batch = everything(make(Part((shard, other)), "pairs"))
    assert len(batch) > 1


def test_random_half_is_of_the_same_language() -> None:
    shards = [make_shard(30, seed=n, first=n * 10**6, language="ab"[n]) for n in range(2)]
    batch = everything(make(Part(tuple(shards)), "pairs"))
    false = batch.ids[~batch.is_next].astype(np.int64)
    texts = np.where(false >= TEXT, false // 10**6, -1)
    assert all(len(set(row[row >= 0])) == 1 for row in texts)


def test_order_is_a_permutation_by_seed_and_epoch(part: Part) -> None:
    sequences = make(part, "blocks")
    orders = [sequences.order(epoch) for epoch in (0, 0, 1)]
    assert np.array_equal(orders[0], orders[1])
    assert not np.array_equal(orders[0], orders[2])
    assert sorted(orders[0]) == sorted(orders[2]) == list(range(len(sequences)))


def test_order_repeats_the_small_language_and_leaves_out_the_large() -> None:
    shards = [
        make_shard(300, seed=1, language="en"),
        make_shard(300, seed=2, first=10**6, language="en"),
        make_shard(12, seed=3, first=2 * 10**6, language="is"),
    ]
    sequences = make(Part(tuple(shards)), "blocks", alpha=0.3)
    english, icelandic = sequences.languages()
    order = sequences.order(0)
    small = order >= english.before
    assert len(order) == len(sequences) == english.before + icelandic.before
    assert small.sum() == icelandic.after > 3 * icelandic.before
    times = np.bincount(order, minlength=len(sequences))
    assert times[: english.before].max() == 1
    assert np.ptp(times[english.before :]) <= 1
    assert set(order[~small]) != {o for o in sequences.order(1) if o < english.before}
    plain = make(Part(tuple(shards)), "blocks", alpha=1.0)
    assert sorted(plain.order(0)) == list(range(len(plain)))
