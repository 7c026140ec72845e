"""Tables, figures and pages, computed from stored predictions and never from a live model."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from symprompt.report.progress import show_progress
    from symprompt.report.tables import Comparison, RunScores, comparison, load_scores
    from symprompt.report.terminal import show
else:
    _MODULES = {"show_progress": "progress", "show": "terminal"}

    def __getattr__(name: str) -> object:
        """Load a name when it is first asked for: a list of runs needs neither numpy nor rich."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{_MODULES.get(name, 'tables')}"), name)


__all__ = ["Comparison", "RunScores", "comparison", "load_scores", "show", "show_progress"]
