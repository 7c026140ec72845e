"""Training state to tensors and back, so that a killed run goes on as if it had not been."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from symprompt.errors import RunError
from symprompt.folders import STATE
from symprompt.shapes import Shape, require
from symprompt.train import Learner

_NOTE: Shape = {"epoch": int, "history": list, "relations": list}


def state_tensors(trainer: Learner) -> dict[str, Tensor]:
    """Return everything a trainer's next epoch depends on."""
    tensors: dict[str, Tensor] = {}
    for part, encoder in trainer.method.encoders.items():
        progress = trainer.parts[part]
        for name, value in encoder.named_parameters():
            tensors[f"{part}/value/{name}"] = value
            tensors[f"{part}/best/{name}"] = progress.values[name]
        for name in ("best", "epoch", "waited", "stopped"):
            tensors[f"{part}/progress/{name}"] = torch.from_numpy(getattr(progress, name))
    for part, optimizer in trainer.optimizers.items():
        tensors[f"{part}/steps"] = optimizer.steps
        tensors |= {f"{part}/mean/{name}": value for name, value in optimizer.mean.items()}
        tensors |= {f"{part}/square/{name}": value for name, value in optimizer.square.items()}
    return tensors


def state_note(trainer: Learner, *, seconds: float = 0.0) -> dict[str, Any]:
    """Return the rest of the state, as plain values; ``seconds`` is the time spent so far."""
    return {
        "epoch": trainer.epoch,
        "history": trainer.history,
        "relations": trainer.relations,
        "seconds": seconds,
        "recording": trainer.recording,
    }


def load_state(trainer: Learner, tensors: dict[str, Tensor], note: Any) -> float:
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
                progress = trainer.parts[part]
                for name, value in encoder.named_parameters():
                    value.copy_(tensors[f"{part}/value/{name}"])
                    progress.values[name].copy_(tensors[f"{part}/best/{name}"])
                for name in ("best", "epoch", "waited", "stopped"):
                    setattr(progress, name, tensors[f"{part}/progress/{name}"].numpy())
            for part, optimizer in trainer.optimizers.items():
                optimizer.steps.copy_(tensors[f"{part}/steps"])
                for name in optimizer.mean:
                    optimizer.mean[name].copy_(tensors[f"{part}/mean/{name}"])
                    optimizer.square[name].copy_(tensors[f"{part}/square/{name}"])
    except (KeyError, RuntimeError) as error:
        raise RunError(f"the stored training state does not fit this method: {error}.") from error
    trainer.epoch = note["epoch"]
    trainer.history = note["history"]
    # Earlier states did not tell recording apart, those of version 0.1.0 did not count at all.
    trainer.recording = float(note.get("recording", 0.0))
    return float(note.get("seconds", 0.0))
