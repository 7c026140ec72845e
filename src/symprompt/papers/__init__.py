"""Reproduce the papers' tables: make every run, then write tables, figures and pages from them."""

from symprompt.papers.spe import Reproduction, reproduce

__all__ = ["Reproduction", "reproduce"]
