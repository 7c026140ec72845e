"""Train a method on a labelled task, or a prefix that several tasks share, and write a run folder.

Multi-task P-tuning v2 (MPT-2) is of P-tuning v2, sections 2.3 and 3.3 (Liu et al., 2022); its
authors released no code for it. The tasks share the prefix and have a linear head each; every step
reads inputs of one task, drawn by size without replacement. Then every task trains prefix and head
further on its own data.

A run through a pattern is one run folder for all seeds of a method. Beside config and manifest it
holds ``seeds/N.json`` (what came of a seed, of its grid), ``predictions/N.jsonl``,
``prompts/N.safetensors`` (P-tuning's vectors or a prefix, with a card), ``weights.safetensors``
(where the model is trained too: its weights, and a head's, of the seed that did best on dev) and
``models/N`` if asked for.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

from torch import Tensor

from symprompt.config import layers_of, recipe_of
from symprompt.engine.loop import Loop
from symprompt.errors import ConfigError, DataError, RunError
from symprompt.files.progress import Tick, silent
from symprompt.models import LanguageModel
from symprompt.models.loading import present_fingerprint
from symprompt.runs.environment import derive_seed, made_with
from symprompt.runs.folder import HISTORY, STATE, Folder, Manifest, Record
from symprompt.tasks.config import (
    LearningConfig,
    PatternRunConfig,
    TuneConfig,
    check_settings,
)
from symprompt.tasks.data.examples import TaskData
from symprompt.tasks.data.load import SETS
from symprompt.tasks.kinds import KINDS, Target
from symprompt.tasks.patterns.data import VerbalData, load_verbal
from symprompt.tasks.patterns.model import VerbalProblem
from symprompt.tasks.predict import (
    CARD,
    COMMAND,
    PROMPT,
    WEIGHTS,
    Card,
    SeedOutcome,
    TaskRun,
    on_dev,
    open_task,
    prompt_file,
    seed_file,
)
from symprompt.tasks.prepare import PreparedTask, read_task, tensorise_task
from symprompt.tasks.trainables import (
    TRAINABLES,
    Outcome,
    TaskModel,
    check_backbone,
    check_method,
    figures,
    make_task_head,
)
from symprompt.tasks.training import (
    Evaluator,
    PatternTraining,
    Score,
    TaskTraining,
    ask_zero_shot,
    tuning,
)

FORMAT = 1
_LEAST = 16
"""Positions of the model that a prompt must leave for the text."""
CHOICE = "choice"
SHARED = "shared"


class Session:
    """Models and prepared tasks that the runs of one process share; final."""

    def __init__(self) -> None:
        self._backbones: dict[tuple[str, ...], LanguageModel] = {}
        self._tasks: dict[tuple[object, ...], PreparedTask] = {}
        self._read, self._read_verbal = cache(read_task), cache(load_verbal)

    def backbone(self, config: TuneConfig | PatternRunConfig, tick: Tick = silent) -> LanguageModel:
        """Return the model a run needs, in the dtype that its method trains in."""
        if isinstance(config, TuneConfig):
            dtype = TRAINABLES[config.method].dtype or config.dtype
        else:
            dtype = "float32" if config.dtype == "auto" else config.dtype
        key = (config.model, config.device, dtype)
        if key not in self._backbones:
            self._backbones[key] = LanguageModel.load(
                config.model, device=config.device, dtype=dtype, tick=tick
            )
        return self._backbones[key]

    def task(self, config: TuneConfig, backbone: LanguageModel, *, taken: int = 0) -> PreparedTask:
        """Return a task as tensors on the model's device.

        Args:
            taken: positions that prompts take from the model.

        Raises:
            DataError: the data cannot be read, or has no training examples.
        """
        room = backbone.max_length - taken
        if room < _LEAST:
            raise DataError(
                f"the prompt takes {taken} of the model's {backbone.max_length} trained positions, "
                f"which "
                f"leaves {room} for the text; make prefix.length smaller."
            )
        length = min(config.task.max_length, room)
        key = (config.task, config.data, config.model, str(backbone.device), length)
        if key not in self._tasks:
            self._tasks[key] = tensorise_task(self.data(config), config.task, backbone, length)
        return self._tasks[key]

    def data(self, config: TuneConfig) -> TaskData:
        """Return a task's examples.

        Raises:
            DataError: the data cannot be read, or has no training examples.
        """
        return self._read(config.task, config.data)

    def verbal_data(self, config: PatternRunConfig) -> VerbalData:
        """Return the examples of a task that is asked through a pattern.

        Raises:
            SympromptError: the data cannot be read.
        """
        own = config.pattern
        if not config.data:
            raise ConfigError(
                f"--data is missing; name the folder of {own.task}'s files, or the one above it."
            )
        return self._read_verbal(
            own.task, config.data, held_out=own.held_out, split_seed=own.split_seed
        )


def tune(
    config: TuneConfig | PatternRunConfig,
    *,
    resume: bool = False,
    tick: Tick = silent,
    session: Session | None = None,
    asked: Sequence[str] | None = None,
) -> TaskRun:
    """Train a method on a labelled task, query it, and write a run folder; return the run.

    A run that is finished already, on the same data, is read back. A mixture of tasks (mpt2) first
    trains a shared prefix, then every task from it, each in a folder of its own; the metrics of its
    run hold those of each task under "tasks". A run through a pattern trains every seed; its
    metrics hold, in percent, the mean over seeds, their deviation and each one's value.

    Args:
        resume: go on with an unfinished run, or add seeds to a finished one through a pattern.
        session: models and tasks that several runs share.
        asked: the splits to query in the end, if not all but training; "choice" is the one that
            chooses epochs, for a search of settings that must not look at the others.

    Raises:
        SympromptError: a setting, the data or the model cannot be used; a loss is not finite.

    Example:
        >>> columns = ("text=ticket", "label=team")
        >>> config = override(load_tune_config("my-labels"), data="tickets.csv", columns=columns)
        >>> config = override(config, max_length=40, stride=4, epochs=1, out="runs/new")
        >>> tune(config).metrics["method"]
        'pt2'
    """
    if isinstance(config, TuneConfig):
        check_method(config)
    if not config.out:
        raise ConfigError("--out is missing; name the run folder to write.")
    folder, session = Folder(config.out), session or Session()
    # Everything that can be wrong with the data is found before the folder is made.
    splits: list[Mapping[str, Sequence[object]]]
    if isinstance(config, PatternRunConfig):
        splits = [session.verbal_data(config).splits]
    else:
        parts = task_configs(config) if config.mixture.tasks else {"": config}
        read = [session.data(part) for part in parts.values()]
        splits = [data.splits for data in read]
        if config.task.kind == "auto" and next(iter(parts.values())).task.name not in SETS:
            tick("kind of task", 0, 0, f"{read[0].kind}, by what is in {config.data}")
        named = [f"{role} is {name}" for own in read for role, name in own.columns.items()]
        if named and not config.task.name:
            tick("columns", 0, 0, ", ".join(named))
    digest = fingerprint_examples(splits)
    # What an unfinished run goes on with is compared when it is loaded.
    model = present_fingerprint(config.model) if folder.finished else ""
    finished = folder.check(
        COMMAND, config, resume=resume, data_fingerprint=digest, model_fingerprint=model
    )
    if isinstance(config, PatternRunConfig):
        _tune_seeds(folder, config, session, tick, finished=finished, resume=resume)
    elif not finished and config.mixture.tasks:
        _tune_mixture(folder, config, session, tick)
    elif not finished:
        with folder.undone_if_refused():
            _tune_task(folder, config, session=session, tick=tick, asked=asked)
    return TaskRun(folder)


def describe_run(
    config: TuneConfig | PatternRunConfig,
    backbone: LanguageModel,
    tasks: Mapping[str, Mapping[str, Sequence[object]]],
    method: str,
    seeds: tuple[int, ...],
    *,
    segments: bool = False,
) -> Manifest:
    """Return what a run states about itself when it begins.

    Args:
        tasks: name -> split -> examples.
        segments: whether second texts stand in the second segment.
    """
    return Manifest(
        command=COMMAND,
        model=config.model,
        model_fingerprint=backbone.fingerprint,
        data="+".join(tasks),
        data_fingerprint=fingerprint_examples(tasks.values()),
        method=method,
        seeds=seeds,
        positions=backbone.max_length,
        segments=segments,
        acceleration=backbone.acceleration,
        **made_with(backbone.device, backbone.dtype),
    )


def fingerprint_examples(tasks: Iterable[Mapping[str, Sequence[object]]]) -> str:
    """Return a digest of all examples with their labels, in their order.

    Args:
        tasks: split -> examples, of each task.
    """
    digest = hashlib.sha256()
    for splits in tasks:
        for split, examples in splits.items():
            digest.update(split.encode())
            for example in examples:
                digest.update(repr(example).encode())
    return digest.hexdigest()


def count_parameters(backbone: LanguageModel) -> int:
    """Return how many parameters the body of a model has."""
    return sum(value.numel() for value in backbone.model.base_model.parameters())


# ------------------------------------------------------------------------------ one task


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
    backbone = session.backbone(config, tick)
    model, tasks = _prepare(config, backbone, {"": config}, session)
    (task,) = tasks.values()
    seconds = {"preparing": time.perf_counter() - begun}
    if config.start_from:
        start = _stored_start(config, backbone, task)
    if start is not None:
        if config.prefix.encoder == "mlp":
            raise ConfigError(
                'prefix.encoder = "mlp" cannot go on from stored keys and values; use "free".'
            )
        model.load(task.name, start)
    _begin(folder, config, model, tasks, config.learning.epochs, tick)
    name = TRAINABLES[config.method].file
    evaluator = Evaluator(model, config, task)
    if not folder.has(name):
        history = _train(
            folder,
            config,
            config.learning,
            model,
            tasks,
            evaluator.measure,
            tick,
            seed=config.seed,
        )
        folder.write_json(HISTORY, history)
        folder.write_json(CARD, _make_card(evaluator, backbone))
        folder.write_tensors(name, model.tensors(task.name), {"format": FORMAT})
    # Read back even when just written: a resumed run must see the same parameters.
    model.load(task.name, folder.read_tensors(name)[0])
    folder.remove_checkpoint()
    _finish(folder, evaluator, backbone, seconds, tick, asked)


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
        heads[name] = make_task_head(task.kind, target, tuned.backbone, seed=seed)
    inputs = {name: task.inputs["train"] for name, task in tasks.items()}
    return TaskModel(tuned, heads, inputs), tasks


def _begin(
    folder: Folder,
    config: TuneConfig,
    model: TaskModel,
    tasks: Mapping[str, PreparedTask],
    epochs: int,
    tick: Tick,
) -> None:
    """Choose how training is accelerated, and start the run folder."""
    # Of fine-tuning, the copy that is trained.
    backbone = model.tuned.backbone
    tokens = epochs * sum(int(task.splits["train"].lengths.sum()) for task in tasks.values())
    tick("acceleration", 0, 0, backbone.accelerate(config.compile, tokens=tokens))
    splits = {name: task.data.splits for name, task in tasks.items()}
    segments = any(task.segments for task in tasks.values())
    manifest = describe_run(
        config, backbone, splits, config.method, (config.seed,), segments=segments
    )
    folder.start(config, manifest)


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
) -> dict[str, Any]:
    """Train to the end, with checkpoints in the folder; return how it went.

    Raises:
        RunError: the checkpoint is damaged.
    """
    training = TaskTraining(
        model,
        {name: task.splits["train"].lengths for name, task in tasks.items()},
        learning,
        score,
        texts={name: task.splits["train"].example for name, task in tasks.items()}
        if config.task.windows == "pooled"
        else None,
        seed=seed,
        record=model.tuned.backbone.records,
    )
    progress = Loop(
        training,
        checkpoint=folder.path / STATE,
        checkpoint_seconds=config.checkpoint_seconds,
        tick=tick,
    ).run()
    training.close()
    return {
        "epochs": progress.history,
        "best_epoch": int(training.stopping.best[0]),
        "seconds": round(progress.seconds, 3),
        "recording": round(progress.recording, 3),
        "recorded": training.recorder.active,
    }


def _make_card(evaluator: Evaluator, backbone: LanguageModel) -> Card:
    config, task = evaluator.config, evaluator.task
    # What is predicted is in the column of training, also where it is not called as usual.
    known = [f"{role}={x}" for role, x in task.data.columns.items() if role == task.kind.predicted]
    return {
        "format": FORMAT,
        "method": config.method,
        "task": task.name,
        "kind": task.data.kind,
        "labels": list(task.data.labels.names),
        "columns": [*config.task.columns, *known],
        "base_model": config.model,
        "base_model_fingerprint": backbone.fingerprint,
        "file": TRAINABLES[config.method].file,
        "trainable_parameters": evaluator.model.size,
        "features": {
            "max_length": task.max_length,
            "stride": min(config.task.stride, task.max_length // 4),
            "windows": config.task.windows,
            "segments": "on" if task.segments else "off",
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


def _finish(
    folder: Folder,
    evaluator: Evaluator,
    backbone: LanguageModel,
    seconds: dict[str, float],
    tick: Tick,
    asked: Sequence[str] | None,
) -> None:
    """Query every split but training, write predictions and, last, the manifest.

    Args:
        seconds: how long the parts of the run took so far.
        asked: see ``tune``.
    """
    config, task = evaluator.config, evaluator.task
    kind, threshold = task.kind, evaluator.threshold
    if config.task.choose_threshold and threshold is not None:
        predictions = evaluator.predictions(task.choice, kind.loosest)
        threshold = kind.best_threshold(task.data.split(task.choice), predictions)
    measured: dict[str, dict[str, float]] = {}
    records: list[Record] = []
    for split in asked or [name for name in task.splits if name != "train"]:
        split = task.choice if split == CHOICE else split
        begun, examples = time.perf_counter(), task.data.split(split)
        predictions = evaluator.predictions(split, threshold, tick)
        measured[split] = figures(kind, examples, predictions)
        records += [
            Record(metric=name, value=value, n=len(examples), split=split)
            for name, value in measured[split].items()
        ]
        folder.write_rows(f"predictions/{split}.jsonl", map(kind.row, examples, predictions))
        seconds[f"asking {split}"] = time.perf_counter() - begun
    history = folder.read_json(HISTORY)
    seconds["training"] = float(history["seconds"])
    card = folder.load(CARD, Card)
    folder.write_json(CARD, {**card, "metrics": measured, "threshold": threshold})
    target = Target.of(config, task.data)
    long = {name: kind.too_long(own, target) for name, own in task.data.splits.items()}
    details = {
        "kind": task.data.kind,
        "trainable_parameters": card["trainable_parameters"],
        "model_parameters": count_parameters(backbone),
        "chosen_on": task.choice,
        "best_epoch": history["best_epoch"],
        "recorded": history["recorded"],
        "reported": task.reported,
        "threshold": threshold,
        "counts": task.data.counts(),
        "dropped": dict(task.data.dropped),
        "cut": {name: own.cut for name, own in task.splits.items() if own.cut},
        "spans_too_long": {name: count for name, count in long.items() if count},
        "unseen": [label.describe() for label in task.data.unseen],
    }
    folder.finish(records=records, seconds=seconds, details=details)


def _stored_start(
    config: TuneConfig, backbone: LanguageModel, task: PreparedTask
) -> Mapping[str, Tensor]:
    """Return the tensors of the run that training goes on from."""
    source = open_task(config.start_from)
    card = source.load(CARD, Card)
    check_backbone(card["base_model"], card["base_model_fingerprint"], backbone, str(source.path))
    if card["method"].removeprefix("m") != config.method:
        raise RunError(
            f"{source.path} was trained by {card['method']}, not by {config.method}; a prompt "
            "fits only the positions it was learned in."
        )
    theirs, ours = card["prefix"].get("layers", "all"), config.prefix.layers
    if config.method == "pt2":
        count = backbone.prefix_shape.layers
        if layers_of(theirs, count) != layers_of(ours, count):
            raise RunError(
                f"the prefix in {source.path} was learned in the layers {theirs}, and "
                f"prefix.layers is {ours}; go on in the same layers."
            )
    tensors, _ = source.read_tensors(card["file"])
    if card["labels"] != list(task.data.labels.names):
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
    trained = Folder(folder.path / wanted[0]).load(CARD, Card)["trainable_parameters"]
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
    model, tasks = _prepare(config, session.backbone(config, tick), parts, session)
    # Also where the prefix is there: the tasks must go on with the model that it was learned for.
    _begin(folder, config, model, tasks, config.mixture.epochs, tick)
    if not (shared.has(PROMPT) and shared.has(HISTORY)):

        def score() -> tuple[float, float, dict[str, float]]:
            found = {
                name: Evaluator(model, config, task).measure()[0] for name, task in tasks.items()
            }
            return sum(found.values()) / len(found), 0.0, found

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
        )
        heads = {key: value.detach() for key, value in model.head_parameters().items()}
        shared.write_json(HISTORY, history)
        shared.write_tensors(PROMPT, {**model.tuned.tensors(), **heads}, {"format": FORMAT})
        shared.remove_checkpoint()
    return shared.read_tensors(PROMPT)[0]


def _named(tick: Tick, name: str) -> Tick:
    return lambda stage, done, total, note: tick(f"{name}: {stage}", done, total, note)


# ------------------------------------------------------------------------------ patterns


def _tune_seeds(
    folder: Folder,
    config: PatternRunConfig,
    session: Session,
    tick: Tick,
    *,
    finished: bool,
    resume: bool,
) -> None:
    """Train (or only ask) a task through a pattern for every seed, and write a run folder.

    Args:
        session: gives the model, which is as it was when this returns.
        tick: called with progress, a seed at a time.
        finished: whether the folder holds a finished run.
        resume: go on with an unfinished run, or add seeds to a finished one.

    Raises:
        SympromptError: the config, data, pattern or folder does not serve.
    """
    pattern, seeds = config.pattern, config.seeds
    if not pattern.traits.learns:
        # Nothing is drawn, so all seeds would be the same.
        seeds = seeds[:1]
    if finished and folder.manifest.seeds == seeds:
        return
    if finished and not resume:
        made = ", ".join(map(str, folder.manifest.seeds))
        raise RunError(
            f"{folder.path} holds a run with other seeds ({made}); add seeds with --resume, or "
            "choose another --out."
        )
    data, backbone = session.verbal_data(config), session.backbone(config, tick)
    tick("acceleration", 0, 0, backbone.accelerate(config.compile))
    problem = VerbalProblem(backbone, data, pattern, max_tokens=config.max_tokens)
    splits = {problem.task.name: data.splits}
    folder.start(config, describe_run(config, backbone, splits, pattern.method, seeds))
    # Seeds may have been added.
    folder.write_config(config)
    missing = [seed for seed in seeds if not folder.has(seed_file(seed))]
    tick("seeds", len(seeds) - len(missing), len(seeds), problem.task.name)
    main = problem.task.metrics[0]
    for row in _run_seeds(folder, config, problem, missing):
        done = sum(folder.has(seed_file(seed)) for seed in seeds)
        tick("seeds", done, len(seeds), f"{main} {row['val'][main]:.1f}")
    _finish_seeds(folder, problem, [folder.load(seed_file(seed), SeedOutcome) for seed in seeds])


def _run_seeds(
    folder: Folder, config: PatternRunConfig, problem: VerbalProblem, seeds: Sequence[int]
) -> Iterator[Mapping[str, Any]]:
    """Train every seed, write what came of it, and yield that."""
    if not seeds:
        return
    if not config.pattern.traits.learns:
        row, outcome = ask_zero_shot(problem, seeds[0])
        yield _write_seed(folder, row, outcome)
        return
    with tuning(
        problem,
        config.learning,
        state=folder.path / STATE,
        # All that changes what is learned.
        key=json.dumps([recipe_of(config), problem.backbone.fingerprint]),
        checkpoint_seconds=config.checkpoint_seconds,
    ) as training:
        for seed in seeds:
            row, outcome = training.run(seed)
            if config.save_model:
                saved = folder.path / "models" / str(seed)
                problem.backbone.model.save_pretrained(saved)
                problem.backbone.vocabulary.tokenizer.save_pretrained(saved)
            if config.keep_weights and config.pattern.joint:
                _keep_weights(folder, training, row)
            prompt = training.prompt()
            if prompt:
                card = {
                    "base_model": config.model,
                    "base_model_fingerprint": problem.backbone.fingerprint,
                    "model_trained": config.pattern.joint,
                    "task": problem.task.name,
                    "pattern": problem.worded.text,
                    "words": list(problem.worded.words),
                    "seed": seed,
                    "val": outcome.metrics,
                }
                folder.write_tensors(prompt_file(seed), prompt, card)
            yield _write_seed(folder, row, outcome)


def _write_seed(folder: Folder, row: Mapping[str, Any], outcome: Outcome) -> Mapping[str, Any]:
    folder.write_rows(f"predictions/{row['seed']}.jsonl", outcome.rows)
    folder.write_json(seed_file(row["seed"]), row)
    return row


def _keep_weights(folder: Folder, training: PatternTraining, row: Mapping[str, Any]) -> None:
    """Store the trained weights if no seed before did better on dev; one seed's are enough."""
    if folder.has(WEIGHTS):
        before = int(folder.read_tensors(WEIGHTS)[1]["seed"])
        # A kill may have come between a seed's weights and what came of it.
        there = folder.has(seed_file(before))
        if there and on_dev(folder.load(seed_file(before), SeedOutcome)["dev"]) >= on_dev(
            row["dev"]
        ):
            return
    # A prompt is stored by itself; a head is nothing without the model it was learned with.
    kinds = ("model.",) if training.problem.config.traits.prompt else ("model.", "extra.")
    tensors = {name: own for name, own in training.parameters.items() if name.startswith(kinds)}
    folder.write_tensors(WEIGHTS, tensors, {"seed": row["seed"]})


def _finish_seeds(
    folder: Folder, problem: VerbalProblem, rows: Sequence[Mapping[str, Any]]
) -> None:
    """Write what the run found: a record for each seed, split and metric."""
    data = problem.data
    records = [
        Record(
            metric=name,
            value=value,
            n=len(data.splits[split]),
            split=split,
            seeds=(row["seed"],),
        )
        for row in rows
        for split, own in (("val", row["val"]), ("dev", {"accuracy": row["dev"]["accuracy"]}))
        for name, value in own.items()
    ]
    details = {
        "model_trained": problem.config.joint,
        "pattern": problem.worded.text,
        "words": list(problem.worded.words),
        "split": "val",
        "trainable_parameters": max((row["trained"] for row in rows), default=0) or None,
        "model_parameters": count_parameters(problem.backbone),
        "counts": data.counts(),
        "notes": list(data.notes),
        "cut": problem.cuts(),
    }
    seconds = sum(t["seconds"] for row in rows for t in row["tried"]) / len(rows)
    folder.finish(records=records, seconds={"training": round(seconds, 2)}, details=details)
