"""Tables, figures and pages, computed from stored predictions and never from a live model."""

from symprompt.report.tables import Comparison, RunScores, comparison, show

__all__ = ["Comparison", "RunScores", "comparison", "show"]
