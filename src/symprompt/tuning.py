"""The settings of fine-tuning, and what they rule out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from symprompt.errors import ConfigError


@dataclass(frozen=True)
class TuningConfig:
    """Which weights are learned; concerns finetune alone."""

    tune: Literal["full", "lora"] = "full"
    """full: every weight, a copy for each relation; lora: low-rank adapters of linear layers."""
    lora_rank: int = 8
    """Rank of the adapters."""
    lora_alpha: float = 16.0
    """Adapters count alpha / rank."""
    lora_targets: tuple[str, ...] = ()
    """Last parts of the names of the layers with adapters, as in "query"; empty takes every linear
    layer but the one onto the vocabulary."""
    save_weights: bool = False
    """Store each relation's weights, so that the run can be asked; adapters are always stored."""
    at_once: int = 0
    """Relations trained in one stack; 0 takes as many as half of a GPU's memory, or 2 GiB, hold."""


def check_tuning(tuning: TuningConfig, *, dtype: str, start_from: str) -> None:
    """Refuse values out of range, and what fine-tuning cannot do.

    Args:
        dtype, start_from: the run's.

    Raises:
        ConfigError: naming the key, what was got and what is allowed.
    """
    for key, least in (("lora_rank", 1), ("at_once", 0)):
        if getattr(tuning, key) < least:
            raise ConfigError(
                f"tuning.{key} is {getattr(tuning, key)}; it must be at least {least}."
            )
    if not tuning.lora_alpha > 0:
        raise ConfigError(f"tuning.lora_alpha is {tuning.lora_alpha}; it must be above 0.")
    if dtype in ("bfloat16", "float16"):
        raise ConfigError(
            f"dtype is {dtype}, in which small changes of weights vanish; method.name = "
            '"finetune" goes with float32, float64 or auto.'
        )
    if start_from:
        raise ConfigError(
            'start_from goes on from learned vectors, and method.name = "finetune" has none; drop '
            "one of the two."
        )


def model_dtype(method: str, dtype: str) -> str:
    """Return the dtype a run's model is loaded in: fine-tuning wants float32 on any device."""
    return "float32" if method == "finetune" and dtype == "auto" else dtype
