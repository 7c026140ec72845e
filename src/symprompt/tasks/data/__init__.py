"""Labelled data: the standard sets, and files of your own."""
