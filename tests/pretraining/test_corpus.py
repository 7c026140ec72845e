"""A corpus on disk: round trips, parts, atomic writing, damage."""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

from symprompt.errors import DataError, RunError
from symprompt.files.text import Document, split_sentences
from symprompt.pretraining import corpus as shard_writer
from symprompt.pretraining.corpus import Corpus, Part, fingerprint, load_corpus, make_corpus
from tiny.models import make_wordpiece

WORDS = ("red", "green", "blue", "fast", "slow")


def make_tokenizer(extra: int = 0) -> PreTrainedTokenizerFast:
    """Return a WordPiece tokenizer of five words, letters and, if wanted, many more entries."""
    tokenizer = make_wordpiece(words=[*WORDS, *(f"<{number}>" for number in range(extra))])
    tokenizer.backend_tokenizer.enable_truncation(4)
    return tokenizer


def make_documents(count: int, language: str = "") -> list[Document]:
    generator = np.random.default_rng(count)
    documents = []
    for number in range(count):
        lines = []
        for _ in range(int(generator.integers(1, 4))):
            size = int(generator.integers(1, 5))
            texts = [" ".join(generator.choice(WORDS, size=4)) for _ in range(size)]
            lines.append(" ".join(f"N{chr(97 + number % 26)} {text}." for text in texts))
        documents.append(Document(language, tuple(lines)))
    return documents


def make(tmp_path: Path, documents: Any, **options: Any) -> Corpus:
    settings = {"held_out": 0.0, "seed": 3} | options
    return make_corpus(documents, make_tokenizer(), tmp_path / "corpus", **settings)


def texts_of(part: Part) -> list[list[str]]:
    """Return every document's sentences, decoded token by token in plain Python."""
    names = {index: token for token, index in make_tokenizer().get_vocab().items()}
    documents = []
    for shard in part.shards:
        for first, last in zip(shard.documents[:-1], shard.documents[1:], strict=True):
            sentences = []
            for at in range(first, last):
                end = shard.sentences[at + 1] - (at + 1 == last)
                words = [names[int(i)] for i in shard.tokens[shard.sentences[at] : end]]
                sentences.append(" ".join(words).replace(" ##", ""))
            assert shard.tokens[shard.sentences[last] - 1] == 3
            documents.append(sentences)
    return documents


def spaced(document: Document) -> list[str]:
    return [s.replace(".", " .") for line in document.lines for s in split_sentences(line)]


def test_tokens_decode_to_the_text(tmp_path: Path) -> None:
    documents = make_documents(40)
    corpus = make(tmp_path, iter(documents))
    assert texts_of(corpus.train) == [spaced(document) for document in documents]
    assert corpus.valid.shards == ()
    assert corpus.valid.documents == 0
    assert corpus.fingerprint == fingerprint(make_tokenizer()) != fingerprint(make_tokenizer(1))
    assert not (tmp_path / "corpus.part").exists()
    (shard,) = corpus.train.shards
    names = {index: token for token, index in make_tokenizer().get_vocab().items()}
    expected = [not names[int(token)].startswith(("##", "[")) for token in shard.tokens]
    assert shard.starts_word.tolist() == expected


def test_small_shards_and_batches_hold_the_same_documents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    documents = make_documents(60)
    whole = texts_of(make(tmp_path / "a", documents).train)
    monkeypatch.setattr(shard_writer, "BUFFER_TOKENS", 7)
    monkeypatch.setattr(shard_writer, "_BATCH_CHARACTERS", 150)
    parts = make(tmp_path / "b", documents, shard_tokens=200)
    assert len(parts.train.shards) > 5
    assert texts_of(parts.train) == whole
    assert parts.unigrams.tolist() == load_corpus(tmp_path / "a" / "corpus").unigrams.tolist()


def test_held_out_documents_are_the_same_again_and_others_with_another_seed(
    tmp_path: Path,
) -> None:
    documents = make_documents(400)
    first, again, other = (
        make(tmp_path / str(place), documents, held_out=0.2, seed=seed)
        for place, seed in enumerate((1, 1, 2))
    )
    assert texts_of(first.valid) == texts_of(again.valid)
    assert texts_of(first.valid) != texts_of(other.valid)
    assert first.train.documents + first.valid.documents == 400
    assert 50 < first.valid.documents < 110
    everything = [spaced(document) for document in documents]
    assert sorted(texts_of(first.train) + texts_of(first.valid)) == sorted(everything)
    # Unigrams are of the training tokens alone.
    tokens = np.concatenate([shard.tokens for shard in first.train.shards])
    counts = np.bincount(tokens, minlength=len(make_tokenizer()))
    counts[3] = 0
    assert first.unigrams.tolist() == counts.tolist()


def test_languages_have_shards_of_their_own_that_stand_together(tmp_path: Path) -> None:
    mixed = [
        d
        for pair in zip(make_documents(30, "en"), make_documents(30, "de"), strict=True)
        for d in pair
    ]
    corpus = make(tmp_path, mixed, shard_tokens=200)
    names = [shard.language for shard in corpus.train.shards]
    assert names == sorted(names)
    counts = corpus.train.counts()
    assert counts["de"]["documents"] == counts["en"]["documents"] == 30
    sentences = sum(len(spaced(document)) for document in mixed)
    assert counts["de"]["sentences"] + counts["en"]["sentences"] == sentences


def test_special_tokens_spelled_out_are_read_as_text(tmp_path: Path) -> None:
    corpus = make(tmp_path, [Document("", ("red [SEP] blue [MASK]",))])
    (shard,) = corpus.train.shards
    assert shard.tokens.tolist().count(3) == 1
    assert 4 not in shard.tokens


def test_large_vocabularies_get_wide_ids(tmp_path: Path) -> None:
    for extra, width in ((0, np.uint16), (70_000, np.uint32)):
        corpus = make_corpus(
            make_documents(3), make_tokenizer(extra), tmp_path / str(extra), held_out=0, seed=1
        )
        assert corpus.train.shards[0].tokens.dtype == width


def test_documents_without_tokens_are_counted(tmp_path: Path) -> None:
    corpus = make(tmp_path, [Document("", ("\u200b",)), *make_documents(2)])
    assert (corpus.empty, corpus.train.documents) == (1, 2)
    with pytest.raises(DataError, match="1 document gave no tokens to train on"):
        make(tmp_path / "none", [Document("", ("\u200b",))])
    assert list((tmp_path / "none").iterdir()) == []


def test_documents_are_consumed_lazily(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_writer, "_BATCH_CHARACTERS", 200)
    events: list[str] = []
    add = shard_writer.OpenShard.add
    monkeypatch.setattr(
        shard_writer.OpenShard, "add", lambda *given: (events.append("written"), add(*given))
    )
    make(tmp_path, (events.append("read") or document for document in make_documents(200)))
    assert events.count("written") == 200
    ahead = [events[:at].count("read") - events[:at].count("written") for at in range(400)]
    assert max(ahead) < 20


def test_stopped_run_leaves_nothing_and_stale_remains_are_removed(tmp_path: Path) -> None:
    def stopped() -> Iterator[Document]:
        yield from make_documents(5)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make(tmp_path, stopped())
    assert list(tmp_path.iterdir()) == []
    # A killed one cannot clean up: its remains are not taken for a corpus, and go.
    (tmp_path / "corpus.part").mkdir()
    (tmp_path / "corpus.part" / "train-00000.tokens.bin").write_bytes(b"half")
    with pytest.raises(RunError, match="holds no finished corpus"):
        load_corpus(tmp_path / "corpus")
    make(tmp_path, make_documents(5))
    assert [path.name for path in tmp_path.iterdir()] == ["corpus"]


@pytest.mark.parametrize(
    ("number", "message"),
    [(errno.ENOSPC, "the disk is full"), (errno.EACCES, "cannot be written")],
)
def test_full_disk_is_one_clear_sentence_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, message: str
) -> None:
    def fail(self: shard_writer.OpenShard) -> None:
        raise OSError(number, "no")

    monkeypatch.setattr(shard_writer.OpenShard, "flush", fail)
    with pytest.raises(RunError, match=message):
        make(tmp_path, make_documents(5))
    assert list(tmp_path.iterdir()) == []


def test_earlier_corpus_is_replaced_but_other_files_are_not(tmp_path: Path) -> None:
    make(tmp_path, make_documents(5))
    assert make(tmp_path, make_documents(7)).train.documents == 7
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("dear")
    with pytest.raises(RunError, match="not a corpus"):
        make_corpus(make_documents(5), make_tokenizer(), tmp_path / "mine", held_out=0, seed=1)
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "dear"


@pytest.mark.parametrize("name", ["tokens", "words", "sentences", "documents"])
def test_damaged_shards_are_refused(tmp_path: Path, name: str) -> None:
    make(tmp_path, make_documents(5))
    path = tmp_path / "corpus" / f"train-00000.{name}.bin"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with pytest.raises(RunError, match=f"is damaged .*{name}.bin has .* bytes instead of"):
        load_corpus(tmp_path / "corpus")
    if name in ("sentences", "documents"):
        path.write_bytes(whole[:8] + b"\xff" * 8 + whole[16:])
        with pytest.raises(RunError, match="out of order"):
            load_corpus(tmp_path / "corpus")
    path.unlink()
    with pytest.raises(RunError, match=f"is damaged .*{name}.bin"):
        load_corpus(tmp_path / "corpus")


def test_damaged_cards_are_refused(tmp_path: Path) -> None:
    make(tmp_path, make_documents(5))
    path = tmp_path / "corpus" / "corpus.json"
    card = json.loads(path.read_text())
    for text in ("{", "[]", json.dumps(card | {"format": 9}), json.dumps(card | {"train": [{}]})):
        path.write_text(text)
        with pytest.raises(RunError, match="is damaged"):
            load_corpus(tmp_path / "corpus")
