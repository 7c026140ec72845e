"""What commands print: for people, or as JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from symprompt.errors import escape
from symprompt.report.printing import show

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import RenderableType


def print_json(value: Any) -> None:
    """Print a value as JSON that people can read; what may turn it around is written as codes."""
    print(escape(json.dumps(value, indent=1, ensure_ascii=False)))


def give(as_json: bool, plain: Any, *shown: RenderableType) -> None:
    """Print what was found: as JSON, or as tables and lines."""
    if as_json:
        print_json(plain)
        return
    for part in shown:
        show(part)


def draw_picture(path: Path, draw: Callable[[], Figure]) -> str:
    """Draw a picture where matplotlib is installed; return what is said of it."""
    from symprompt.report.figures import can_draw, save_figure

    if not can_draw():
        return (
            "picture: none drawn, as matplotlib is not installed (pip install symprompt[report])."
        )
    return f"picture: {save_figure(draw(), path)}"
