"""``symprompt configs``: the configs that ship."""

from __future__ import annotations

from symprompt.cli.flags import ConfigsFlags
from symprompt.config import nearest, shipped_configs
from symprompt.errors import ConfigError


def run_configs(flags: ConfigsFlags) -> None:
    """List what ships, or print one."""
    shipped = shipped_configs()
    if not flags.name:
        for name, path in shipped.items():
            first = path.read_text(encoding="utf-8").splitlines()[0].lstrip("# ")
            print(f"{name:<20} {first}")
        return
    if flags.name not in shipped:
        near = nearest(flags.name, shipped)
        raise ConfigError(
            f"no config {flags.name!r} ships{f' (did you mean {near}?)' if near else ''}; shipped "
            f"are: {', '.join(shipped)}."
        )
    print(shipped[flags.name].read_text(encoding="utf-8"), end="")
