"""Device, dtype, seeds and versions: what a run must state to be repeated."""

from __future__ import annotations

import hashlib
import platform
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from typing import Any

import numpy as np
import torch
from torch import Tensor

from symprompt.errors import ConfigError

DTYPES: dict[str, torch.dtype] = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
_VERSIONED = ("symprompt", "torch", "transformers", "tokenizers", "safetensors", "numpy")


def choose_device(name: str = "auto") -> torch.device:
    """Return the named device; "auto" takes the first GPU there is, else the CPU.

    Raises:
        ConfigError: another kind of device, or one that torch does not see here.
    """
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        if torch.backends.mps.is_available():
            return torch.device("mps")
        return torch.device("cpu")
    if not re.fullmatch(r"cpu|mps|cuda(:[0-9]{1,4})?", name):
        raise ConfigError(f"device {name!r} is not known; use auto, cpu, cuda, cuda:N or mps.")
    device = torch.device(name)
    there = {
        "cpu": True,
        "mps": torch.backends.mps.is_available(),
        "cuda": torch.cuda.is_available(),
    }
    if not there[device.type]:
        raise ConfigError(f"device {name!r} was asked for, but torch sees no GPU; use cpu or auto.")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        last = torch.cuda.device_count() - 1
        raise ConfigError(
            f"device {name!r} was asked for, but torch sees {last + 1} GPU(s); use cuda:0"
            f"{f' to cuda:{last}' if last else ''}."
        )
    return device


def choose_dtype(name: str, device: torch.device) -> torch.dtype:
    """Return the named dtype; "auto" is bfloat16 on a CUDA device and float32 elsewhere."""
    if name == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    if name not in DTYPES:
        raise ConfigError(f"dtype {name!r} is not known; use auto, {', '.join(DTYPES)}.")
    return DTYPES[name]


def derive_seed(*parts: object) -> int:
    """Return a 63-bit seed that depends only on the parts, so no global random state is needed."""
    text = "/".join(str(part) for part in parts)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def make_generator(*parts: object) -> torch.Generator:
    """Return a CPU random generator seeded from the parts; draws are the same on every device."""
    return torch.Generator().manual_seed(derive_seed(*parts))


def describe_environment(device: torch.device) -> dict[str, str]:
    """Return versions and hardware, as strings, for a run's record."""
    facts = {name: _version(name) for name in _VERSIONED}
    # The package's own tells which build it is.
    facts["torch"] = str(torch.__version__)
    facts["python"] = platform.python_version()
    facts["platform"] = f"{sys.platform} {platform.machine()}"
    facts["device"] = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    facts["threads"] = str(torch.get_num_threads())
    return facts


def made_with(device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    """Return the fields of a manifest about the machine: device, dtype, versions."""
    versions = describe_environment(device)
    device_name = versions.pop("device")
    name = str(dtype).removeprefix("torch.")
    return {"device": device_name, "dtype": name, "versions": versions}


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed as a package"


def send(values: np.ndarray | Tensor, device: torch.device) -> Tensor:
    """Return values on a device; a GPU need not have finished what it was given before."""
    tensor = torch.from_numpy(values) if isinstance(values, np.ndarray) else values
    if device.type != "cuda" or tensor.is_cuda:
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


@contextmanager
def keep_threads() -> Iterator[None]:
    """Put the number of torch's threads back, which other libraries change with their own."""
    before = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(before)
