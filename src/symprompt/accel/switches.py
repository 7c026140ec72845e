"""Which accelerations may be used: all, unless a benchmark or a test leaves one out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

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
