"""The commands that exchange runs with other libraries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from symprompt.cli.flags import DataExportFlags, ExportFlags, ImportFlags, PushFlags, UpgradeFlags
from symprompt.cli.output import give
from symprompt.errors import ConfigError, RunError, counted
from symprompt.files.parquet import require_pyarrow, write_parquet
from symprompt.opening import export_run, export_tables, import_run, push_run, upgrade_run
from symprompt.probing.prepare import load_config_facts
from symprompt.runs.folder import MANIFEST, Folder
from symprompt.runs.sharing import file_sizes
from symprompt.tasks.predict import COMMAND


def run_export(flags: ExportFlags) -> None:
    """Run ``symprompt export RUN --to KIND FOLDER``."""
    if flags.to == "parquet":
        folder = export_tables(flags.run, flags.folder)
    else:
        folder = export_run(
            flags.run, flags.folder, to=flags.to, model=flags.model, device=flags.device
        )
    files = file_sizes(folder)
    hint = "" if flags.to == "parquet" else f"; {folder / 'README.md'} has a script that loads it"
    plain = {"folder": str(folder), "files": files}
    give(flags.json, plain, *_listed(files), f"folder: {folder}{hint}")


def _listed(files: Mapping[str, int]) -> list[str]:
    return [f"{size:>12,}  {name}" for name, size in files.items()]


def run_push(flags: PushFlags) -> None:
    """Run ``symprompt push RUN NAME``."""
    pushed = push_run(
        flags.run,
        flags.name,
        private=flags.private,
        revision=flags.revision,
        overwrite=flags.overwrite,
        base=flags.base,
        dry_run=flags.dry_run,
        model=flags.model,
        device=flags.device,
    )
    lines = _listed(pushed.files)
    total = sum(pushed.files.values())
    lines.append(f"{total:>12,}  bytes in {counted(len(pushed.files), 'file')}")
    if pushed.why_whole:
        lines.append(f"the run itself, for symprompt alone: {pushed.why_whole}")
    if pushed.model.startswith("./"):
        lines.append(
            f"note: the run has its model from a folder, {pushed.model[2:]}; others give theirs"
            " with --model, or push with --base NAME if the hub has it."
        )
    if flags.dry_run:
        seen = "its owner" if flags.private else "everybody"
        to = f"without --dry-run this goes to {pushed.name}, seen by {seen}"
        lines.append(f"nothing was sent; {to}")
    else:
        lines += [f"pushed: {pushed.address}", _hint(pushed.command, pushed.name)]
    give(flags.json, asdict(pushed), *lines)


def _hint(command: str, run: object) -> str:
    """Return how a run is used."""
    if command == COMMAND:
        return f"ask it: symprompt predict {run} FILE"
    return f"ask it: symprompt ask {run} --relation NAME --subject TEXT"


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
    give(flags.json, found, f"{found['facts']:,} facts of {found['relations']} relations: {target}")


def run_import(flags: ImportFlags) -> None:
    """Run ``symprompt import FOLDER --out RUN``."""
    run = import_run(flags.folder, flags.out, model=flags.model)
    print(f"run folder: {run.folder.path}")
    print(_hint(run.folder.manifest.command, run.folder.path))


def run_upgrade(flags: UpgradeFlags) -> None:
    """Run ``symprompt runs upgrade FOLDER``."""
    every = [Folder(path.parent) for path in sorted(Path(flags.folder).rglob(MANIFEST))]
    found = [folder for folder in every if not folder.exported]
    if not found:
        raise RunError(f"{flags.folder} holds no runs; give a run folder, or one that holds some.")
    changed: dict[str, list[str]] = {}
    unfinished = []
    for folder in found:
        # One of a newer version or a damaged one ends it; what was converted stays so.
        if folder.finished:
            changed[str(folder.path)] = upgrade_run(folder.path, dry_run=flags.dry_run)
        else:
            unfinished.append(str(folder.path))
    lines = [f"{name}: {line}" for name, told in changed.items() for line in told]
    left = "left alone, as it is unfinished; --resume writes the present format"
    lines += [f"{name}: {left}" for name in unfinished]
    count = counted(sum(map(bool, changed.values())), "run")
    done = "would be converted" if flags.dry_run else "converted"
    plain = {"changed": changed, "unfinished": unfinished, "dry_run": flags.dry_run}
    give(flags.json, plain, *lines, f"{count} {done}, {len(found)} looked at")
