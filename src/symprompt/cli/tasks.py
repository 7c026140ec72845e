"""The commands about labelled tasks: train a prompt for one, and predict with it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from symprompt.cli.flags import PredictFlags, TuneFlags
from symprompt.cli.output import print_json, show_streamed
from symprompt.cluster.machine import Jobs
from symprompt.errors import ConfigError, counted
from symprompt.files.progress import show_progress
from symprompt.files.reading import decode_text, parse_row
from symprompt.papers.shards import PredictShard, describe_shards, plan_predicting, predict_shards
from symprompt.report.printing import show
from symprompt.report.records import load_runs
from symprompt.runs.folder import Folder
from symprompt.tasks.config import PatternRunConfig, TuneConfig
from symprompt.tasks.predict import TaskRun, load_metrics
from symprompt.tasks.tables import prediction_grid, run_notes
from symprompt.tasks.train import tune
from symprompt.tasks.trainables import Outcome

_SHOWN = 20


def run_tune(flags: TuneFlags, config: TuneConfig | PatternRunConfig) -> None:
    """Run ``symprompt tune CONFIG [flags]``; a config with a pattern answers through it."""
    with show_progress() as tick:
        tune(config, resume=flags.resume, tick=tick)
    inner = Folder(config.out).manifest.details.get("tasks", [])
    paths = [f"{config.out}/{name}" for name in inner] or [config.out]
    show(load_runs(paths).tables())
    for path in paths:
        for note in run_notes(load_metrics(Folder(path))):
            show(note)
    print(f"run folder: {config.out}")
    print(f"predict with it: symprompt predict {paths[0]} FILE")


def run_predict(flags: PredictFlags) -> None:
    """Run ``symprompt predict RUN FILE``, or with texts or standard input in place of a file."""
    run = TaskRun.load(flags.run)
    given = _given(flags, len(run.stored.inputs))
    if flags.out and not flags.json and isinstance(given, Path) and run.streams(given):
        _predict_stream(run, given, flags)
        return
    if flags.as_given or flags.dry_run:
        raise ConfigError(
            "--dry-run, --on, --jobs and what is said of jobs go with --out and a table or lines "
            "of text; leave them out."
        )
    with show_progress() as tick:
        found = run.predict(
            given,
            columns=flags.columns,
            model=flags.model,
            device=flags.device,
            dtype=flags.dtype,
            max_tokens=flags.max_tokens,
            probabilities=flags.probabilities,
            out=flags.out,
            overwrite=flags.overwrite,
            tick=tick,
        )
    if flags.json:
        print_json(
            {"metrics": found.metrics, "predictions": found.rows, "notes": list(found.notes)}
        )
        return
    if flags.out:
        print(f"{counted(len(found.rows), 'prediction')}: {flags.out}")
    else:
        show(prediction_grid(found.rows[:_SHOWN]))
        if len(found.rows) > _SHOWN:
            print(f"and {len(found.rows) - _SHOWN} more; --out FILE writes them all.")
    _show_figures(found)


def _predict_stream(run: TaskRun, file: Path, flags: PredictFlags) -> None:
    """Write predictions for a file of any size."""
    names = ("columns", "model", "device", "dtype", "max_tokens", "probabilities")
    options: Any = {name: getattr(flags, name) for name in names}
    jobs = flags.as_given
    if flags.dry_run:
        config = PredictShard(run=flags.run, file=str(file), out=flags.out, **options)
        show("\n".join(describe_shards(plan_predicting(config, jobs or Jobs()))))
        return
    with show_progress() as tick:
        if jobs is None:
            options |= {"overwrite": flags.overwrite, "tick": tick}
            done, found = run.predict_stream(file, flags.out, **options)
        else:
            config = PredictShard(run=flags.run, file=str(file), out=flags.out, **options)
            done, found = predict_shards(config, jobs, overwrite=flags.overwrite, tick=tick)
    show_streamed(done, "prediction")
    _show_figures(found)


def _show_figures(found: Outcome) -> None:
    for name, value in found.metrics.items():
        print(f"{name}: {value:.2f}")
    for note in found.notes:
        show(f"note: {note}.")


def _given(flags: PredictFlags, parts: int) -> Path | Sequence[object]:
    """Return what to predict for: a file, texts, or the lines of standard input.

    Args:
        parts: of how many texts an example is made.
    """
    if bool(flags.file) == bool(flags.text):
        raise ConfigError(
            'name a FILE to predict for, or - for lines of standard input, or give --text "...".'
        )
    texts = flags.text
    if texts and parts > 1:
        return [texts[at : at + parts] for at in range(0, len(texts), parts)]
    if texts:
        return texts
    if flags.file != "-":
        return Path(flags.file)
    source = Path("standard input")
    found: list[object] = []
    for number, line in enumerate(decode_text(sys.stdin.buffer.read(), source).split("\n"), 1):
        if line.startswith("{"):
            found.append(parse_row(source, number, line))
        elif line.strip():
            found.append(line.split("\t") if parts > 1 else line)
    return found
