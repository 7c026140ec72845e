"""Text that is prepared once, tokenizer and tokenised corpus, and used by several runs."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from symprompt.config import flatten
from symprompt.errors import ConfigError, RunError
from symprompt.files import read_json
from symprompt.pretrain.folders import (
    CONFIG,
    CORPUS,
    INPUTS,
    PREPARED,
    VOCABULARY,
    RunFolders,
    portable,
)
from symprompt.pretrain.prepare import fingerprint_inputs, fits, prepare_text
from symprompt.pretrain.settings import (
    PretrainConfig,
    check_pretrain_config,
    load_pretrain_config,
)
from symprompt.pretrain.shards import CARD, load_corpus
from symprompt.runtime import Tick, silent


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
        tick: told of progress.

    Returns:
        What is in the folder now; if that was made of the same before, it is left as it is.

    Raises:
        SympromptError: one clear sentence; there is no half-written folder.
    """
    check_pretrain_config(config)
    if config.prepared:
        raise ConfigError(
            f"prepared is {config.prepared!r}, text that is prepared already; prepare from --text."
        )
    if not config.out:
        raise ConfigError("--out is missing; say which folder the prepared text goes to.")
    # Beside its place, so that it can be put there whole by a rename.
    folders = RunFolders(replace(config, work=""))
    finished = (folders.out / PREPARED).is_file()
    if finished:
        _refuse_change(config, folders.out)
    elif folders.check_out():
        raise RunError(f"{folders.out} holds a model; choose another --out.")
    going_on = not finished and folders.check_work(resume=False)
    inputs = fingerprint_inputs(config, text, tick)
    if finished:
        folders.check_inputs(read_json(folders.out / INPUTS), inputs, folders.out)
    else:
        folders.renew(inputs, going_on=going_on)
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
    for name in (INPUTS, VOCABULARY, f"{CORPUS}/{CARD}"):
        if not (place / name).is_file():
            raise _no_text(place, f"{name} is missing")
    if not fits(place):
        raise _no_text(place, "its corpus is damaged or of another tokenizer")
    card = (place / CORPUS / CARD).read_bytes()
    own = {"seed": config.seed, "sha256": hashlib.sha256(card).hexdigest()}
    return {**read_json(place / INPUTS), "prepared text": own}


def _load_config(place: Path) -> PretrainConfig:
    for name in (PREPARED, CONFIG):
        if (place / name).is_file():
            try:
                return load_pretrain_config(str(place / name))
            except ConfigError as error:
                raise _no_text(place, str(error).rstrip(".")) from error
    raise _no_text(place, f"{PREPARED} is missing" if place.is_dir() else "there is no such folder")


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
    """Say whether prepared text depends on a key of the config."""
    return key.startswith("vocabulary.") or key in ("corpus.held_out", "seed")


def _describe(place: Path) -> dict[str, Any]:
    corpus = load_corpus(place / CORPUS)
    return {
        "documents": corpus.train.documents + corpus.valid.documents,
        "held_out_documents": corpus.valid.documents,
        "empty_documents": corpus.empty,
        "tokens": corpus.train.tokens + corpus.valid.tokens,
        "languages": corpus.train.counts(),
        "vocabulary": {"size": len(corpus.unigrams), **read_json(place / VOCABULARY)},
    }
