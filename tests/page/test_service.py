"""Runs served over HTTP: the answers of the commands, in batches; hostile requests refused."""

from __future__ import annotations

import json
import re
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from symprompt.page.service import MOST_BYTES, MOST_ROWS, Service
from symprompt.probing.ask import Run
from symprompt.tasks.predict import TaskRun
from tiny.labelled import write_toy
from tiny.runs import Call
from tiny.tasks import run_toy

TEXTS = ["good film .", "bad film .", "a film"]


@pytest.fixture(scope="module")
def runs(
    spe: Path, family_folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """A run of SPE, two deep prefixes of one model, and one with weights of its own."""
    root, model = tmp_path_factory.mktemp("runs"), family_folder("bert")
    for name, kind, method in (
        ("classes", "sequence", "pt2"),
        ("tags", "tagging", "pt2"),
        ("pairs", "pair", "ft"),
    ):
        written = write_toy(root / "data" / name, kind)
        run_toy(written, model, root / name, kind, method=method, learning__epochs=1)
    return {"spe": spe} | {name: root / name for name in ("classes", "tags", "pairs")}


@pytest.fixture(scope="module")
def address(runs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where all of them are served, by the command, in a process of its own."""
    token = tmp_path_factory.mktemp("token") / "token"
    command = [sys.executable, "-m", "symprompt.cli", "serve", *map(str, runs.values())]
    options = ["--device", "cpu", "--token-file", str(token), "--rate", "100000", "--waiting", "40"]
    process = subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        found = re.search(r"http://\S+", process.stdout.readline())
        assert found is not None
        assert stat.S_IMODE(token.stat().st_mode) == 0o600
        assert found[0].endswith(f"/{token.read_text().strip()}/")
        yield found[0]
        process.send_signal(signal.SIGINT)
        assert process.wait(20) in (0, 130)
    finally:
        process.kill()
        process.wait(20)
        process.stdout.close()


def post(address: str, path: str, body: Any, **options: Any) -> httpx.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return httpx.post(address + path, content=content, timeout=60, **options)


def test_what_is_served_is_told(address: str) -> None:
    about = httpx.get(address).json()
    assert {name: own["kind"] for name, own in about.items()} == {
        "spe": "facts",
        "classes": "sequence",
        "tags": "tagging",
        "pairs": "pair",
    }
    assert about["pairs"]["inputs"] == ["first", "second"]
    health = httpx.get(address + "health").json()
    assert health["state"] == "ready"
    assert health["waiting"] == 0


def test_questions_are_answered_as_ask_does(address: str, runs: dict[str, Path]) -> None:
    run = Run.load(runs["spe"])
    facts = run.predictions()[1][:6]
    asked = [{"relation": fact.relation, "subject": fact.subject} for fact in facts]
    asked += [{"relation": facts[0].relation, "object": facts[0].object}]
    found = post(address, "ask", {"questions": asked, "top": 12}).json()["answers"]
    for row, own in zip(asked, found, strict=True):
        wanted = run.ask(**row, top=12, device="cpu")  # type: ignore[arg-type]
        assert own["relation"] == row["relation"]
        assert [it["text"] for it in own["answers"]] == [it.text for it in wanted]
        for given, right in zip(own["answers"], wanted, strict=True):
            assert given["object_score"] == pytest.approx(right.object_score, abs=1e-4)
            assert ("joint" in given) == (right.joint is not None)
            if right.joint is not None:
                assert given["joint"] == pytest.approx(right.joint, abs=1e-4)
    few = post(address, "ask", {"run": "spe", "questions": asked[:1], "top": 3}).json()["answers"]
    assert [it["text"] for it in few[0]["answers"]] == [
        it["text"] for it in found[0]["answers"][:3]
    ]


def test_inputs_are_predicted_as_predict_does(address: str, runs: dict[str, Path]) -> None:
    inputs: dict[str, list[Any]] = {
        "classes": TEXTS,
        "tags": [text.split() for text in TEXTS],
        "pairs": [[text, "a film"] for text in TEXTS],
    }
    for name, given in inputs.items():
        wanted = TaskRun.load(runs[name]).predict(list(map(_given, given)), device="cpu").rows
        body = {"run": name, "inputs": given, "probabilities": name != "tags"}
        found = post(address, "predict", body).json()["predictions"]
        assert [own["prediction"] for own in found] == [own["prediction"] for own in wanted]
        assert all(("probabilities" in own) == (name != "tags") for own in found)
        for own, right in zip(found, wanted, strict=True):
            if "probability" in right:
                assert own["probability"] == pytest.approx(right["probability"], abs=1e-4)


def _given(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) and len(value) == 2 else value


def test_requests_of_many_are_answered_in_fewer_batches(
    address: str, runs: dict[str, Path]
) -> None:
    fact = Run.load(runs["spe"]).predictions()[1][0]
    question = {"questions": [{"relation": fact.relation, "subject": fact.subject}], "top": 2}
    inputs = {"run": "classes", "inputs": TEXTS[:1]}
    before = httpx.get(address + "health").json()

    def one(number: int) -> Any:
        path, body = ("ask", question) if number % 2 else ("predict", inputs)
        answer = post(address, path, body)
        assert answer.status_code == 200, answer.text
        (row,) = next(iter(answer.json().values()))
        return row["answers"][0]["text"] if number % 2 else row["prediction"]

    with ThreadPoolExecutor(16) as threads:
        found = list(threads.map(one, range(96)))
    assert len(set(found[::2])) == len(set(found[1::2])) == 1
    after = httpx.get(address + "health").json()
    assert after["requests"] - before["requests"] == 96
    assert after["batches"] - before["batches"] < 90
    assert after["waiting"] == 0


def test_a_bad_row_has_its_error_in_its_place(address: str, runs: dict[str, Path]) -> None:
    fact = Run.load(runs["spe"]).predictions()[1][0]
    good = {"relation": fact.relation, "subject": fact.subject}
    asked = [good, {"relation": "no", "subject": "a"}, {"relation": fact.relation}, good]
    asked += [good | {"subject": "a\tb"}, good | {"subject": "x " * 200}]
    found = post(address, "ask", {"questions": asked}).json()["answers"]
    assert ["error" in own for own in found] == [False, True, True, False, True, True]
    assert found[1]["error"] == "relation 'no' is not in the run; name one that it has."
    first, last = (own.pop("answers") for own in (found[0], found[3]))
    assert found[0] == found[3]
    # The same question in another place of a pass is rounded otherwise.
    assert len(first) == len(last)
    for one, other in zip(first, last, strict=True):
        assert one == pytest.approx(other, abs=1e-4)
    inputs = ["good film .", "", "bad film ."]
    found = post(address, "predict", {"run": "classes", "inputs": inputs}).json()["predictions"]
    assert ["error" in own for own in found] == [False, True, False]
    found = post(address, "predict", {"run": "pairs", "inputs": ["alone"]}).json()["predictions"]
    assert "error" in found[0]


@pytest.mark.parametrize(
    ("path", "body", "status", "told"),
    [
        ("ask", b"{", 400, "Invalid JSON"),
        ("ask", b"\xff\xfe", 400, "Invalid JSON"),
        ("ask", b"[" * 50_000, 400, "recursion limit"),
        ("ask", {}, 400, "questions: Field required"),
        ("ask", {"questions": []}, 400, "at least 1 item"),
        ("ask", {"questions": [{}] * (MOST_ROWS + 1)}, 400, "at most 256 items"),
        ("ask", {"questions": [{"subject": "x" * 501}]}, 400, "at most 500"),
        ("ask", {"questions": [{"subject": 7}]}, 400, "valid string"),
        ("ask", {"questions": [{"subject": "a", "more": 1}]}, 400, "Extra inputs"),
        ("ask", {"questions": [{"subject": "a"}], "top": 10**9}, 400, "top"),
        ("ask", {"run": "classes", "questions": [{}]}, 400, "runs that are asked here are: spe."),
        ("predict", {"inputs": ["a"]}, 400, "run is ''; the runs that predict here are: "),
        ("predict", {"run": "../spe", "inputs": ["a"]}, 400, "run is '../spe'"),
        ("predict", {"run": "classes", "inputs": [None]}, 400, "inputs.0"),
        ("predict", b"x" * (MOST_BYTES + 1), 413, "larger than 1048576 bytes"),
        ("nowhere", {}, 404, "Not Found"),
    ],
    ids=str,
)
def test_hostile_requests_are_refused_in_one_sentence(
    address: str, path: str, body: Any, status: int, told: str
) -> None:
    answer = post(address, path, body)
    assert (answer.status_code, told in answer.text) == (status, True), answer.text
    assert answer.headers["content-security-policy"]
    assert httpx.get(address + "health").json()["state"] == "ready"


def test_others_may_not_ask(address: str) -> None:
    # The guard is the page's, whose test has the rest.
    base, token = address.rstrip("/").rsplit("/", 1)
    assert httpx.get(f"{base}/{token[1:]}/health").status_code == 403
    assert httpx.get(f"{address}health", headers={"host": "evil.example"}).status_code == 421
    assert httpx.get(address + "ask").status_code == 405


def test_what_is_no_request_leaves_the_service_alive(address: str) -> None:
    port = int(address.split(":")[2].split("/")[0])
    length = b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %s\r\n\r\n"
    for given in (
        b"\x00\xff" * 1000,
        b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 20_000,
        length % (b"9" * 5000),
        length % b"\xb2",
        length % b"-1",
    ):
        with socket.create_connection(("127.0.0.1", port), 5) as opened:
            try:
                opened.sendall(given)
                opened.shutdown(socket.SHUT_WR)
                opened.recv(1000)
            except OSError:
                pass  # it hung up
    assert httpx.get(address + "health").json()["state"] == "ready"


def test_runs_of_one_name_and_none_are_refused(
    call: Call, runs: dict[str, Path], tmp_path: Path
) -> None:
    said = call("serve", runs["spe"], runs["spe"], "--device", "cpu").refusal
    assert "two runs are called spe; serve one, or rename a folder." in said
    assert "RUNS is missing" in call("serve").refusal
    assert "is not a run folder" in call("serve", tmp_path).refusal
    (tmp_path / "short").write_text("abc")
    said = call("serve", runs["spe"], "--token-file", tmp_path / "short").refusal
    assert "holds no token" in said


def test_engines_are_shared_by_prefixes_of_one_model(runs: dict[str, Path]) -> None:
    service = Service([str(runs[name]) for name in ("classes", "tags", "pairs")], device="cpu")
    engines = {name: id(own.engine) for name, own in service.served.items()}
    assert engines["classes"] == engines["tags"] != engines["pairs"]
