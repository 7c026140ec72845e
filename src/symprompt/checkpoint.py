"""Training state to tensors and back, so that a killed run goes on as if it had not been."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from symprompt.errors import RunError
from symprompt.runs import STATE
from symprompt.shapes import Shape, require
from symprompt.train import Trainer

_NOTE: Shape = {"epoch": int, "history": list, "relations": list}


def state_tensors(trainer: Trainer) -> dict[str, Tensor]:
    """Return everything a trainer's next epoch depends on."""
    tensors: dict[str, Tensor] = {}
    for part, encoder in trainer.method.encoders.items():
        optimizer, progress = trainer.optimizers[part], trainer.parts[part]
        for name, value in encoder.named_parameters():
            tensors[f"{part}/value/{name}"] = value
            tensors[f"{part}/mean/{name}"] = optimizer.mean[name]
            tensors[f"{part}/square/{name}"] = optimizer.square[name]
            tensors[f"{part}/best/{name}"] = progress.values[name]
        tensors[f"{part}/steps"] = optimizer.steps
        for name in ("best", "epoch", "waited", "stopped"):
            tensors[f"{part}/progress/{name}"] = torch.from_numpy(getattr(progress, name))
    return tensors


def state_note(trainer: Trainer, *, seconds: float = 0.0) -> dict[str, Any]:
    """Return the rest of the state, as plain values; ``seconds`` is the time spent so far."""
    return {
        "epoch": trainer.epoch,
        "history": trainer.history,
        "relations": trainer.relations,
        "seconds": seconds,
    }


def load_state(trainer: Trainer, tensors: dict[str, Tensor], note: Any) -> float:
    """Put a trainer into the stored state.

    Returns:
        The seconds of training that led to the state.

    Raises:
        RunError: the state is damaged, or of other relations or another shape of encoder.
    """
    try:
        require(note, _NOTE)
    except (TypeError, ValueError) as error:
        raise RunError(
            f"the note in {STATE} is damaged: {error}; delete that file to train from the start."
        ) from error
    if note["relations"] != trainer.relations:
        raise RunError("the stored training state is about other relations than the data now has.")
    try:
        with torch.no_grad():
            for part, encoder in trainer.method.encoders.items():
                optimizer, progress = trainer.optimizers[part], trainer.parts[part]
                for name, value in encoder.named_parameters():
                    value.copy_(tensors[f"{part}/value/{name}"])
                    optimizer.mean[name].copy_(tensors[f"{part}/mean/{name}"])
                    optimizer.square[name].copy_(tensors[f"{part}/square/{name}"])
                    progress.values[name].copy_(tensors[f"{part}/best/{name}"])
                optimizer.steps.copy_(tensors[f"{part}/steps"])
                for name in ("best", "epoch", "waited", "stopped"):
                    setattr(progress, name, tensors[f"{part}/progress/{name}"].numpy())
    except (KeyError, RuntimeError) as error:
        raise RunError(f"the stored training state does not fit this method: {error}.") from error
    trainer.epoch = note["epoch"]
    trainer.history = note["history"]
    # States of version 0.1.0 did not count.
    return float(note.get("seconds", 0.0))
