"""A run for others: without the places of this machine, whole in a folder, with a card's head."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from symprompt.config import read_toml, tables_to_toml
from symprompt.errors import ConfigError, RunError
from symprompt.files.atomic import (
    follow_umask,
    making_folder,
    read_json,
    to_json,
    write_file,
    write_json,
)
from symprompt.runs.folder import CONFIG, EXPORTED, MANIFEST, FileEntry, Folder, Manifest, Record
from symprompt.runs.statistics import OVER_RELATIONS

HELD = "run"
"""Where an exported folder keeps what the run has beside what it learned."""
WHOLE = "a whole run"
"""What the folder of a run that no other library can express says that it holds."""
ON_HUB = "OWNER/NAME"
"""Where a card says what the folder is called on the hub."""
_SHIPPED = "shipped"
_MODEL = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?", re.ASCII)


def require_new(folder: str | Path, what: str) -> Path:
    """Return a folder that is not there, or is empty.

    Args:
        what: to do if it is not, for the sentence.

    Raises:
        ConfigError: it holds something.
    """
    target = Path(folder)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ConfigError(f"{target} is there already; name a new folder {what}.")
    return target


def file_sizes(folder: Path) -> dict[str, int]:
    """Return the files of a folder, however deep, and their sizes in bytes."""
    return {
        path.relative_to(folder).as_posix(): path.stat().st_size
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def inner_names(manifest: Manifest, where: Path) -> list[str]:
    """Return the names of a run's files.

    Raises:
        RunError: one of them is outside of the folder, as only a forged manifest has it.
    """
    for name in manifest.files:
        require_inside(name, where)
    return list(manifest.files)


def require_inside(name: str, where: Path) -> None:
    """Refuse the name of a file that is not within its folder."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or not path.parts:
        raise RunError(f"{where} is damaged: it names a file outside of its folder, {name!r}.")


# ------------------------------------------------------------------------------ without places


def copy_without_places(run: Folder, into: Path, *, model: str) -> Folder:
    """Copy a finished run so that it names no path of this machine; return the copy.

    Paths in its config, manifest and cards become the names of what they lead to.

    Args:
        model: what the run's model is called elsewhere.
    """
    manifest = run.manifest
    places = {manifest.model: model}
    files = _copy_files(run, into, lambda value: _placeless(value, places))
    if run.has(CONFIG):
        tables = _placeless(read_toml(run.path / CONFIG), places)
        named = {key: Path(tables[key]).name for key in ("data", "out") if tables.get(key)}
        write_file(into / CONFIG, tables_to_toml(tables | named).encode())
    plain = _placeless(manifest.model_dump(mode="json"), places)
    plain |= {"data": Path(manifest.data).name, "files": files}
    write_file(into / MANIFEST, Manifest.model_validate(plain).to_json())
    return Folder(into)


def _copy_files(run: Folder, into: Path, change: Callable[[Any], Any]) -> dict[str, FileEntry]:
    """Copy a run's files, with what JSON holds changed; return what a manifest states of them."""
    files = dict(run.manifest.files)
    for name, entry in files.items():
        source, target = run.path / name, into / name
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            shutil.copyfile(source, target)
        except OSError as error:
            raise RunError(f"cannot read {source}: {error.strerror}.") from error
        value = read_json(source) if target.suffix == ".json" else None
        if change(value) != value:
            write_file(target, to_json(change(value)))
            files[name] = FileEntry(bytes=target.stat().st_size, sha256=entry.sha256)
    return files


def _placeless(value: Any, places: Mapping[str, str]) -> Any:
    """Return a value with names in the place of paths."""
    if isinstance(value, Mapping):
        return {key: _placeless(own, places) for key, own in value.items()}
    if isinstance(value, list | tuple):
        return [_placeless(own, places) for own in value]
    if not isinstance(value, str) or not value:
        return value
    if value in places:
        return places[value]
    # Not a tag or a label that is a slash.
    path = Path(value)
    deep = len(path.parts) > 2 if path.is_absolute() else len(path.parts) > 1
    if deep and len(value) < 4096 and "\n" not in value and (path.is_absolute() or path.exists()):
        return path.name
    return value


# ------------------------------------------------------------------------------ whole runs


def write_whole(part: Path, run: Folder, *, why: str, card: str) -> None:
    """Write a run with all its files as a folder for others.

    Args:
        part: the folder to fill.
        why: what keeps the run from being an adapter.
        card: the text of README.md.
    """
    manifest = run.manifest
    about = {
        EXPORTED: WHOLE,
        "format": 1,
        "base_model": manifest.model,
        "base_model_fingerprint": manifest.model_fingerprint,
        "command": manifest.command,
        "method": manifest.method,
        "why": why,
    }
    write_json(part / MANIFEST, about)
    for name in (CONFIG, MANIFEST, *manifest.files):
        if run.has(name):
            (part / HELD / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(run.path / name, part / HELD / name)
    write_file(part / "README.md", card.encode())


def import_whole(folder: Path, out: str | Path, *, model: str = "") -> Folder:
    """Make a run of a folder that ``write_whole`` filled.

    Args:
        out: the new run's folder.
        model: where the model is on this machine, if not where the run was made.

    Raises:
        RunError: the folder is damaged.
    """
    held = Folder(folder / HELD)
    manifest = held.require_finished()
    inner_names(manifest, held.path / MANIFEST)
    target = require_new(out, "with --out")
    places = {manifest.model: model} if model and manifest.model else {}
    with making_folder(target) as part:
        files = _copy_files(held, part, lambda value: _placed(value, places))
        tables = read_toml(held.path / CONFIG)
        write_file(part / CONFIG, tables_to_toml(_placed(tables, places)).encode())
        details = manifest.details | {"imported": "as exported"}
        changes = {"model": model or manifest.model, "files": files, "details": details}
        write_file(part / MANIFEST, manifest.model_copy(update=changes).to_json())
        follow_umask(part)
    return Folder(target)


def _placed(table: Any, places: Mapping[str, str]) -> Any:
    """Return a table whose model is where it is now."""
    if not isinstance(table, dict):
        return table
    keys = ("model", "base_model")
    return {key: places.get(own, own) if key in keys else own for key, own in table.items()}


# ------------------------------------------------------------------------------ cards


def card_figures(manifest: Manifest) -> list[Record]:
    """Return the stored figures that a card shows: of facts, the means over relations on test."""
    main = {"order": "raw", "mean": OVER_RELATIONS}
    found = [own for own in manifest.records if not own.versus]
    if any(own.settings for own in found):
        found = [own for own in found if own.split == "test" and own.settings == main]
    return found


def card_head(
    *,
    name: str,
    library: str,
    base: str,
    tags: Iterable[str],
    data: str,
    task: str,
    figures: Iterable[Record],
) -> str:
    """Return what a card begins with: what the hub knows a model by, as YAML.

    Args:
        name: what the figures are of.
        library: that loads the folder.
        base: the model; left out where it is no name of the hub.
        data: what was learned from, as a path or a name.
        task: the hub's word for it.
        figures: stored by the run.
    """
    found = list(figures)
    called = re.sub(r"[^\w.-]+", "-", Path(data).name, flags=re.ASCII).strip("-.")
    results = [
        {
            "task": {"type": task},
            "dataset": {"name": Path(data).name, "type": called, "split": split},
            "metrics": [
                {
                    "type": own.metric,
                    **({"name": f"{own.metric}, seed {own.seeds[0]}"} if own.seeds else {}),
                    "value": round(own.value, 2),
                }
                for own in found
                if own.split == split
            ],
        }
        for split in dict.fromkeys(own.split for own in found)
    ]
    head: dict[str, Any] = {
        "library_name": library,
        **({"base_model": base} if is_model_name(base) else {}),
        "tags": list(tags),
        **({"datasets": [called]} if called else {}),
        **({"metrics": list(dict.fromkeys(own.metric for own in found))} if found else {}),
        **({"model-index": [{"name": name, "results": results}]} if found else {}),
    }
    lines = "".join(f"{key}: {json.dumps(value)}\n" for key, value in head.items())
    return f"---\n{lines}---\n"


def card_end(base: str, command: str, what: str) -> str:
    """Return what a card ends with: how symprompt takes the folder.

    Args:
        base: the model.
        command: of a run that is on the hub, called ``ON_HUB``.
        what: for.
    """
    text = (
        f"\nThe script is run in this folder (from the hub: `hf download {ON_HUB} --local-dir "
        "FOLDER`). `symprompt import FOLDER --out RUN` makes a run of it again, "
        f"{what}; where this folder is on the hub, `symprompt {command}` does without.\n"
    )
    if base == _SHIPPED:
        text += (
            "\nThe model comes with symprompt: its folder is `symprompt/models/shipped` in the "
            "package; name it as `base`.\n"
        )
    return text


def is_model_name(base: str) -> bool:
    """Return whether a model's name is the hub's: no path of this machine, nor the packaged one."""
    return _MODEL.fullmatch(base) is not None and not Path(base).exists() and base != _SHIPPED
