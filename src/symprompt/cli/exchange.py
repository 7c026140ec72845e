"""The commands that exchange runs with other libraries."""

from __future__ import annotations

from pathlib import Path

from symprompt.cli.flags import ExportFlags, ImportFlags
from symprompt.cli.output import print_json
from symprompt.opening import export_run, import_run
from symprompt.tasks.predict import TaskRun


def run_export(flags: ExportFlags) -> None:
    """Run ``symprompt export RUN --to KIND FOLDER``."""
    folder = export_run(
        flags.run, flags.folder, to=flags.to, model=flags.model, device=flags.device
    )
    files = {
        path.relative_to(folder).as_posix(): path.stat().st_size
        for path in sorted(Path(folder).rglob("*"))
        if path.is_file()
    }
    if flags.json:
        print_json({"folder": str(folder), "files": files})
        return
    for name, size in files.items():
        print(f"{size:>12,}  {name}")
    print(f"folder: {folder}; {folder / 'README.md'} has a script that loads it")


def run_import(flags: ImportFlags) -> None:
    """Run ``symprompt import FOLDER --out RUN``."""
    run = import_run(flags.folder, flags.out, model=flags.model)
    print(f"run folder: {run.folder.path}")
    if isinstance(run, TaskRun):
        print(f"ask it: symprompt predict {run.folder.path} FILE")
    else:
        print(f"ask it: symprompt ask {run.folder.path} --relation NAME --subject TEXT")
