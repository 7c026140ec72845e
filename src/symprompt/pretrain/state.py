"""The state of an unfinished training: to a file and back, so that a kill changes nothing."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch

from symprompt.errors import RunError
from symprompt.files import read_tensors, write_tensors
from symprompt.pretrain.step import Learner

_KINDS = ("values", "means", "squares")
_WINDOW = "window"


@dataclass
class Progress:
    """How far a training is.

    Attributes:
        done: steps.
        tokens: tokens seen, padding left out.
        seconds: time spent by all the processes that took turns in it, preparation left out.
        first_seconds: of these, time for each process's first step, which compiles.
        steady_tokens: tokens of the other steps.
        history: the loss curve, a row for every record.
    """

    done: int = 0
    tokens: int = 0
    seconds: float = 0.0
    first_seconds: float = 0.0
    steady_tokens: int = 0
    history: list[dict[str, Any]] = field(default_factory=list)

    @property
    def tokens_per_second(self) -> float:
        """Tokens per second, each process's first step left out."""
        steady = self.seconds - self.first_seconds
        return self.steady_tokens / steady if steady > 0 and self.steady_tokens else 0.0


def save_state(path: Path, learner: Learner, progress: Progress) -> None:
    """Write everything the next step depends on."""
    tensors = {_WINDOW: learner.window}
    for kind in _KINDS:
        flat = getattr(learner.weights, kind).cpu()
        tensors |= {f"{kind}/{name}": view for name, view in learner.weights.views(flat)}
    note = {"window_steps": learner.window_steps, "dtype": str(learner.dtype)}
    write_tensors(path, tensors, asdict(progress) | note)


def load_state(path: Path, learner: Learner) -> Progress:
    """Put a stored state in place; return how far it was.

    Raises:
        RunError: the file is missing or damaged, or the passes were in another dtype.
    """
    tensors, note = read_tensors(path)
    try:
        if note["dtype"] != str(learner.dtype):
            before, now = (
                name.removeprefix("torch.") for name in (note["dtype"], str(learner.dtype))
            )
            raise RunError(
                f"{path.parent} was begun in {before} and would go on in {now}; resume on the same "
                "kind of device, or choose another --out."
            )
        with torch.no_grad():
            for kind in _KINDS:
                flat = getattr(learner.weights, kind)
                for name, view in learner.weights.views(flat):
                    stored = tensors[f"{kind}/{name}"]
                    if stored.shape != view.shape:
                        raise ValueError(f"{name} has the shape {list(stored.shape)}")
                    view.copy_(stored)
            learner.window.copy_(tensors[_WINDOW])
        learner.window_steps = note["window_steps"]
        progress = Progress(**{entry.name: note[entry.name] for entry in fields(Progress)})
    except KeyError as error:
        raise RunError(f"{path} is damaged: {error} is missing.") from error
    except (TypeError, ValueError, RuntimeError) as error:
        raise RunError(f"{path} is damaged: {error}.") from error
    learner.updater.set_step(progress.done)
    learner.weights.refresh()
    return progress
