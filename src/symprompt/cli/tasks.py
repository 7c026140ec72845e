"""``symprompt tune`` with a pattern in its config: P-tuning with verbalizers, and baselines.

The commands about labelled tasks: train a prompt for one, and predict with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from symprompt.cli.data import print_json
from symprompt.cli.flags import full_names, parse
from symprompt.config import shipped_configs
from symprompt.errors import ConfigError, SympromptError
from symprompt.report import show, show_progress
from symprompt.report.tasks import (
    TaskResults,
    load_task_runs,
    pattern_notes,
    prediction_grid,
    run_notes,
)
from symprompt.tasks.config import TuneConfig, load_tune_config
from symprompt.tasks.folder import TaskFolder, is_task_run
from symprompt.tasks.multitask import tune_mixture
from symprompt.tasks.patterns import (
    PatternRunConfig,
    is_pattern_config,
    load_pattern_config,
    tune_pattern,
)
from symprompt.tasks.patterns.folder import PatternFolder, is_pattern_run
from symprompt.tasks.predict import predict_file
from symprompt.tasks.train import TaskRun, tune


@dataclass(frozen=True)
class PatternFlags:
    """Answer a SuperGLUE task through a pattern, with learned vectors or without; write a run.

    Every setting of the config is a flag: --pattern.template pet-0, or --template pet-0 where only
    one table has that name.
    """

    config: Annotated[PatternRunConfig, tyro.conf.arg(name="")]
    resume: bool = False
    """Go on with an unfinished run, or add seeds to a finished one."""


def run_pattern(name: str, arguments: Sequence[str]) -> None:
    """Run ``symprompt tune CONFIG [flags]`` for a config that has a pattern."""
    usage = f"symprompt tune {name} --out RUN --model MODEL --data DATA"
    default = load_pattern_config(name)
    rest = full_names(arguments, default)
    flags = parse(PatternFlags, rest, usage, PatternFlags(default), pairs=True, prefixes=True)
    with show_progress() as tick:
        tune_pattern(flags.config, resume=flags.resume, tick=tick)
    show(load_task_runs([flags.config.out]).to_rich())
    for note in pattern_notes(PatternFolder(flags.config.out).load_metrics()):
        print(note)
    print(f"run folder: {flags.config.out}")
    print(f"predict with it: symprompt predict {flags.config.out} FILE")


_SHOWN = 20


@dataclass(frozen=True)
class TuneFlags:
    """Train a prompt, adapters or all weights on a labelled task; write a run folder.

    Every setting of the config is a flag: --prefix.length 20, or --length 20 where only one table
    has that name.
    """

    config: Annotated[TuneConfig, tyro.conf.arg(name="")]
    resume: bool = False
    """Go on with an unfinished run; the numbers are those of an unbroken one."""


@dataclass(frozen=True)
class PredictFlags:
    """Predict for the examples of a file with what a run of tune has learned.

    Of a run through a pattern the seed that did best on dev answers.
    """

    run: tyro.conf.Positional[str]
    """Run folder of tune."""
    file: tyro.conf.Positional[str]
    """Your examples: JSON lines, CSV, TSV, text or CoNLL columns; labels are taken if there are."""
    columns: tuple[str, ...] = ()
    """Names of columns in your file, as text=review or label=stars; of a run through a pattern the
    names are its task's, as premise=text."""
    out: str = ""
    """File of JSON lines to write; without it the first predictions are shown."""
    model: str = ""
    """Where the model is now, if it moved since the run was made."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:N or mps."""
    dtype: str = "auto"
    """auto (bfloat16 on CUDA, else float32), float32 or bfloat16."""
    max_tokens: int = 0
    """Most tokens in one pass through the model; 0 chooses by device."""
    json: bool = False
    """Print JSON instead of a table."""


def run_tune(arguments: Sequence[str]) -> None:
    """Run ``symprompt tune CONFIG [flags]``."""
    usage = "symprompt tune CONFIG --out RUN --model MODEL --data DATA"
    names = [word for word in arguments[:1] if not word.startswith("-")]
    if not names:
        listed = ", ".join(shipped_configs("tune"))
        print(f"usage: {usage} [flags]\n\nCONFIG is a TOML file or one of: {listed}\n")
        if not {"-h", "--help"} & set(arguments):
            raise SympromptError("no config was named; give one of the above, or a TOML file.")
    if names and is_pattern_config(names[0]):
        run_pattern(names[0], arguments[1:])
        return
    default = load_tune_config(names[0]) if names else TuneConfig()
    rest = full_names(arguments[len(names) :], default)
    flags = parse(TuneFlags, rest, usage, TuneFlags(default), pairs=True, prefixes=True)
    train = tune_mixture if flags.config.mixture.tasks else tune
    with show_progress() as tick:
        run = train(flags.config, resume=flags.resume, tick=tick)
    show(load_task_runs(run_paths(run)).to_rich())
    for path in run_paths(run):
        for note in run_notes(TaskFolder(path).load_metrics()):
            print(note)
    print(f"run folder: {run.folder.path}")
    print(f"predict with it: symprompt predict {run_paths(run)[0]} FILE")


def run_predict(arguments: Sequence[str]) -> None:
    """Run ``symprompt predict RUN FILE``."""
    flags = parse(PredictFlags, arguments, "symprompt predict")
    with show_progress() as tick:
        found = predict_file(
            flags.run,
            flags.file,
            columns=flags.columns,
            model=flags.model,
            device=flags.device,
            dtype=flags.dtype,
            max_tokens=flags.max_tokens,
            out=flags.out,
            tick=tick,
        )
    if flags.json:
        print_json(
            {"metrics": found.metrics, "predictions": found.rows, "notes": list(found.notes)}
        )
        return
    if flags.out:
        print(f"{len(found.rows)} predictions: {flags.out}")
    else:
        show(prediction_grid(found.rows[:_SHOWN]).to_rich())
        if len(found.rows) > _SHOWN:
            print(f"and {len(found.rows) - _SHOWN} more; --out FILE writes them all.")
    for name, value in found.metrics.items():
        print(f"{name}: {value:.2f}")
    for note in found.notes:
        print(f"note: {note}.")


def table_of_tasks(paths: Sequence[str], split: str) -> TaskResults | None:
    """Return the table of runs of tune; None if none of the paths is one.

    Raises:
        ConfigError: some are and some are not.
    """
    ours = [path for path in paths if is_task_run(path) or is_pattern_run(path)]
    if not ours:
        return None
    if len(ours) < len(paths):
        other = next(path for path in paths if path not in ours)
        raise ConfigError(
            f"{other} is no run on a labelled task as the others are; compare the two kinds apart."
        )
    return load_task_runs([inner for path in ours for inner in _inner(path)], split)


def run_paths(run: TaskRun) -> list[str]:
    """Return the folders of a run's tasks: its own, or one for each task of a mixture."""
    return _inner(str(run.folder.path), run.metrics)


def _inner(path: str, metrics: dict[str, Any] | None = None) -> list[str]:
    if is_pattern_run(path):
        return [path]
    folder = TaskFolder(path)
    found = metrics if metrics is not None else (folder.load_metrics() if folder.finished else {})
    return [str(Path(path, name)) for name in found.get("tasks", {})] or [path]
