"""One reproduction at a time in a folder: a lock that lives as long as any of its processes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from symprompt.errors import RunError
from symprompt.papers.settings import LOCK

try:
    import fcntl
except ImportError:  # no such locks on Windows; runs are still written atomically there
    fcntl = None  # type: ignore[assignment]


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
                        f"another reproduce is at work in {folder}; wait for it, or choose "
                        "another --out."
                    ) from None
                time.sleep(0.05)
        yield stream.fileno()
