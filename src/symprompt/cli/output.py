"""What commands print for programs to read."""

from __future__ import annotations

import json
from typing import Any

from symprompt.errors import escape


def print_json(value: Any) -> None:
    """Print a value as JSON that people can read; what may turn it around is written as codes."""
    print(escape(json.dumps(value, indent=1, ensure_ascii=False)))
