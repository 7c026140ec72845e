"""Recipes: configs of train and tune by name, with the papers' numbers.

A recipe is a TOML file. Its table [published] holds what a paper prints: the paper's table, then
the model (or row), then the column.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from symprompt.config import nearest, read_toml, shipped_configs
from symprompt.errors import ConfigError
from symprompt.probing.config import RunConfig, load_config
from symprompt.report.grid import DASH
from symprompt.tasks.config import (
    PatternRunConfig,
    TuneConfig,
    is_pattern_config,
    load_pattern_config,
    load_tune_config,
)

Config = RunConfig | TuneConfig | PatternRunConfig
# table -> model or row -> column -> value
Published = Mapping[str, Mapping[str, Mapping[str, float]]]


def load_recipe(name: str) -> Config:
    """Load a config of train or tune by its shipped name or its path.

    Raises:
        ConfigError: no such recipe, or one of another command.
    """
    known = {command: shipped_configs(command) for command in ("train", "tune")}
    if name not in known["train"] | known["tune"] and not Path(name).is_file():
        near = nearest(name, known["train"] | known["tune"])
        hint = f" (did you mean {near}?)" if near else ""
        raise ConfigError(
            f"recipe {name!r} is neither a file nor a config of train or tune{hint}; symprompt "
            "configs lists them."
        )
    if is_pattern_config(name):
        return load_pattern_config(name)
    try:
        return load_tune_config(name)
    except ConfigError:
        if name in known["tune"]:
            raise
        return load_config(name)


@cache
def published(name: str) -> Published:
    """Return the papers' numbers that a shipped recipe holds; empty if it has none."""
    found: Published = read_toml(shipped_configs()[name]).get("published", {})
    return found


def show(value: float | None) -> str:
    """Return a printed figure as the papers have it, or a dash."""
    return DASH if value is None else f"{value:.1f}"
