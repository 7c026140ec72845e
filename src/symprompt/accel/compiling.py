"""Whether a run compiles and records, and how functions are compiled.

``choose`` decides once per run. Compiling fuses element-wise work; recording replays a training
step as CUDA graphs, without a launch from Python for every kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, ParamSpec, TypeVar

import torch
from torch import nn

from symprompt.config import Compile

P = ParamSpec("P")
R = TypeVar("R")
PAYS_AFTER = 5e14
"""Tokens times weights of a training that compiling pays for: some 20 s of SPE on an H200 with a
BERT of 8 layers and width 512, as long as compiling takes."""
_KINDS = 64
"""How often one function may be compiled."""


class Choice(NamedTuple):
    """What a run's steps are accelerated by.

    Attributes:
        compiled: whether layers, losses and optimiser are compiled.
        recorded: whether training steps are recorded as CUDA graphs.
        options: for torch.compile.
    """

    compiled: bool
    recorded: bool
    options: dict[str, Any]


def choose(wanted: Compile, device: torch.device, *, work: float = 0.0) -> Choice:
    """Choose whether a run compiles and records.

    - off does neither.
    - auto records on CUDA. It compiles there where ``work`` is ``PAYS_AFTER`` or more: a run of a
      few steps would wait 20 to 50 s for the compiler and save less.
    - on compiles whatever the device and the work, and records on CUDA.
    - max-autotune is on, and tries more kernels first, which takes minutes.

    Args:
        work: training tokens in all epochs times the weights each of them is multiplied by.
    """
    on_gpu = device.type == "cuda"
    compiled = wanted in ("on", "max-autotune") or (
        wanted == "auto" and on_gpu and work >= PAYS_AFTER
    )
    options = {"max_autotune": True, "coordinate_descent_tuning": True}
    return Choice(compiled, on_gpu and wanted != "off", options if wanted == "max-autotune" else {})


def weights_per_token(body: nn.Module) -> int:
    """Return how many weights of a model's body every token is multiplied by: all but tables."""
    tables = {id(module.weight) for module in body.modules() if isinstance(module, nn.Embedding)}
    values = body.parameters()
    return sum(one.numel() for one in values if one.dim() > 1 and id(one) not in tables)


def compile_function(work: Callable[P, R], **options: Any) -> Callable[P, R]:
    """Return a compiled function that one process may call for many models and settings."""
    compile_often()
    found: Callable[P, R] = torch.compile(work, **options)
    return found


def compile_often() -> None:
    """Let one function be compiled for many kinds of tensors and options.

    The compiler counts those of all callers together, and after eight it gives up: it goes on
    without compiling, or fails.
    """
    config = torch._dynamo.config
    config.recompile_limit = max(config.recompile_limit, _KINDS)


@contextmanager
def quick_products(device: torch.device) -> Iterator[None]:
    """Let a GPU round the factors of float32 products to TF32 while the block runs."""
    if device.type != "cuda":
        yield
        return
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
