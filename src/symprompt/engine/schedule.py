"""Learning rates: constant, linear or exponential, after a warm-up."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

ScheduleName = Literal["linear", "exponential", "constant"]


def rate_share(
    step: Any,
    steps: Any,
    *,
    schedule: ScheduleName = "linear",
    warmup: float = 0.0,
    decay: float = 1.0,
    epoch: int = 0,
) -> Any:
    """Return the share of its highest value that a learning rate has at a step.

    Args:
        step: counted from 0; a number or an array.
        steps: how many there are in all; a number or an array.
        schedule: linear falls to zero over the steps after the warm-up, exponential is multiplied
            by ``decay`` after each epoch.
        warmup: share of all steps over which the rate rises from zero.
        decay: factor per epoch of the exponential schedule.
        epoch: which one the step is in.
    """
    rising = warmup * steps
    rise = np.clip((step + 1) / rising, 0.0, 1.0) if warmup else 1.0
    if schedule == "exponential":
        return rise * decay**epoch
    if schedule == "constant":
        return rise * np.ones_like(step, dtype=np.float64)
    return np.minimum(rise, np.clip((steps - step) / (steps - rising), 0.0, 1.0))
