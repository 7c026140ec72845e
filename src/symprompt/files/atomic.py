"""Files that are whole or not there: written beside, brought to the disk, then put in place.

Tensors need torch, which is imported when they are read or written; arrays need numpy alone.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from symprompt.errors import RunError
from symprompt.files.reading import refuse_pipe

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

Note = Mapping[str, Any]
_LEFTOVER = re.compile(r".+\.[0-9a-f]{8}\.part")


def _line_encoder() -> Callable[[Any], str]:
    """Return what writes a row as JSON; ``encode`` would make its C part anew for each."""
    plain = json.JSONEncoder(ensure_ascii=False)
    make = getattr(json.encoder, "c_make_encoder", None)
    if make is None:
        return plain.encode
    quoted = json.encoder.encode_basestring
    parts = make(None, plain.default, quoted, None, ": ", ", ", False, False, True)
    return lambda row: "".join(parts(row, 0))


to_line = _line_encoder()
"""Returns a row as JSON, in one line."""
quote = json.encoder.encode_basestring
"""Returns a text as JSON."""


def part_of(target: Path) -> Path:
    """Return where what is written in several goes stands until it takes its place."""
    return target.with_name(target.name + ".part")


def is_leftover(path: Path) -> bool:
    """Return whether a kill in the middle of a write left this file."""
    return _LEFTOVER.fullmatch(path.name) is not None


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """Give a path to write a file to; it takes the target's place when the block ends well.

    A kill at any moment leaves the old file or the new one. Two writers do not meet: each has a
    new file of its own. What was written gets the mode that the umask asks for.

    Raises:
        RunError: it cannot be written, for example because the disk is full.
    """
    part = target.with_name(f"{target.name}.{secrets.token_hex(4)}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with part.open("xb") as stream:
            mode = os.fstat(stream.fileno()).st_mode
        yield part
        part.chmod(mode)  # safetensors makes the file anew, for its owner alone
        with part.open("rb") as stream:
            os.fsync(stream.fileno())
        part.replace(target)
    except (OSError, SafetensorError) as error:
        raise RunError(f"cannot write {target}: {reason(error)}.") from error
    finally:
        # Gone already if all went well; else whatever stopped the write, Ctrl-C too, is raised.
        with suppress(OSError):
            part.unlink(missing_ok=True)


@contextmanager
def making_folder(target: Path) -> Iterator[Path]:
    """Give a folder to fill; it takes the target's place, if empty, when the block ends well."""
    part = part_of(target)
    try:
        if part.exists():
            shutil.rmtree(part)
        part.mkdir(parents=True)
        yield part
        follow_umask(part)
        if target.exists():
            target.rmdir()
        part.rename(target)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def follow_umask(folder: Path) -> None:
    """Give weights the mode that their folder has; libraries write them for one account alone."""
    for path in folder.rglob("*.safetensors"):
        path.chmod(folder.stat().st_mode & 0o666)


def reason(error: Exception) -> str:
    """Return why a file could not be written or read, in the system's words."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    # What safetensors passes on of the system's error is its number.
    number = re.search(r"(?:code:|os error) (\d+)", str(error))
    return os.strerror(int(number.group(1))) if number else str(error)


def write_file(target: Path, content: bytes) -> None:
    """Write a file whole."""
    with replacing(target) as part:
        part.write_bytes(content)


def write_json(target: Path, value: Any) -> None:
    """Write a value as readable JSON."""
    write_file(target, to_json(value))


def to_json(value: Any) -> bytes:
    """Return a value as readable JSON."""
    return (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode()


def to_json_lines(rows: Iterable[Mapping[str, Any] | str]) -> bytes:
    """Return rows as JSON, one a line; a text is such a line already."""
    lines = [row if isinstance(row, str) else to_line(row) for row in rows]
    return "\n".join([*lines, ""]).encode()


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        RunError: it is missing or not JSON.
    """
    refuse_pipe(path, RunError)
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"cannot read {path}: {reason(error)}.") from error


def write_json_lines(target: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write rows as JSON, one a line and one at a time."""
    with replacing(target) as part, part.open("w", encoding="utf-8", newline="\n") as stream:
        stream.writelines(to_line(row) + "\n" for row in rows)


def json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file of JSON lines, one at a time.

    Raises:
        RunError: it is missing or a line is not JSON.
    """
    refuse_pipe(path, RunError)
    try:
        with path.open(encoding="utf-8") as stream:
            yield from map(json.loads, stream)
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"cannot read {path}: {reason(error)}.") from error


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """Read a file of JSON lines whole; see ``json_lines``."""
    return list(json_lines(path))


def write_tensors(target: Path, tensors: Mapping[str, Tensor], about: Note) -> None:
    """Write tensors and a JSON note about them, in one file."""
    from safetensors.torch import save_file

    ready = {key: value.detach().cpu().contiguous() for key, value in tensors.items()}
    with replacing(target) as part:
        save_file(ready, part, metadata={"about": json.dumps(about)})


def read_tensors(path: Path) -> tuple[dict[str, Tensor], Any]:
    """Read tensors and the note about them back.

    Raises:
        RunError: the file is missing or damaged.
    """
    return _read(path, "pt")


def write_arrays(target: Path, arrays: Mapping[str, np.ndarray], about: Note) -> None:
    """Write numpy arrays and a JSON note about them, in one file; torch is not needed."""
    import numpy as np
    from safetensors.numpy import save_file

    ready = {key: np.ascontiguousarray(value) for key, value in arrays.items()}
    with replacing(target) as part:
        save_file(ready, part, metadata={"about": json.dumps(about)})


def read_arrays(path: Path) -> tuple[dict[str, np.ndarray], Any]:
    """Read numpy arrays and the note about them back; torch is not needed.

    Raises:
        RunError: the file is missing or damaged.
    """
    return _read(path, "np")


def read_finite_arrays(path: Path) -> tuple[dict[str, np.ndarray], Any]:
    """Read arrays that were learned, and the note about them.

    Raises:
        RunError: the file is missing or damaged, or holds NaN or infinity.
    """
    import numpy as np

    arrays, about = read_arrays(path)
    for key, value in arrays.items():
        if not np.isfinite(value).all():
            raise RunError(
                f"{path} holds a value that is not finite (NaN or infinity) in {key}; make it anew."
            )
    return arrays, about


def _read(path: Path, framework: str) -> tuple[dict[str, Any], Any]:
    refuse_pipe(path, RunError)
    try:
        path.open("rb").close()  # safetensors calls a refused permission a missing file
        with safe_open(str(path), framework=framework) as stream:
            found = {key: stream.get_tensor(key) for key in stream.keys()}  # noqa: SIM118
            return found, json.loads(stream.metadata()["about"])
    except (OSError, SafetensorError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise RunError(f"cannot read {path}: {reason(error)}.") from error
