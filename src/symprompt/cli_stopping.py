"""What the command line says to Ctrl-C: how each command goes on, which not all do."""

from __future__ import annotations

from collections.abc import Sequence

# Their runs refuse to go on unless they are told to.
_WITH_RESUME = (["train"], ["pretrain"], ["tune"])
# What these have made they find again.
_BY_THEMSELVES = (["embed"], ["senses", "train"], ["demo"], ["reproduce"])


def how_to_go_on(words: Sequence[str]) -> str:
    """Return what is said when a command is interrupted.

    Args:
        words: the command and what follows it.
    """
    names = (list(words[:1]), list(words[:2]))
    if any(name in _WITH_RESUME for name in names):
        return "interrupted; a run in training goes on with --resume."
    if any(name in _BY_THEMSELVES for name in names):
        return "interrupted; the same command goes on where it was."
    return "interrupted; this command does not go on: given again, it starts from the beginning."
