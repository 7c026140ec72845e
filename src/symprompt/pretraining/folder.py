"""The folders of a pretraining run: prepared text, the work folder, the model folder and its card.

Text can be prepared once, tokenizer and tokenised corpus, and used by several runs. The work folder
begins with the config and the fingerprints of what the run is made from; the model folder OUT is
written beside its place and put there whole, so it is finished if it exists.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from transformers import PreTrainedTokenizerFast

from symprompt.config import flatten
from symprompt.errors import ConfigError, DataError, ModelError, RunError, escape
from symprompt.files.atomic import is_leftover, making_folder, read_json, reason
from symprompt.files.progress import Tick, silent
from symprompt.files.text import file_digest, find_files, read_documents
from symprompt.models.layers import ALL
from symprompt.models.trained import Trained
from symprompt.pretraining.config import PretrainConfig, WeightsConfig, load_pretrain_config
from symprompt.pretraining.corpus import CARD, Corpus, fingerprint, load_corpus, make_corpus
from symprompt.pretraining.parent import Lineage, Parent, load_parent
from symprompt.pretraining.sequences import Batch, Sequences, make_sequences
from symprompt.pretraining.tokenizer import (
    LearnedTokenizer,
    find_specials,
    learn_tokenizer,
    load_tokenizer,
)
from symprompt.runs.folder import (
    CONFIG,
    HISTORY,
    LOCK,
    MANIFEST,
    PROGRESS,
    STATE,
    Folder,
    Manifest,
)

COMMAND, PREPARE = "pretrain", "prepare"
TOKENIZER = "tokenizer"
VOCABULARY = "vocabulary.json"
CORPUS = "corpus"
_WORK = (STATE, PROGRESS, VOCABULARY, MANIFEST, CONFIG, LOCK)
_WORK_FOLDERS = (TOKENIZER, CORPUS, f"{CORPUS}.part")
_VALIDATION_SEQUENCES = 512
_KILO = 1000


class RunFolders:
    """Where a run's model goes, where it works and where its text is; final."""

    def __init__(self, config: PretrainConfig) -> None:
        self.config = config
        self.out = Folder(config.out)
        self.work = Folder(config.work or f"{config.out.rstrip('/')}.work")
        # Where tokenizer and corpus are: made by another run, or in this one's work folder.
        self.text = Path(config.prepared) if config.prepared else self.work.path

    def open(
        self,
        text: Sequence[str],
        tick: Tick,
        *,
        finished: bool,
        resume: bool,
        lineage: Lineage | None = None,
    ) -> None:
        """Begin the work folder and prepare the text, or go on with both; refuse another run's.

        An unfinished run that has not yet trained has nothing to lose: with the same config and
        text it is gone on with, with others it is removed.

        Args:
            text: files and folders; none where the text is prepared already.
            finished: whether OUT holds the result; then only what it was made from is checked.
            resume: whether to go on with a run that has trained.
            lineage: the model that is gone on from.

        Raises:
            SympromptError: there is such a run and ``resume`` is false, it is of another config or
                was begun with other text, words or tokenizer, the folder holds something else, or
                the text cannot be read or gives too little.
        """
        config, work, trained = portable(self.config), self.work, self.work.has(STATE)
        if not finished and (trained or not work.holds_run):
            work.check(COMMAND, config, resume=resume)
        if self.config.prepared:
            inputs = _load_prepared_inputs(self.text)
        else:
            inputs = _fingerprint_inputs(self.config, text, tick)
        if lineage is not None:
            inputs["model"] = {"name": lineage.name, "fingerprint": lineage.fingerprint}
        if finished or trained:
            _refuse_other(inputs, self.out if finished else work)
        if finished:
            # A kill after OUT was put in its place left it.
            if work.has(CONFIG) and not work.differing_keys(config):
                self.clear_work()
            return
        begun = work.has(CONFIG) and work.has(MANIFEST) and not work.differing_keys(config)
        if not trained and not (begun and load_inputs(work) == inputs):
            self.clear_work()
        manifest = Manifest(
            command=COMMAND,
            data=", ".join(row["name"] for row in inputs["text"]),
            data_fingerprint=hashlib.sha256(
                json.dumps(inputs, sort_keys=True).encode()
            ).hexdigest(),
            method=config.objective,
            seeds=(config.seed,),
            details={"inputs": inputs},
        )
        work.start(config, manifest)
        if not self.config.prepared:
            self._prepare_text(text, tick)

    def _prepare_text(self, text: Sequence[str], tick: Tick) -> None:
        """Learn the tokenizer and tokenise the text, as far as the work folder has not got them."""
        config, place = self.config, self.work.path
        if not self.work.has(VOCABULARY):
            if config.vocabulary.tokenizer:
                learned = LearnedTokenizer(load_tokenizer(config.vocabulary.tokenizer))
            else:
                learned = learn_tokenizer(
                    partial(read_documents, text, tick, "reading"),
                    config.vocabulary,
                    length=config.corpus.length,
                    seed=config.seed,
                    tick=tick,
                )
            try:
                learned.tokenizer.save_pretrained(str(place / TOKENIZER))
            except OSError as error:
                raise RunError(f"cannot write {place / TOKENIZER}: {reason(error)}.") from error
            about = {
                "languages": [asdict(share) for share in learned.languages],
                "whole": len(learned.whole),
                "broken": list(learned.broken),
            }
            # Last: the tokenizer is whole when this is there.
            self.work.write_json(VOCABULARY, about)
        tokenizer = load_tokenizer(place / TOKENIZER)
        if not _holds_corpus(place):
            make_corpus(
                read_documents(text, tick, "tokenising"),
                tokenizer,
                place / CORPUS,
                held_out=config.corpus.held_out,
                seed=config.seed,
            )

    @contextmanager
    def finishing(self) -> Iterator[Path]:
        """Give a folder to write the model to; it becomes OUT when the block ends well.

        Raises:
            RunError: it cannot be written, for example because the disk is full; what was written
                is removed again and the work folder is kept.
        """
        try:
            with making_folder(self.out.path) as part:
                yield part
                for path in part.iterdir():
                    with path.open("rb") as stream:
                        os.fsync(stream.fileno())
        except (OSError, SafetensorError) as error:
            raise RunError(
                f"cannot write {self.out.path}: {reason(error)}; the training is kept in "
                f"{self.work.path}, go on with --resume."
            ) from error

    def clear_work(self) -> None:
        """Remove what the finished run no longer needs, and nothing else."""
        self.work.release()
        for name in _WORK_FOLDERS:
            shutil.rmtree(self.work.path / name, ignore_errors=True)
        with suppress(OSError):
            for path in filter(is_leftover, list(self.work.path.iterdir())):
                path.unlink()
            for name in _WORK:
                self.work.remove(name)
            self.work.path.rmdir()


def load_inputs(folder: Folder) -> dict[str, Any]:
    """Return the fingerprints of what a run, or prepared text, was made from.

    Raises:
        RunError: the manifest is damaged.
    """
    found = folder.manifest.details.get("inputs")
    if not isinstance(found, dict):
        raise RunError(
            f"{folder.path / MANIFEST} is damaged: inputs is missing; choose another --out."
        )
    return found


def load_training(place: str | Path) -> dict[str, Any]:
    """Return what a finished run states: text, vocabulary, losses, speed, the loss curve.

    Raises:
        RunError: there is no finished run, or it is damaged.
    """
    folder = Folder(place)
    manifest = folder.require_finished(COMMAND)
    load_inputs(folder)
    return {
        **manifest.details,
        "seconds": manifest.seconds["training"],
        "seed": manifest.seeds[0],
        "dtype": manifest.dtype,
        "environment": {"device": manifest.device, **manifest.versions},
        "history": folder.read_json(HISTORY),
    }


def portable(config: PretrainConfig) -> PretrainConfig:
    """Return the config without the paths of one machine: what is stored with a model."""
    words, tokenizer = config.vocabulary.whole_words, config.vocabulary.tokenizer
    model = Path(config.model)
    return replace(
        config,
        out="",
        work="",
        model=model.resolve().name if config.model and model.exists() else config.model,
        prepared=Path(config.prepared).name if config.prepared else "",
        vocabulary=replace(
            config.vocabulary,
            whole_words=Path(words).name if words else "",
            tokenizer=Path(tokenizer).name if tokenizer else "",
        ),
    )


def _refuse_other(inputs: Mapping[str, Any], folder: Folder) -> None:
    """Refuse to go on with other text, words or tokenizer than a run was begun with."""
    stored = load_inputs(folder)
    for key, value in inputs.items():
        if stored.get(key) != value:
            raise RunError(
                f"{folder.path} was made with another {key} than is there now; give the same "
                f"{key}, or choose another --out."
            )


def _fingerprint_inputs(config: PretrainConfig, text: Sequence[str], tick: Tick) -> dict[str, Any]:
    """Return names, sizes and hashes of all that a run is made from."""
    tokenizer = {}
    if config.vocabulary.tokenizer:
        # Before the text is read: a name that is none is refused at once.
        tokenizer["tokenizer"] = fingerprint(load_tokenizer(config.vocabulary.tokenizer))
    files = find_files(text)
    total = sum(file.size for file in files)
    listed, done = [], 0
    for file in files:
        tick("checking", done // _KILO, total // _KILO, f"kB, {file.path.name}")
        own = {"name": file.path.name, "language": file.language, "bytes": file.size}
        listed.append({**own, "sha256": file_digest(file.path)})
        done += file.size
    tick("checking", total // _KILO, total // _KILO, "kB")
    inputs: dict[str, Any] = {"text": listed}
    if config.vocabulary.whole_words:
        inputs["list of whole words"] = file_digest(Path(config.vocabulary.whole_words))
    return inputs | tokenizer


def _holds_corpus(place: Path) -> bool:
    """Return whether a folder's corpus is whole and was made with the tokenizer beside it."""
    try:
        made_with = fingerprint(load_tokenizer(place / TOKENIZER))
        return load_corpus(place / CORPUS).fingerprint == made_with
    except (ModelError, RunError):
        return False


# ------------------------------------------------------------------------------ prepared text


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
    validation: Batch[np.ndarray] | None


def load_prepared(config: PretrainConfig, place: Path) -> Prepared:
    """Return the prepared text in a folder as a run takes it.

    Raises:
        DataError: the text gives fewer sequences than one batch.
        RunError: the folder is damaged.
    """
    tokenizer = load_tokenizer(place / TOKENIZER)
    corpus = load_corpus(place / CORPUS)
    specials = find_specials(tokenizer)
    train = make_sequences(corpus.train, config.corpus, specials, config.seed)
    if len(train) < config.learning.batch:
        raise DataError(
            f"the text gives {len(train)} sequences of {config.corpus.length} tokens, fewer than "
            f"one batch (learning.batch is {config.learning.batch}); give more text, or lower "
            "--batch or --length."
        )
    validation = None
    # There may be too few held-out documents to make pairs of.
    with suppress(DataError):
        held = make_sequences(corpus.valid, config.corpus, specials, config.seed)
        if len(held):
            validation = held.batch(np.sort(held.order(0)[:_VALIDATION_SEQUENCES]), 0)
    return Prepared(tokenizer, read_json(place / VOCABULARY), corpus, train, validation)


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
    if config.model:
        kept = keep_tokenizer(config, load_parent(config, tick))
        config = replace(kept, model="", weights=WeightsConfig())
    if config.prepared:
        raise ConfigError(
            f"prepared is {config.prepared!r}, text that is prepared already; prepare from --text."
        )
    if not config.out:
        raise ConfigError("--out is missing; name the folder that the prepared text goes to.")
    # Beside its place, so that it can be put there whole by a rename.
    folders = RunFolders(replace(config, work=""))
    out = folders.out
    finished = out.finished and out.manifest.command == PREPARE
    if finished:
        _refuse_change(config, out.path)
    elif out.check(COMMAND, portable(config), resume=True):
        raise RunError(f"{out.path} holds a model; choose another --out.")
    folders.open(text, tick, finished=finished, resume=False)
    if not finished:
        # From here on it is no work folder, which a run may clear.
        folders.work.finish(command=PREPARE)
        try:
            if out.path.exists():
                out.path.rmdir()
            folders.work.path.rename(out.path)
        except OSError as error:
            raise RunError(f"cannot write {out.path}: {reason(error)}.") from error
    corpus = load_corpus(out.path / CORPUS)
    about = {
        **corpus.counts(),
        "languages": corpus.train.counts(),
        "vocabulary": {"size": len(corpus.unigrams), **read_json(out.path / VOCABULARY)},
    }
    return PreparedText(out.path, about)


def take_over(config: PretrainConfig) -> PretrainConfig:
    """Return the config with the vocabulary and the held-out share of the text it has prepared.

    Raises:
        ConfigError: the prepared text would be the run's own folder.
        RunError: there is no prepared text, or only a part of it.
    """
    if not config.prepared:
        return config
    folders, place = RunFolders(config), Path(config.prepared)
    if place.resolve() in (folders.out.path.resolve(), folders.work.path.resolve()):
        raise ConfigError(
            f"prepared is {config.prepared!r}, the run's own folder; choose another --out."
        )
    stored = _load_config(place)
    corpus = replace(config.corpus, held_out=stored.corpus.held_out)
    return replace(config, vocabulary=stored.vocabulary, corpus=corpus)


def keep_tokenizer(config: PretrainConfig, parent: Parent) -> PretrainConfig:
    """Return the config with the tokenizer of the model that is gone on from.

    Raises:
        RunError: prepared text was made with another one.
    """
    if not config.prepared:
        vocabulary = replace(config.vocabulary, tokenizer=parent.place, whole_words="")
        return replace(config, vocabulary=vocabulary)
    place = Path(config.prepared)
    if fingerprint(load_tokenizer(place / TOKENIZER)) != fingerprint(parent.tokenizer):
        raise RunError(
            f"{place} holds text of another tokenizer than that of {config.model}; prepare it with "
            f"--model {config.model} --prepare-only."
        )
    return config


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


def _load_prepared_inputs(place: Path) -> dict[str, Any]:
    """Return the fingerprints prepared text was made from, and its own."""
    config = _load_config(place)
    for name in (MANIFEST, VOCABULARY, f"{CORPUS}/{CARD}"):
        if not (place / name).is_file():
            raise _no_text(place, f"{name} is missing")
    if not _holds_corpus(place):
        raise _no_text(place, "its corpus is damaged or of another tokenizer")
    card = (place / CORPUS / CARD).read_bytes()
    own = {"seed": config.seed, "sha256": hashlib.sha256(card).hexdigest()}
    return {**load_inputs(Folder(place)), "prepared text": own}


def _load_config(place: Path) -> PretrainConfig:
    if not (place / CONFIG).is_file():
        raise _no_text(place, f"no {CONFIG}" if place.is_dir() else "there is no such folder")
    try:
        return load_pretrain_config(str(place / CONFIG))
    except ConfigError as error:
        raise _no_text(place, str(error).rstrip(".")) from error


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


# ------------------------------------------------------------------------------ the model card


_OBJECTIVES = {
    "mlm": "masked tokens (MLM)",
    "mlm+nsp": "masked tokens (MLM) and next-sentence prediction (NSP)",
    "mlm+sbo": "masked tokens (MLM) and the span-boundary objective (SBO)",
}


def model_card(
    config: PretrainConfig, training: Mapping[str, Any], name: str, trained: Trained
) -> str:
    """Return the card as Markdown, from the run's config and what it states."""
    learning, corruption, shape = config.learning, config.corruption, config.shape
    corpus, vocabulary, model = training["corpus"], training["vocabulary"], training["model"]
    files, environment = training["inputs"]["text"], training["environment"]
    length, weights = config.corpus.length, f"{model['parameters']:,}"
    longest = trained.positions or length
    tags = "".join(f"\n- {tag}" for tag in sorted({row["language"] for row in files} - {""}))
    front = f"language:{tags}\n" if tags else ""
    beforehand = sampled = words = chosen = compared = parent = ""
    begun, after = "trained from scratch", {}
    known = (
        "The model has read nothing but the text above: it knows no more than that text, and "
        "repeats its errors, its age and its leanings."
    )
    case = "cased" if config.vocabulary.cased else "uncased"
    kind = f"{config.vocabulary.kind}, {case}, learned from the text"
    if config.vocabulary.tokenizer:
        kind = f"the tokenizer given as {vocabulary['tokenizer']}"
    if "parent" in training:
        begun = f"continued from {training['parent']['name']}"
        parent = f"\n\nParent: {training['parent']['text']}."
        layers = config.weights.layers
        which = {ALL: "all", 0: "none, the head alone"}.get(layers, f"the last {layers}, the head")
        after = {
            "layers trained": which,
            "weights trained": f"{model['trained_parameters']:,}",
        }
        known = (
            "What the model knows is from its parent and from the text above, and so are its "
            "errors, its age and its leanings; its parent's card says what that has read."
        )
        kind = "the parent's tokenizer"
    if config.prepared:
        seed = training["inputs"]["prepared text"]["seed"]
        beforehand = f" Vocabulary and held-out documents were made beforehand, with seed {seed}."
    if len(corpus["languages"]) > 1:
        rows = [
            (
                row["language"] or "-",
                f"{row['before']:,}",
                f"{row['prior']:.4f}",
                f"{row['after']:,}",
                f"{row['share']:.4f}",
            )
            for row in corpus["languages"]
        ]
        header = ("language", "sequences", "share", "after sampling", "share after")
        about = f"Languages are sampled with alpha = {config.corpus.alpha}, in every pass:"
        sampled = f"\n\n{about}\n\n{_table(rows, header)}"
    if vocabulary["whole"] or vocabulary["broken"]:
        words = (
            f" {vocabulary['whole']:,} listed words are one token each; "
            f"{len(vocabulary['broken']):,} could not be."
        )
    if corruption.kind in ("tokens", "words", "spans"):
        chosen = (
            "\n\nThe corruption of kind tokens, words and spans puts the mask token at "
            f"{corruption.mask:.0%} of the chosen positions, a random token at "
            f"{corruption.random:.0%}."
        )
    shapes = {
        "family": model["type"],
        "layers": model["layers"],
        "hidden size": model["hidden"],
        "attention heads": model["heads"],
        "feed-forward size": model["feedforward"],
        "embedding size": model["embedding"],
        "positions": _trained_of(model["positions"], trained.positions),
        "segments": _trained_of(model["segments"], trained.segments),
        "weights": weights,
        **after,
        "stored as": config.save_dtype,
    }
    hidden = f"{corruption.share:.0%} of the tokens"
    if corruption.uniform:
        hidden = "a new share of the tokens for every sequence, from 0 to 1 (MLM-U)"
        compared = (
            f"\n\nThe training loss is of these shares, the validation loss of "
            f"{corruption.share:.0%} of the tokens."
        )
    recipe = {
        "objective": _OBJECTIVES[config.objective],
        "corruption": f"{corruption.kind}, {hidden}",
        "optimiser": f"AdamW, betas {learning.beta_1} and {learning.beta_2}",
        "weight decay": learning.weight_decay,
        "highest rate": f"{learning.rate:g}, after {learning.warmup:.0%} of the steps",
        "schedule": "linear warm-up, linear decay to zero",
        "batch": f"{learning.batch:,} sequences of {length} tokens",
        "dropout": shape.dropout,
        "steps": f"{training['steps']:,}",
        "tokens seen": f"{training['tokens']:,}",
        "passes over the text": f"{training['passes']:.2f}",
        "seed": config.seed,
        "passes computed in": training["dtype"],
        "device": f"{training['processes']} x {environment['device']}",
        "time": f"{training['seconds']:,.0f} s, {training['tokens_per_second']:,.0f} tokens/s",
        "torch": environment["torch"],
        "transformers": environment["transformers"],
    }
    validation = training["validation"] or {}
    losses = [
        (part, f"{value:.4f}", f"{validation[part]:.4f}" if part in validation else "-")
        for part, value in training["loss"].items()
    ]
    texts = [(row["name"], row["language"] or "-", f"{row['bytes']:,}") for row in files]
    card = f"""---
{front}library_name: transformers
pipeline_tag: fill-mask
---

# {name}

A masked language model of {weights} weights, {begun} by `symprompt pretrain` on \
{corpus["tokens"]:,} tokens of text.{parent}

## Use

```python
from transformers import AutoModelForMaskedLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("FOLDER")
model = AutoModelForMaskedLM.from_pretrained("FOLDER")
```

```
symprompt train lama-spe --model FOLDER --data DATA --out RUN
```

It is meant for filling masks, for probing what a model knows, and as a start for fine-tuning, on \
texts of up to {longest} tokens.

## Text

{_table(texts, ("file", "language", "bytes"))}

{corpus["documents"]:,} documents, {corpus["tokens"]:,} tokens, {corpus["sequences"]:,} sequences \
of {length} tokens ({config.corpus.packing}); {corpus["held_out_documents"]:,} documents were held \
out for the validation loss.{beforehand}{sampled}

## Vocabulary

{vocabulary["size"]:,} tokens: {kind}.{words}

## Model

{_table(shapes.items())}

## Training

{_table(recipe.items())}{chosen}

`config.toml` beside this card is the config that repeats it, `history.json` the whole loss curve.

## Losses at the end

{_table(losses, ("", "training", "validation"))}{compared}

## Limits

{known} It is small, it was not tuned to follow instructions or to be \
harmless, and what it fills in is a likely word, not a checked fact. Do not decide about people \
with it.
"""
    return escape(card, "markdown")


def _trained_of(rows: int | None, trained: int | None) -> str:
    return "no table of them" if not rows else f"{rows}, of which {trained} trained"


def _table(rows: Iterable[Sequence[object]], header: Sequence[str] = ("", "")) -> str:
    cells = [[str(value).replace("|", "\\|").replace("\n", " ") for value in row] for row in rows]
    lines = [f"| {' | '.join(row)} |" for row in (header, *cells)]
    return "\n".join([lines[0], f"|{'---|' * len(header)}", *lines[1:]])
