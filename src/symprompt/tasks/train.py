"""Train a method on a labelled task and write its run folder."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from symprompt.engine.loop import Loop
from symprompt.errors import ConfigError, RunError
from symprompt.files.progress import Tick, silent
from symprompt.models import LanguageModel
from symprompt.runs.environment import made_with
from symprompt.runs.folder import HISTORY, STATE, Folder
from symprompt.runs.manifest import Manifest, Record
from symprompt.tasks.config import TuneConfig
from symprompt.tasks.data.examples import TaskData
from symprompt.tasks.folder import CARD, COMMAND, Card, load_card, load_metrics, open_task
from symprompt.tasks.heads import Head
from symprompt.tasks.kinds import KINDS, Target
from symprompt.tasks.model import TaskModel, make_task_head
from symprompt.tasks.outcome import Asker, choosing_metric
from symprompt.tasks.prepare import LaidTask, Session, asked_splits
from symprompt.tasks.settings import check_settings
from symprompt.tasks.stored import check_backbone, load_numbers
from symprompt.tasks.trainables import TRAINABLES, Body, check_method, make_body
from symprompt.tasks.training import TaskTraining

FORMAT = 1
CHOICE = "choice"


@dataclass(frozen=True)
class TaskRun:
    """A finished run: its folder and its figures."""

    folder: Folder
    metrics: dict[str, Any]

    @classmethod
    def load(cls, folder: Folder) -> TaskRun:
        """Read a finished run."""
        return cls(folder, load_metrics(folder))


@dataclass(frozen=True, eq=False)
class _Job:
    folder: Folder
    config: TuneConfig
    backbone: LanguageModel
    laid: LaidTask
    model: TaskModel
    tick: Tick
    seconds: dict[str, float]
    asked: Sequence[str] | None = None

    def asker(self) -> Asker:
        """Return what asks the model about a split."""
        max_tokens = self.config.max_tokens or self.backbone.token_budget()
        return Asker(self.model, self.config, max_tokens=max_tokens)


def tune(
    config: TuneConfig,
    *,
    resume: bool = False,
    tick: Tick = silent,
    session: Session | None = None,
    asked: Sequence[str] | None = None,
) -> TaskRun:
    """Train a method on a labelled task, ask it, and write a run folder; return the run.

    A run that is finished already is read back. A mixture is trained by
    ``symprompt.tasks.multitask.tune_mixture``.

    Args:
        resume: go on with an unfinished run.
        session: models and tasks that several runs share.
        asked: the splits to ask in the end, if not all but training; "choice" is the one that
            chooses epochs, for a search of settings that must not look at the others.

    Raises:
        SympromptError: a setting, the data or the model cannot be used; a loss is not finite.
    """
    check_method(config)
    if not config.out:
        raise ConfigError("--out is missing; name the run folder to write.")
    if config.mixture.tasks:
        raise ConfigError('method = "mpt2" trains a mixture; call tune_mixture.')
    folder = Folder(config.out)
    if folder.check(COMMAND, config, resume=resume):
        return TaskRun.load(folder)
    with folder.undone_if_refused():
        return run_task(folder, config, session=session or Session(), tick=tick, asked=asked)


def run_task(
    folder: Folder,
    config: TuneConfig,
    *,
    session: Session,
    tick: Tick = silent,
    start: Mapping[str, Tensor] | None = None,
    asked: Sequence[str] | None = None,
) -> TaskRun:
    """Train, ask and write a run; what is wrong with the input is found before its folder is made.

    Args:
        start: stored tensors of prompt and head that training goes on from.
        asked: see ``tune``.
    """
    seconds: dict[str, float] = {}
    begun = time.perf_counter()
    backbone = session.backbone(config)
    body = make_body(backbone, config, seed=(config.seed,))
    laid = session.task(config, backbone, taken=body.taken)
    head = head_of(config, laid, body, seed=(config.seed,))
    model = TaskModel(body, {laid.name: head}, {laid.name: laid.splits["train"].inputs})
    seconds["preparing"] = time.perf_counter() - begun
    job = _Job(folder, config, backbone, laid, model, tick, seconds, asked)
    if config.start_from:
        start = _stored_start(job)
    if start is not None:
        _begin_from(job, start)
    folder.start(config, describe_run(config, backbone, {laid.name: laid}))
    _learn(job)
    _finish(job)
    return TaskRun.load(folder)


def describe_run(
    config: TuneConfig, backbone: LanguageModel, tasks: Mapping[str, LaidTask]
) -> Manifest:
    """Return what a run on one task, or on a mixture, states about itself when it begins."""
    digest = hashlib.sha256()
    for laid in tasks.values():
        for split, examples in laid.data.splits.items():
            digest.update(split.encode())
            for example in examples:
                digest.update(repr(example).encode())
    return Manifest(
        command=COMMAND,
        model=config.model,
        model_fingerprint=backbone.fingerprint,
        data="+".join(tasks),
        data_fingerprint=digest.hexdigest(),
        method=config.method,
        seeds=(config.seed,),
        **made_with(backbone.device, backbone.dtype),
    )


def head_of(config: TuneConfig, laid: LaidTask, body: Body, *, seed: tuple[object, ...]) -> Head:
    """Return the head of a task at its start.

    Raises:
        ConfigError: settings concern other kinds of task.
    """
    data = laid.data
    known = {name: kind.settings for name, kind in KINDS.items()}
    check_settings(config, "task's kind", data.kind, known)
    return make_task_head(KINDS[data.kind], target_of(config, data), body, seed=seed)


def target_of(config: TuneConfig, data: TaskData) -> Target:
    """Return what a task asks for."""
    every = config.task.label_all_tokens
    return Target(data.labels, data.relations, config.head, config.span, every_token=every)


def _learn(job: _Job) -> None:
    """Train, or take up where a killed run was; write the prompt."""
    folder, model, config, laid = job.folder, job.model, job.config, job.laid
    name = TRAINABLES[config.method].file
    job.tick("acceleration", 1, 1, job.backbone.accelerate(config.compile))
    if not folder.has(name):
        asker = job.asker()

        def score() -> tuple[float, dict[str, float]]:
            found = asker.measure(laid.name, laid, laid.choice)
            return choosing_metric(config.learning.choose, found), found

        training = TaskTraining(
            model,
            {laid.name: laid.lengths},
            {laid.name: laid.widest},
            config.learning,
            score,
            seed=config.seed,
            record=job.backbone.records,
        )
        folder.write_json(HISTORY, run_training(folder, training, config, job.tick))
        folder.write_json(CARD, make_card(job, name))
        folder.write_tensors(name, model.tensors(laid.name), {"format": FORMAT})
    # Read back even when just written: a resumed run must see the same numbers.
    tensors, _ = folder.read_tensors(name)
    load_numbers(model, laid.name, tensors)
    folder.remove(STATE)


def run_training(
    folder: Folder, training: TaskTraining, config: TuneConfig, tick: Tick
) -> dict[str, Any]:
    """Train to the end, with checkpoints in the folder; return how it went.

    Raises:
        RunError: the checkpoint is damaged.
    """
    progress = Loop(
        training,
        checkpoint=folder.path / STATE,
        checkpoint_seconds=config.checkpoint_seconds,
        tick=tick,
    ).run()
    return {
        "epochs": progress.history,
        "best_epoch": training.best_epoch,
        "seconds": round(progress.seconds, 3),
        "recording": round(progress.recording, 3),
        "recorded": training.recorder.active,
    }


def make_card(job: _Job, file: str) -> Card:
    """Return what a prompt file is: enough to use it on new inputs without the run's config."""
    config, laid = job.config, job.laid
    return {
        "format": FORMAT,
        "method": config.method,
        "task": laid.name,
        "kind": laid.data.kind,
        "labels": list(laid.data.labels.names),
        "base_model": config.model,
        "base_model_fingerprint": job.backbone.fingerprint,
        "file": file,
        "trainable_parameters": job.model.size,
        "features": {
            "max_length": laid.max_length,
            "stride": min(config.task.stride, laid.max_length // 4),
            "label_all_tokens": config.task.label_all_tokens,
            "unanswerable": config.task.unanswerable,
        },
        "prefix": asdict(config.prefix),
        "lora": {**asdict(config.lora), "targets": list(config.lora.targets)},
        "weights": asdict(config.weights),
        "head": asdict(config.head),
        "span": asdict(config.span),
        "relations": list(laid.data.relations.names),
    }


def _finish(job: _Job) -> None:
    """Ask every split but training, write predictions and, last, the manifest."""
    folder, config, laid = job.folder, job.config, job.laid
    asker = job.asker()
    threshold = asker.threshold(laid)
    if config.task.choose_threshold:
        threshold = asker.choose_threshold(laid.name, laid)
    measured: dict[str, dict[str, float]] = {}
    records: list[Record] = []
    for split in job.asked or asked_splits(laid):
        split = laid.choice if split == CHOICE else split
        begun = time.perf_counter()
        outcome = asker.ask(laid.name, laid, split, threshold=threshold, tick=job.tick)
        measured[split] = outcome.metrics
        records += [
            Record(metric=name, value=value, n=len(outcome.rows), split=split)
            for name, value in outcome.metrics.items()
        ]
        folder.write_rows(f"predictions/{split}.jsonl", outcome.rows)
        job.seconds[f"asking {split}"] = time.perf_counter() - begun
    history = folder.read_json(HISTORY)
    job.seconds["training"] = float(history["seconds"])
    card = load_card(folder)
    folder.write_json(CARD, {**card, "metrics": measured, "threshold": threshold})
    details = {
        "kind": laid.data.kind,
        "trainable_parameters": card["trainable_parameters"],
        "model_parameters": sum(
            value.numel() for value in job.backbone.model.base_model.parameters()
        ),
        "chosen_on": laid.choice,
        "best_epoch": history["best_epoch"],
        "recorded": history["recorded"],
        "reported": laid.reported,
        "threshold": threshold,
        "counts": laid.data.counts(),
        "dropped": dict(laid.data.dropped),
        "cut": {name: own.features.cut for name, own in laid.splits.items() if own.features.cut},
        "spans_too_long": _too_long(config, laid),
        "unseen": [label.describe() for label in laid.data.unseen],
    }
    folder.finish(records=records, seconds=job.seconds, details=details)


def _too_long(config: TuneConfig, laid: LaidTask) -> dict[str, int]:
    """Return how many labels of each split are longer than those that are scored."""
    kind, target = KINDS[laid.data.kind], target_of(config, laid.data)
    counts = {name: kind.too_long(own, target) for name, own in laid.data.splits.items()}
    return {name: count for name, count in counts.items() if count}


def _stored_start(job: _Job) -> Mapping[str, Tensor]:
    """Return the tensors of the run that training goes on from."""
    source = open_task(job.config.start_from)
    card = load_card(source)
    check_backbone(
        card["base_model"], card["base_model_fingerprint"], job.backbone, str(source.path)
    )
    if card["method"].removeprefix("m") != job.config.method:
        raise RunError(
            f"{source.path} was trained by {card['method']}, not by {job.config.method}; a prompt "
            "fits only the places it was learned in."
        )
    tensors, _ = source.read_tensors(card["file"])
    if card["labels"] != list(job.laid.data.labels.names):
        tensors = {key: value for key, value in tensors.items() if not key.startswith("head.")}
    return tensors


def _begin_from(job: _Job, start: Mapping[str, Tensor]) -> None:
    """Put the numbers in place that training goes on from.

    Raises:
        ConfigError: what is trained cannot go on from them.
    """
    if job.config.prefix.encoder == "mlp":
        raise ConfigError(
            'prefix.encoder = "mlp" cannot go on from stored keys and values; use "free".'
        )
    load_numbers(job.model, job.laid.name, start)
