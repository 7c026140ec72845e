"""Tables, figures and pages, computed from stored predictions and never from a live model."""

from typing import TYPE_CHECKING

from symprompt.report.tables import Comparison, RunScores, comparison, load_scores, show

if TYPE_CHECKING:
    from symprompt.report.progress import show_progress
else:

    def __getattr__(name: str) -> object:
        """Load what needs rich when it is first asked for: pages are written without it."""
        if name == "show_progress":
            from symprompt.report.progress import show_progress

            return show_progress
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = ["Comparison", "RunScores", "comparison", "load_scores", "show", "show_progress"]
