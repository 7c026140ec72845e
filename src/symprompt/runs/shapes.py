"""What a run's JSON files must hold for their readers: keys and the types of their values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Shape = Mapping[str, Any]
"""Key -> type, or key -> shape of a table inside."""

RELATION_SHAPE: Shape = {"label": str, "template": str, "manual_template": str}
CARD_SHAPE: Shape = {
    "base_model": str,
    "base_model_fingerprint": str,
    "method": str,
    "parts": list,
    "relations": dict,
}
ENVIRONMENT_SHAPE: Shape = dict.fromkeys(
    ("device", "dtype", "model_fingerprint", "facts_fingerprint"), str
)
_RANKS: Shape = {"realistic": dict}
_SPLIT: Shape = {
    "facts": int,
    "relations": dict,
    "raw": _RANKS,
    "filtered": _RANKS,
    "forward": _RANKS,
}
METRICS_SHAPE: Shape = {
    "model": str,
    "method": str,
    "seed": int,
    "k": int | None,
    "weights": dict | None,
    "dropped": dict,
    "seconds": dict,
    "test": _SPLIT,
}


def require(value: Any, shape: Shape, where: str = "") -> None:
    """Refuse a value that is not a table with these keys, each of its type."""
    if not isinstance(value, dict):
        raise TypeError(f"{where or 'it'} is not a table of keys and values")
    for key, wanted in shape.items():
        if key not in value:
            raise ValueError(f"{key} is missing")
        if isinstance(wanted, Mapping):
            require(value[key], wanted, key)
        elif not isinstance(value[key], wanted):
            raise TypeError(f"{key} is {value[key]!r}")
