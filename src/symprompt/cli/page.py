"""``symprompt page``: runs in a browser, or as one file, read without torch; and ``serve``."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from symprompt.cli.flags import PageFlags, ServeFlags
from symprompt.errors import ConfigError, escape
from symprompt.files.progress import show_progress
from symprompt.page.data import Library


def run_page(flags: PageFlags) -> None:
    """Run ``symprompt page RUN [RUN ...]``."""
    if not flags.export:
        options = {"model": flags.model, "device": flags.device, "corpus": tuple(flags.corpus)}
        show_runs(flags.runs, port=flags.port, browser=flags.browser, **options)
        return
    from symprompt.page.export import write_export

    library = Library(flags.runs)
    path = write_export(library, flags.export)
    _tell_broken(library)
    print(f"page: {path} ({path.stat().st_size / 1e6:.1f} MB, opens without a server)")


def show_runs(paths: Sequence[str], *, port: int = 0, browser: bool = True, **options: Any) -> None:
    """Serve runs until Ctrl-C, and open them in a browser.

    Args:
        options: as ``Models`` takes them.

    Raises:
        ConfigError: what the page needs is not installed, or the port is taken.
    """
    require_server()
    from symprompt.page.models import Models
    from symprompt.page.server import serve

    models = Models(Library(paths), **options)
    _tell_broken(models.library)
    serve(models, port=port, browser=browser, say=partial(_say, "page"))


def run_serve(flags: ServeFlags) -> None:
    """Run ``symprompt serve RUN [RUN ...]``."""
    require_server()
    token = _stored_token(Path(flags.token_file)) if flags.token_file else ""
    # With torch.
    from symprompt.models.loading import silence_transformers
    from symprompt.page.service import Service, serve_runs

    silence_transformers()
    with show_progress() as tick:
        service = Service(flags.runs, model=flags.model, device=flags.device, tick=tick)
    limits = {name: getattr(flags, name) for name in ("batch", "waiting", "seconds", "rate")}
    serve_runs(service, port=flags.port, token=token, say=partial(_say, "serving"), **limits)


def _stored_token(path: Path) -> str:
    """Return the token in a file, which is made if it is not there.

    Raises:
        ConfigError: the file holds something else.
    """
    try:
        if not path.exists():
            with os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as new:
                new.write(secrets.token_urlsafe(24) + "\n")
        token = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot hold a token ({error}); name another file.") from error
    if not re.fullmatch(r"[A-Za-z0-9_-]{16,200}", token):
        raise ConfigError(
            f"{path} holds no token, which is 16 to 200 letters, digits, - or _; name a file that "
            "is not there, and one is made."
        )
    return token


def require_server() -> None:
    """Refuse to go on where what the page needs is not installed."""
    if not all(find_spec(name) is not None for name in ("starlette", "uvicorn")):
        raise ConfigError("this needs starlette and uvicorn; run: pip install symprompt[page].")


def _tell_broken(library: Library) -> None:
    for own in library.about():
        if own["kind"] == "broken":
            print(escape(f"not shown: {own['error']}"))


def _say(what: str, address: str) -> None:
    print(f"{what}: {address}", flush=True)
    print("it is served to this machine alone; Ctrl-C ends it.", flush=True)
