"""Tables, figures and pages, computed from stored predictions and never from a live model."""

from symprompt.report.progress import show_progress
from symprompt.report.runs import load_scores
from symprompt.report.tables import Comparison, RunScores, comparison, show

__all__ = ["Comparison", "RunScores", "comparison", "load_scores", "show", "show_progress"]
