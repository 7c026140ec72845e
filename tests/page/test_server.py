"""The page's server: who may ask, what is refused, and what is answered."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from symprompt.page import server
from symprompt.page.data import Library, static_files
from symprompt.page.guard import MOST_BYTES, Rate
from symprompt.page.models import Models, RunQuestion
from symprompt.page.server import make_app
from symprompt.runs.folder import MANIFEST, PROGRESS, Manifest
from tiny.runs import Call, begun_run

TOKEN = "secret"
Send = Callable[..., httpx.Response]


def sender(models: Models) -> Send:
    """Return a function that sends one request to an app, as a browser would."""
    app = make_app(models, TOKEN, 8000)

    def send(
        path: str, *, token: str = TOKEN, host: str = "127.0.0.1:8000", **options: Any
    ) -> httpx.Response:
        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(app=app)
            async with httpx.AsyncClient(transport=transport) as client:
                method = options.pop("method", "GET")
                return await client.request(method, f"http://{host}/{token}{path}", **options)

        return asyncio.run(ask())

    return send


@pytest.fixture
def send(small_run: Path, other_run: Path, tmp_path: Path) -> Send:
    """A page of two runs and a broken one."""
    return sender(Models(Library([str(small_run), str(other_run), str(tmp_path)])))


def test_the_page_and_its_data_are_served(send: Send) -> None:
    page = send("/")
    assert page.status_code == 200
    assert "<main" in page.text
    modules = {f"{name}.js" for name in re.findall(r'href="(\w+)\.js"', page.text)}
    assert modules | {"main.js"} == {name for name in static_files() if name.endswith(".js")}
    assert send("/main.js").headers["content-type"].startswith("text/javascript")
    about = send("/api/runs").json()
    assert [own["kind"] for own in about["runs"]] == ["facts", "facts", "broken"]
    assert send("/api/columns/0").content[:4] != b""
    assert send("/api/compare?runs=0,1").json()["runs"][1]["name"] == "1"
    assert send("/api/diff?runs=0,1").json()["all"]["facts"] == 300
    relation = about["runs"][0]["relations"][0]["name"]
    assert "__proto__" in send(f"/api/facts/0?relation={relation}").json()


@pytest.mark.parametrize(
    ("options", "status"),
    [
        ({"token": "guess"}, 403),
        ({"token": ""}, 403),
        ({"host": "evil.example:8000"}, 421),
        ({"host": "127.0.0.1:8001"}, 421),
        ({"host": "evil.127.0.0.1:8000"}, 421),
        ({"headers": {"origin": "http://evil.example"}}, 403),
        ({"headers": {"origin": "null"}}, 403),
        ({"headers": {"origin": "https://127.0.0.1:8000"}}, 403),
        ({"headers": {"sec-fetch-site": "cross-site"}}, 403),
        ({"method": "DELETE"}, 405),
        ({"method": "OPTIONS"}, 405),
        ({"method": "POST", "content": b"x" * (MOST_BYTES + 1)}, 413),
        ({"headers": {"origin": "http://localhost:8000"}, "host": "localhost:8000"}, 200),
        ({"headers": {"sec-fetch-site": "same-origin"}}, 200),
    ],
    ids=str,
)
def test_who_may_ask(send: Send, options: Mapping[str, Any], status: int) -> None:
    answer = send("/api/runs", **options)
    assert answer.status_code == status
    for name in ("content-security-policy", "x-content-type-options", "cache-control"):
        assert answer.headers[name]
    assert "unsafe" not in answer.headers["content-security-policy"]
    assert "access-control-allow-origin" not in answer.headers


def test_nothing_beside_the_front_end_is_served(send: Send) -> None:
    for path in ("/../data.py", "/..%2fdata.py", "/%2e%2e/data.py", "/__init__.py", "//etc/passwd"):
        assert send(path).status_code in (403, 404)


def test_a_body_without_a_length_is_bounded_too(send: Send) -> None:
    async def parts() -> Any:
        for _ in range(100):
            yield b"x" * 2000

    answer = send("/api/ask", method="POST", content=parts())
    assert answer.status_code == 400


def test_requests_are_counted() -> None:
    now = 0.0
    rate = Rate(3, 2, lambda: now)
    assert [rate.take() for _ in range(4)] == [True, True, True, False]
    now = 0.5
    assert [rate.take() for _ in range(2)] == [True, False]


def test_questions_to_a_model_come_at_a_rate(
    small_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Time stands still, however slow the machine is.
    monkeypatch.setattr(Rate.__init__, "__defaults__", (lambda: 0.0,))
    send = sender(Models(Library([str(small_run)])))
    answers = [send("/api/ask", method="POST", content=b"{}").status_code for _ in range(25)]
    assert answers == [400] * 20 + [429] * 5


@pytest.mark.parametrize(
    ("path", "body", "told"),
    [
        ("/api/ask", b"{", "Invalid JSON"),
        ("/api/ask", b'{"run": 0}', "relation: Field required"),
        ("/api/ask", b'{"run": 0, "relation": "P17", "more": 1}', "more: Extra inputs"),
        ("/api/ask", json.dumps({"run": 0, "relation": "x" * 501}).encode(), "at most 500"),
        ("/api/ask", b'{"run": 0, "relation": "P17", "subject": "a", "top": 5000}', "top"),
        ("/api/ask", b'{"run": 7, "relation": "P17", "subject": "a"}', "run 7 is not on this page"),
        ("/api/words", b'{"run": 0, "word": "bank"}', "start with --corpus"),
    ],
)
def test_a_bad_question_is_refused_in_one_sentence(
    send: Send, path: str, body: bytes, told: str
) -> None:
    answer = send(path, method="POST", content=body)
    assert answer.status_code == 400
    assert told in answer.json()["error"]


def test_bad_numbers_are_refused(send: Send) -> None:
    assert send("/api/compare?runs=x").status_code == 400
    assert send("/api/diff?runs=0").json()["error"].startswith("1 runs were given")
    assert send("/api/columns/2").status_code == 400
    assert send("/api/columns/99").status_code == 400
    assert "no_such" in send("/api/facts/0?relation=no_such").json()["error"]


def test_one_question_is_asked_at_a_time_and_few_wait(
    small_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_once, most, gate = 0, 0, threading.Event()

    class Slow(Models):
        def ask(self, question: RunQuestion) -> dict[str, Any]:
            nonlocal at_once, most
            at_once += 1
            most = max(most, at_once)
            gate.wait(5)
            at_once -= 1
            return {"answers": []}

    app = make_app(Slow(Library([str(small_run)])), TOKEN, 8000)
    body = b'{"run": 0, "relation": "P17", "subject": "a"}'

    async def ask() -> list[int]:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, timeout=30) as client:
            address = f"http://127.0.0.1:8000/{TOKEN}/api/ask"
            asked = [
                asyncio.ensure_future(client.post(address, content=body))
                for _ in range(server.WAITING + 2)
            ]
            done, _ = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
            assert all("questions are waiting" in own.result().text for own in done)
            gate.set()
            return [own.status_code for own in await asyncio.gather(*asked)]

    codes = asyncio.run(ask())
    assert most == 1
    assert codes.count(200) == server.WAITING
    assert codes.count(503) == 2


def test_progress_is_sent_as_it_comes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "WATCH_SECONDS", 0.01)
    folder = begun_run(tmp_path / "run")
    folder.write_json(PROGRESS, {"done": 1, "total": 2, "history": []})

    def finish() -> None:
        folder.write(MANIFEST, Manifest(command="train", state="finished").to_json())

    timer = threading.Timer(0.3, finish)
    timer.start()
    lines = sender(Models(Library([str(folder.path)])))("/api/live/0").text
    timer.join()
    told = [json.loads(line[6:]) for line in lines.splitlines() if line.startswith('data: {"')]
    assert [own["state"] for own in told] == ["begun", "finished"]
    assert told[0]["done"] == 1
    assert lines.endswith("event: end\ndata: {}\n\n")


def test_the_command_refuses_what_it_cannot_do(
    call: Call, small_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "RUNS is missing" in call("page").refusal
    said = call("page", tmp_path, "--export", tmp_path / "a.html").refusal
    assert "give a finished run" in said
    said = call("page", small_run, tmp_path, "--export", tmp_path / "a.html").done
    assert "not shown:" in said
    assert "opens without a server" in said
    monkeypatch.setattr("symprompt.cli.page.find_spec", lambda name: None)
    assert "pip install symprompt[page]" in call("page", small_run).err
