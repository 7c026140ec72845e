"""The errors a user can cause, each one sentence, and how sentences and names are written out."""

from __future__ import annotations

import errno
import html
import re
import signal
import sys
from typing import Literal

STOPPING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))
"""What ends a command as Ctrl-C does: a termination, and a terminal that is gone."""

_OF_MACHINE = tuple(
    getattr(errno, name)
    for name in ("ENOSPC", "EDQUOT", "EIO", "EROFS", "ESTALE", "ENOMEM", "EMFILE", "ENFILE")
    if hasattr(errno, name)
)


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


class BusyError(RunError):
    """Another process is at work in a run folder."""


class ExchangeError(RunError):
    """What a run has learned cannot be expressed in another library's format."""


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


def is_of_machine(error: BaseException) -> bool:
    """Return whether the machine is at fault, so that another may do: a full disk, no memory."""
    seen: BaseException | None = error
    while seen is not None:
        if is_out_of_memory(seen) or (isinstance(seen, OSError) and seen.errno in _OF_MACHINE):
            return True
        if type(seen).__name__ == "AcceleratorError" or "CUDA error" in str(seen):
            return True
        seen = seen.__cause__
    return False


Medium = Literal["terminal", "markdown", "html", "latex"]
# Control characters but the line break; half characters; and marks that turn the text after them
# around or part lines. They are shown by their codes, as JSON writes them.
_UNSEEN = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
# What opens a tag or an entity in Markdown; a sign before a space or a number is no tag.
_TAG = re.compile(r"<(?=[A-Za-z/!?])|&(?=#?\w+;)")
_LATEX = {sign: f"\\{sign}" for sign in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
}


def escape(text: str, medium: Medium = "terminal") -> str:
    """Return a text that may hold names from anywhere, safe to show.

    Args:
        medium: where it is shown; in Markdown, HTML and LaTeX it is no markup.

    Example:
        >>> escape("a\\x1b[31m <b>", "html")
        'a\\\\u001b[31m &lt;b&gt;'
    """
    shown = _UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
    if medium == "html":
        return html.escape(shown)
    if medium == "latex":
        return "".join(_LATEX.get(sign, sign) for sign in shown)
    if medium == "markdown":
        return _TAG.sub(lambda found: html.escape(found[0]), shown).replace("](", "]\\(")
    return shown
