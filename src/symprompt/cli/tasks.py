"""The commands about labelled tasks: train a prompt for one, and predict with it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from symprompt.cli.flags import PredictFlags, TuneFlags
from symprompt.cli.output import give
from symprompt.cli.streams import stream_file
from symprompt.errors import ConfigError, counted
from symprompt.files.progress import show_progress
from symprompt.files.reading import decode_text, parse_row
from symprompt.papers.shards import PredictShard
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
    names = ("columns", "model", "device", "dtype", "max_tokens", "probabilities", "out")
    options: Any = {name: getattr(flags, name) for name in names}
    if flags.out and not flags.json and isinstance(given, Path) and run.streams(given):
        config = PredictShard(run=flags.run, file=flags.file, **options)
        streamed = stream_file(config, run, flags, "prediction")
        for line in _figures(streamed) if streamed else ():
            show(line)
        return
    if flags.as_given or flags.dry_run:
        raise ConfigError(
            "--dry-run, --on, --jobs and what is said of jobs go with --out and a table or lines "
            "of text; leave them out."
        )
    with show_progress() as tick:
        found = run.predict(given, **options, overwrite=flags.overwrite, tick=tick)
    rows = found.rows
    plain = {"metrics": found.metrics, "predictions": rows, "notes": list(found.notes)}
    more = f"and {len(rows) - _SHOWN} more; --out FILE writes them all."
    shown = [prediction_grid(rows[:_SHOWN]), *[more] * (len(rows) > _SHOWN)]
    written = [f"{counted(len(rows), 'prediction')}: {flags.out}"]
    give(flags.json, plain, *(written if flags.out else shown), *_figures(found))


def _figures(found: Outcome) -> list[str]:
    lines = [f"{name}: {value:.2f}" for name, value in found.metrics.items()]
    return [*lines, *(f"note: {note}." for note in found.notes)]


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
