"""Why a file could not be written, in the system's words."""

from __future__ import annotations

import errno
import os

import pytest

from symprompt.files.atomic import reason


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
