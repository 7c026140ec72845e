"""Files that are whole or not there, and why one could not be written or read."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from symprompt.errors import RunError
from symprompt.files.atomic import (
    read_arrays,
    read_json,
    read_tensors,
    reason,
    write_arrays,
    write_file,
    write_json,
    write_tensors,
)

WRITERS: list[Callable[[Path], None]] = [
    lambda path: write_file(path, b"text"),
    lambda path: write_json(path, {"a": 1}),
    lambda path: write_tensors(path, {"a": torch.ones(2)}, {}),
    lambda path: write_arrays(path, {"a": np.ones(2)}, {}),
]


@pytest.fixture(params=[0o022, 0o027, 0o077])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


@pytest.mark.parametrize("write", WRITERS)
def test_every_file_has_the_mode_that_the_umask_asks_for(
    write: Callable[[Path], None], umask: int, tmp_path: Path
) -> None:
    write(tmp_path / "file")
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o666 & ~umask
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("read", [read_tensors, read_arrays, read_json])
def test_a_refused_permission_is_called_that(
    read: Callable[[Path], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_arrays(tmp_path / "file", {"a": np.ones(2)}, {})

    def refuse(self: Path, *args: Any, **more: Any) -> Any:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self))

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(RunError, match=r"cannot read .*file: Permission denied\."):
        read(tmp_path / "file")


def test_a_link_beside_the_target_is_not_written_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    monkeypatch.setattr("secrets.token_hex", lambda size: "0" * 2 * size)
    (tmp_path / "config.toml.00000000.part").symlink_to(tmp_path / "thesis.tex")
    with pytest.raises(RunError, match=r"cannot write .*config\.toml: File exists"):
        write_file(tmp_path / "config.toml", b"model = 1")
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_two_writers_of_one_file_leave_one_whole_file(tmp_path: Path) -> None:
    target, texts = tmp_path / "file", [b"a" * 200_000, b"b" * 100_000]
    write_file(target, texts[0])

    def write(text: bytes) -> None:
        for _ in range(30):
            write_file(target, text)

    threads = [threading.Thread(target=write, args=(text,)) for text in texts]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert target.read_bytes() in texts
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_deep_json_is_refused_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "deep.json").write_text("[" * 200_000)
    with pytest.raises(RunError, match=r"cannot read .*deep\.json"):
        read_json(tmp_path / "deep.json")


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
        ValueError(f"Error while serializing: I/O error: text (os error {errno.ENOSPC})"),
        ValueError(f'IoError(Os {{ code: {errno.ENOSPC}, kind: StorageFull, message: "text" }})'),
    ],
)
def test_the_reason_is_the_systems_own(error: Exception) -> None:
    assert reason(error) == os.strerror(errno.ENOSPC)


def test_another_error_is_told_as_it_is() -> None:
    assert reason(ValueError("no such thing")) == "no such thing"
