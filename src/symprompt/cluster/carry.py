"""Files that travel where nodes have disks of their own: what jobs read goes to each node once,
what they write comes back.

Here and on a node a file has the same path, relative to the working directory; a node's stands in a
folder of its own, which is gone when the jobs are. So configs, and all that is written, are the
same as where one disk is shared.
"""

from __future__ import annotations

import fcntl
import glob
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from symprompt.errors import ConfigError
from symprompt.files.atomic import is_leftover, replacing, write_file
from symprompt.runs.folder import LOCK

_CHUNK = 32 << 20
_FILES, _DISK = "files", "disk"
_MODE = 0o700


def relative(path: str | Path) -> str:
    """Return a path as it is relative to the working directory, which is how it is on a node.

    Raises:
        ConfigError: it is given otherwise.
    """
    if os.path.isabs(path):
        raise ConfigError(
            f"--disk own sends files by their paths from the working directory, and {path} is "
            "absolute; name it from there, or leave --disk out where nodes share a disk."
        )
    return os.path.normpath(path)


def walk(path: str | Path) -> Iterator[str]:
    """Yield a file, or the files of a folder, but for what no other process may use."""
    place = Path(path)
    found = sorted(place.rglob("*")) if place.is_dir() else [place]
    for one in found:
        if one.is_file() and not is_leftover(one) and one.name != LOCK:
            yield relative(one)


# ---------------------------------------------------------------------- where it is ordered


class Cargo:
    """The files that jobs read, each put into Ray's store once; final.

    Args:
        put: puts bytes into the store and returns what stands for them.
    """

    def __init__(self, put: Callable[[bytes], Any]) -> None:
        self._put = put
        self._seen: dict[tuple[str, int, int], str] = {}
        self._pieces: dict[str, list[Any]] = {}

    def pack(self, inputs: Iterable[str], out: str) -> dict[str, Any]:
        """Return what a node needs to have some files, and what there is of a job's run.

        Raises:
            ConfigError: a path is absolute.
        """
        relative(out)
        read = {name: self._digest(name) for path in inputs for name in walk(relative(path))}
        begun = {name: self._digest(name) for name in written(out)}
        digests = {*read.values(), *begun.values()}
        pieces = {digest: self._pieces[digest] for digest in digests}
        return {"read": read, "begun": begun, "pieces": pieces, "cwd": os.getcwd()}

    def _digest(self, name: str) -> str:
        """Return the digest of a file, which is put into the store if it is new."""
        about = os.stat(name)
        key = (name, about.st_mtime_ns, about.st_size)
        if key not in self._seen:
            digest, pieces = hashlib.sha256(), []
            with open(name, "rb") as stream:
                while piece := stream.read(_CHUNK):
                    digest.update(piece)
                    pieces.append(self._put(piece))
            self._seen[key] = digest.hexdigest()
            self._pieces.setdefault(digest.hexdigest(), pieces)
        return self._seen[key]


def store(files: Mapping[str, bytes], out: str) -> None:
    """Write what came back, in the order in which it was written there; the rest of OUT goes."""
    for name, content in files.items():
        write_file(Path(name), content)
    for name in written(out):
        if name not in files:
            os.unlink(name)


def written(out: str) -> list[str]:
    """Return the files of a job's run, or of a piece and what stands beside it; oldest first."""
    if os.path.isdir(out):
        found = list(walk(out))
    else:
        found = [name for name in glob.glob(glob.escape(out) + "*") if os.path.isfile(name)]
    return sorted(found, key=lambda name: os.stat(name).st_mtime_ns)


# ---------------------------------------------------------------------- on a node


def folder_of(token: str, node: str) -> Path:
    """Return a node's folder for the jobs of one command; no one else can know its name."""
    return Path(tempfile.gettempdir()) / f"symprompt-{token}-{node[:12]}"


def unpack(cargo: Mapping[str, Any], folder: Path, get: Callable[[Any], bytes]) -> tuple[Path, int]:
    """Put files in their places on a node; return its working directory, and how many came anew.

    Args:
        get: takes bytes out of Ray's store.

    Raises:
        OSError: the disk is full, or the like.
    """
    folder.mkdir(mode=_MODE, exist_ok=True)
    place = folder / _DISK / cargo["cwd"].lstrip(os.sep)
    place.mkdir(parents=True, exist_ok=True)
    came = 0
    with (folder / LOCK).open("w") as held:
        # Jobs side by side on a node wait for each other, so that nothing comes twice.
        fcntl.flock(held, fcntl.LOCK_EX)
        for kind in ("read", "begun"):
            for name, digest in cargo[kind].items():
                kept = folder / _FILES / digest
                if not kept.exists():
                    with replacing(kept) as part, part.open("wb") as stream:
                        for piece in cargo["pieces"][digest]:
                            stream.write(get(piece))
                    came += 1
                target = Path(os.path.normpath(place / name))
                if target.exists():
                    continue
                target.parent.mkdir(parents=True, exist_ok=True)
                # What a job goes on with may be appended to.
                if kind == "begun":
                    shutil.copyfile(kept, target)
                else:
                    os.link(kept, target)
    return place, came


def collect(out: str) -> dict[str, bytes]:
    """Return the files of a job that is done, oldest first; they leave the node."""
    names = written(out)
    found = {name: Path(name).read_bytes() for name in names}
    for name in names:
        with suppress(OSError):
            os.unlink(name)
    return found


def clear(folder: Path) -> None:
    """Delete a node's folder."""
    shutil.rmtree(folder, ignore_errors=True)
