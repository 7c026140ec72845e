"""From text to sequences: fingerprints, the tokenizer, the tokenised corpus.

Text can be prepared once, tokenizer and tokenised corpus, and used by several runs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from symprompt.config import flatten
from symprompt.errors import ConfigError, DataError, ModelError, RunError
from symprompt.files.atomic import read_json, reason, write_json
from symprompt.files.progress import Tick, silent
from symprompt.files.text import Document, find_files, read_documents
from symprompt.pretraining.batch import Batch
from symprompt.pretraining.config import PretrainConfig, load_pretrain_config
from symprompt.pretraining.corpus import CARD, Corpus, fingerprint, load_corpus, make_corpus
from symprompt.pretraining.folder import (
    CORPUS,
    PREPARE,
    TOKENIZER,
    VOCABULARY,
    RunFolders,
    load_inputs,
    portable,
)
from symprompt.pretraining.sequences import Sequences, make_sequences
from symprompt.pretraining.tokenizer import (
    find_specials,
    learn_tokenizer,
    load_tokenizer,
)
from symprompt.runs.folder import CONFIG, MANIFEST, Folder

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
    if not (folders.work / VOCABULARY).is_file():
        _make_vocabulary(config, text, folders, tick)
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
    if len(train) < config.learning.batch:
        raise DataError(
            f"the text gives {len(train)} sequences of {config.corpus.length} tokens, fewer than "
            f"one batch (learning.batch is {config.learning.batch}); give more text, or lower "
            "--batch or --length."
        )
    vocabulary: dict[str, Any] = read_json(folders.text / VOCABULARY)
    return Prepared(tokenizer, vocabulary, corpus, train, _validation(config, corpus, specials))


def _make_vocabulary(
    config: PretrainConfig, text: Sequence[str], folders: RunFolders, tick: Tick
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
        tokenizer.save_pretrained(str(folders.work / TOKENIZER))
    except OSError as error:
        raise RunError(f"cannot write {folders.work / TOKENIZER}: {reason(error)}.") from error
    # Last: the tokenizer is whole when this is there.
    write_json(folders.work / VOCABULARY, about)


def fits(folder: Path) -> bool:
    """Return whether a folder's corpus is whole and was made with the tokenizer beside it."""
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
    """Report bytes read under another stage, in kB."""

    def renamed(_: str, done: int, total: int, note: str) -> None:
        tick(stage, done // _KILO, total // _KILO, f"kB, {note}")

    return renamed


def _hash(path: Path) -> str:
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {reason(error)}.") from error


@dataclass(frozen=True)
class PreparedText:
    """Text that is ready for any number of runs.

    Attributes:
        folder: give it to them as ``prepared``.
        about: documents, tokens and languages of the text, and how its vocabulary came about.
    """

    folder: Path
    about: dict[str, Any]


def prepare_pretraining(
    config: PretrainConfig, text: Sequence[str], *, tick: Tick = silent
) -> PreparedText:
    """Learn a tokenizer, tokenise text, and write both into the folder ``out`` for later runs.

    Args:
        config: its ``vocabulary``, ``corpus.held_out`` and ``seed`` count; ``out`` must be set.
        text: files and folders of text, as ``pretrain`` takes them.
        tick: called with the progress.

    Returns:
        What is in the folder now; if that was made of the same before, it is left as it is.

    Raises:
        SympromptError: one clear sentence; there is no half-written folder.
    """
    if config.prepared:
        raise ConfigError(
            f"prepared is {config.prepared!r}, text that is prepared already; prepare from --text."
        )
    if not config.out:
        raise ConfigError("--out is missing; name the folder that the prepared text goes to.")
    # Beside its place, so that it can be put there whole by a rename.
    folders = RunFolders(replace(config, work=""))
    finished = is_prepared(folders.out)
    if finished:
        _refuse_change(config, folders.out)
    elif folders.check_out():
        raise RunError(f"{folders.out} holds a model; choose another --out.")
    going_on = not finished and folders.check_work(resume=False)
    inputs = fingerprint_inputs(config, text, tick)
    if finished:
        folders.check_inputs(inputs, folders.out)
    else:
        folders.begin(inputs, going_on=going_on)
        prepare_text(config, text, folders, tick)
        folders.keep_prepared()
    return PreparedText(folders.out, _describe(folders.out))


def take_over(config: PretrainConfig) -> PretrainConfig:
    """Return the config with the vocabulary and the held-out share of the text it has prepared.

    Raises:
        ConfigError: the prepared text would be the run's own folder.
        RunError: there is no prepared text, or only a part of it.
    """
    if not config.prepared:
        return config
    folders, place = RunFolders(config), Path(config.prepared)
    if place.resolve() in (folders.out.resolve(), folders.work.resolve()):
        raise ConfigError(
            f"prepared is {config.prepared!r}, the run's own folder; choose another --out."
        )
    stored = _load_config(place)
    corpus = replace(config.corpus, held_out=stored.corpus.held_out)
    return replace(config, vocabulary=stored.vocabulary, corpus=corpus)


def refuse_contradiction(config: PretrainConfig, default: PretrainConfig) -> None:
    """Refuse a value, changed from the default's, that prepared text has otherwise.

    Raises:
        ConfigError: naming the key.
    """
    stored, given, before = (
        flatten(portable(each)) for each in (take_over(config), config, default)
    )
    for key, value in given.items():
        if _is_of_text(key) and key != "seed" and value not in (before[key], stored[key]):
            raise ConfigError(
                f"{key} is {value!r} and the text in {config.prepared} was prepared with "
                f"{stored[key]!r}; leave the flag out, or prepare the text anew."
            )


def load_prepared_inputs(place: Path) -> dict[str, Any]:
    """Return the fingerprints prepared text was made from, and its own.

    Raises:
        RunError: a part of the prepared text is missing or damaged, or they do not fit together.
    """
    config = _load_config(place)
    for name in (MANIFEST, VOCABULARY, f"{CORPUS}/{CARD}"):
        if not (place / name).is_file():
            raise _no_text(place, f"{name} is missing")
    if not fits(place):
        raise _no_text(place, "its corpus is damaged or of another tokenizer")
    card = (place / CORPUS / CARD).read_bytes()
    own = {"seed": config.seed, "sha256": hashlib.sha256(card).hexdigest()}
    return {**load_inputs(place), "prepared text": own}


def _load_config(place: Path) -> PretrainConfig:
    if not (place / CONFIG).is_file():
        raise _no_text(place, f"no {CONFIG}" if place.is_dir() else "there is no such folder")
    try:
        return load_pretrain_config(str(place / CONFIG))
    except ConfigError as error:
        raise _no_text(place, str(error).rstrip(".")) from error


def is_prepared(place: Path) -> bool:
    """Return whether a folder holds prepared text."""
    folder = Folder(place)
    return folder.finished and folder.manifest.command == PREPARE


def _no_text(place: Path, why: str) -> RunError:
    return RunError(
        f"{place} holds no prepared text ({why}); make it with --text FILE --prepare-only --out "
        "FOLDER."
    )


def _refuse_change(config: PretrainConfig, place: Path) -> None:
    stored, wanted = flatten(portable(_load_config(place))), flatten(portable(config))
    for key in filter(_is_of_text, wanted):
        if stored[key] != wanted[key]:
            raise RunError(
                f"{place} holds text prepared with another {key} ({stored[key]!r}, now "
                f"{wanted[key]!r}); choose another --out, or delete the folder."
            )


def _is_of_text(key: str) -> bool:
    """Return whether prepared text depends on a key of the config."""
    return key.startswith("vocabulary.") or key in ("corpus.held_out", "seed")


def _describe(place: Path) -> dict[str, Any]:
    corpus = load_corpus(place / CORPUS)
    return {
        **corpus.counts(),
        "languages": corpus.train.counts(),
        "vocabulary": {"size": len(corpus.unigrams), **read_json(place / VOCABULARY)},
    }
