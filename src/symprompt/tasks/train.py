"""Train a method on a labelled task, or a prefix that several tasks share, and write a run folder.

Multi-task P-tuning v2 (MPT-2) is of P-tuning v2, sections 2.3 and 3.3 (Liu et al., 2022); its
authors released no code for it. The tasks share the prefix and have a linear head each; every step
reads inputs of one task, drawn by size without replacement. Then every task trains prefix and head
further on its own data.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from symprompt.engine.loop import Loop
from symprompt.errors import ConfigError, RunError
from symprompt.files.progress import Tick, silent
from symprompt.models import LanguageModel
from symprompt.runs.environment import derive_seed, made_with
from symprompt.runs.folder import HISTORY, STATE, Folder, Manifest, Record
from symprompt.tasks.config import LearningConfig, TuneConfig, check_settings
from symprompt.tasks.folder import (
    CARD,
    COMMAND,
    PROMPT,
    Card,
    load_card,
    load_metrics,
    open_task,
)
from symprompt.tasks.kinds import KINDS, Target
from symprompt.tasks.model import Evaluator, TaskModel, check_backbone, make_task_head
from symprompt.tasks.prepare import PreparedTask, Session
from symprompt.tasks.trainables import TRAINABLES, check_method
from symprompt.tasks.training import Score, TaskTraining

FORMAT = 1
CHOICE = "choice"
SHARED = "shared"


@dataclass(frozen=True)
class TaskRun:
    """A finished run: its folder and its figures."""

    folder: Folder
    metrics: dict[str, Any]

    @classmethod
    def load(cls, folder: Folder) -> TaskRun:
        """Read a finished run."""
        return cls(folder, load_metrics(folder))


def tune(
    config: TuneConfig,
    *,
    resume: bool = False,
    tick: Tick = silent,
    session: Session | None = None,
    asked: Sequence[str] | None = None,
) -> TaskRun:
    """Train a method on a labelled task, query it, and write a run folder; return the run.

    A run that is finished already is read back. A mixture of tasks (mpt2) first trains a shared
    prefix, then every task from it, each in a folder of its own; the metrics of its run hold those
    of each task under "tasks".

    Args:
        resume: go on with an unfinished run.
        session: models and tasks that several runs share.
        asked: the splits to query in the end, if not all but training; "choice" is the one that
            chooses epochs, for a search of settings that must not look at the others.

    Raises:
        SympromptError: a setting, the data or the model cannot be used; a loss is not finite.
    """
    check_method(config)
    if not config.out:
        raise ConfigError("--out is missing; name the run folder to write.")
    folder, session = Folder(config.out), session or Session()
    if folder.check(COMMAND, config, resume=resume):
        return TaskRun.load(folder)
    if config.mixture.tasks:
        _tune_mixture(folder, config, session, tick)
    else:
        with folder.undone_if_refused():
            _tune_task(folder, config, session=session, tick=tick, asked=asked)
    return TaskRun.load(folder)


# ------------------------------------------------------------------------------ one task


@dataclass(frozen=True, eq=False)
class _Job:
    """A run on one task, on its way; ``seconds`` gathers how long its parts took."""

    folder: Folder
    config: TuneConfig
    backbone: LanguageModel
    task: PreparedTask
    model: TaskModel
    tick: Tick
    seconds: dict[str, float]


def _tune_task(
    folder: Folder,
    config: TuneConfig,
    *,
    session: Session,
    tick: Tick,
    start: Mapping[str, Tensor] | None = None,
    asked: Sequence[str] | None = None,
) -> None:
    """Train, query and write a run; a wrong input is found before its folder is made.

    Args:
        start: stored tensors of prompt and head that training goes on from.
        asked: see ``tune``.
    """
    begun = time.perf_counter()
    backbone = session.backbone(config)
    model, tasks = _prepare(config, backbone, {"": config}, session)
    (task,) = tasks.values()
    seconds = {"preparing": time.perf_counter() - begun}
    job = _Job(folder, config, backbone, task, model, tick, seconds)
    if config.start_from:
        start = _stored_start(job)
    if start is not None:
        if config.prefix.encoder == "mlp":
            raise ConfigError(
                'prefix.encoder = "mlp" cannot go on from stored keys and values; use "free".'
            )
        model.load(task.name, start)
    chosen = backbone.accelerate(config.compile)
    folder.start(config, _describe(config, backbone, tasks))
    tick("acceleration", 1, 1, chosen)
    _learn(job)
    _finish(job, asked)


def _prepare(
    config: TuneConfig, backbone: LanguageModel, parts: Mapping[str, TuneConfig], session: Session
) -> tuple[TaskModel, dict[str, PreparedTask]]:
    """Return a model at its start with a head for each task, and the tasks by name.

    Raises:
        ConfigError: settings concern other kinds of task; tasks of several kinds.
    """
    tuned = TRAINABLES[config.method](backbone, config, (config.seed,))
    found = [session.task(part, backbone, taken=tuned.taken) for part in parts.values()]
    tasks = {task.name: task for task in found}
    if len({task.data.kind for task in found}) > 1:
        listed = ", ".join(f"{name} ({task.data.kind})" for name, task in tasks.items())
        raise ConfigError(f"mixture.tasks are of several kinds: {listed}; mix tasks of one kind.")
    known = {name: kind.settings for name, kind in KINDS.items()}
    heads = {}
    for name, task in tasks.items():
        check_settings(config, "task's kind", task.data.kind, known)
        seed = (config.seed, name) if name in parts else (config.seed,)
        target = Target.of(config, task.data)
        heads[name] = make_task_head(KINDS[task.data.kind], target, tuned.backbone, seed=seed)
    inputs = {name: task.splits["train"].inputs for name, task in tasks.items()}
    return TaskModel(tuned, heads, inputs), tasks


def _describe(
    config: TuneConfig, backbone: LanguageModel, tasks: Mapping[str, PreparedTask]
) -> Manifest:
    """Return what a run on one task, or on a mixture, states about itself when it begins."""
    digest = hashlib.sha256()
    for task in tasks.values():
        for split, examples in task.data.splits.items():
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
        acceleration=backbone.acceleration,
        **made_with(backbone.device, backbone.dtype),
    )


def _train(
    folder: Folder,
    config: TuneConfig,
    learning: LearningConfig,
    model: TaskModel,
    tasks: Mapping[str, PreparedTask],
    score: Score,
    tick: Tick,
    *,
    seed: int,
    record: bool,
) -> dict[str, Any]:
    """Train to the end, with checkpoints in the folder; return how it went.

    Raises:
        RunError: the checkpoint is damaged.
    """
    training = TaskTraining(
        model,
        {name: task.splits["train"].features.lengths for name, task in tasks.items()},
        {name: int(task.splits["train"].features.ids.shape[1]) for name, task in tasks.items()},
        learning,
        score,
        seed=seed,
        record=record,
    )
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


def _learn(job: _Job) -> None:
    """Train, or take up where a killed run was; write the prompt and its card."""
    folder, model, config, task = job.folder, job.model, job.config, job.task
    name = TRAINABLES[config.method].file
    if not folder.has(name):
        evaluator = Evaluator(model, config)
        history = _train(
            folder,
            config,
            config.learning,
            model,
            {task.name: task},
            partial(evaluator.measure, task),
            job.tick,
            seed=config.seed,
            record=job.backbone.records,
        )
        folder.write_json(HISTORY, history)
        folder.write_json(CARD, _make_card(job, name))
        folder.write_tensors(name, model.tensors(task.name), {"format": FORMAT})
    # Read back even when just written: a resumed run must see the same parameters.
    model.load(task.name, folder.read_tensors(name)[0])
    folder.remove(STATE)


def _make_card(job: _Job, file: str) -> Card:
    config, task = job.config, job.task
    return {
        "format": FORMAT,
        "method": config.method,
        "task": task.name,
        "kind": task.data.kind,
        "labels": list(task.data.labels.names),
        "base_model": config.model,
        "base_model_fingerprint": job.backbone.fingerprint,
        "file": file,
        "trainable_parameters": job.model.size,
        "features": {
            "max_length": task.max_length,
            "stride": min(config.task.stride, task.max_length // 4),
            "label_all_tokens": config.task.label_all_tokens,
            "unanswerable": config.task.unanswerable,
        },
        "prefix": asdict(config.prefix),
        "lora": {**asdict(config.lora), "targets": list(config.lora.targets)},
        "weights": asdict(config.weights),
        "head": asdict(config.head),
        "span": asdict(config.span),
        "relations": list(task.data.relations.names),
    }


def _finish(job: _Job, asked: Sequence[str] | None) -> None:
    """Query every split but training, write predictions and, last, the manifest."""
    folder, config, task = job.folder, job.config, job.task
    evaluator = Evaluator(job.model, config)
    threshold = evaluator.threshold(task)
    if config.task.choose_threshold:
        threshold = evaluator.choose_threshold(task)
    measured: dict[str, dict[str, float]] = {}
    records: list[Record] = []
    for split in asked or [name for name in task.splits if name != "train"]:
        split = task.choice if split == CHOICE else split
        begun = time.perf_counter()
        outcome = evaluator.ask(task, split, threshold=threshold, tick=job.tick)
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
    kind, target = KINDS[task.data.kind], Target.of(config, task.data)
    long = {name: kind.too_long(own, target) for name, own in task.data.splits.items()}
    details = {
        "kind": task.data.kind,
        "trainable_parameters": card["trainable_parameters"],
        "model_parameters": sum(
            value.numel() for value in job.backbone.model.base_model.parameters()
        ),
        "chosen_on": task.choice,
        "best_epoch": history["best_epoch"],
        "recorded": history["recorded"],
        "reported": task.reported,
        "threshold": threshold,
        "counts": task.data.counts(),
        "dropped": dict(task.data.dropped),
        "cut": {name: own.features.cut for name, own in task.splits.items() if own.features.cut},
        "spans_too_long": {name: count for name, count in long.items() if count},
        "unseen": [label.describe() for label in task.data.unseen],
    }
    folder.finish(records=records, seconds=job.seconds, details=details)


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
            "fits only the positions it was learned in."
        )
    tensors, _ = source.read_tensors(card["file"])
    if card["labels"] != list(job.task.data.labels.names):
        tensors = {key: value for key, value in tensors.items() if not key.startswith("head.")}
    return tensors


# ------------------------------------------------------------------------------ several tasks


def _tune_mixture(folder: Folder, config: TuneConfig, session: Session, tick: Tick) -> None:
    """Train a mixture's shared prefix, then every task from it; write one folder for each task."""
    begun = time.perf_counter()
    parts = task_configs(config)
    with folder.undone_if_refused():
        tensors = _share(folder, config, parts, session, tick)
    wanted = [config.task.name] if config.task.name else list(parts)
    records = []
    for name in wanted:
        own = Folder(folder.path / name)
        if not own.check(COMMAND, parts[name], resume=True):
            start = {
                key.replace(f"head.{name}.", "head."): value
                for key, value in tensors.items()
                if not key.startswith("head.") or key.startswith(f"head.{name}.")
            }
            _tune_task(own, parts[name], session=session, tick=_named(tick, name), start=start)
        records += own.manifest.full_records()
    trained = load_card(Folder(folder.path / wanted[0]))["trainable_parameters"]
    folder.finish(
        records=records,
        seconds={"all": time.perf_counter() - begun},
        details={"tasks": wanted, "trainable_parameters": trained},
    )


def task_configs(config: TuneConfig) -> dict[str, TuneConfig]:
    """Return each task's own config within a mixture."""
    found: dict[str, TuneConfig] = {}
    for entry in config.mixture.tasks:
        name, _, inside = entry.partition("=")
        if name in found:
            raise ConfigError(f"mixture.tasks names {name} twice; name every task once.")
        found[name] = replace(
            config,
            task=replace(config.task, name=name),
            data=str(Path(config.data, inside)) if inside else config.data,
            out=str(Path(config.out, name)),
        )
    return found


def _share(
    folder: Folder,
    config: TuneConfig,
    parts: dict[str, TuneConfig],
    session: Session,
    tick: Tick,
) -> dict[str, Tensor]:
    """Train the shared prefix and all heads, or read them back; return their parameters."""
    shared = Folder(folder.path / SHARED)
    if not (folder.holds_run and shared.has(PROMPT) and shared.has(HISTORY)):
        backbone = session.backbone(config)
        model, tasks = _prepare(config, backbone, parts, session)
        chosen = backbone.accelerate(config.compile)
        folder.start(config, _describe(config, backbone, tasks))
        tick("acceleration", 1, 1, chosen)
        evaluator = Evaluator(model, config)

        def score() -> tuple[float, dict[str, float]]:
            found = {name: evaluator.measure(task)[0] for name, task in tasks.items()}
            return sum(found.values()) / len(found), found

        learning = replace(
            config.learning,
            rate=config.mixture.rate or config.learning.rate,
            patience=0,
            epochs=config.mixture.epochs,
        )
        seed = derive_seed(config.seed, "mixture")
        history = _train(
            shared,
            config,
            learning,
            model,
            tasks,
            score,
            tick,
            seed=seed,
            record=backbone.records,
        )
        heads = {key: value.detach() for key, value in model.head_parameters().items()}
        shared.write_json(HISTORY, history)
        shared.write_tensors(PROMPT, {**model.tuned.tensors(), **heads}, {"format": FORMAT})
        shared.remove(STATE)
    return shared.read_tensors(PROMPT)[0]


def _named(tick: Tick, name: str) -> Tick:
    return lambda stage, done, total, note: tick(f"{name}: {stage}", done, total, note)
