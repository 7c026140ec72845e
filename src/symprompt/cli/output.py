"""What commands print for programs to read."""

from __future__ import annotations

import json
from typing import Any

from symprompt.errors import counted, escape
from symprompt.files.progress import duration
from symprompt.files.stream import Streamed


def print_json(value: Any) -> None:
    """Print a value as JSON that people can read; what may turn it around is written as codes."""
    print(escape(json.dumps(value, indent=1, ensure_ascii=False)))


def show_streamed(done: Streamed, what: str) -> None:
    """Print what came of a stream of questions or examples."""
    new = done.rows - done.resumed
    rate = f" ({new / done.seconds:,.1f}/s)" if done.seconds and new else ""
    before = f", {done.resumed:,} of them by an earlier run" if done.resumed else ""
    print(f"{counted(done.rows, what)} in {duration(done.seconds)}{rate}{before}: {done.out}")
    if done.bad:
        print(f"{counted(done.bad, 'row')} could not be used; lines and reasons: {done.bad_file}")
