"""Rows of files: what is garbled is refused by file and line."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from symprompt.config import read_toml
from symprompt.embeddings.store import _load_array
from symprompt.errors import SympromptError
from symprompt.files.atomic import read_arrays, read_json, read_json_lines
from symprompt.files.reading import load_rows, load_text
from symprompt.files.text import file_digest


def test_a_row_has_the_number_of_its_first_line(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text('name,place\n"a\nb",c\n\nd,"e\n\nf"\ng,h\n')
    assert [number for number, _ in load_rows(path)] == [2, 5, 8]


@pytest.mark.parametrize(
    "read",
    [load_text, file_digest, read_json, read_json_lines, read_arrays, _load_array, read_toml],
)
def test_a_pipe_is_refused_instead_of_waited_for(read: Any, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "rows.csv")
    with pytest.raises(SympromptError, match="a pipe or a device; give a"):
        read(tmp_path / "rows.csv")
