"""The folder of a reproduction or sweep: a record of what it is about, and a lock."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from symprompt.errors import RunError
from symprompt.files.atomic import read_json

try:
    import fcntl
except ImportError:  # no such locks on Windows; runs are still written atomically there
    fcntl = None  # type: ignore[assignment]

RECORD = "settings.json"
LOCK = ".lock"
# What a command that was killed at once may have left.
OWN = (LOCK, f"{RECORD}.part")


def merge_record(
    out: str, kept: dict[str, Any], models: dict[str, dict[str, str]]
) -> dict[str, Any]:
    """Return a folder's record with what is new; refuse a folder that was made otherwise.

    Args:
        kept: the settings that every run depends on; they must be the same.
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
    """Refuse a folder with files that no reproduction wrote, or a file in its place."""
    try:
        others = folder.exists() and (
            not folder.is_dir() or any(entry.name not in OWN for entry in folder.iterdir())
        )
    except OSError as error:
        raise RunError(f"cannot read {folder}: {error.strerror or error}.") from error
    if others:
        raise RunError(f"{folder} exists and was not made by this command; choose another --out.")


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "all"
    return str(value)[:60] or '""'


@contextmanager
def hold_folder(folder: Path, *, patience: float = 10.0) -> Iterator[int | None]:
    """Hold a folder while the block runs; yields what workers inherit so that they hold it too.

    Args:
        patience: seconds to wait for the workers of a killed process, which end by themselves.

    Raises:
        RunError: another process holds the folder, or it cannot be written to.
    """
    if fcntl is None:
        yield None
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        stream = (folder / LOCK).open("w")
    except OSError as error:
        raise RunError(f"cannot write to {folder}: {error.strerror or error}.") from error
    with stream:
        until = time.monotonic() + patience
        while True:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if time.monotonic() > until:
                    raise RunError(
                        f"another process is at work in {folder}; wait for it, or choose another "
                        "--out."
                    ) from None
                time.sleep(0.05)
        yield stream.fileno()
