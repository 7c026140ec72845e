"""One door to finished runs: those on facts are asked, those on labelled tasks predict."""

from __future__ import annotations

from pathlib import Path

from symprompt.probing.ask import Run
from symprompt.runs.folder import Folder
from symprompt.tasks.predict import COMMAND, TaskRun


def load(run: str | Path) -> Run | TaskRun:
    """Open a finished run: of train or rerank to ``ask``, of tune to ``predict``.

    The model is loaded when it is needed.

    Raises:
        RunError: there is no finished run of these commands.

    Example:
        >>> load("runs/tickets").predict(["My invoice is wrong."]).rows[0]["text"]
        'My invoice is wrong.'
        >>> load("runs/spe").ask("P36", object="Paris").object
        'Paris'
    """
    manifest = Folder(run).require_finished("train", "rerank", COMMAND)
    return TaskRun.load(run) if manifest.command == COMMAND else Run.load(run)
