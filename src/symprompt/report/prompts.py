"""What prompts show prints: each relation's prompt and the words its vectors are near."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text


def prompts_table(views: Sequence[Mapping[str, Any]], by: str) -> RenderableType:
    """Return the prompts of some relations, a table for each that learned vectors.

    Args:
        views: relations as plain values, as ``inspection.describe_prompts`` has them.
        by: what the numbers beside the words are.
    """
    parts: list[RenderableType] = []
    for view in views:
        title = f"{view['relation']} {view['label']}".strip()
        parts.append(Text(f"{title}: {view['about']}" if view["about"] else title))
        parts += [Text(f"  {part}: {text}") for part, text in view["prompts"].items()]
        if view["vectors"]:
            parts.append(_vectors(view["vectors"], by))
    if any(view["vectors"] for view in views):
        parts.append(
            Text("norm: of the vector, and as a multiple of the mean norm of the word embeddings.")
        )
    return Group(*parts)


def _vectors(vectors: Sequence[Mapping[str, Any]], by: str) -> Table:
    table = Table(box=box.SIMPLE, pad_edge=False)
    table.add_column("vector")
    table.add_column("norm", justify="right")
    table.add_column(f"nearest words ({by})")
    for index, vector in enumerate(vectors):
        last = index + 1 == len(vectors) or vectors[index + 1]["part"] != vector["part"]
        # Text cells are taken literally: a token such as [unused1] is no rich markup.
        near = "  ".join(f"{word['text']} {word['value']:.2f}" for word in vector["nearest"])
        table.add_row(
            f"{vector['part']} v{vector['slot']}",
            f"{vector['norm']:.2f} ({vector['relative_norm']:.2f} x)",
            Text(near),
            end_section=last,
        )
    return table
