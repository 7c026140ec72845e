"""Train a method on a labelled task, or a prefix that several tasks share, and write a run folder.

A training step runs passes whose inputs lie on the device, padded to one of few shapes, then the
update. On a GPU a pass, forward and backward, is recorded once per shape as a CUDA graph, and so is
the update, and both are replayed with other rows: small models are bound by launches otherwise.

Multi-task P-tuning v2 (MPT-2) is of P-tuning v2, sections 2.3 and 3.3 (Liu et al., 2022); its
authors released no code for it. The tasks share the prefix and have a linear head each; every step
reads inputs of one task, drawn by size without replacement. Then every task trains prefix and head
further on its own data.
"""

from __future__ import annotations

import hashlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from symprompt.accel.compiling import Recorder, Replay
from symprompt.engine.batches import few_widths
from symprompt.engine.flat_adamw import FlatAdamW, ParameterGroup, make_groups
from symprompt.engine.loop import EarlyStopping, Loop, State, fill, rate_share
from symprompt.errors import ConfigError, RunError
from symprompt.files.progress import Tick, silent
from symprompt.models import LanguageModel
from symprompt.runs.environment import derive_seed, made_with, send
from symprompt.runs.folder import HISTORY, STATE, Folder, Manifest, Record
from symprompt.tasks.config import LearningConfig, PatternRunConfig, TuneConfig, check_settings
from symprompt.tasks.kinds import KINDS, Target
from symprompt.tasks.predict import (
    CARD,
    COMMAND,
    PROMPT,
    Card,
    load_metrics,
    open_task,
)
from symprompt.tasks.prepare import PreparedTask, Session
from symprompt.tasks.trainables import (
    TRAINABLES,
    TaskModel,
    ask,
    check_backbone,
    check_method,
    figures,
    make_task_head,
)

FORMAT = 1
CHOICE = "choice"
SHARED = "shared"
_NEAR = 32
"""Batches among whose inputs those of similar length are put together."""
Score = Callable[[], tuple[float, float, dict[str, float]]]
"""Evaluates dev: the metric that chooses (larger is better), a loss that chooses among equals
(smaller is better), and all of dev's metrics."""


# ------------------------------------------------------------------------------ steps


class Step(NamedTuple):
    """Inputs of one pass.

    Attributes:
        task: whose inputs.
        width: tokens; one of few.
        rows: which inputs.
    """

    task: str
    width: int
    rows: np.ndarray


def plan_epoch(
    lengths: Mapping[str, np.ndarray], *, batch: int, widest: Mapping[str, int], seed: int
) -> list[Step]:
    """Return an epoch's steps: every input of every task once, each step inputs of one task.

    They are shuffled, of similar length, in few widths. A step's task is drawn by size, without
    replacement.

    Args:
        lengths: task -> [n] tokens of each input.
        batch: inputs per step.
        widest: task -> the widest input there is.
        seed: of the order; another one for every epoch.
    """
    steps = []
    for task, length in lengths.items():
        random = np.random.default_rng(derive_seed(seed, "order", task))
        order = random.permutation(len(length))
        for start in range(0, len(order), _NEAR * batch):
            near = order[start : start + _NEAR * batch]
            near = near[np.argsort(length[near], kind="stable")]
            for first in range(0, len(near), batch):
                rows = near[first : first + batch]
                width = few_widths(length[rows].max(), widest[task])
                steps.append(Step(task, int(width), rows))
    shuffle = np.random.default_rng(derive_seed(seed, "steps"))
    return [steps[place] for place in shuffle.permutation(len(steps))]


class Training(ABC):
    """Steps on labelled examples, and the best evaluation of dev; abstract, an engine's Trainable.

    Args:
        groups: what is trained.
        device: where.
        clip: largest gradient norm.
        record: record passes and updates as CUDA graphs where there is a GPU.

    Attributes:
        steps: how many there are at most.
        interval: dev is evaluated after every so many, and after the last.
        losses: [interval] since the last evaluation; what is not finite in them is found there.
    """

    stage = "training"
    note = ""
    choose_every = 1
    score: Score

    def __init__(
        self,
        groups: Sequence[ParameterGroup],
        device: torch.device,
        *,
        clip: float,
        record: bool,
    ) -> None:
        self.device = device
        self.optimizer = FlatAdamW(groups, clip=clip)
        self.recorder = Recorder(device, wanted=record)
        self._loss = torch.zeros((), device=device)
        # Not every device has float64.
        self._real = np.float64 if self.optimizer.dtype == torch.float64 else np.float32
        self._inputs: dict[int, tuple[Tensor, Tensor]] = {}
        self._replays: dict[object, Replay] = {}

    def _begin(self, *, steps: int, interval: int, patience: int) -> None:
        """Begin to count steps and evaluations."""
        self.steps = steps
        self.interval = interval
        self.losses = torch.zeros(interval, device=self.device)
        self.stopping = EarlyStopping(self._weights, patience=patience)

    @abstractmethod
    def _passes(self, number: int) -> Iterator[tuple[Step, np.ndarray]]:
        """Seed a step's dropout, and yield its passes.

        Yields:
            Inputs, and the share of the loss that each of their rows has.
        """

    @abstractmethod
    def _pass_loss(self, task: str, width: int, rows: Tensor, share: Tensor) -> Tensor:
        """Return the loss of a pass, a number."""

    @abstractmethod
    def _rates(self, number: int) -> list[float]:
        """Return the learning rate of each group."""

    @abstractmethod
    def _complain(self, place: int) -> str:
        """Return the message about a loss since the last evaluation that is not finite."""

    @property
    def _weights(self) -> dict[str, Tensor]:
        return {"weights": self.optimizer.values[None]}

    @property
    def stopped(self) -> bool:
        """Whether dev got no better for long enough."""
        return bool(self.stopping.stopped.all())

    def step(self, number: int) -> None:
        """Learn from one batch: its passes, forward and backward, then the update."""
        self._loss.zero_()
        for (task, width, chosen), shares in self._passes(number):
            size = len(chosen)
            if size not in self._inputs:
                rows = torch.zeros(size, dtype=torch.long, device=self.device)
                share = torch.zeros(size, dtype=self.optimizer.dtype, device=self.device)
                self._inputs[size] = rows, share
            rows, share = self._inputs[size]
            # In place before a pass is recorded: of longer rows, places beyond it would be read.
            rows.copy_(send(chosen, self.device), non_blocking=True)
            share.copy_(send(shares.astype(self._real), self.device), non_blocking=True)
            work = partial(self._collect, task, width, rows, share)
            self._replay((task, width, size), work)
        self.optimizer.set_rates(self._rates(number))
        self._replay("update", self._update)
        self.losses[number % self.interval].copy_(self._loss)

    def _replay(self, key: object, work: Replay) -> None:
        """Run what is recorded under a key, recorded once."""
        if key not in self._replays:
            state = [*self.optimizer.moved(), self._loss]
            self._replays[key] = self.recorder.capture(work, state)
        self._replays[key]()

    def _collect(self, task: str, width: int, rows: Tensor, share: Tensor) -> None:
        loss = self._pass_loss(task, width, rows, share)
        self.optimizer.collect(loss, first=False)
        self._loss.add_(loss.detach())

    def _update(self) -> None:
        self.optimizer.update()
        self.optimizer.gradients.zero_()

    def evaluates_after(self, done: int) -> bool:
        """Return whether dev may be evaluated there; after the last step it always is."""
        return done > 0 and (done % self.interval == 0 or done == self.steps)

    def evaluate(self, done: int) -> dict[str, Any]:
        """Evaluate dev, where that is due, and keep the best weights."""
        number = -(-done // self.interval)
        since = done - (number - 1) * self.interval
        row: dict[str, Any] = {"epoch": number, "loss": float(self.losses[:since].mean())}
        if number % self.choose_every == 0 or done == self.steps:
            main, loss, row["dev"] = self.score()
            self.stopping.update(np.array([main]), number, self._weights, tie=-loss)
        return row

    def failure(self) -> str:
        """Return the message if a loss since the last evaluation or a weight is not finite."""
        bad = torch.nonzero(~torch.isfinite(self.losses)).flatten().tolist()
        if not bad and bool(torch.isfinite(self.optimizer.values).all()):
            return ""
        return self._complain(bad[0] if bad else self.interval - 1)

    def state_dict(self) -> State:
        """Return weights, moments, the best weights and the losses since the last evaluation."""
        best = {f"best/{name}": value for name, value in self.stopping.state_dict().items()}
        return {**self.optimizer.state_dict(), **best, "losses": self.losses}, {}

    def load_state_dict(self, tensors: Mapping[str, Tensor], note: Mapping[str, Any]) -> None:
        """Go on from a stored state."""
        self.optimizer.load_state_dict(tensors)
        self.stopping.load_state_dict(
            {name[5:]: own for name, own in tensors.items() if name.startswith("best/")}
        )
        fill(self.losses, tensors["losses"])

    def load_best(self) -> None:
        """Put the weights of the best evaluation in place."""
        self.stopping.load_best(self._weights)
        self.optimizer.refresh()

    def close(self) -> None:
        """Let go of what was recorded, whose memory nothing else would take."""
        self._replays.clear()


class TaskTraining(Training):
    """Trains a model on the training inputs of one task or several; final.

    Args:
        model: what is trained.
        lengths: task -> [n] tokens of each training input.
        widest: task -> tokens of the widest.
        config: how it is learned.
        score: evaluates dev.
        seed: of order and dropout.
        record: record steps as CUDA graphs where there is a GPU.
    """

    def __init__(
        self,
        model: TaskModel,
        lengths: Mapping[str, np.ndarray],
        widest: Mapping[str, int],
        config: LearningConfig,
        score: Score,
        *,
        seed: int,
        record: bool = True,
    ) -> None:
        groups = make_groups(
            model.tuned.parameters(),
            model.head_parameters(),
            rate=config.rate,
            head_rate=config.head_rate,
            weight_decay=config.weight_decay,
        )
        device = model.tuned.backbone.device
        super().__init__(groups, device, clip=config.clip, record=record)
        self.model = model
        self.lengths = lengths
        self.widest = widest
        self.config = config
        self.score = score
        self.seed = seed
        self.choose_every = config.choose_every
        self._epoch, self._plan = 0, self._draw(0)
        steps = len(self._plan)
        self._begin(steps=config.epochs * steps, interval=steps, patience=config.patience)

    def training(self) -> AbstractContextManager[Any]:
        """Return a context in which dropout is on."""
        return self.model.training()

    def _draw(self, epoch: int) -> list[Step]:
        seed = derive_seed(self.seed, "epoch", epoch)
        return plan_epoch(self.lengths, batch=self.config.batch, widest=self.widest, seed=seed)

    def _passes(self, number: int) -> Iterator[tuple[Step, np.ndarray]]:
        epoch, place = divmod(number, self.interval)
        torch.manual_seed(derive_seed(self.seed, "draws", epoch, place))
        if epoch != self._epoch:
            self._epoch, self._plan = epoch, self._draw(epoch)
        self.note = f"epoch {epoch + 1}"
        step = self._plan[place]
        # Rows that fill a batch up have no share in its loss.
        rows = np.full(self.config.batch, step.rows[0])
        share = np.zeros(self.config.batch)
        rows[: len(step.rows)] = step.rows
        share[: len(step.rows)] = 1
        yield step._replace(rows=rows), share

    def _pass_loss(self, task: str, width: int, rows: Tensor, share: Tensor) -> Tensor:
        losses, weights = self.model.loss(task, rows, width)
        weights = weights.float() * share.float()
        # A row that fills a batch up may be anything but must not spread: 0 times infinity is no
        # number.
        counted = torch.where(weights > 0, losses.float() * weights, 0.0)
        return counted.sum() / weights.sum().clamp(min=1.0)

    def _rates(self, number: int) -> list[float]:
        config = self.config
        share = rate_share(
            number,
            self.steps,
            schedule=config.schedule,
            warmup=config.warmup,
            decay=config.decay,
            epoch=number // self.interval,
        )
        return [group.rate * float(share) for group in self.optimizer.groups]

    def _complain(self, place: int) -> str:
        return (
            f"the loss is not finite at epoch {self._epoch + 1}, step {place + 1}; lower "
            f"learning.rate (now {self.config.rate}), set learning.clip (now {self.config.clip}), "
            "or use dtype float32."
        )


# ------------------------------------------------------------------------------ queries


@dataclass(frozen=True, eq=False)
class Evaluator:
    """Queries a model about the splits of a task; final."""

    model: TaskModel
    config: TuneConfig
    task: PreparedTask

    def predictions(self, split: str, threshold: float | None, tick: Tick = silent) -> list[Any]:
        """Return a split's predictions; where their kind has a threshold, by that one."""
        data, own = self.task.data, self.task.splits[split]
        scores = ask(
            self.model,
            self.task.name,
            self.task.kind,
            own,
            self.task.inputs[split],
            max_tokens=self.config.max_tokens,
            tick=tick,
            stage=f"asking {split}",
        )
        target, examples = Target.of(self.config, data), data.split(split)
        return self.task.kind.decode(scores.numpy(), own, examples, target, threshold=threshold)

    @property
    def threshold(self) -> float | None:
        """The threshold of predictions before any is chosen; None if there is none."""
        return self.task.kind.threshold(
            self.task.data.split("train"), self.config.task.unanswerable
        )

    def measure(self) -> tuple[float, float, dict[str, float]]:
        """Return the figure that chooses an epoch, 0, and all figures of the split that chooses.

        Raises:
            ConfigError: the figure that should choose is none of the task's.
        """
        split = self.task.choice
        predictions = self.predictions(split, self.threshold)
        found = figures(self.task.kind, self.task.data.split(split), predictions)
        name = self.config.learning.choose
        if name not in ("auto", *found):
            raise ConfigError(
                f"learning.choose is {name!r}, and this task measures: {', '.join(found)}."
            )
        return next(iter(found.values())) if name == "auto" else found[name], 0.0, found


# ------------------------------------------------------------------------------ runs


@dataclass(frozen=True)
class TaskRun:
    """A finished run: its folder and its figures."""

    folder: Folder
    metrics: dict[str, Any]


def tune(
    config: TuneConfig | PatternRunConfig,
    *,
    resume: bool = False,
    tick: Tick = silent,
    session: Session | None = None,
    asked: Sequence[str] | None = None,
) -> TaskRun:
    """Train a method on a labelled task, query it, and write a run folder; return the run.

    A run that is finished already is read back. A mixture of tasks (mpt2) first trains a shared
    prefix, then every task from it, each in a folder of its own; the metrics of its run hold those
    of each task under "tasks". A run through a pattern trains every seed; its metrics hold, in
    percent, the mean over seeds, their deviation and each one's value.

    Args:
        resume: go on with an unfinished run, or add seeds to a finished one through a pattern.
        session: models and tasks that several runs share.
        asked: the splits to query in the end, if not all but training; "choice" is the one that
            chooses epochs, for a search of settings that must not look at the others.

    Raises:
        SympromptError: a setting, the data or the model cannot be used; a loss is not finite.
    """
    if isinstance(config, TuneConfig):
        check_method(config)
    if not config.out:
        raise ConfigError("--out is missing; name the run folder to write.")
    folder, session = Folder(config.out), session or Session()
    finished = folder.check(COMMAND, config, resume=resume)
    if isinstance(config, PatternRunConfig):
        from symprompt.tasks.patterns.train import tune_seeds

        tune_seeds(folder, config, session, tick, finished=finished, resume=resume)
    elif not finished and config.mixture.tasks:
        _tune_mixture(folder, config, session, tick)
    elif not finished:
        with folder.undone_if_refused():
            _tune_task(folder, config, session=session, tick=tick, asked=asked)
    return TaskRun(folder, load_metrics(folder))


def describe_run(
    config: TuneConfig | PatternRunConfig,
    backbone: LanguageModel,
    tasks: Mapping[str, Mapping[str, Sequence[object]]],
    method: str,
    seeds: tuple[int, ...],
) -> Manifest:
    """Return what a run states about itself when it begins.

    Args:
        tasks: name -> split -> examples.
    """
    digest = hashlib.sha256()
    for splits in tasks.values():
        for split, examples in splits.items():
            digest.update(split.encode())
            for example in examples:
                digest.update(repr(example).encode())
    return Manifest(
        command=COMMAND,
        model=config.model,
        model_fingerprint=backbone.fingerprint,
        data="+".join(tasks),
        data_fingerprint=digest.hexdigest(),
        method=method,
        seeds=seeds,
        acceleration=backbone.acceleration,
        **made_with(backbone.device, backbone.dtype),
    )


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
    backbone = session.backbone(config)
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
    tick("acceleration", 1, 1, backbone.accelerate(config.compile))
    folder.start(config, _describe(config, backbone, tasks))
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
            record=backbone.records,
        )
        folder.write_json(HISTORY, history)
        folder.write_json(CARD, _make_card(evaluator, backbone))
        folder.write_tensors(name, model.tensors(task.name), {"format": FORMAT})
    # Read back even when just written: a resumed run must see the same parameters.
    model.load(task.name, folder.read_tensors(name)[0])
    folder.remove(STATE)
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


def _describe(
    config: TuneConfig, backbone: LanguageModel, tasks: Mapping[str, PreparedTask]
) -> Manifest:
    splits = {name: task.data.splits for name, task in tasks.items()}
    return describe_run(config, backbone, splits, config.method, (config.seed,))


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
        {name: task.splits["train"].lengths for name, task in tasks.items()},
        {name: int(task.splits["train"].ids.shape[1]) for name, task in tasks.items()},
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
    return {
        "format": FORMAT,
        "method": config.method,
        "task": task.name,
        "kind": task.data.kind,
        "labels": list(task.data.labels.names),
        "base_model": config.model,
        "base_model_fingerprint": backbone.fingerprint,
        "file": TRAINABLES[config.method].file,
        "trainable_parameters": evaluator.model.size,
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
    if not (folder.holds_run and shared.has(PROMPT) and shared.has(HISTORY)):
        backbone = session.backbone(config)
        model, tasks = _prepare(config, backbone, parts, session)
        chosen = backbone.accelerate(config.compile)
        folder.start(config, _describe(config, backbone, tasks))
        tick("acceleration", 1, 1, chosen)

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
            record=backbone.records,
        )
        heads = {key: value.detach() for key, value in model.head_parameters().items()}
        shared.write_json(HISTORY, history)
        shared.write_tensors(PROMPT, {**model.tuned.tensors(), **heads}, {"format": FORMAT})
        shared.remove(STATE)
    return shared.read_tensors(PROMPT)[0]


def _named(tick: Tick, name: str) -> Tick:
    return lambda stage, done, total, note: tick(f"{name}: {stage}", done, total, note)
