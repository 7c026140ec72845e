"""One way to build, check, override, store and compare any config."""

from symprompt.config.loading import (
    build,
    differing_keys,
    flatten,
    incidental_keys,
    load,
    override,
    recipe_of,
    shipped_configs,
)
from symprompt.config.toml import to_toml

__all__ = [
    "build",
    "differing_keys",
    "flatten",
    "incidental_keys",
    "load",
    "override",
    "recipe_of",
    "shipped_configs",
    "to_toml",
]
