"""The runs behind the tables of labelled tasks: planned, made one by one, skipped where done."""

from symprompt.reproduction.labelled.making import make_jobs
from symprompt.reproduction.labelled.plan import Job, LabelledPlan, make_labelled_plan
from symprompt.reproduction.labelled.settings import LabelledSettings

__all__ = ["Job", "LabelledPlan", "LabelledSettings", "make_jobs", "make_labelled_plan"]
