"""One door to finished runs: those on facts are asked, those on labelled tasks predict."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from symprompt.errors import ConfigError, RunError
from symprompt.files.atomic import making_folder
from symprompt.files.parquet import require_pyarrow, to_columns, write_parquet
from symprompt.probing.ask import Run
from symprompt.probing.exchange import export_prompts, import_prompts
from symprompt.probing.results import ASKED
from symprompt.runs.folder import MANIFEST, PREDICTIONS, Folder
from symprompt.tasks.exchange import KIND, export_task, import_task
from symprompt.tasks.predict import COMMAND, TaskRun


def load(run: str | Path) -> Run | TaskRun:
    """Open a finished run: of train or rerank to ``ask``, of tune to ``predict``.

    The model is loaded when it is needed.

    Raises:
        RunError: there is no finished run of these commands.

    Example:
        >>> load("runs/tickets").predict(["My invoice is wrong."]).rows[0]["text"]
        'My invoice is wrong.'
        >>> load("runs/spe").ask("P36", object="Paris").object
        'Paris'
    """
    manifest = Folder(run).require_finished("train", "rerank", COMMAND)
    return TaskRun.load(run) if manifest.command == COMMAND else Run.load(run)


def export_run(
    run: str | Path,
    folder: str | Path,
    *,
    to: Literal["peft", "onnx"] = "peft",
    model: str = "",
    device: str = "cpu",
) -> Path:
    """Write what a run has learned as a folder that others load without symprompt.

    Args:
        run: for peft of train (ptuning, optiprompt, spe) or of tune (pt2, lora, pt); for onnx of
            tune, with classes.
        folder: must not be there, or be empty.
        to: peft: an adapter for peft and transformers; onnx: a graph for onnxruntime.
        model: where the model is now, if it moved since the run was made.
        device: of peft's: auto, cpu, cuda, cuda:N or mps.

    Raises:
        SympromptError: the run holds what cannot be expressed there; the reason is said.

    Example:
        >>> export_run("runs/spe", "exported").name
        'exported'
    """
    opened = load(run)
    if to == "onnx":
        if not isinstance(opened, TaskRun):
            raise RunError(
                f"{run} holds a run of {opened.folder.manifest.command}; --to onnx takes runs of "
                "tune, so give one, or --to peft."
            )
        # Heavy, and of an extra.
        from symprompt.tasks.onnx import export_onnx

        return export_onnx(opened, folder, model=model)
    if isinstance(opened, TaskRun):
        return export_task(opened, folder, model=model, device=device)
    return export_prompts(opened, folder, model=model, device=device)


def import_run(folder: str | Path, out: str | Path, *, model: str = "") -> Run | TaskRun:
    """Make a run of a folder that ``export_run`` wrote; its vectors are the adapter's.

    Args:
        out: the new run's folder.
        model: where the model is on this machine, if not where the run was made.

    Raises:
        RunError: the folder is none of those, or damaged.

    Example:
        >>> exported = export_run("runs/spe", "shared")
        >>> import_run(exported, "runs/again").ask("P36", subject="Luxembourg").subject
        'Luxembourg'
    """
    noted = Path(folder) / MANIFEST
    if noted.is_file() and KIND in noted.read_text(encoding="utf-8"):
        return import_task(folder, out, model=model)
    return import_prompts(folder, out, model=model)


def export_tables(run: str | Path, folder: str | Path) -> Path:
    """Write a run's records and its predictions of each split as Parquet files.

    Args:
        run: of train, rerank or tune.
        folder: must not be there, or be empty.

    Raises:
        ConfigError: pyarrow is not installed.

    Example:
        >>> sorted(path.name for path in export_tables("runs/spe", "tables").iterdir())
        ['predictions-dev.parquet', 'predictions-test.parquet', 'records.parquet']
    """
    target, opened = Path(folder), load(run)
    require_pyarrow(target)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ConfigError(f"{target} is there already; name a new folder to export to.")
    records = [own.model_dump() for own in opened.folder.manifest.full_records()]
    tables: dict[str, Mapping[str, Any]] = {"records": to_columns(records)}
    for file in sorted((opened.folder.path / PREDICTIONS).glob("*")):
        # Those of train are evidence for weights, and have no place in a table.
        if isinstance(opened, Run) and file.stem in ASKED:
            tables[f"predictions-{file.stem}"] = opened.to_columns(file.stem)
        elif isinstance(opened, TaskRun) and file.suffix == ".jsonl":
            rows = opened.folder.read_rows(f"{PREDICTIONS}/{file.name}")
            tables[f"predictions-{file.stem}"] = to_columns(rows)
    with making_folder(target) as part:
        for name, own in tables.items():
            write_parquet(part / f"{name}.parquet", own)
    return target
