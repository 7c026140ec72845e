"""Calls of the command line in this process; the fixture ``call`` makes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Said(NamedTuple):
    """What one call of the command line did."""

    code: int
    out: str
    err: str


Call = Callable[..., Said]
