"""Finished runs as a service: questions and inputs as JSON, those that wait answered in batches.

Runs on facts are asked, runs of tune predict. The guard is that of the page.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from symprompt.errors import ConfigError, SympromptError
from symprompt.files.progress import Tick, silent
from symprompt.files.reading import Row
from symprompt.files.stream import Block, Place
from symprompt.models import LanguageModel
from symprompt.opening import load
from symprompt.page.guard import Guard
from symprompt.page.models import group_prompts
from symprompt.page.queue import Queue
from symprompt.page.server import REFUSALS, Q, listen, read_body
from symprompt.probing.ask import Run
from symprompt.probing.many import Asker
from symprompt.probing.results import load_card
from symprompt.tasks.predict import StoredPattern, StoredPrompt, TaskRun
from symprompt.tasks.serve import Server

MOST_BYTES = 1 << 20
"""Of a request."""
MOST_ROWS = 256
"""Questions or inputs of a request."""
_GIVEN = Path("questions")
Found = list[dict[str, Any]]


class _Given(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Question(_Given):
    """Ask for the objects of a subject or, with an object alone, for its subjects."""

    relation: str = Field(default="", max_length=500)
    subject: str = Field(default="", max_length=500)
    object: str = Field(default="", max_length=500)


class Questions(_Given):
    """Ask a run on facts; its name may be left out where one is served."""

    run: str = Field(default="", max_length=500)
    questions: list[Question] = Field(min_length=1, max_length=MOST_ROWS)
    top: int = Field(default=10, ge=1, le=200)


class Inputs(_Given):
    """Have a run of tune predict; its name may be left out where one is served."""

    run: str = Field(default="", max_length=500)
    inputs: list[str | list[str] | dict[str, str | int | list[str]]] = Field(
        min_length=1, max_length=MOST_ROWS
    )
    probabilities: bool = False


Engine = Callable[[Sequence[Any]], Found]
"""Answers rows of several requests together; a row that is bad gives its error."""


def facts_engine(run: Run, model: str, device: str, tick: Tick) -> Engine:
    """Return what asks a run on facts; rows are questions, each with how many answers it wants."""
    run.check_asking(1)
    asker = Asker(run, "", "", {}, 1, model, device, tick, _GIVEN)

    def answer(rows: Sequence[tuple[Question, int]]) -> Found:
        asker.top = max(top for _, top in rows)
        given: list[tuple[int, Row]] = [
            (number, question.model_dump()) for number, (question, _) in enumerate(rows)
        ]
        made = asker.start(Block(given, [], Place()))()
        read = [json.loads(str(row)) for row in made.rows]
        found = {row["line"]: {k: v for k, v in row.items() if k != "line"} for row in read}
        for number, why in made.bad:
            found[number] = {"error": why.removeprefix(f"{_GIVEN}, line {number}: ")}
        for number, (_, top) in enumerate(rows):
            if "answers" in found[number]:
                found[number]["answers"] = found[number]["answers"][:top]
        return [found[number] for number in range(len(rows))]

    return answer


def prompts_engine(server: Server) -> Engine:
    """Return what predicts by prefixes of several tasks; rows are a task and its input."""

    def together(rows: Sequence[tuple[str, object]]) -> Found:
        examples: dict[str, list[object]] = {}
        for task, given in rows:
            examples.setdefault(task, []).append(given)
        found = server.answer(examples, probabilities=True)
        each = {task: iter(own) for task, own in found.items()}
        return [next(each[task]) for task, _ in rows]

    return partial(_by_halves, together)


def task_engine(run: TaskRun, model: str, device: str) -> Engine:
    """Return what predicts by a run of tune of any method; rows are a task and its input."""
    run.load_model(model, device)

    def together(rows: Sequence[tuple[str, object]]) -> Found:
        given = [own for _, own in rows]
        every = bool(run.stored.classes)
        return run.predict(given, model=model, device=device, probabilities=every).rows

    return partial(_by_halves, together)


def _by_halves(answer: Callable[[Sequence[Any]], Found], rows: Sequence[Any]) -> Found:
    """Answer rows together or, if any is bad, each half by itself."""
    try:
        return answer(rows)
    except SympromptError as error:
        if len(rows) == 1:
            return [{"error": str(error)}]
    half = len(rows) // 2
    return _by_halves(answer, rows[:half]) + _by_halves(answer, rows[half:])


Item = tuple[Engine, Sequence[Any]]
"""What a request has for the model: rows, and what answers them."""


@dataclass(frozen=True)
class Served:
    """A run that is served; final.

    Attributes:
        engine: what answers for it.
        about: what a client must know of it.
        task: what a run of tune is called by its engine.
    """

    engine: Engine
    about: Mapping[str, Any]
    task: str = ""


class Service:
    """Finished runs, loaded and ready to answer; final.

    Deep prefixes of one model answer in one batch, whatever their tasks.

    Args:
        paths: run folders of train and tune, called by their last part.
        model: where the runs' model is now, if it moved since.
        device: auto, cpu, cuda, cuda:N or mps.

    Raises:
        ConfigError: two runs have one name.
        SympromptError: a run cannot be asked.
    """

    def __init__(
        self, paths: Sequence[str], *, model: str = "", device: str = "auto", tick: Tick = silent
    ) -> None:
        self.served: dict[str, Served] = {}
        prompts: dict[int, StoredPrompt] = {}
        names = [Path(path).resolve().name for path in paths]
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(f"two runs are called {name}; serve one, or rename a folder.")
        for number, (name, path) in enumerate(zip(names, paths, strict=True)):
            opened = load(path)
            if isinstance(opened, Run):
                engine = facts_engine(opened, model, device, tick)
                relations = list(load_card(opened.folder)["relations"])
                # Everything is loaded with the first question.
                engine([(Question(relation=relations[0], subject="a"), 1)])
                self.served[name] = Served(engine, {"kind": "facts", "relations": relations})
                continue
            stored = opened.stored
            if isinstance(stored, StoredPrompt) and "prompt.prefix" in stored.tensors:
                prompts[number] = stored
            else:
                self.served[name] = Served(task_engine(opened, model, device), _about(stored))
        for group in group_prompts(prompts):
            where = model or next(iter(group.values())).card["base_model"]
            backbone = LanguageModel.load(where, device=device, dtype="auto", tick=tick)
            engine = prompts_engine(Server(backbone, list(group.values())))
            for number, prompt in group.items():
                self.served[names[number]] = Served(engine, _about(prompt), prompt.task)

    def answer(self, items: Sequence[Item]) -> list[Any]:
        """Return what each request gives, or its error; rows for one engine go together."""
        found: dict[int, Any] = {}
        by_engine: dict[int, list[int]] = {}
        for number, (engine, _) in enumerate(items):
            by_engine.setdefault(id(engine), []).append(number)
        for numbers in by_engine.values():
            rows = [row for number in numbers for row in items[number][1]]
            try:
                answers = iter(items[numbers[0]][0](rows))
            except Exception as error:  # the other engines' requests are answered
                found |= dict.fromkeys(numbers, error)
                continue
            for number in numbers:
                found[number] = list(islice(answers, len(items[number][1])))
        return [found[number] for number in range(len(items))]

    def find(self, name: str, *, facts: bool) -> Served:
        """Return a run that is asked, or that predicts.

        Raises:
            ConfigError: there is none, or there are several.
        """
        own = {key: it for key, it in self.served.items() if (it.about["kind"] == "facts") == facts}
        if not name and len(own) == 1:
            return next(iter(own.values()))
        if name not in own:
            what = "runs that are asked" if facts else "runs that predict"
            raise ConfigError(f"run is {name!r}; the {what} here are: {', '.join(own) or 'none'}.")
        return own[name]


def _about(stored: StoredPrompt | StoredPattern) -> dict[str, Any]:
    kind = str(stored.card["kind"]) if isinstance(stored, StoredPrompt) else "pattern"
    return {"kind": kind, "inputs": list(stored.inputs), "classes": list(stored.classes)}


def make_service(
    service: Service,
    token: str,
    port: int,
    *,
    batch: int = 256,
    waiting: int = 256,
    seconds: float = 30.0,
    rate: float = 1000.0,
) -> ASGIApp:
    """Return a service as an ASGI application, guarded as the page is.

    Args:
        token: the first part of every path.
        port: where it will be served; other hosts are refused.
        batch: most questions or inputs that the model gets at once.
        waiting: most requests that wait.
        seconds: longest that a request takes.
        rate: requests a second.
    """
    queue = Queue(service.answer, most=batch, waiting=waiting, seconds=seconds)

    async def read(request: Request, kind: type[Q]) -> Q:
        try:
            return await asyncio.wait_for(read_body(request, kind), seconds or None)
        except TimeoutError:
            raise ConfigError(f"the request did not come within {seconds:g} s.") from None

    async def ask(request: Request) -> Response:
        asked = await read(request, Questions)
        own = service.find(asked.run, facts=True)
        rows = [(question, asked.top) for question in asked.questions]
        found = await queue.run((own.engine, rows), request.is_disconnected, len(rows))
        return JSONResponse({"answers": found})

    async def predict(request: Request) -> Response:
        asked = await read(request, Inputs)
        own = service.find(asked.run, facts=False)
        rows = [(own.task, given) for given in asked.inputs]
        found = await queue.run((own.engine, rows), request.is_disconnected, len(rows))
        left_out = {"id"} if asked.probabilities else {"id", "probabilities"}
        return JSONResponse(
            {"predictions": [{k: v for k, v in row.items() if k not in left_out} for row in found]}
        )

    async def health(request: Request) -> Response:
        told = {"waiting": queue.waiting, "requests": queue.items, "batches": queue.batches}
        return JSONResponse({"state": "ready", **told})

    async def about(request: Request) -> Response:
        return JSONResponse({name: own.about for name, own in service.served.items()})

    app = Starlette(
        routes=[
            Route("/", about),
            Route("/health", health),
            Route("/ask", ask, methods=["POST"]),
            Route("/predict", predict, methods=["POST"]),
        ],
        exception_handlers=REFUSALS,
    )
    at_once = (max(rate, waiting), rate)
    return Guard(app, token, port, most=MOST_BYTES, rate=at_once, model_rate=at_once)


def serve_runs(
    service: Service,
    *,
    port: int = 0,
    token: str = "",
    say: Callable[[str], None] = lambda line: None,
    **limits: Any,
) -> None:
    """Serve runs until Ctrl-C.

    Args:
        token: the first part of every path; a random one without it.
        say: is called with the address when requests are answered.
        limits: as ``make_service`` takes them.

    Raises:
        ConfigError: the port is taken.
    """
    connections = 64 + int(limits.get("waiting", 256))
    make = partial(make_service, service, **limits)
    listen(make, port=port, begin=say, token=token, connections=connections)
