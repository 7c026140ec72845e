"""Names of the hub, and which of them are paths."""

from __future__ import annotations

from pathlib import Path

import pytest

from symprompt.errors import ConfigError
from symprompt.files.hub import is_hub_name, require_name


def test_what_is_there_is_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    for name in ("me/capitals", "me/capitals@v2", "me/capitals@refs/pr/1"):
        assert is_hub_name(name)
    paths = ("", "capitals", "a/b/c", "/me/capitals", "./me", "../me", "~/me", "me/", "me/a b")
    for name in (*paths, "runs/spe", "runs/spe@v2", str(tmp_path)):
        assert not is_hub_name(name), name


@pytest.mark.parametrize("name", ["capitals", "me/capitals", "Me-1/a.b_c", "a" * 96])
def test_names_that_the_hub_takes(name: str) -> None:
    require_name(name)


@pytest.mark.parametrize(
    "name", ["", "me/", "/me", "a/b/c", "me/a--b", "me/a..b", "me/-a", "me/a.", "a.git", "a" * 97]
)
def test_names_that_the_hub_refuses(name: str) -> None:
    with pytest.raises(ConfigError, match="is no name of the hub; give owner/name"):
        require_name(name)
