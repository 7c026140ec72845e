"""Kernels run through Triton's interpreter only where it was asked for: ``make interpret``."""

from __future__ import annotations

import os

collect_ignore = (
    [] if os.environ.get("TRITON_INTERPRET") == "1" else ["test_kernels_interpreted.py"]
)
