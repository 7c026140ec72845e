"""What a run is accelerated by: the choice, switches for tests, compiling and recording.

``choose`` decides once per run. Compiling fuses element-wise work; recording replays a training
step as CUDA graphs, without a launch from Python for every kernel.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, ParamSpec, TypeVar

import torch
from torch import Tensor, nn

from symprompt.config import Compile

P = ParamSpec("P")
R = TypeVar("R")
Replay = Callable[[], None]
PAYS_AFTER = 5e14
"""Tokens times weights of a training that compiling pays for: some 20 s of SPE on an H200 with a
BERT of 8 layers and width 512, as long as compiling takes."""
_KINDS = 64
"""How often one function may be compiled."""
SWITCHES = {
    # Sentences of any lengths in one row instead of padded ones.
    "packing": True,
    # Joined products over packed rows instead of the model's own layers.
    "rows": True,
    # Triton kernels over packed rows: attention, attention of one query a sentence, GELU.
    "attention": True,
    "query": True,
    "gelu": True,
    # The vocabulary product of bfloat16 states on tensor cores.
    "product": True,
    # Triton kernels for prompt encoders: LSTM steps, and Adam from factors of a gradient.
    "recurrence": True,
    "factors": True,
}
"""Name -> whether it may be used. A dict of constants, which compiled code guards on."""


@contextmanager
def without(*names: str) -> Iterator[None]:
    """Use the plain PyTorch twins of the named accelerations; for benchmarks and tests alone.

    What is chosen when a model is loaded or a step is recorded stays as it was chosen then.
    """
    unknown = [name for name in names if name not in SWITCHES]
    if unknown:
        raise KeyError(f"no acceleration is called {unknown[0]!r}; known: {', '.join(SWITCHES)}")
    before = dict(SWITCHES)
    SWITCHES.update(dict.fromkeys(names, False))
    try:
        yield
    finally:
        SWITCHES.update(before)


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


class Recorder:
    """Records functions as CUDA graphs; final.

    A function that cannot be recorded runs as it is, and so does everything that comes after it:
    ``reason`` then holds why. Graphs share one memory pool, so they must run one after the other,
    unless they are recorded apart.

    Args:
        device: where the functions run; only on CUDA is anything recorded.
        wanted: False records nothing.

    Attributes:
        active: whether functions are recorded.
        reason: why a function could not be recorded; "" as long as all could.
        seconds: time spent on recording, rehearsals and compiling.
    """

    def __init__(self, device: torch.device, *, wanted: bool = True) -> None:
        self.device = device
        self.active = wanted and device.type == "cuda"
        self.reason = ""
        self.seconds = 0.0
        self._pool: Any = None

    def capture(self, work: Replay, state: Sequence[Tensor] = ()) -> Replay:
        """Return what replays a function; see ``capture_all``."""
        return self.capture_all((work,), state)[0]

    def capture_all(
        self,
        works: Sequence[Replay],
        state: Sequence[Tensor] = (),
        *,
        stream: torch.cuda.Stream | None = None,
        apart: bool = False,
    ) -> tuple[Replay, ...]:
        """Return what replays each of some functions that always run in this order.

        Each becomes a graph of its own. Before that they run twice, so that libraries set
        themselves up; what this changes is put back.

        Args:
            state: every tensor that the functions change and that must keep its values.
            stream: where they are rehearsed and recorded; where recordings run at the same time,
                the one they run on, as libraries keep a workspace per stream.
            apart: with memory of their own, as they run at the same time as other graphs.

        Raises:
            torch.OutOfMemoryError: there is no memory for the graphs.
        """
        if not self.active:
            return tuple(works)
        begun = time.perf_counter()
        before = [value.clone() for value in state]
        random = torch.cuda.get_rng_state(self.device)
        try:
            return self._record(works, stream, apart)
        except RuntimeError as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            self.active = False
            self.reason = str(error).splitlines()[0]
            return tuple(works)
        finally:
            torch.cuda.synchronize(self.device)
            torch.cuda.set_rng_state(random, self.device)
            with torch.no_grad():
                for value, old in zip(state, before, strict=True):
                    value.copy_(old)
            self.seconds += time.perf_counter() - begun

    def _record(
        self, works: Sequence[Replay], stream: torch.cuda.Stream | None, apart: bool
    ) -> tuple[Replay, ...]:
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        pool = torch.cuda.graph_pool_handle() if apart else self._pool
        stream = stream or torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream):
            for _ in range(2):
                for work in works:
                    work()
        torch.cuda.current_stream(self.device).wait_stream(stream)
        torch.cuda.synchronize(self.device)
        replays = []
        for work in works:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool, stream=stream):
                work()
            replays.append(graph.replay)
        return tuple(replays)
