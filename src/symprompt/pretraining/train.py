"""Pretrain a masked language model, or go on with one: text in, a transformers model folder out."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from symprompt.engine.loop import Loop, Progress
from symprompt.engine.processes import ProcessGroup, is_first_process, join_group
from symprompt.errors import ConfigError, RunError
from symprompt.files.progress import Tick, silent
from symprompt.models.trained import find_positions, find_segments
from symprompt.pretraining.config import PretrainConfig
from symprompt.pretraining.folder import (
    COMMAND,
    Prepared,
    RunFolders,
    keep_tokenizer,
    load_inputs,
    load_prepared,
    load_training,
    model_card,
    portable,
    take_over,
)
from symprompt.pretraining.parent import Parent, load_parent
from symprompt.pretraining.sequences import Feed
from symprompt.pretraining.tokenizer import find_specials
from symprompt.pretraining.training import Pretraining
from symprompt.runs.environment import DTYPES, made_with
from symprompt.runs.folder import HISTORY, STATE, Folder, Manifest, Record

CARD = "README.md"
_HIGH_RATE = 1e-3


@dataclass(frozen=True)
class PretrainResult:
    """A finished pretraining run.

    Attributes:
        folder: the model folder.
        training: what it states: text, vocabulary, losses, speed, the loss curve.
    """

    folder: Path
    training: dict[str, Any]


def pretrain(
    config: PretrainConfig, text: Sequence[str] = (), *, resume: bool = False, tick: Tick = silent
) -> PretrainResult:
    """Train a masked language model on text, and write it as a transformers model folder.

    It has fresh weights, or goes on from ``config.model``.

    Under ``torchrun`` several processes share every batch; the first one prepares the text, writes
    and reports.

    Args:
        config: what to do; ``out`` must be set.
        text: files and folders of text; ``de=FILE`` gives a file the language de. None if
            ``config.prepared`` is the folder of prepared text.
        resume: continue an unfinished run; on a CPU the weights are those of an unbroken one to
            the last bit.
        tick: called with the progress.

    Returns:
        The finished run; one that was finished before is returned as it is.

    Raises:
        SympromptError: one clear sentence; an interrupted run keeps what it had.
        KeyboardInterrupt: stopped by Ctrl-C, after the step's state was written.

    Example:
        >>> config = load_pretrain_config("pretrain-tiny")            # doctest: +SKIP
        >>> config = dataclasses.replace(config, out="my-model")      # doctest: +SKIP
        >>> pretrain(config, ["wiki.txt"]).folder                     # doctest: +SKIP
    """
    if not config.out:
        raise ConfigError("--out is missing; name the folder that the model goes to.")
    if text and config.prepared:
        raise ConfigError("--text and --prepared are both given; one of them is the text.")
    config = take_over(config)
    parent = None
    if config.model:
        # First of all, so that nothing is written beside a model that cannot be gone on from.
        parent = load_parent(config, tick if is_first_process() else silent)
        config = keep_tokenizer(config, parent)
    folders = RunFolders(config)
    with join_group(config.device) as group:
        group.share(config.learning.batch)
        tick = tick if group.is_first else silent
        # One process looks and prepares; the others wait until they know what it found.
        finished = False
        if group.is_first:
            finished = folders.out.check(COMMAND, portable(config), resume=True)
            lineage = None if parent is None else parent.lineage
            folders.open(text, tick, finished=finished, resume=resume, lineage=lineage)
        if not group.any(finished, patient=True):
            _train(config, folders, group, parent, tick)
            group.wait()
    return PretrainResult(folders.out.path, load_training(folders.out.path))


def _train(
    config: PretrainConfig,
    folders: RunFolders,
    group: ProcessGroup,
    parent: Parent | None,
    tick: Tick,
) -> None:
    """Train from where the work folder is; the first process writes the model folder."""
    prepared = load_prepared(config, folders.text)
    validation, unigrams = prepared.validation, torch.from_numpy(prepared.corpus.unigrams).double()
    training = Pretraining(
        config,
        Feed(prepared.train, config.learning.batch),
        None if validation is None else validation.to(group.device),
        specials=find_specials(prepared.tokenizer),
        frequencies=unigrams / unigrams.sum(),
        group=group,
        parent=parent,
    )
    tick("acceleration", 0, 0, training.acceleration)
    if parent is not None and config.learning.rate >= _HIGH_RATE:
        about = f"{config.learning.rate:g} is one for training from scratch, at which a trained"
        tick("rate", 0, 0, f"{about} model unlearns what it knows; --rate 1e-4 to 5e-4 is usual")
    loop = Loop(
        training,
        checkpoint=folders.work.path / STATE,
        checkpoint_seconds=config.checkpoint_seconds,
        tick=tick,
        group=group,
    )
    with closing(training.feed):
        progress = loop.run()
    if group.is_first:
        # If the model cannot be written, the training need not be done again; if this cannot be
        # written either, the model, which is smaller, may still find room.
        with suppress(RunError):
            loop.save()
        _finish(config, folders, prepared, training, progress, parent)


def _finish(
    config: PretrainConfig,
    folders: RunFolders,
    prepared: Prepared,
    learned: Pretraining,
    progress: Progress,
    parent: Parent | None,
) -> None:
    """Write the model folder, whole or not at all, and remove what is no longer needed."""
    details = _details(config, prepared, learned, progress)
    if parent is not None:
        details["parent"] = {**asdict(parent.lineage), "text": str(parent.lineage)}
    details["inputs"] = load_inputs(folders.work)
    manifest = Manifest(
        command=COMMAND,
        model=folders.out.name,
        data=", ".join(row["name"] for row in details["inputs"]["text"]),
        method=config.objective,
        seeds=(config.seed,),
        acceleration=learned.acceleration,
        **made_with(learned.device, learned.dtype),
    )
    losses = {"validation": details["validation"] or {}, "train": details["loss"]}
    records = [
        Record(metric=f"{part} loss", value=value, split=split)
        for split, own in losses.items()
        for part, value in own.items()
    ]
    records.append(Record(metric="tokens/s", value=details["tokens_per_second"]))
    learned.restore()
    trained = learned.trained()
    if parent is not None:
        trained = parent.trained.then(trained)
    trained.write(learned.pretrainer.model.config)
    with folders.finishing() as part:
        learned.pretrainer.save(part, DTYPES[config.save_dtype])
        tokenizer = prepared.tokenizer
        # A given tokenizer, or one of prepared text, may be for other lengths.
        tokenizer.model_max_length = config.corpus.length
        if parent is not None:
            tokenizer = parent.tokenizer
            longest = max(tokenizer.model_max_length, config.corpus.length)
            tokenizer.model_max_length = min(longest, learned.pretrainer.reader.longest)
        tokenizer.save_pretrained(str(part))
        folder = Folder(part)
        folder.start(portable(config), manifest)
        folder.write_json(HISTORY, progress.history)
        seconds = {"training": progress.seconds, "recording": progress.recording}
        folder.finish(records=records, seconds=seconds, details=details)
        card = model_card(config, load_training(part), folders.out.name, trained)
        folder.write(CARD, card.encode())
    folders.clear_work()


def _details(
    config: PretrainConfig, prepared: Prepared, learned: Pretraining, progress: Progress
) -> dict[str, Any]:
    """Return what the run states: what it was made from, and what came of it."""
    corpus, last = prepared.corpus, progress.history[-1]
    vocabulary: dict[str, Any] = {
        "size": len(corpus.unigrams),
        "kind": config.vocabulary.kind,
        **prepared.vocabulary,
    }
    if config.vocabulary.tokenizer:
        name = Path(config.vocabulary.tokenizer).resolve().name
        vocabulary |= {"kind": "given", "tokenizer": name}
    # Each process's first step, which compiles, is left out.
    steady = progress.seconds - progress.recording
    return {
        "vocabulary": vocabulary,
        "corpus": {
            **corpus.counts(),
            "sequences": len(prepared.train),
            "languages": [asdict(share) for share in prepared.train.languages()],
        },
        "model": _describe(learned),
        "steps": progress.done,
        "tokens": learned.tokens,
        "passes": progress.done * config.learning.batch / len(prepared.train),
        "first_step_seconds": round(progress.recording, 2),
        "tokens_per_second": round(learned.steady_tokens / steady, 1) if steady > 0 else 0.0,
        "loss": last["parts"],
        "validation": last["validation"],
        "processes": learned.group.size,
    }


def _describe(learned: Pretraining) -> dict[str, Any]:
    """Return the sizes of the model, and how many of its weights were trained."""
    model: Any = learned.pretrainer.model
    own = model.config
    table, first = find_positions(model.base_model)
    kinds = find_segments(model.base_model)
    inner = getattr(own, "intermediate_size", None) or own.hidden_dim
    return {
        "type": own.model_type,
        "layers": own.num_hidden_layers,
        "hidden": own.hidden_size,
        "heads": own.num_attention_heads,
        "feedforward": inner,
        "positions": None if table is None else table.num_embeddings - first,
        "segments": None if kinds is None else kinds.num_embeddings,
        "embedding": model.get_input_embeddings().weight.shape[1],
        "parameters": sum(value.numel() for value in learned.pretrainer.parameters()),
        "trained_parameters": learned.optimizer.size,
    }
