"""Labelled tasks."""
