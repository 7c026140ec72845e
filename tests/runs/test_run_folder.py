"""A run folder: whole files or none, no run overwritten, values read back bit for bit."""

from __future__ import annotations

import errno
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from symprompt.config import Incidental, Several, settings
from symprompt.errors import RunError
from symprompt.runs.folder import (
    CONFIG,
    LOCK,
    MANIFEST,
    STATE,
    Folder,
    Manifest,
    Record,
    records_to_json,
)


@settings
class Inner:
    """A table of the config."""

    rate: float = 0.1
    names: Several[str] = ()


@settings
class Config:
    """A config like any command's."""

    seed: int = 34
    out: Incidental[str] = ""
    learning: Inner = Inner()


BEGUN = Manifest(
    command="train", model="m", model_fingerprint="f", data_fingerprint="d", dtype="float32"
)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "run")


def listing(folder: Folder) -> list[str]:
    return sorted(str(path.relative_to(folder.path)) for path in folder.path.rglob("*"))


def check(folder: Folder, config: Config | None = None, *, resume: bool = False) -> bool:
    return folder.check("train", config or Config(), resume=resume)


def start(folder: Folder, config: Config | None = None, manifest: Manifest = BEGUN) -> None:
    folder.start(config or Config(), manifest)


# ------------------------------------------------------------------------------ writing a file


@pytest.mark.parametrize(
    "failure", [OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), KeyboardInterrupt()]
)
@pytest.mark.parametrize("moment", ["fsync", "replace"])
def test_a_write_that_fails_keeps_the_old_content_and_leaves_no_part(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, moment: str, failure: BaseException
) -> None:
    folder.write("a.json", b"old")

    def fail(*_: Any) -> None:
        raise failure

    if moment == "fsync":
        monkeypatch.setattr(os, "fsync", fail)
    else:
        monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(RunError if isinstance(failure, OSError) else KeyboardInterrupt):
        folder.write("a.json", b"new and longer")
    assert (folder.path / "a.json").read_bytes() == b"old"
    assert listing(folder) == ["a.json"]


def test_a_full_disk_is_one_sentence_with_the_file_and_the_reason(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunError, match=r"^cannot write .*b\.json: No space left on device\.$"):
        folder.write("b.json", b"x")


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(RunError, match=r"^cannot write .*Not a directory\.$"):
        start(Folder(tmp_path / "file" / "run"))


def test_a_read_only_place_is_one_sentence(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(RunError, match="Read-only file system"):
        start(folder)


def test_content_is_on_disk_before_it_takes_the_name(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    sync, move = os.fsync, Path.replace
    monkeypatch.setattr(os, "fsync", lambda number: (order.append("sync"), sync(number))[1])
    monkeypatch.setattr(
        Path, "replace", lambda self, to: (order.append("replace"), move(self, to))[1]
    )
    folder.write("a/b.json", b"x")
    assert order == ["sync", "replace"]
    assert listing(folder) == ["a", "a/b.json"]


# ------------------------------------------------------------------------------- reading a file


def test_a_file_is_read_once_until_it_changes(folder: Folder) -> None:
    folder.write_json("a.json", {"a": 1})
    assert folder.read_json("a.json") is folder.read_json("a.json")
    folder.write_json("a.json", {"a": 2})
    assert folder.read_json("a.json") == {"a": 2}
    (folder.path / "a.json").write_text('{"a": 35}')
    assert folder.read_json("a.json") == {"a": 35}


@pytest.mark.parametrize("content", [b"{", b"\xff\xfe", b""])
def test_damaged_json_is_one_sentence(folder: Folder, content: bytes) -> None:
    folder.write("a.json", content)
    with pytest.raises(RunError, match=r"cannot read .*a\.json"):
        folder.read_json("a.json")


def test_tensors_and_arrays_and_their_notes_read_back_equal(folder: Folder) -> None:
    tensors = {
        "a": torch.tensor([1.0, 1e-45, -0.0, 3e38]),
        "b/c": torch.arange(6).reshape(2, 3).T,  # not contiguous
        "d": torch.tensor([True, False]),
        "e": torch.tensor(0.1, dtype=torch.float64, requires_grad=True),
    }
    note = {"relations": ["süd", "P36"], "epoch": 3, "loss": 0.1}
    folder.write_tensors(STATE, tensors, note)
    found, about = folder.read_tensors(STATE)
    arrays, told = folder.read_arrays(STATE)
    assert about == told == note
    assert found.keys() == tensors.keys() == arrays.keys()
    for name, value in tensors.items():
        assert found[name].dtype == value.dtype
        assert torch.equal(found[name], value.detach())
        assert arrays[name].tobytes() == value.detach().contiguous().numpy().tobytes()
    assert torch.signbit(found["a"][2])
    folder.write_arrays("again.safetensors", arrays, note)
    again, _ = folder.read_tensors("again.safetensors")
    assert torch.equal(again["b/c"], tensors["b/c"])
    folder.write_tensors(STATE, tensors | {"f": torch.tensor([0.0, torch.nan])}, note)
    assert np.isnan(folder.read_arrays(STATE)[0]["f"][1])
    with pytest.raises(
        RunError, match=r"state.safetensors holds a value that is not finite .*in f"
    ):
        folder.read_tensors(STATE)


@pytest.mark.parametrize("content", [b"", b"\x00" * 20, b"{}", None, "missing"])
def test_damaged_or_missing_tensors_are_one_sentence(folder: Folder, content: Any) -> None:
    folder.write_tensors(STATE, {"a": torch.ones(100)}, {})
    whole = (folder.path / STATE).read_bytes()
    if content == "missing":
        folder.remove(STATE)
    else:
        (folder.path / STATE).write_bytes(whole[:-7] if content is None else content)
    for read in (folder.read_tensors, folder.read_arrays):
        with pytest.raises(RunError, match=r"cannot read .*state\.safetensors"):
            read(STATE)


def test_nothing_is_unpickled(folder: Folder, tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "sprung",))

    folder.path.mkdir()
    (folder.path / STATE).write_bytes(pickle.dumps(Trap()))
    torch.save({"a": Trap()}, folder.path / MANIFEST)
    np.save(folder.path / "a.npy", np.array([Trap()], dtype=object), allow_pickle=True)
    reads: tuple[Callable[[], object], ...] = (
        lambda: folder.read_tensors(STATE),
        lambda: folder.read_arrays(STATE),
        lambda: folder.manifest,
        lambda: folder.read_arrays("a.npy"),
    )
    for read in reads:
        with pytest.raises(RunError):
            read()
    assert not (tmp_path / "sprung").exists()


# ------------------------------------------------------------------------------- from start to end


def test_a_run_from_start_to_finish(folder: Folder) -> None:
    config = Config(seed=7, learning=Inner(names=("a", "ü")))
    assert check(folder, config) is False
    assert not folder.path.exists()
    start(folder, config)
    assert listing(folder) == [LOCK, CONFIG, MANIFEST]
    assert (folder.finished, folder.manifest.state) == (False, "begun")
    folder.write_tensors(STATE, {"a": torch.ones(2)}, {})
    folder.write("predictions/test.jsonl", b"{}\n")
    folder.write_json("card.json", {})
    record = Record(metric="f1", value=87.5, n=4, split="test")
    made = folder.finish(records=[record], seconds={"training": 1.23456}, details={"kind": "pair"})
    assert listing(folder) == [
        "card.json", CONFIG, "predictions", "predictions/test.jsonl", MANIFEST,
    ]  # fmt: skip
    again = Folder(folder.path)
    assert again.finished
    assert again.manifest == made
    assert made.seconds == {"training": 1.235}
    assert made.records == (record,)
    assert made.full_records()[0].model == "m"
    assert {name: own.bytes for name, own in made.files.items()} == {
        "card.json": 3,
        "predictions/test.jsonl": 3,
    }
    assert made.size == 6
    assert len(made.files["predictions/test.jsonl"].sha256) == 64
    assert again.settings() == {"seed": 7, "learning.rate": 0.1, "learning.names": ["a", "ü"]}


@pytest.mark.parametrize("resume", [False, True])
def test_the_same_finished_run_is_recognised(folder: Folder, resume: bool) -> None:
    start(folder)
    folder.finish()
    assert check(Folder(folder.path), resume=resume) is True


def test_an_unfinished_run_is_taken_up_only_when_asked(folder: Folder) -> None:
    start(folder)
    with pytest.raises(RunError, match=r"unfinished run; go on with --resume"):
        check(folder)
    assert check(folder, resume=True) is False
    start(folder)


@pytest.mark.parametrize(
    ("changed", "key"),
    [
        ({"seed": 35}, "seed"),
        ({"learning": Inner(rate=1.0)}, "learning.rate"),
        ({"learning": Inner(names=("P36",))}, "learning.names"),
    ],
)
@pytest.mark.parametrize("finished", [False, True])
def test_a_changed_key_is_refused_by_name_and_nothing_is_written(
    folder: Folder, changed: dict[str, Any], key: str, finished: bool
) -> None:
    start(folder)
    if finished:
        folder.finish()
    before = {name: (folder.path / name).read_bytes() for name in listing(folder)}
    with pytest.raises(RunError, match=f"another {key} "):
        check(folder, replace(Config(), **changed), resume=True)
    assert {name: (folder.path / name).read_bytes() for name in listing(folder)} == before


def test_incidental_keys_may_differ_between_the_halves_of_a_run(folder: Folder) -> None:
    start(folder)
    assert check(folder, Config(out="elsewhere"), resume=True) is False


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"model_fingerprint": "g"}, "begun with other weights than are there now"),
        ({"data_fingerprint": "e"}, "begun with other data than are there now"),
        ({"dtype": "bfloat16"}, "begun in float32 and would go on in bfloat16"),
    ],
)
def test_a_run_goes_on_only_with_what_it_was_begun_with(
    folder: Folder, changed: dict[str, Any], message: str
) -> None:
    start(folder)
    with pytest.raises(RunError, match=message):
        start(folder, manifest=BEGUN.model_copy(update=changed))


def test_a_finished_run_is_taken_only_while_its_data_is_the_same(folder: Folder) -> None:
    start(folder)
    folder.finish()
    assert folder.check("train", Config(), resume=False, data_fingerprint="d")
    with pytest.raises(RunError, match="begun with other data than are there now"):
        folder.check("train", Config(), resume=False, data_fingerprint="e")


def test_a_run_of_another_command_is_refused(folder: Folder) -> None:
    start(folder)
    with pytest.raises(RunError, match="holds a run of train, not of tune"):
        folder.check("tune", Config(), resume=True)
    folder.finish()
    with pytest.raises(RunError, match="holds a run of train; give one made by tune or embed"):
        folder.require_finished("tune", "embed")


@pytest.mark.parametrize("there", ["file", "folder"])
def test_what_is_no_run_is_refused_and_left_alone(folder: Folder, there: str) -> None:
    place = folder.path
    if there == "folder":
        folder.path.mkdir()
        place = folder.path / "thesis.tex"
    place.write_text("years of work")
    with pytest.raises(RunError, match="exists and is not a run folder"):
        check(folder, resume=True)
    assert place.read_text() == "years of work"


@pytest.mark.parametrize("left", [None, LOCK, CONFIG + ".0a1b2c3d.part", CONFIG])
def test_what_a_kill_in_the_first_moment_leaves_does_not_block_the_folder(
    folder: Folder, left: str | None
) -> None:
    folder.path.mkdir()
    if left == CONFIG:
        folder.write_config(Config())
    elif left:
        (folder.path / left).write_bytes(b"mod")
    assert check(folder, resume=True) is False
    start(folder)
    folder.finish()
    assert check(Folder(folder.path)) is True
    assert not list(folder.path.glob("*.part"))


@pytest.mark.parametrize("damage", [lambda rows: rows[:-9], lambda rows: rows.replace(b"1", b"2")])
def test_predictions_that_are_not_what_the_run_wrote_are_refused(
    folder: Folder, damage: Callable[[bytes], bytes]
) -> None:
    start(folder)
    folder.write_rows("predictions/test.jsonl", [{"rank": 1}] * 3)
    folder.finish()
    path = folder.path / "predictions/test.jsonl"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(RunError, match=r"test\.jsonl is damaged: .*; make the run again"):
        Folder(folder.path).read_rows("predictions/test.jsonl")


def test_weights_that_a_library_wrote_can_be_read_by_whom_the_folder_can(folder: Folder) -> None:
    start(folder)
    saved = folder.path / "models" / "model.safetensors"
    saved.parent.mkdir()
    saved.touch(mode=0o600)
    folder.finish()
    assert saved.stat().st_mode & 0o666 == folder.path.stat().st_mode & 0o666


def test_reading_wants_a_finished_run(folder: Folder) -> None:
    with pytest.raises(RunError, match=r"not a run folder \(no symprompt.json\)"):
        folder.require_finished("train")
    start(folder)
    with pytest.raises(RunError, match="finish it with train --resume"):
        folder.require_finished("train")
    folder.finish()
    assert folder.require_finished("train").finished


@pytest.mark.parametrize("text", ["seed = ", "\xff"])
def test_a_damaged_config_is_one_sentence(folder: Folder, text: str) -> None:
    folder.write(CONFIG, text.encode("latin-1"))
    with pytest.raises(RunError, match="holds no readable run"):
        check(folder, resume=True)


@pytest.mark.parametrize(
    ("content", "wrong"),
    [
        ({}, "command is missing"),
        ([], "it is "),
        (None, "it is None"),
        ({"command": "train", "state": "done"}, "state is 'done'"),
        ({"command": "train", "records": [{"metric": "f1"}]}, r"records\.0\.value is missing"),
        ({"command": "train", "speed": 3}, "speed is 3"),
    ],
)
def test_a_damaged_manifest_is_one_sentence(folder: Folder, content: Any, wrong: str) -> None:
    folder.write_json(MANIFEST, content)
    with pytest.raises(RunError, match=rf"symprompt\.json is damaged: {wrong}"):
        _ = folder.finished


def test_a_start_that_is_refused_is_undone_unless_something_was_learned(folder: Folder) -> None:
    def refused(*written: str) -> None:
        with folder.undone_if_refused():
            start(folder)
            for name in written:
                folder.write(name, b"learned")
            raise RunError("no.")

    with pytest.raises(RunError):
        refused()
    assert not folder.path.exists()
    with pytest.raises(RunError):
        refused("prompt")
    assert folder.has("prompt")


def test_one_process_works_in_a_folder_at_a_time(folder: Folder) -> None:
    start(folder)
    code = (
        "import sys; from symprompt.runs.folder import Folder\n"
        "from symprompt.runs.folder import Manifest\n"
        "try:\n    Folder(sys.argv[1])._hold()\n"
        "except Exception as error:\n    print(error)"
    )

    def other() -> list[str]:
        words = [sys.executable, "-c", code, str(folder.path)]
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()

    assert "another process is at work in" in other()[0]
    folder.release()
    assert other() == []


def test_records_stand_one_on_a_line() -> None:
    records = [Record(metric="f1", value=1.5, split="dev"), Record(metric="em", value=2, n=3)]
    text = records_to_json({"about": {"note": "ü"}}, records).decode()
    assert '\n  {"metric": "f1", "value": 1.5, "split": "dev"},\n' in text
    assert json.loads(text)["records"][1] == {"metric": "em", "value": 2.0, "n": 3}
    assert json.loads(records_to_json({}, [])) == {"records": []}
