"""One door to finished runs: those on facts are asked, those on labelled tasks predict."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from symprompt.errors import ExchangeError, RunError
from symprompt.files import hub
from symprompt.files.atomic import making_folder, read_json, write_file, write_json
from symprompt.files.parquet import require_pyarrow, to_columns, write_parquet
from symprompt.probing.ask import Run
from symprompt.probing.exchange import export_prompts, import_prompts
from symprompt.probing.results import ASKED
from symprompt.probing.results import COMMANDS as ON_FACTS
from symprompt.probing.upgrade import convert_weights
from symprompt.runs.folder import CONFIG, EXPORTED, FORMAT, MANIFEST, PREDICTIONS, Folder
from symprompt.runs.sharing import (
    HELD,
    ON_HUB,
    WHOLE,
    card_figures,
    card_head,
    copy_without_places,
    file_sizes,
    import_whole,
    require_new,
    write_whole,
)
from symprompt.tasks.exchange import KIND, export_task, import_task
from symprompt.tasks.predict import COMMAND, TaskRun

# What is fetched of a run on the hub: what a run is made of, none of which is unpickled or run.
_FETCHED = (
    *(MANIFEST, "adapter_config.json", "adapter_model.safetensors", "head.safetensors"),
    *(f"{HELD}/*.{ending}" for ending in ("json", "jsonl", "toml", "txt", "safetensors")),
)


def load(run: str | Path) -> Run | TaskRun:
    """Open a finished run: of train or rerank to ``ask``, of tune to ``predict``.

    The model is loaded when it is needed.

    Args:
        run: a run folder, or the name of one on the hub, as ``push_run`` takes it.

    Raises:
        RunError: there is no finished run of these commands.

    Example:
        >>> load("runs/tickets").predict(["My invoice is wrong."]).rows[0]["text"]
        'My invoice is wrong.'
        >>> load("runs/spe").ask("P36", object="Paris").object
        'Paris'
    """
    where = locate_run(run)
    manifest = Folder(where).require_finished("train", "rerank", COMMAND)
    return TaskRun.load(where) if manifest.command == COMMAND else Run.load(where)


def locate_run(run: str | Path) -> Path:
    """Return where a run is: the folder itself, or what is fetched for a name of the hub.

    A run on the hub is fetched into huggingface's cache, once for each commit, and a run folder is
    made of it there.

    Raises:
        RunError: there is no such run, or the hub cannot be reached.
    """
    name = str(run)
    if not hub.is_hub_name(name):
        return Path(run)
    commit = hub.fetch_file(name, MANIFEST).parent.name
    place = hub.cache_place(name, commit)
    # Tables call runs by their folders.
    target = place / hub.split_name(name)[0].replace("/", "--")
    if not target.exists():
        source = hub.fetch_folder(name, commit, _FETCHED)
        with TemporaryDirectory(dir=place) as part:
            made = _import(source, Path(part, "run")).folder.path
            # Another process may have been faster.
            with suppress(OSError):
                made.rename(target)
    return target


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
        folder: or the name of one on the hub, as ``push_run`` takes it.
        out: the new run's folder.
        model: where the model is on this machine, if not where the run was made.

    Raises:
        RunError: the folder is none of those, or damaged.

    Example:
        >>> exported = export_run("runs/spe", "shared")
        >>> import_run(exported, "runs/again").ask("P36", subject="Luxembourg").subject
        'Luxembourg'
    """
    name = str(folder)
    if hub.is_hub_name(name):
        folder = hub.fetch_folder(name, hub.fetch_file(name, MANIFEST).parent.name, _FETCHED)
    return _import(Path(folder), out, model=model)


def _import(folder: Path, out: str | Path, *, model: str = "") -> Run | TaskRun:
    if not folder.exists():
        raise RunError(
            f"there is no folder {folder}; give one that symprompt export --to peft wrote."
        )
    if Folder(folder).has(CONFIG):
        raise RunError(f"{folder} is a run folder already; ask it, or give it to table, as it is.")
    said = read_json(folder / MANIFEST) if (folder / MANIFEST).is_file() else None
    kind = said.get(EXPORTED) if isinstance(said, dict) else None
    if kind == WHOLE:
        return load(import_whole(folder, out, model=model).path)
    if kind == KIND:
        return import_task(folder, out, model=model)
    return import_prompts(folder, out, model=model)


# ------------------------------------------------------------------------------ to the hub


@dataclass(frozen=True)
class Pushed:
    """What was, or would be, put on the hub; final.

    Attributes:
        name: under which it is there, with the revision if it is not main.
        address: of its page; "" where nothing was sent.
        files: their sizes in bytes.
        command: that made the run.
        why_whole: what kept the run from being an adapter of peft; "" if it is one.
        model: what the run calls its model there.
    """

    name: str
    address: str
    files: Mapping[str, int]
    command: str
    why_whole: str
    model: str


def push_run(
    run: str | Path,
    name: str,
    *,
    private: bool = False,
    revision: str = "",
    overwrite: bool = False,
    base: str = "",
    dry_run: bool = False,
    model: str = "",
    device: str = "cpu",
) -> Pushed:
    """Put a run on the hub of huggingface, for ``load`` and for peft.

    What is sent is the folder of ``export_run``; a run that peft cannot express is sent as it is,
    for symprompt alone. Paths of this machine are left out. Its facts and predictions go with it.

    Args:
        run: of train, rerank or tune.
        name: owner/name; the token comes from HF_TOKEN or ``hf auth login``.
        private: only its owner sees it.
        revision: a branch, made if it is not there; none is main.
        overwrite: take the place of what is there.
        base: what the run's model is called on the hub, if the run has it from a folder.
        dry_run: send nothing and ask nothing, only tell what would be sent.
        model: where the model is now, if it moved since the run was made.
        device: auto, cpu, cuda, cuda:N or mps.

    Raises:
        SympromptError: the run, the name or the token is refused, or the hub cannot be reached.

    Example:
        >>> found = push_run("runs/spe", "me/capitals", dry_run=True)
        >>> "adapter_model.safetensors" in found.files
        True
    """
    hub.require_name(name)
    if base:
        hub.require_name(base)
    if not dry_run:
        hub.require_token()
    with hub.offline() if dry_run else nullcontext(), TemporaryDirectory() as place:
        opened = load(run)
        inner = opened.folder.manifest.details.get("tasks")
        if inner:
            raise RunError(
                f"{run} holds the runs of several tasks; push one of them: {run}/{inner[0]}."
            )
        folder, why = _prepare(opened, Path(place), base, model, device)
        branch = "" if revision == hub.MAIN else revision
        where = f"{name}@{branch}" if branch else name
        if "/" in name:
            _name_on_card(folder / "README.md", name, branch)
        sizes = file_sizes(folder)
        called = str(read_json(folder / MANIFEST)["base_model"])
        made_by = opened.folder.manifest.command
        if dry_run:
            return Pushed(where, "", sizes, made_by, why, called)
        message = f"{opened.folder.manifest.method} on {Path(called).name}, by symprompt"
        sent = hub.send_folder(
            folder, name, message=message, private=private, revision=revision, overwrite=overwrite
        )
    return Pushed(sent.name, sent.address, sizes, made_by, why, called)


def _name_on_card(card: Path, name: str, branch: str) -> None:
    """Let a card call the folder by its name on the hub."""
    text = card.read_text(encoding="utf-8")
    fetched = f"{name} --revision {branch}" if branch else name
    text = text.replace(f"hf download {ON_HUB}", f"hf download {fetched}")
    write_file(card, text.replace(ON_HUB, f"{name}@{branch}" if branch else name).encode())


def _prepare(
    opened: Run | TaskRun, place: Path, base: str, model: str, device: str
) -> tuple[Path, str]:
    """Write what is sent of a run; return its folder, and what kept it from being an adapter."""
    before = opened.folder.manifest.model
    # What lies here has no name elsewhere: such a path is never looked for on the hub.
    local = Path(before).exists() or before.startswith((".", "/", "~"))
    called = base or (f"./{Path(before).name}" if local else before)
    copied = copy_without_places(opened.folder, place / "run", model=called)
    target, why = place / "folder", ""
    try:
        export_run(copied.path, target, model=model or before, device=device)
        adapter = target / "adapter_config.json"
        write_json(adapter, read_json(adapter) | {"base_model_name_or_path": called})
    except ExchangeError as error:
        why = str(error).replace(str(copied.path), opened.folder.name)
        with making_folder(target) as part:
            write_whole(part, copied, why=why, card=_whole_card(copied, why))
    return target, why


def _whole_card(run: Folder, why: str) -> str:
    """Return the card of a run that is sent as it is."""
    manifest = run.manifest
    figures, base = card_figures(manifest), Path(manifest.model).name
    task, verb = "fact-retrieval", f"ask {ON_HUB} --relation RELATION --subject TEXT"
    if manifest.command == COMMAND:
        task, verb = "text-classification", f"predict {ON_HUB} FILE"
    head = card_head(
        name=f"{manifest.method} on {base}",
        library="symprompt",
        base=manifest.model,
        tags=("symprompt",),
        data=manifest.data,
        task=task,
        figures=figures,
    )
    measured = ", ".join(f"{own.metric} {own.value:.1f} on {own.split}" for own in figures)
    return (
        f"{head}\n# {manifest.method} on {base}, a run of symprompt\n\n"
        f"Made on {Path(manifest.data).name}{f': {measured}' if measured else ''}. `run` is the "
        f"run folder; it is no adapter of another library, because {why}\n\n"
        f"```\npip install symprompt\nsymprompt {verb}\n```\n"
    )


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
    opened = load(run)
    require_pyarrow(Path(folder))
    target = require_new(folder, "to export to")
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


def upgrade_run(run: str | Path, *, dry_run: bool = False) -> list[str]:
    """Convert a finished run that an earlier version made to the present format, in place.

    Each file is written beside and then takes the old one's place, the manifest last; after a kill
    the same call goes on.

    Args:
        run: a run folder of any command.
        dry_run: say what would change, and change nothing.

    Returns:
        What changed, in words; nothing where the run has the present format.

    Raises:
        RunError: there is no finished run, it is damaged, or a newer version made it.

    Example:
        >>> upgrade_run("runs/spe")
        []
    """
    folder = Folder(run)
    if folder.require_finished().format == FORMAT:
        return []
    with nullcontext() if dry_run else folder.held():
        manifest = folder.manifest
        details, told = manifest.details, list[str]()
        if manifest.command in ON_FACTS:
            details, told = convert_weights(folder, dry_run=dry_run)
        if not dry_run:
            folder.restate(format=FORMAT, details=details)
        return [*told, f"the manifest states format {FORMAT}; it was {manifest.format}"]
