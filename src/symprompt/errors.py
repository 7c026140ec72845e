"""The errors a user can cause: one sentence with what was got, what is allowed, what to do."""

from __future__ import annotations


class SympromptError(Exception):
    """Base of every error raised on purpose; the command line prints it and exits with 2."""


class ConfigError(SympromptError):
    """A config file or flag is unknown, of the wrong type, or out of range."""


class DataError(SympromptError):
    """A data file is missing, empty, garbled, or holds no usable facts."""


class ModelError(SympromptError):
    """A model cannot serve: no weights, no masked-LM head, no mask token, wrong dtype."""


class TemplateError(SympromptError):
    """A template text cannot be read, or does not fit the model."""


class RunError(SympromptError):
    """A run folder is missing, unfinished, damaged, or made by something else."""


class TrainingError(SympromptError):
    """Training cannot go on, for example because a loss is not finite."""
