"""Train a method on a labelled task and write its run folder."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from symprompt.engine.loop import Loop
from symprompt.errors import ConfigError, RunError
from symprompt.files.progress import Tick, silent
from symprompt.models import LanguageModel
from symprompt.runs.environment import describe_environment
from symprompt.runs.folder import CONFIG, ENVIRONMENT, HISTORY, METRICS, STATE
from symprompt.tasks.config import TuneConfig
from symprompt.tasks.data.examples import TaskData
from symprompt.tasks.folder import CARD, TaskFolder
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
    """A finished run: its folder and its numbers."""

    folder: TaskFolder
    metrics: dict[str, Any]


@dataclass(frozen=True, eq=False)
class _Job:
    folder: TaskFolder
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
    folder = TaskFolder(config.out)
    folder.require_own()
    if folder.has(CONFIG) and folder.start(config, resume=resume):
        return TaskRun(folder, folder.load_metrics())
    with folder.taken_back():
        return run_task(folder, config, session=session or Session(), tick=tick, asked=asked)


def run_task(
    folder: TaskFolder,
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
    if not folder.has(CONFIG):
        folder.start(config, resume=False)
    _learn(job)
    return TaskRun(folder, _finish(job))


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
    environment = describe_environment(job.backbone.device)
    folder.write_json(ENVIRONMENT, environment | {"model_fingerprint": job.backbone.fingerprint})
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
    folder: TaskFolder, training: TaskTraining, config: TuneConfig, tick: Tick
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


def make_card(job: _Job, file: str) -> dict[str, Any]:
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


def _finish(job: _Job) -> dict[str, Any]:
    """Ask every split but training, write predictions and, last, the metrics."""
    folder, config, laid = job.folder, job.config, job.laid
    asker = job.asker()
    threshold = asker.threshold(laid)
    if config.task.choose_threshold:
        threshold = asker.choose_threshold(laid.name, laid)
    measured: dict[str, dict[str, float]] = {}
    for split in job.asked or asked_splits(laid):
        split = laid.choice if split == CHOICE else split
        begun = time.perf_counter()
        outcome = asker.ask(laid.name, laid, split, threshold=threshold, tick=job.tick)
        measured[split] = outcome.metrics
        folder.write_lines(f"predictions/{split}.jsonl", outcome.rows)
        job.seconds[f"asking {split}"] = time.perf_counter() - begun
    history = folder.read_json(HISTORY)
    job.seconds["training"] = float(history["seconds"])
    environment = folder.read_json(ENVIRONMENT)
    folder.write_json(CARD, folder.load_card() | {"metrics": measured, "threshold": threshold})
    metrics = {
        "task": laid.name,
        "kind": laid.data.kind,
        "method": config.method,
        "model": config.model,
        "model_fingerprint": job.backbone.fingerprint,
        "data": config.data,
        "seed": config.seed,
        "device": environment["device"],
        "dtype": config.dtype,
        "versions": {key: environment[key] for key in ("symprompt", "torch", "transformers")},
        "trainable_parameters": folder.load_card()["trainable_parameters"],
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
        "splits": measured,
        "seconds": {key: round(value, 3) for key, value in job.seconds.items()},
    }
    folder.write_json(METRICS, metrics)
    return metrics


def _too_long(config: TuneConfig, laid: LaidTask) -> dict[str, int]:
    """Return how many labels of each split are longer than those that are scored."""
    kind, target = KINDS[laid.data.kind], target_of(config, laid.data)
    counts = {name: kind.too_long(own, target) for name, own in laid.data.splits.items()}
    return {name: count for name, count in counts.items() if count}


def _stored_start(job: _Job) -> Mapping[str, Tensor]:
    """Return the tensors of the run that training goes on from."""
    source = TaskFolder(job.config.start_from)
    source.require_finished()
    card = source.load_card()
    check_backbone(card, job.backbone, str(source.path))
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
