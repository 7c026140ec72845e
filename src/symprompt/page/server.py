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
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
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

HOST = "127.0.0.1"
WAITING = 8
"""So many questions may wait for the model."""
STREAMS = 8
"""So many views may watch runs in training."""
WATCH_SECONDS = 1.0
_TYPES = {"html": "text/html", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
Q = TypeVar("Q", bound=BaseModel)


class Queue:
    """Calls of a model one after the other, in a thread of their own; final."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "model")
        self._turn = asyncio.Lock()
        self.waiting = 0

    async def run(self, request: Request, call: Callable[[], Any]) -> Any:
        """Return what a call returns, when it is its turn.

        Raises:
            ConfigError: too many are waiting.
            ClientDisconnect: who asked has gone before its turn.
        """
        if self.waiting >= WAITING:
            raise ConfigError(f"{WAITING} questions are waiting for the model; ask again later.")
        self.waiting += 1
        try:
            async with self._turn:
                if await request.is_disconnected():
                    raise ClientDisconnect
                return await asyncio.get_running_loop().run_in_executor(self._thread, call)
        finally:
            self.waiting -= 1


def make_app(models: Models, token: str, port: int) -> ASGIApp:
    """Return the page as an ASGI application, guarded.

    Args:
        token: the first part of every path.
        port: where it will be served; other hosts are refused.
    """
    library, files, queue = models.library, static_files(), Queue()
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
            body = await request.body()
            try:
                question = kind.model_validate_json(body)
            except ValidationError as error:
                first = error.errors(include_input=False, include_url=False)[0]
                where = ".".join(map(str, first["loc"]))
                raise ConfigError(f"{where or 'the question'}: {first['msg']}.") from None
            return JSONResponse(await queue.run(request, lambda: call(question)))

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
        exception_handlers={SympromptError: _told, ClientDisconnect: _gone, Exception: _failed},
    )
    return Guard(app, token, port)


def _numbers(request: Request, name: str) -> list[int]:
    given = request.query_params.get(name, "")[:400].split(",")
    if not all(own.isdecimal() for own in given):
        raise ConfigError(f"{name} is {given}; allowed are numbers of runs parted by commas.")
    return [int(own) for own in given]


def _refused(why: str, status: int) -> Response:
    return JSONResponse({"error": escape(why)}, status)


def _told(request: Request, error: Exception) -> Response:
    return _refused(str(error), 400)


def _gone(request: Request, error: Exception) -> Response:
    return _refused("the question was taken back.", 400)


def _failed(request: Request, error: Exception) -> Response:
    return _refused(f"this failed ({type(error).__name__}): {error}", 500)


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
    held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        held.bind((HOST, port))
    except OSError as error:
        held.close()
        raise ConfigError(
            f"port {port} cannot be used ({error.strerror}); leave --port out."
        ) from error
    held.listen()
    number = int(held.getsockname()[1])
    token = secrets.token_urlsafe(24)
    config = uvicorn.Config(
        make_app(models, token, number),
        log_level="error",
        server_header=False,
        lifespan="off",
        ws="none",
        limit_concurrency=64,
        timeout_graceful_shutdown=1,
    )
    address = f"http://{HOST}:{number}/{token}/"
    # Connections wait in the socket until the server takes them.
    say(address)
    Thread(target=_read_ahead, args=(models.library,), daemon=True).start()
    if browser:
        webbrowser.open(address)
    try:
        uvicorn.Server(config).run(sockets=[held])
    except KeyboardInterrupt:
        pass  # how a server is stopped
    finally:
        held.close()
