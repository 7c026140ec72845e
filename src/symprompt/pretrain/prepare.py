"""From text to sequences: fingerprints, the tokenizer, the tokenised corpus."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from symprompt.errors import DataError, ModelError, RunError
from symprompt.files import read_json, reason, write_json
from symprompt.pretrain.batch import Batch
from symprompt.pretrain.corruption import Specials
from symprompt.pretrain.folders import CORPUS, TOKENIZER, VOCABULARY, RunFolders
from symprompt.pretrain.sequences import Sequences, make_sequences
from symprompt.pretrain.settings import PretrainConfig
from symprompt.pretrain.shards import Corpus, fingerprint, load_corpus, make_corpus
from symprompt.pretrain.text import Document, TextFile, find_files, read_documents
from symprompt.pretrain.vocabulary import (
    find_specials,
    learn_tokenizer,
    load_tokenizer,
    save_tokenizer,
)
from symprompt.runtime import Tick, silent

_VALIDATION_SEQUENCES = 512
_KILO = 1000


@dataclass(frozen=True, eq=False)
class Prepared:
    """Everything that training takes from the text.

    Attributes:
        tokenizer: learned or given.
        vocabulary: how it came about, for the model card.
        corpus: the tokenised text.
        train: sequences to learn from.
        validation: a fixed batch of held-out sequences; None if nothing was held out.
    """

    tokenizer: PreTrainedTokenizerFast
    vocabulary: dict[str, Any]
    corpus: Corpus
    train: Sequences
    validation: Batch | None

    @property
    def specials(self) -> Specials:
        """The special tokens' ids."""
        found = find_specials(self.tokenizer)
        unknown = self.tokenizer.unk_token_id
        # Byte-level vocabularies know every character and may have no such token.
        return Specials(**asdict(found), unk=found.pad if unknown is None else int(unknown))

    @property
    def frequencies(self) -> Tensor:
        """Unigram probabilities [v] float64."""
        counts = torch.from_numpy(self.corpus.unigrams).double()
        return counts / counts.sum()


def fingerprint_inputs(
    config: PretrainConfig, text: Sequence[str], tick: Tick = silent
) -> dict[str, Any]:
    """Return names, sizes and hashes of all that a run is made from.

    Raises:
        DataError: a text is missing or empty, or a file cannot be read.
    """
    files = find_files(text)
    total = sum(file.size for file in files)
    listed, done = [], 0
    for file in files:
        tick("checking", done // _KILO, total // _KILO, f"kB, {file.path.name}")
        digest = _hash(file.path)
        listed.append(
            {
                "name": file.path.name,
                "language": file.language,
                "bytes": file.size,
                "sha256": digest,
            }
        )
        done += file.size
    tick("checking", total // _KILO, total // _KILO, "kB")
    inputs: dict[str, Any] = {"text": listed}
    if config.vocabulary.whole_words:
        inputs["list of whole words"] = _hash(Path(config.vocabulary.whole_words))
    if config.vocabulary.tokenizer:
        inputs["tokenizer"] = fingerprint(load_tokenizer(config.vocabulary.tokenizer))
    return inputs


def prepare_text(
    config: PretrainConfig, text: Sequence[str], folders: RunFolders, tick: Tick = silent
) -> None:
    """Learn the tokenizer and tokenise the text, as far as the work folder has not got them.

    Raises:
        SympromptError: the text cannot be read or gives too little, or the disk is full.
    """
    files = find_files(text)
    if not (folders.work / VOCABULARY).is_file():
        _make_vocabulary(config, text, files, folders, tick)
    tokenizer = load_tokenizer(folders.work / TOKENIZER)
    corpus = folders.work / CORPUS
    if (corpus / "corpus.json").is_file() and fits(folders.work):
        return
    make_corpus(
        read_documents(text, tick=_renamed(tick, "tokenising")),
        tokenizer,
        corpus,
        held_out=config.corpus.held_out,
        seed=config.seed,
        sources=[file.label for file in files],
    )


def load_prepared(config: PretrainConfig, folders: RunFolders) -> Prepared:
    """Return what ``prepare_text`` made, for this run or for another one.

    Raises:
        DataError: the text gives fewer sequences than one batch.
        RunError: the work folder is damaged.
    """
    tokenizer = load_tokenizer(folders.text / TOKENIZER)
    corpus = load_corpus(folders.text / CORPUS)
    specials = find_specials(tokenizer)
    train = make_sequences(corpus.train, config.corpus, specials, config.seed)
    if len(train) < config.optimizer.batch:
        raise DataError(
            f"the text gives {len(train)} sequences of {config.corpus.length} tokens, fewer than "
            f"one batch (optimizer.batch is {config.optimizer.batch}); give more text, or lower "
            "--batch or --length."
        )
    vocabulary: dict[str, Any] = read_json(folders.text / VOCABULARY)
    return Prepared(tokenizer, vocabulary, corpus, train, _validation(config, corpus, specials))


def _make_vocabulary(
    config: PretrainConfig,
    text: Sequence[str],
    files: Sequence[TextFile],
    folders: RunFolders,
    tick: Tick,
) -> None:
    settings = config.vocabulary
    about: dict[str, Any] = {"languages": [], "whole": 0, "broken": []}
    if settings.tokenizer:
        tokenizer = load_tokenizer(settings.tokenizer)
    else:

        def documents() -> Iterable[Document]:
            return read_documents(text, tick=_renamed(tick, "reading"))

        learned = learn_tokenizer(
            documents, settings, length=config.corpus.length, seed=config.seed, tick=tick
        )
        tokenizer = learned.tokenizer
        about = {
            "languages": [asdict(share) for share in learned.languages],
            "whole": len(learned.whole),
            "broken": list(learned.broken),
        }
    try:
        save_tokenizer(tokenizer, folders.work / TOKENIZER)
    except OSError as error:
        raise RunError(f"cannot write {folders.work / TOKENIZER}: {reason(error)}.") from error
    # Last: the tokenizer is whole when this is there.
    write_json(folders.work / VOCABULARY, about)


def fits(folder: Path) -> bool:
    """Say whether a folder's corpus is whole and was made with the tokenizer beside it."""
    try:
        made_with = fingerprint(load_tokenizer(folder / TOKENIZER))
        return load_corpus(folder / CORPUS).fingerprint == made_with
    except (ModelError, RunError):
        return False


def _validation(config: PretrainConfig, corpus: Corpus, specials: Any) -> Batch | None:
    """Return the first held-out sequences of a fixed order; None if there are none."""
    try:
        held = make_sequences(corpus.valid, config.corpus, specials, config.seed)
    except DataError:
        # Too few held-out documents to make pairs of.
        return None
    if not len(held):
        return None
    return held.batch(np.sort(held.order(0)[:_VALIDATION_SEQUENCES]), 0)


def _renamed(tick: Tick, stage: str) -> Tick:
    """Tell of bytes read under another stage, in kB."""

    def renamed(_: str, done: int, total: int, note: str) -> None:
        tick(stage, done // _KILO, total // _KILO, f"kB, {note}")

    return renamed


def _hash(path: Path) -> str:
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {reason(error)}.") from error
