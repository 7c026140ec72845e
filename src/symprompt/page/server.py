"""The page's server: run folders as data, questions to models one at a time, progress as it comes.

Nothing here imports torch: the first view is there before a model is asked.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
import webbrowser
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from functools import partial
from threading import Thread
from typing import Any, TypeVar

import uvicorn
from pydantic import BaseModel, ValidationError
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from symprompt.errors import ConfigError, SympromptError, escape
from symprompt.page.data import Library, read_progress, static_files
from symprompt.page.guard import Guard
from symprompt.page.models import (
    Models,
    RunQuestion,
    TaskQuestion,
    TemplateQuestion,
    WordQuestion,
    model_choices,
)
from symprompt.page.queue import BusyError, Queue

HOST = "127.0.0.1"
WAITING = 8
"""So many questions may wait for the model."""
STREAMS = 8
"""So many views may watch runs in training."""
WATCH_SECONDS = 1.0
_TYPES = {"html": "text/html", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
Q = TypeVar("Q", bound=BaseModel)


def make_app(models: Models, token: str, port: int) -> ASGIApp:
    """Return the page as an ASGI application, guarded.

    Args:
        token: the first part of every path.
        port: where it will be served; other hosts are refused.
    """
    library, files = models.library, static_files()
    queue = Queue[Callable[[], Any]](lambda calls: [own() for own in calls], waiting=WAITING)
    streams = 0

    def read_file(request: Request) -> Response:
        name = request.path_params.get("name", "index.html")
        if name not in files:
            return _refused("there is no such file.", 404)
        kind = _TYPES.get(name.rpartition(".")[2], "application/octet-stream")
        return Response(files[name], media_type=kind)

    def list_runs(request: Request) -> Response:
        about = {
            "runs": library.about(),
            "models": model_choices(library),
            "corpus": bool(models.corpus),
        }
        return JSONResponse(about)

    def read_columns(request: Request) -> Response:
        whole = library.columns(request.path_params["number"])
        return Response(whole, media_type="application/octet-stream")

    def read_facts(request: Request) -> Response:
        relation = request.query_params.get("relation", "")
        return JSONResponse(library.facts(request.path_params["number"], relation))

    def compare(request: Request) -> Response:
        return JSONResponse(library.compare(_numbers(request, "runs")))

    def diff(request: Request) -> Response:
        pair = _numbers(request, "runs")
        if len(pair) != 2:
            raise ConfigError(f"{len(pair)} runs were given; two can be set against each other.")
        return JSONResponse(library.diff(*pair))

    def asking(kind: type[Q], call: Callable[[Q], Any]) -> Callable[[Request], Any]:
        async def answer(request: Request) -> Response:
            question = await read_body(request, kind)
            return JSONResponse(await queue.run(lambda: call(question), request.is_disconnected))

        return answer

    async def watch(request: Request) -> Response:
        nonlocal streams
        source = library.source(request.path_params["number"])
        if streams >= STREAMS:
            raise ConfigError(f"{STREAMS} views are watching already; close one of them.")

        async def lines() -> AsyncIterator[str]:
            nonlocal streams
            streams += 1
            told = ""
            try:
                while not await request.is_disconnected():
                    try:
                        now = await run_in_threadpool(read_progress, source.folder)
                    except SympromptError as error:
                        now = {"state": "broken", "error": str(error)}
                    line = json.dumps(now)
                    if line != told:
                        told = line
                        yield f"data: {line}\n\n"
                    if now["state"] != "begun":
                        yield "event: end\ndata: {}\n\n"
                        return
                    await asyncio.sleep(WATCH_SECONDS)
            finally:
                streams -= 1

        return StreamingResponse(lines(), media_type="text/event-stream")

    app = Starlette(
        routes=[
            Route("/", read_file),
            Route("/{name}", read_file),
            Route("/api/runs", list_runs),
            Route("/api/columns/{number:int}", read_columns),
            Route("/api/facts/{number:int}", read_facts),
            Route("/api/live/{number:int}", watch),
            Route("/api/compare", compare),
            Route("/api/diff", diff),
            Route("/api/ask", asking(RunQuestion, models.ask), methods=["POST"]),
            Route("/api/template", asking(TemplateQuestion, models.ask_template), methods=["POST"]),
            Route("/api/predict", asking(TaskQuestion, models.predict), methods=["POST"]),
            Route("/api/words", asking(WordQuestion, models.words), methods=["POST"]),
        ],
        exception_handlers=REFUSALS,
    )
    return Guard(app, token, port)


async def read_body(request: Request, kind: type[Q]) -> Q:
    """Return what a request asks.

    Raises:
        ConfigError: it cannot be read.
    """
    body = await request.body()
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise ConfigError(f"{where or 'the question'}: {first['msg']}.") from None


def _numbers(request: Request, name: str) -> list[int]:
    given = request.query_params.get(name, "")[:400].split(",")
    if not all(own.isdecimal() for own in given):
        raise ConfigError(f"{name} is {given}; allowed are numbers of runs parted by commas.")
    return [int(own) for own in given]


def _refused(why: str, status: int) -> Response:
    return JSONResponse({"error": escape(why)}, status)


def _answering(
    status: int, say: Callable[[Exception], str] = str
) -> Callable[[Request, Exception], Response]:
    return lambda request, error: _refused(say(error), status)


REFUSALS = {
    BusyError: _answering(503),
    SympromptError: _answering(400),
    ClientDisconnect: _answering(400, lambda _: "the question was taken back."),
    Exception: _answering(500, lambda error: f"this failed ({type(error).__name__}): {error}"),
}
"""How errors are answered: in one sentence."""


def _read_ahead(library: Library) -> None:
    """Read the run that the first view shows while the browser opens."""
    with suppress(SympromptError, StopIteration):
        library.columns(next(own["id"] for own in library.about() if own["kind"] == "facts"))


def serve(
    models: Models,
    *,
    port: int = 0,
    browser: bool = True,
    say: Callable[[str], None] = lambda line: None,
) -> None:
    """Serve the page until Ctrl-C.

    Args:
        port: 0 takes any that is free.
        browser: open it there.
        say: is called with the address when requests are answered.

    Raises:
        ConfigError: the port is taken.
    """

    def begin(address: str) -> None:
        say(address)
        Thread(target=_read_ahead, args=(models.library,), daemon=True).start()
        if browser:
            webbrowser.open(address)

    listen(partial(make_app, models), port=port, begin=begin)


def listen(
    make: Callable[[str, int], ASGIApp],
    *,
    port: int,
    begin: Callable[[str], None],
    token: str = "",
    connections: int = 64,
) -> None:
    """Serve an application to this machine until Ctrl-C.

    Args:
        make: makes it, guarded, for a token and a port.
        port: 0 takes any that is free.
        begin: is called with the address when requests are answered.
        token: a random one without it.
        connections: so many may be open.

    Raises:
        ConfigError: the port is taken.
    """
    held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        held.bind((HOST, port))
    except (OSError, OverflowError) as error:
        held.close()
        why = getattr(error, "strerror", "") or "ports end at 65535"
        raise ConfigError(f"port {port} cannot be used ({why}); leave --port out.") from error
    held.listen(max(connections, 128))
    number = int(held.getsockname()[1])
    token = token or secrets.token_urlsafe(24)
    config = uvicorn.Config(
        make(token, number),
        log_level="error",
        server_header=False,
        lifespan="off",
        ws="none",
        limit_concurrency=connections,
        timeout_graceful_shutdown=1,
    )
    # Connections wait in the socket until the server takes them.
    begin(f"http://{HOST}:{number}/{token}/")
    try:
        uvicorn.Server(config).run(sockets=[held])
    except KeyboardInterrupt:
        pass  # how a server is stopped
    finally:
        held.close()
