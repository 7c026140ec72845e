"""The errors a user can cause: one sentence with what was got, what is allowed, what to do."""

from __future__ import annotations

import signal
import sys

STOPPING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))
"""What ends a command as Ctrl-C does: a termination, and a terminal that is gone."""


class SympromptError(Exception):
    """Base of every error raised on purpose; the command line prints it and exits with 2."""


class ConfigError(SympromptError):
    """A config file or flag is unknown, of the wrong type, or out of range."""


class DataError(SympromptError):
    """A data file is missing, empty, garbled, or holds no usable facts."""


class ModelError(SympromptError):
    """A model cannot serve: no weights, no masked-LM head, no mask token, wrong dtype."""


class TemplateError(SympromptError):
    """A template text cannot be read, or does not fit the model."""


class RunError(SympromptError):
    """A run folder is missing, unfinished, damaged, or made by something else."""


class TrainingError(SympromptError):
    """Training cannot go on, for example because a loss is not finite."""


def counted(count: int, noun: str) -> str:
    """Return how many of something there are: "1 relation", "12,000 facts"."""
    plural = "" if count == 1 else "es" if noun.endswith(("s", "x", "ch", "sh")) else "s"
    return f"{count:,} {noun}{plural}"


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether the device's or the machine's memory did not suffice."""
    torch = sys.modules.get("torch")
    of_device = torch is not None and isinstance(error, torch.OutOfMemoryError)
    return of_device or isinstance(error, MemoryError) or "can't allocate memory" in str(error)
