"""Refuse settings that would do nothing for a kind of task, or for a method."""

from __future__ import annotations

from collections.abc import Mapping

from symprompt.errors import ConfigError
from symprompt.tasks.config import TuneConfig


def check_settings(
    config: TuneConfig, what: str, own: str, known: Mapping[str, tuple[str, ...]]
) -> None:
    """Refuse settings that concern other kinds, or other methods, alone.

    Args:
        what: "task's kind" or "method".
        own: the one there is.
        known: name -> the keys that concern it, "table.key" or a whole table.

    Raises:
        ConfigError: such a key is not at its default.
    """
    plain = TuneConfig()
    for key in sorted({key for keys in known.values() for key in keys} - set(known[own])):
        users = ", ".join(name for name, keys in known.items() if key in keys)
        table, _, name = key.partition(".")
        ours, default = getattr(config, table), getattr(plain, table)
        for entry in [name] if name else vars(default):
            value = getattr(ours, entry)
            if value != getattr(default, entry):
                raise ConfigError(
                    f"{table}.{entry} is {value!r}, which is about {users} alone, and the {what} "
                    f"is {own!r}; leave it out."
                )
