"""Runs and a browser for the tests of the page."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import symprompt
from tiny.big import HOSTILE, write_big_run
from tiny.models import make_facts, run_config
from tiny.runs import write_csv

BROWSERS = ("/usr/lib/chromium/chromium-headless-shell", "chromium-headless-shell", "chromium")


@pytest.fixture(scope="package")
def small_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 300 made-up facts in 4 relations, some with hostile names; not to be changed."""
    folder = tmp_path_factory.mktemp("made") / "small"
    return write_big_run(folder, 300, relations=4, subjects=HOSTILE)


@pytest.fixture(scope="package")
def other_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same facts, asked by another method; it counts the subject score alone."""
    folder = tmp_path_factory.mktemp("made") / "other"
    return write_big_run(folder, 300, relations=4, subjects=HOSTILE, terms=False, method="ptuning")


@pytest.fixture(scope="package")
def spe(family_folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of SPE on a tiny BERT; not to be changed."""
    folder = tmp_path_factory.mktemp("asked")
    data = write_csv(make_facts(), folder / "facts.csv")
    place = {"model": str(family_folder("bert")), "data": str(data), "out": str(folder / "spe")}
    symprompt.train(run_config(**place, method={"name": "spe", "k": 8, "weight": 2.0}))
    return folder / "spe"


@pytest.fixture(scope="module")  # its event loop would be in the way of others
def browser() -> Iterator[Any]:
    """A headless Chromium; skipped where there is none, unless SYMPROMPT_BROWSER is "required"."""
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        why = "no browser: install chromium-headless-shell to test the page in one"
        if os.environ.get("SYMPROMPT_BROWSER") == "required":
            pytest.fail(why)
        pytest.skip(why)
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield opened
        opened.close()


Open = Callable[..., Any]


@pytest.fixture
def open_page(browser: Any) -> Iterator[Open]:
    """A function that opens an address; errors and requests elsewhere fail the test."""
    wrong: list[str] = []
    contexts = []

    def opened(address: str, **options: Any) -> Any:
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(20_000)
        start = address.split("#")[0]
        page.on("pageerror", lambda error: wrong.append(f"error: {error}"))
        page.on("console", lambda told: wrong.append(told.text) if told.type == "error" else None)
        page.on(
            "request",
            lambda asked: (
                None
                if asked.url.startswith((start.rsplit("/", 1)[0] + "/", "blob:"))
                else wrong.append(f"request: {asked.url}")
            ),
        )
        page.goto(address)
        page.wait_for_selector("body[data-ready]")
        return page

    opened.wrong = wrong  # type: ignore[attr-defined]
    yield opened
    for context in contexts:
        context.close()
    assert not wrong


@pytest.fixture
def serve() -> Iterator[Callable[..., str]]:
    """A function that serves runs in a process of its own and gives the page's address."""
    begun: list[subprocess.Popen[str]] = []

    def start(*words: object) -> str:
        command = [sys.executable, "-m", "symprompt.cli", "page", *map(str, words), "--no-browser"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        begun.append(process)
        assert process.stdout is not None
        for line in process.stdout:
            found = re.search(r"http://\S+", line)
            if found:
                return found[0]
        raise AssertionError("the server ended")

    yield start
    for process in begun:
        process.terminate()
        process.wait(20)
        if process.stdout is not None:
            process.stdout.close()


@pytest.fixture
def free_port() -> int:
    """A port that nothing listens on."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])
