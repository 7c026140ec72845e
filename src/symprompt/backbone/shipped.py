"""Where the model that ships with the package is."""

from __future__ import annotations

from pathlib import Path

from symprompt.errors import ModelError

SHIPPED = "shipped"
"""The name of the packaged model; "./shipped" is a folder of that name in the current one."""

FOLDER = Path(__file__).parents[1] / "models" / "shipped"


def locate_model(name: str) -> str:
    """Return where to load a model from: the packaged folder for "shipped", else the name itself.

    The name always means the packaged model, also where the current folder holds one called
    "shipped", so that a run says the same wherever it is read.

    Raises:
        ModelError: "shipped" was asked for and this installation has no such folder.
    """
    if name != SHIPPED:
        return name
    if not (FOLDER / "config.json").is_file():
        raise ModelError(
            f'the model "{SHIPPED}" is not in this installation ({FOLDER} holds no config.json); '
            "install symprompt again, or name another model with --model."
        )
    return str(FOLDER)
