"""The commands about labelled tasks: train a prompt for one, and predict with it."""

from __future__ import annotations

from symprompt.cli.flags import PredictFlags, TuneFlags
from symprompt.cli.output import print_json
from symprompt.errors import counted
from symprompt.files.progress import show_progress
from symprompt.report.answers import prediction_grid
from symprompt.report.grid import show
from symprompt.report.records import load_runs, run_notes
from symprompt.runs.folder import Folder
from symprompt.tasks.config import PatternRunConfig, TuneConfig
from symprompt.tasks.predict import load_metrics, predict_file
from symprompt.tasks.train import tune

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
    """Run ``symprompt predict RUN FILE``."""
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
        print(f"{counted(len(found.rows), 'prediction')}: {flags.out}")
    else:
        show(prediction_grid(found.rows[:_SHOWN]))
        if len(found.rows) > _SHOWN:
            print(f"and {len(found.rows) - _SHOWN} more; --out FILE writes them all.")
    for name, value in found.metrics.items():
        print(f"{name}: {value:.2f}")
    for note in found.notes:
        show(f"note: {note}.")
