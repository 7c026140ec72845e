"""Multi-task P-tuning v2 (MPT-2): a prefix that several tasks learn together, then each alone.

P-tuning v2, sections 2.3 and 3.3 (Liu et al., 2022); its authors released no code for it. The tasks
share the prefix and have a linear head each; every step reads inputs of one task, drawn by size
without replacement. Then every task trains prefix and head further on its own data.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from symprompt.errors import ConfigError
from symprompt.files.progress import Tick, silent
from symprompt.runs.environment import derive_seed
from symprompt.runs.folder import HISTORY, STATE, Folder
from symprompt.tasks.config import TuneConfig
from symprompt.tasks.folder import COMMAND, PROMPT, load_card
from symprompt.tasks.model import TaskModel
from symprompt.tasks.outcome import Asker, choosing_metric
from symprompt.tasks.prepare import LaidTask, Session
from symprompt.tasks.train import (
    FORMAT,
    TaskRun,
    describe_run,
    head_of,
    run_task,
    run_training,
)
from symprompt.tasks.trainables import check_method, make_body
from symprompt.tasks.training import TaskTraining

SHARED = "shared"


def tune_mixture(
    config: TuneConfig, *, resume: bool = False, tick: Tick = silent, session: Session | None = None
) -> TaskRun:
    """Train a mixture's shared prefix, then every task from it; write one folder for each task.

    Returns:
        The mixture's run; its metrics hold those of each task under "tasks".

    Raises:
        SympromptError: as ``symprompt.tasks.train.tune``; tasks of several kinds.
    """
    check_method(config)
    if not config.out:
        raise ConfigError("--out is missing; name the run folder to write.")
    folder, session = Folder(config.out), session or Session()
    if folder.check(COMMAND, config, resume=resume):
        return TaskRun.load(folder)
    begun = time.perf_counter()
    parts = task_configs(config)
    with folder.undone_if_refused():
        tensors = _share(folder, config, parts, session, tick)
    wanted = [config.task.name] if config.task.name else list(parts)
    records = []
    for name in wanted:
        own = Folder(folder.path / name)
        if own.check(COMMAND, parts[name], resume=True):
            records += own.manifest.full_records()
            continue
        start = {
            key.replace(f"head.{name}.", "head."): value
            for key, value in tensors.items()
            if not key.startswith("head.") or key.startswith(f"head.{name}.")
        }
        run_task(own, parts[name], session=session, tick=_named(tick, name), start=start)
        records += own.manifest.full_records()
    trained = load_card(Folder(folder.path / wanted[0]))["trainable_parameters"]
    folder.finish(
        records=records,
        seconds={"all": time.perf_counter() - begun},
        details={"tasks": wanted, "trainable_parameters": trained},
    )
    return TaskRun.load(folder)


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
    """Train the shared prefix and all heads, or read them back; return their numbers."""
    shared = Folder(folder.path / SHARED)
    if folder.holds_run and shared.has(PROMPT) and shared.has(HISTORY):
        return shared.read_tensors(PROMPT)[0]
    backbone = session.backbone(config)
    body = make_body(backbone, config, seed=(config.seed,))
    laid = {name: session.task(part, backbone, taken=body.taken) for name, part in parts.items()}
    _check_kinds(laid)
    folder.start(config, describe_run(config, backbone, laid))
    heads = {
        name: head_of(config, task, body, seed=(config.seed, name)) for name, task in laid.items()
    }
    inputs = {name: task.splits["train"].inputs for name, task in laid.items()}
    model = TaskModel(body, heads, inputs)
    tick("acceleration", 1, 1, backbone.accelerate(config.compile))
    learning = config.learning
    learning = replace(learning, rate=config.mixture.rate or learning.rate, patience=0)
    max_tokens = config.max_tokens or backbone.token_budget()
    asker = Asker(model, config, max_tokens=max_tokens)

    def score() -> tuple[float, dict[str, float]]:
        found: dict[str, float] = {}
        for name, task in laid.items():
            measured = asker.measure(name, task, task.choice)
            found[name] = choosing_metric(config.learning.choose, measured)
        return sum(found.values()) / len(found), found

    training = TaskTraining(
        model,
        {name: task.lengths for name, task in laid.items()},
        {name: task.widest for name, task in laid.items()},
        replace(learning, epochs=config.mixture.epochs),
        score,
        seed=derive_seed(config.seed, "mixture"),
        record=backbone.records,
    )
    history = run_training(shared, training, config, tick)
    tensors = {**body.tensors(), **{key: v.detach() for key, v in model.head_parameters().items()}}
    shared.write_json(HISTORY, history)
    shared.write_tensors(PROMPT, tensors, {"format": FORMAT})
    shared.remove(STATE)
    return shared.read_tensors(PROMPT)[0]


def _check_kinds(laid: dict[str, LaidTask]) -> None:
    kinds = {task.data.kind for task in laid.values()}
    if len(kinds) > 1:
        listed = ", ".join(f"{name} ({task.data.kind})" for name, task in laid.items())
        raise ConfigError(f"mixture.tasks are of several kinds: {listed}; mix tasks of one kind.")


def _named(tick: Tick, name: str) -> Tick:
    return lambda stage, done, total, note: tick(f"{name}: {stage}", done, total, note)
