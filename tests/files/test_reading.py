"""Rows of files: what is garbled is refused by file and line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from symprompt.errors import DataError
from symprompt.files.reading import load_rows, load_text


def test_a_row_has_the_number_of_its_first_line(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text('name,place\n"a\nb",c\n\nd,"e\n\nf"\ng,h\n')
    assert [number for number, _ in load_rows(path)] == [2, 5, 8]


def test_a_pipe_is_refused_instead_of_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "rows.csv")
    with pytest.raises(DataError, match="is a pipe or a device; give a file on disk"):
        load_text(tmp_path / "rows.csv")
