"""Labelled tasks: their examples, features, heads, decoding and metrics."""
