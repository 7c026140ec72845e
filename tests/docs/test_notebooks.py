"""The notebooks of examples/ run from top to bottom with the shipped model, as they are.

A cell is run as Jupyter does it: its statements in one namespace, its last expression shown. There
are no magics in them, so no kernel is needed.
"""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "examples").glob("*.ipynb"))


def run_cell(source: str, names: dict[str, Any]) -> str | None:
    """Run a cell; return what its last expression shows."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), names)
    if last is None:
        return None
    value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
    if value is None:
        return None
    return value._repr_html_() if hasattr(value, "_repr_html_") else repr(value)


def execute(path: Path) -> list[str]:
    """Run all cells of a notebook; return what they show."""
    names: dict[str, Any] = {"__name__": "__main__"}
    book = json.loads(path.read_text(encoding="utf-8"))
    assert book["nbformat"] == 4
    shown = []
    for cell in book["cells"]:
        assert cell["cell_type"] in ("markdown", "code")
        if cell["cell_type"] == "code":
            assert not cell["outputs"], "notebooks are stored without outputs"
            shown.append(run_cell("".join(cell["source"]), names))
    return [text for text in shown if text]


def test_there_are_three() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["probe", "task", "words"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_shows_what_it_talks_about(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shown = "\n".join(execute(path))
    wanted = {
        "probe": ("<td>Paris</td>", "Mean over facts", "Luxembourg ?", "<td>Europe</td>", "? Asia"),
        "task": ("ticket,team", "tickets: pt2 on shipped", "billing", "prompt.safetensors"),
        "words": ("(33, 512)", "array(", "banks.svg"),
    }
    for text in wanted[path.stem]:
        assert text in shown, text
