"""Pretrain a masked language model: text in, a transformers model folder out."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from symprompt.engine.loop import Loop, Progress
from symprompt.engine.processes import ProcessGroup, join_group
from symprompt.errors import ConfigError, RunError
from symprompt.files.progress import Tick, silent
from symprompt.pretraining.config import PretrainConfig
from symprompt.pretraining.folder import (
    COMMAND,
    Prepared,
    RunFolders,
    load_inputs,
    load_prepared,
    load_training,
    model_card,
    portable,
    take_over,
)
from symprompt.pretraining.sequences import Feed
from symprompt.pretraining.tokenizer import find_specials
from symprompt.pretraining.training import Pretraining
from symprompt.runs.environment import DTYPES, made_with
from symprompt.runs.folder import HISTORY, STATE, Folder, Manifest, Record

CARD = "README.md"


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
    folders = RunFolders(config)
    with join_group(config.device) as group:
        group.share(config.learning.batch)
        tick = tick if group.is_first else silent
        # One process looks and prepares; the others wait until they know what it found.
        finished = False
        if group.is_first:
            finished = folders.out.check(COMMAND, portable(config), resume=True)
            folders.open(text, tick, finished=finished, resume=resume)
        if not group.any(finished):
            _train(config, folders, group, tick)
            group.wait()
    return PretrainResult(folders.out.path, load_training(folders.out.path))


def _train(config: PretrainConfig, folders: RunFolders, group: ProcessGroup, tick: Tick) -> None:
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
    )
    tick("acceleration", 1, 1, training.acceleration)
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
        _finish(config, folders, prepared, training, progress)


def _finish(
    config: PretrainConfig,
    folders: RunFolders,
    prepared: Prepared,
    learned: Pretraining,
    progress: Progress,
) -> None:
    """Write the model folder, whole or not at all, and remove what is no longer needed."""
    details = _details(config, prepared, learned, progress)
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
    learned.optimizer.restore()
    learned.pretrainer.eval()
    trained = learned.trained()
    trained.write(learned.pretrainer.model.config)
    with folders.finishing() as part:
        learned.pretrainer.save(part, DTYPES[config.save_dtype])
        # A given tokenizer, or one of prepared text, may be for other lengths.
        prepared.tokenizer.model_max_length = config.corpus.length
        prepared.tokenizer.save_pretrained(str(part))
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
        "model": {
            "type": learned.pretrainer.model.config.model_type,
            "parameters": learned.optimizer.size,
        },
        "steps": progress.done,
        "tokens": learned.tokens,
        "passes": progress.done * config.learning.batch / len(prepared.train),
        "first_step_seconds": round(progress.recording, 2),
        "tokens_per_second": round(learned.steady_tokens / steady, 1) if steady > 0 else 0.0,
        "loss": last["parts"],
        "validation": last["validation"],
        "processes": learned.group.size,
    }
