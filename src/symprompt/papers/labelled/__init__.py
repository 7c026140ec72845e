"""Reproduce the P-tuning papers' tables of labelled tasks, from runs or from stored results."""

from symprompt.papers.labelled.report import LabelledReport, report_results, reproduce_labelled

__all__ = ["LabelledReport", "report_results", "reproduce_labelled"]
