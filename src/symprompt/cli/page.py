"""``symprompt page``: runs in a browser, or as one file; read without torch."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from symprompt.cli.flags import PageFlags
from symprompt.errors import ConfigError, escape
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
    serve(models, port=port, browser=browser, say=_say)


def require_server() -> None:
    """Refuse to go on where what the page needs is not installed."""
    if not all(find_spec(name) is not None for name in ("starlette", "uvicorn")):
        raise ConfigError("the page needs starlette and uvicorn; run: pip install symprompt[page].")


def _tell_broken(library: Library) -> None:
    for own in library.about():
        if own["kind"] == "broken":
            print(escape(f"not shown: {own['error']}"))


def _say(address: str) -> None:
    print(f"page: {address}", flush=True)
    print("it is served to this machine alone; Ctrl-C ends it.", flush=True)
