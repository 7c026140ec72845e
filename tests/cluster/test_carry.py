"""Files that travel: to nodes once, and back."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from symprompt.cluster import carry
from symprompt.errors import ConfigError
from symprompt.runs.folder import LOCK


class Store:
    """Stands for Ray's store; counts what is taken."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.taken = 0

    def put(self, piece: bytes) -> int:
        self.pieces.append(piece)
        return len(self.pieces) - 1

    def get(self, number: int) -> bytes:
        self.taken += 1
        return self.pieces[number]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a model beside it and data in it."""
    for name, text in {
        "models/m/weights": "w" * 100,
        "models/m/vocab": "v",
        "work/data/a.csv": "a",
        "work/data/b.csv": "v",
        f"work/data/{LOCK}": "",
        "work/out/run/config.toml": "begun",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setattr(carry, "_CHUNK", 64)
    return tmp_path


def test_files_come_once_to_each_node_at_their_paths(here: Path, tmp_path: Path) -> None:
    store = Store()
    cargo = carry.Cargo(store.put)
    packed = cargo.pack(["../models/m", "data"], "out/run")
    assert cargo.pack(["data"], "out/run")["read"].keys() == {"data/a.csv", "data/b.csv"}
    # Two pieces of weights, and two files of the same bytes are one.
    assert len({number for own in packed["pieces"].values() for number in own}) == 5
    for node in ("one", "two"):
        folder = tmp_path / node
        before = store.taken
        place, came = carry.unpack(packed, folder, store.get)
        assert came == 4
        assert store.taken - before == 5
        assert (place / "data/b.csv").read_text() == "v"
        assert Path(os.path.normpath(place / "../models/m/weights")).read_text() == "w" * 100
        assert place.is_relative_to(folder)
        # A job that goes on appends to its own files alone.
        with (place / "out/run/config.toml").open("a") as stream:
            stream.write(" there")
        assert carry.unpack(packed, folder, store.get) == (place, 0)
        assert (place / "out/run/config.toml").read_text() == "begun there"
        assert {path.read_text() for path in (folder / "files").iterdir()} >= {"begun"}
        assert folder.stat().st_mode & 0o077 == 0
        carry.clear(folder)
        assert not folder.exists()


def test_what_was_written_comes_back_in_its_order(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("out/run/state").write_text("of an attempt here")
    node = tmp_path / "node"
    (node / "out/run/deep").mkdir(parents=True)
    monkeypatch.chdir(node)
    for age, name in enumerate(("symprompt.json", "deep/b", "config.toml", LOCK)):
        Path("out/run", name).write_text(name)
        os.utime(Path("out/run", name), ns=(10 - age, 10 - age))
    files = carry.collect("out/run")
    assert list(files) == ["out/run/config.toml", "out/run/deep/b", "out/run/symprompt.json"]
    assert carry.written("out/run") == []
    monkeypatch.chdir(here / "work")
    carry.store(files, "out/run")
    assert Path("out/run/deep/b").read_text() == "deep/b"
    assert not Path("out/run/state").exists()


def test_a_piece_comes_with_what_stands_beside_it(here: Path) -> None:
    for name in ("1.jsonl", "1.jsonl.done.json", "1.jsonl.bad.jsonl", "2.jsonl"):
        Path(name).write_text(name)
    assert sorted(carry.collect("1.jsonl")) == ["1.jsonl", "1.jsonl.bad.jsonl", "1.jsonl.done.json"]
    assert Path("2.jsonl").exists()


def test_paths_that_a_node_cannot_have_are_refused(here: Path) -> None:
    with pytest.raises(ConfigError, match="is absolute; name it from there"):
        carry.Cargo(Store().put).pack([str(here / "models")], "out/run")
    with pytest.raises(ConfigError, match="is absolute"):
        carry.Cargo(Store().put).pack(["data"], str(here / "out"))
