"""Every run behind the papers' tables: planned, made by workers, skipped where done."""

from symprompt.reproduction.plan import Gap, Model, Plan, PlannedRun, make_plan
from symprompt.reproduction.pool import Outcome, make_runs
from symprompt.reproduction.rows import Row, list_rows
from symprompt.reproduction.settings import ReproduceSettings

__all__ = [
    "Gap",
    "Model",
    "Outcome",
    "Plan",
    "PlannedRun",
    "ReproduceSettings",
    "Row",
    "list_rows",
    "make_plan",
    "make_runs",
]
