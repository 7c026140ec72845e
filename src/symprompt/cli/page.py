"""``symprompt page``: runs in a browser, or as one file; read without torch."""

from __future__ import annotations

from importlib.util import find_spec

from symprompt.cli.flags import PageFlags
from symprompt.errors import ConfigError, escape
from symprompt.page.data import Library

NEED = "the page needs starlette and uvicorn; run: pip install symprompt[page]"


def run_page(flags: PageFlags) -> None:
    """Run ``symprompt page RUN [RUN ...]``."""
    if not flags.export and not can_serve():
        raise ConfigError(f"{NEED}.")
    library = Library(flags.runs)
    if flags.export:
        from symprompt.page.export import write_export

        path = write_export(library, flags.export)
        _tell_broken(library)
        print(f"page: {path} ({path.stat().st_size / 1e6:.1f} MB, opens without a server)")
        return
    from symprompt.page.models import Models
    from symprompt.page.server import serve

    models = Models(library, model=flags.model, device=flags.device, corpus=tuple(flags.corpus))
    _tell_broken(library)
    serve(models, port=flags.port, browser=flags.browser, say=_say)


def can_serve() -> bool:
    """Return whether what the page needs is installed."""
    return all(find_spec(name) is not None for name in ("starlette", "uvicorn"))


def _tell_broken(library: Library) -> None:
    for own in library.about():
        if own["kind"] == "broken":
            print(escape(f"not shown: {own['error']}"))


def _say(address: str) -> None:
    print(f"page: {address}", flush=True)
    print("it is served to this machine alone; Ctrl-C ends it.", flush=True)
