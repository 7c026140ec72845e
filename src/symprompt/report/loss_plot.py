"""The loss curve of a pretraining run as a picture."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from symprompt.errors import RunError
from symprompt.files import reason, replacing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Told apart with any eye for colour, and on paper by their dashes.
_COLOURS = ("#0072b2", "#d55e00", "#009e73")
_LABELS = {"mlm": "masked tokens", "nsp": "next sentence", "sbo": "span boundary"}


def can_plot() -> bool:
    """Say whether matplotlib, which is optional, is there."""
    return find_spec("matplotlib") is not None


def save_loss_plot(training: Mapping[str, Any], path: Path) -> str:
    """Draw a run's losses over its steps, with the validation loss as dots.

    The model is finished without it, so a full disk is no error: no picture is left then.

    Args:
        training: a model folder's training.json.
        path: the picture to write; its ending says the format.

    Returns:
        Why it could not be written; empty if it was.
    """
    try:
        with replacing(path) as part:
            loss_figure(training).savefig(part, dpi=150, format=path.suffix.removeprefix("."))
    except RunError as error:
        return reason(error.__cause__) if isinstance(error.__cause__, OSError) else str(error)
    return ""


def loss_figure(training: Mapping[str, Any]) -> Figure:
    """Return the picture, to be shown or saved."""
    from matplotlib.figure import Figure

    history = training["history"]
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    steps = [row["step"] for row in history]
    for colour, part in zip(_COLOURS, training["loss"], strict=False):
        label = _LABELS.get(part, part)
        losses = [row["parts"][part] for row in history]
        axes.plot(steps, losses, color=colour, linewidth=1.2, label=f"{label}, training")
        checked = [row for row in history if row["validation"]]
        if checked:
            axes.plot(
                [row["step"] for row in checked],
                [row["validation"][part] for row in checked],
                color=colour,
                linestyle="none",
                marker="o",
                markersize=4,
                markerfacecolor="white",
                # The last one lies on the edge.
                clip_on=False,
                zorder=3,
                label=f"{label}, validation",
            )
    axes.set_xlabel("step")
    axes.set_ylabel("loss (nats)")
    axes.set_xlim(0, max(steps))
    axes.set_title(_title(training), fontsize=10, loc="left")
    axes.grid(visible=True, alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    return figure


def _title(training: Mapping[str, Any]) -> str:
    return (
        f"{training['model']['parameters'] / 1e6:.3g} M weights, "
        f"{training['tokens'] / 1e6:,.4g} M tokens seen, {training['passes']:.3g} passes"
    )
