"""Reproduce the papers' tables: make every run, then write tables, figures and pages from them."""
