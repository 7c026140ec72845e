"""Tiny models and data that tests share."""
