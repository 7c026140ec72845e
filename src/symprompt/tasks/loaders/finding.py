"""Find the files of a known data set in or below a folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from symprompt.errors import DataError


def find_files(
    folder: Path, patterns: Mapping[str, Sequence[str]], name: str
) -> dict[str, list[Path]]:
    """Return the files of each split that is there.

    Args:
        folder: the folder that holds them, directly or deeper down, but all of one set.
        patterns: glob patterns of each split's files, the preferred one first; the first pattern
            that matches anything gives that split's files.
        name: of the data set, for messages.
    """
    if not folder.is_dir():
        got = "is a file" if folder.exists() else "does not exist"
        raise DataError(f"{folder} {got}, but {name} needs the folder that holds its files.")
    homes = [folder, *sorted(path for path in folder.rglob("*") if path.is_dir())]
    found = [(home, _matches(home, patterns)) for home in homes]
    found = [(home, files) for home, files in found if files]
    if not found:
        wanted = "; ".join(f"{split}: {' or '.join(each)}" for split, each in patterns.items())
        raise DataError(f"{folder} holds no files of {name}; it needs {wanted}.")
    if len(found) > 1:
        listed = ", ".join(str(home) for home, _ in found[:4])
        raise DataError(
            f"{folder} holds {len(found)} folders with files of {name} ({listed}), and only one "
            "can be read; give that one."
        )
    return found[0][1]


def _matches(home: Path, patterns: Mapping[str, Sequence[str]]) -> dict[str, list[Path]]:
    files: dict[str, list[Path]] = {}
    for split, each in patterns.items():
        for pattern in each:
            here = sorted(path for path in home.glob(pattern) if path.is_file())
            if here:
                files[split] = here
                break
    return files
