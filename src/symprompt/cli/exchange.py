"""The commands that exchange runs with other libraries."""

from __future__ import annotations

from pathlib import Path

from symprompt.cli.flags import DataExportFlags, ExportFlags, ImportFlags
from symprompt.cli.output import print_json
from symprompt.errors import ConfigError
from symprompt.files.parquet import require_pyarrow, write_parquet
from symprompt.opening import export_run, export_tables, import_run
from symprompt.probing.prepare import load_config_facts
from symprompt.tasks.predict import TaskRun


def run_export(flags: ExportFlags) -> None:
    """Run ``symprompt export RUN --to KIND FOLDER``."""
    if flags.to == "parquet":
        folder = export_tables(flags.run, flags.folder)
    else:
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
    hint = "" if flags.to == "parquet" else f"; {folder / 'README.md'} has a script that loads it"
    print(f"folder: {folder}{hint}")


def run_data_export(flags: DataExportFlags) -> None:
    """Run ``symprompt data export SOURCE --to parquet FILE``."""
    target = Path(flags.out)
    if target.suffix != ".parquet":
        raise ConfigError(f"{target} ends in {target.suffix!r}; name a file that ends in .parquet.")
    if target.exists():
        raise ConfigError(f"{target} is there already; name a new file.")
    require_pyarrow(target)
    facts = load_config_facts(flags.source, flags.facts)
    columns = facts.to_columns()
    write_parquet(target, columns)
    found = {"file": str(target), "facts": len(columns["subject"]), "relations": len(facts.names)}
    if flags.json:
        print_json(found)
    else:
        print(f"{found['facts']:,} facts of {found['relations']} relations: {target}")


def run_import(flags: ImportFlags) -> None:
    """Run ``symprompt import FOLDER --out RUN``."""
    run = import_run(flags.folder, flags.out, model=flags.model)
    print(f"run folder: {run.folder.path}")
    if isinstance(run, TaskRun):
        print(f"ask it: symprompt predict {run.folder.path} FILE")
    else:
        print(f"ask it: symprompt ask {run.folder.path} --relation NAME --subject TEXT")
