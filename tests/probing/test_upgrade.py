"""Runs of format 1 are converted: the same scores and answers, whole after a kill at any write."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import symprompt
from symprompt import Run
from symprompt.errors import RunError
from symprompt.files import atomic
from symprompt.probing.results import load_combination
from symprompt.runs.folder import CONFIG, FORMAT, MANIFEST, Folder
from tiny.runs import Call, Killed, Make, unfinish

WEIGHTS = {
    "subject": {"capital": 1.7, "in": 0.4},
    "frequency": {"capital": 0.85, "in": 0.0},
}
# One weight of each relation and what frequencies were weighed by before it.
OLD = {"weights": {"capital": 1.7, "in": 0.4}, "frequency_shares": {"capital": 0.5, "in": 0.0}}


def weigh(folder: Folder, factors: dict[str, float]) -> None:
    """Multiply the stored frequencies by a number of each relation; drop the other terms."""
    for path in (folder.path / "predictions").iterdir():
        arrays, about = atomic.read_arrays(path)
        each = np.array([factors[name] for name in about["relations"]], dtype=np.float32)
        weighed = arrays["terms/frequency"] * each[arrays["relation"]][:, None]
        kept = {name: own for name, own in arrays.items() if not name.startswith("terms/")}
        atomic.write_arrays(path, {**kept, "terms/frequency": weighed}, about)


@pytest.fixture(scope="module")
def present(make: Make, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that is ranked by subject scores and frequencies; tests must not change it."""
    place = tmp_path_factory.mktemp("present") / "run"
    symprompt.train(make(place, method={"vectors": "separate", "choose_weight": "dev-fit"}))
    folder = Folder(place)
    # A relation whose frequencies had no share has lost them.
    weigh(folder, {"capital": 1.0, "in": 0.0})
    folder.restate(details=folder.manifest.details | {"weights": WEIGHTS})
    return place


def as_old(present: Path, place: Path, old: dict[str, Any] = OLD) -> Path:
    """Write the run as versions before format 2 stored it."""
    shutil.copytree(present, place)
    folder = Folder(place)
    if old["frequency_shares"]:
        weigh(folder, old["frequency_shares"])
    folder.restate(format=1, details=folder.manifest.details | old)
    assert "format" not in json.loads((place / MANIFEST).read_text())
    return place


def scores_of(place: Path) -> list[np.ndarray]:
    combination = load_combination(Folder(place))
    assert combination is not None
    return [Run.load(place).predictions(split)[0].joint(combination) for split in ("dev", "test")]


def check(place: Path, present: Path) -> None:
    for own, wanted in zip(scores_of(place), scores_of(present), strict=True):
        np.testing.assert_allclose(own, wanted, rtol=1e-6)
    asked = [Run.load(own).ask("capital", subject="Peru", device="cpu") for own in (place, present)]
    assert [own.text for own in asked[0]] == [own.text for own in asked[1]]
    joint = [[own.joint for own in answers if own.joint is not None] for answers in asked]
    assert joint[0] == pytest.approx(joint[1], rel=1e-6)
    assert Folder(place).manifest.format == FORMAT


def test_an_old_run_is_read_again_with_the_same_scores(present: Path, tmp_path: Path) -> None:
    place = as_old(present, tmp_path / "run")
    with pytest.raises(RunError, match=r"stored weights otherwise; convert it: symprompt runs upg"):
        scores_of(place)
    before = {path.name: path.read_bytes() for path in place.rglob("*") if path.is_file()}
    told = symprompt.upgrade_run(place, dry_run=True)
    assert {path.name: path.read_bytes() for path in place.rglob("*") if path.is_file()} == before
    assert symprompt.upgrade_run(place) == told
    assert told[0] == "the weights of 2 relations stand by term"
    assert told[-1] == f"the manifest states format {FORMAT}; it was 1"
    check(place, present)
    assert symprompt.upgrade_run(place) == []


def test_one_weight_of_each_relation_alone(present: Path, tmp_path: Path) -> None:
    place = as_old(present, tmp_path / "run", OLD | {"frequency_shares": None})
    predictions = [path.read_bytes() for path in (place / "predictions").iterdir()]
    symprompt.upgrade_run(place)
    assert [path.read_bytes() for path in (place / "predictions").iterdir()] == predictions
    combination = load_combination(Folder(place))
    assert combination is not None
    assert {name: own.tolist() for name, own in combination.weights.items()} == {
        "subject": [1.7, 0.4]
    }


@pytest.mark.parametrize("writes", [0, 1, 2])
def test_a_kill_leaves_a_run_that_is_converted_further(
    writes: int, present: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = as_old(present, tmp_path / "run")
    replace, left = Path.replace, [writes]

    def killed(self: Path, target: Path) -> Path:
        if not left[0]:
            raise Killed
        left[0] -= 1
        return replace(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", killed)
        with pytest.raises(Killed):
            symprompt.upgrade_run(place)
    with pytest.raises(RunError, match="symprompt runs upgrade"):
        scores_of(place)
    symprompt.upgrade_run(place)
    check(place, present)


def test_damage_is_told_and_nothing_is_written(present: Path, tmp_path: Path) -> None:
    place = as_old(present, tmp_path / "run")
    file = place / "predictions/test.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"\x01")
    before = (place / MANIFEST).read_bytes()
    with pytest.raises(RunError, match="is damaged: it is not what the run wrote"):
        symprompt.upgrade_run(place)
    assert (place / MANIFEST).read_bytes() == before


def test_a_newer_format_is_refused(present: Path, tmp_path: Path, call: Call) -> None:
    place = tmp_path / "run"
    shutil.copytree(present, place)
    stated = json.loads((place / MANIFEST).read_text())
    (place / MANIFEST).write_text(json.dumps(stated | {"format": FORMAT + 1, "new": 1}))
    for words in (["runs", "upgrade", str(place)], ["table", str(place)]):
        said = call(*words)
        assert said.code == 2
        assert f"has format {FORMAT + 1}, of a newer version of symprompt" in said.err
        assert f"reads formats up to {FORMAT}: pip install --upgrade symprompt" in said.err


def test_the_command_converts_all_runs_of_a_folder(
    present: Path, tmp_path: Path, call: Call
) -> None:
    old = as_old(present, tmp_path / "runs/old")
    shutil.copytree(present, tmp_path / "runs/deep/now")
    begun = as_old(present, tmp_path / "runs/begun")
    unfinish(begun)
    (tmp_path / "runs/exported").mkdir()
    (tmp_path / "runs/exported" / MANIFEST).write_text('{"exported": "prompts"}')
    said = call("runs", "upgrade", str(tmp_path / "runs"), "--dry-run")
    assert said.out.splitlines()[-1] == "1 run would be converted, 3 looked at"
    said = call("runs", "upgrade", str(tmp_path / "runs"))
    assert f"{old}: the manifest states format {FORMAT}; it was 1" in said.out
    assert f"{begun}: left alone, as it is unfinished" in said.out
    assert said.out.splitlines()[-1] == "1 run converted, 3 looked at"
    check(old, present)
    said = call("runs", "upgrade", str(tmp_path / "runs"), "--json")
    assert json.loads(said.out)["changed"][str(old)] == []
    said = call("runs", "upgrade", str(tmp_path / "nothing"))
    assert (said.code, "holds no runs" in said.err) == (2, True)


def test_keys_that_are_gone_or_new_have_their_defaults(
    present: Path, tmp_path: Path, make: Make
) -> None:
    place = tmp_path / "run"
    shutil.copytree(present, place)
    text = (place / CONFIG).read_text()
    older = text.replace("[method]\n", "[method]\nnegatives = 0\nnegatives_weight = 1.0\n")
    older = re.sub(r"(?m)^(terms|evidence|cross_folds|second) = .*\n", "", older)
    assert older.count("\n") < text.count("\n")
    older = 'inverse_from = ""\ninverses = []\n' + older
    (place / CONFIG).write_text(older)
    check(place, present)
    config = make(place, method={"vectors": "separate", "choose_weight": "dev-fit"})
    assert Folder(place).differing_keys(config) == []
    (place / CONFIG).write_text(older.replace("negatives = 0", "negatives = 4"))
    assert Folder(place).differing_keys(config) == ["method.negatives"]
    check(place, present)
