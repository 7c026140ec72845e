"""What a reproduction is made from, and the record of it in its folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from symprompt.errors import ConfigError, RunError
from symprompt.files.atomic import read_json

RECORD = "settings.json"
LOCK = ".lock"
# What a reproduction that was killed at once may have left.
OWN = (LOCK, f"{RECORD}.part")


@dataclass(frozen=True)
class ReproduceSettings:
    """Every method x model x seed, and the tables; see ``symprompt.reproduce``."""

    data: str
    """LAMA folder (or any source of facts)."""
    out: str = "reproduced"
    """Folder for the runs, tables and figures."""
    models: tuple[str, ...] = ("shipped",)
    """Models, each a folder, hub name or GGUF file, or NAME=PLACE to call it otherwise."""
    methods: tuple[str, ...] = ()
    """Only these methods; empty takes all."""
    seeds: tuple[int, ...] = (34, 35, 36)
    """Seeds of the methods that draw random numbers."""
    relations: tuple[str, ...] = ()
    """Only these relations; empty takes all."""
    limit: int = 0
    """Most facts of each relation in each split, for a trial; 0 takes all."""
    epochs: int = 0
    """Training epochs, for a trial; 0 leaves them to the configs."""
    templates: str = ""
    """File or folder of manual templates; empty looks beside the data."""
    prompts: tuple[str, ...] = ()
    """Folders of written prompts, for the methods that need them."""
    vocabulary: str = "full"
    """Allowed answers: full, objects, or the path of a word list."""
    pool: int = 30
    """Largest K of Table 2, asked apart; 0 leaves it out."""
    dtype: str = "auto"
    """As in a run's config."""
    devices: tuple[str, ...] = ()
    """Devices to work on; empty takes every GPU, or the CPU if there is none."""
    jobs: int = 1
    """Workers on each device."""
    memory_gib: float = 0.0
    """Most GPU memory on each device, in GiB; 0 sets no bound."""
    compile: Literal["auto", "on", "off", "max-autotune"] = "auto"
    """As in a run's config."""
    draws: int = 10_000
    """Bootstrap draws."""


# What every run's numbers follow from; the rest only says how many runs there are, and where.
KEPT = ("data", "relations", "limit", "epochs", "templates", "prompts", "vocabulary", "dtype")


def check_settings(settings: ReproduceSettings) -> None:
    """Refuse values out of range.

    Raises:
        ConfigError: naming the key, what was got and what is allowed.
    """
    if not settings.data:
        raise ConfigError("--data is missing; name the LAMA folder.")
    if not settings.models or not settings.seeds:
        what = "models" if not settings.models else "seeds"
        raise ConfigError(f"--{what} is empty; name at least one.")
    if len(set(settings.seeds)) != len(settings.seeds):
        raise ConfigError(f"--seeds has one twice: {', '.join(map(str, settings.seeds))}.")
    for key, least in {"limit": 0, "epochs": 0, "pool": 0, "jobs": 1, "draws": 1}.items():
        if getattr(settings, key) < least:
            raise ConfigError(f"--{key} is {getattr(settings, key)}; it must be at least {least}.")
    if not settings.memory_gib >= 0:
        raise ConfigError(f"--memory-gib is {settings.memory_gib}; it must be at least 0.")


def make_record(
    settings: ReproduceSettings, facts: str, models: dict[str, dict[str, str]]
) -> dict[str, Any]:
    """Return what the folder is about; refuse one that was made with something else.

    Methods, seeds and models may be added later: what is there stays as it is.

    Args:
        facts: the fact set's fingerprint.
        models: name -> place and fingerprint.

    Raises:
        RunError: naming the first key that differs.
    """
    kept: dict[str, Any] = {key: _plain(getattr(settings, key)) for key in KEPT}
    return merge_record(settings.out, kept | {"facts": facts}, models)


def merge_record(
    out: str, kept: dict[str, Any], models: dict[str, dict[str, str]]
) -> dict[str, Any]:
    """Return a folder's record with what is new; refuse a folder that was made otherwise.

    Args:
        kept: what every run's numbers follow from; it must be the same.
        models: name -> place and fingerprint; others may be in the folder already.

    Raises:
        RunError: naming the first key that differs.
    """
    path = Path(out) / RECORD
    now = kept | {"models": models}
    if not path.is_file():
        _refuse_other_things(path.parent)
        return now
    stored = read_json(path)
    if not isinstance(stored, dict) or not isinstance(stored.get("models"), dict):
        raise RunError(f"{path} is damaged; choose another --out, or delete the folder.")
    for key, value in kept.items():
        if stored.get(key) != value:
            raise RunError(
                f"{out} was made with another value of {key} "
                f"({_shown(stored.get(key))}, now {_shown(value)}); give the same, or "
                "choose another --out."
            )
    for name, about in models.items():
        if stored["models"].get(name, about) != about:
            raise RunError(
                f"{out} was made with another model of the name {name} "
                f"({stored['models'][name]['place']}, or its weights have changed); give it "
                f"another name, as in --models other={about['place']}, or choose another --out."
            )
    return now | {"models": stored["models"] | models}


def _refuse_other_things(folder: Path) -> None:
    """Refuse a folder with files that reproduce did not write, or a file in its place."""
    try:
        others = folder.exists() and (
            not folder.is_dir() or any(entry.name not in OWN for entry in folder.iterdir())
        )
    except OSError as error:
        raise RunError(f"cannot read {folder}: {error.strerror or error}.") from error
    if others:
        raise RunError(f"{folder} exists and was not made by reproduce; choose another --out.")


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "all"
    return str(value)[:60] or '""'
