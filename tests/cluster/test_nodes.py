"""Jobs on three nodes of Ray, one of which is killed: the same tables as on this machine.

Slow (a minute or two), so it runs where SYMPROMPT_CLUSTER is "required" alone: ``make cluster``.
"""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from symprompt.cluster import executor
from symprompt.cluster.machine import Machine
from symprompt.errors import ConfigError, RunError
from symprompt.runs.folder import Folder
from tiny.runs import write_lama

FILES = ("report.md", "report.html", "results.json")
RUNS = 10
has_ray = importlib.util.find_spec("ray") is not None


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cluster")


@pytest.fixture(scope="module")
def told(base: Path, family_folder: Callable[[str], Path]) -> dict[str, Any]:
    """What the script beside this file did on three nodes, and the same by 1 and by 4 jobs here."""
    if os.environ.get("SYMPROMPT_CLUSTER") != "required":
        why = "" if has_ray else ", and Ray is not installed"
        pytest.skip(f"three nodes of Ray are tested by make cluster{why}")
    words = [str(family_folder("bert")), str(write_lama(base / "lama")), str(base)]
    script = Path(__file__).with_name("three_nodes.py")
    subprocess.run([sys.executable, str(script), *words], check=True, timeout=400)
    found: dict[str, Any] = json.loads((base / "told.json").read_text())
    return found


def test_the_tables_are_those_of_one_job_and_of_four(told: dict[str, Any], base: Path) -> None:
    assert told["nodes"] == 3
    assert told["failed"] == {}
    assert len(told["made"]) == RUNS
    for name in FILES:
        one = (base / "one" / name).read_bytes()
        assert (base / "four" / name).read_bytes().replace(b"four", b"one") == one, name
        assert (base / "nodes" / name).read_bytes().replace(b"nodes", b"one") == one, name


def test_the_answers_are_those_of_one_go_and_of_four_jobs(told: dict[str, Any], base: Path) -> None:
    whole = (base / "answers-whole.jsonl").read_bytes()
    assert len(whole.splitlines()) == told["asked"] > 100
    for name in ("four", "nodes"):
        assert (base / f"answers-{name}.jsonl").read_bytes() == whole
        assert not (base / f"answers-{name}.jsonl.shards").exists()


def test_nodes_with_disks_of_their_own_are_sent_each_file_once(
    told: dict[str, Any], base: Path
) -> None:
    own, places = told["own"], base / "places"
    files = [path for path in (places / "same").rglob("*") if path.is_file()]
    for path in (places / "own").rglob("*.json"):
        assert (places / "same" / path.relative_to(places / "own")).is_file(), path
    compared = 0
    for path in files:
        there = places / "own" / path.relative_to(places / "same")
        if path.name in FILES or path.suffix in (".safetensors", ".jsonl", ".toml"):
            assert there.read_bytes() == path.read_bytes(), path
            compared += 1
    assert compared > 10
    assert own["made"].keys() == told["same"].keys()
    came: dict[str, list[int]] = {}
    for about in own["made"].values():
        came.setdefault(about["node"], []).append(about["received"])
    read = sum(
        path.is_file() for name in ("model", "deep/data") for path in (places / name).rglob("*")
    )
    for counts in came.values():
        # The config of each job is new, and the wording that some ask by; all else comes once.
        assert max(counts) <= read + 2
        assert sum(counts) <= read + 2 * len(counts)
    whole = (base / "answers-whole.jsonl").read_bytes()
    assert (places / "deep/answers.jsonl").read_bytes() == whole
    assert "questions.csv is absolute; name it from there" in own["absolute"]
    assert own["left"] == []


def test_the_job_of_the_lost_node_was_made_again(told: dict[str, Any], base: Path) -> None:
    (why,) = told["made"][told["killed"]]["again"]
    assert why.startswith(("its node was lost", "its worker died"))
    assert f"{told['killed']}, attempt 1: {why}" in (base / "nodes/logs/cluster.log").read_text()
    assert any(why in note for note in told["notes"])
    assert Folder(base / "nodes/runs" / told["killed"]).finished


def test_jobs_that_die_hang_or_meet_a_full_disk_are_tried_again(told: dict[str, Any]) -> None:
    odd = told["odd"]
    assert {how for how, event in odd.items() if event["kind"] == "failed"} == {
        "refused",
        "always dies",
    }
    assert "again" not in odd["well"]["about"]
    (died,), (hung,) = (odd[how]["about"]["again"] for how in ("dies", "hangs"))
    assert died.startswith("its worker died on node")
    assert hung.startswith("it showed no progress for 6 s on node")
    assert odd["full"]["about"]["again"] == ["full"]
    assert odd["refused"]["note"] == "refused."
    assert odd["always dies"]["note"].endswith("3 attempts failed.")


def test_closing_the_executor_ends_what_is_at_work(told: dict[str, Any]) -> None:
    assert told["stopped"]["seconds"] < 20


def test_nodes_that_do_not_see_the_folder_are_refused(told: dict[str, Any], base: Path) -> None:
    assert f"does not see {base / 'unseen'} as this machine does" in told["unseen"]
    assert not (base / "unseen/well").exists()


def test_a_place_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--on is 'mars'; give here, ray, HOST:PORT"):
        executor.make_executor(tmp_path, Machine(on="mars"), "odd_worker")
    with pytest.raises(ConfigError, match="--devices is cuda:0, and on a cluster Ray gives"):
        executor.make_executor(tmp_path, Machine(on="ray", devices=("cuda:0",)), "odd_worker")


def test_without_ray_one_sentence_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"needs Ray: pip install 'symprompt\[cluster\]'"):
        executor.make_executor(tmp_path, Machine(on="ray"), "odd_worker")


def test_a_cluster_that_is_not_there_is_told_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Ray:
        """Stands for the package: nothing is joined."""

        def is_initialized(self) -> bool:
            return False

        def init(self, **_: object) -> None:
            raise ConnectionError("Failed to connect.")

    monkeypatch.setitem(sys.modules, "ray", Ray())  # type: ignore[arg-type]
    made = executor.make_executor(tmp_path, Machine(on="localhost:1"), "odd_worker")
    with pytest.raises(RunError, match=r"no Ray answers at localhost:1: .*Connection refused\.$"):
        list(made.run([]))
    with socket.create_server(("127.0.0.1", 0)) as server:
        place = f"127.0.0.1:{server.getsockname()[1]}"
        made = executor.make_executor(tmp_path, Machine(on=place), "odd_worker")
        with pytest.raises(RunError, match=r"Failed to connect; if it asks for a token, set RAY"):
            list(made.run([]))
