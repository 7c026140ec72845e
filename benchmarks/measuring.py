"""What every benchmark measures with: median times, the rate of a large product, weights."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch

from symprompt.models import LanguageModel


def wait(device: torch.device) -> None:
    """Wait until a device has done its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def median_seconds(work: Callable[[int], object], device: torch.device, repeats: int) -> float:
    """Return the median time of one call, after two to warm up."""
    times = []
    for turn in range(repeats + 2):
        wait(device)
        begun = time.perf_counter()
        work(turn)
        wait(device)
        times.append(time.perf_counter() - begun)
    return float(np.median(times[2:]))


def steady_seconds(work: Callable[[int], object], device: torch.device, repeats: int) -> float:
    """Return the time of one call among others that nobody waits for: the median of five rounds."""
    calls = max(1, repeats // 5)
    return median_seconds(lambda _: [work(turn) for turn in range(calls)], device, 5) / calls


def product_rate(device: torch.device, dtype: torch.dtype) -> float:
    """Return the floating-point rate of a large square matrix product."""
    size = 8192 if device.type == "cuda" else 2048
    left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    return 2 * size**3 / median_seconds(lambda _: torch.mm(left, right), device, 10)


def body_weights(backbone: LanguageModel) -> int:
    """Return how many weights multiply every token: the body without embedding tables."""
    tables = {
        id(module.weight)
        for module in backbone.model.modules()
        if isinstance(module, torch.nn.Embedding)
    }
    return sum(
        value.numel()
        for value in backbone.model.base_model.parameters()
        if id(value) not in tables and value.dim() > 1
    )
