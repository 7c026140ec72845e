"""Device, dtype and seeds."""

from __future__ import annotations

import pytest
import torch

from symprompt.errors import ConfigError
from symprompt.runs.environment import (
    DTYPES,
    choose_device,
    choose_dtype,
    derive_seed,
    describe_environment,
    make_generator,
)


def test_seeds_depend_on_every_part_and_on_nothing_else() -> None:
    parts = [(0,), (1,), (0, "forth"), (0, "back"), (0, "forth", "P36"), (0, "forth", "P37")]
    seeds = [derive_seed(*part) for part in parts]
    assert len(set(seeds)) == len(parts)
    assert all(0 <= seed < 1 << 63 for seed in seeds)
    # A literal, so that runs of today can be repeated with later versions.
    assert derive_seed(34, "shuffle", "P36", 0) == 6061149200714111723
    assert derive_seed(0, "a") == derive_seed("0", "a")


def test_generators_repeat_and_leave_the_global_state_alone() -> None:
    before = torch.random.get_rng_state()
    first = torch.randn(4, generator=make_generator(1, "x"))
    assert torch.equal(first, torch.randn(4, generator=make_generator(1, "x")))
    assert not torch.equal(first, torch.randn(4, generator=make_generator(2, "x")))
    assert torch.equal(torch.random.get_rng_state(), before)


def test_named_devices_and_dtypes() -> None:
    cpu = choose_device("cpu")
    assert cpu == torch.device("cpu")
    assert choose_dtype("auto", cpu) == torch.float32
    assert choose_dtype("auto", torch.device("cuda")) == torch.bfloat16
    for name, dtype in DTYPES.items():
        assert choose_dtype(name, cpu) == dtype
    assert choose_device("auto").type in ("cpu", "cuda", "mps")


def test_unknown_names_are_refused_with_what_is_allowed() -> None:
    with pytest.raises(ConfigError, match="use auto, cpu"):
        choose_device("quantum")
    with pytest.raises(ConfigError, match="use auto, float64"):
        choose_dtype("half", torch.device("cpu"))


def test_missing_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="no GPU"):
        choose_device("cuda:0")


@pytest.mark.parametrize("name", ["meta", "xpu", "cpu:1", "mps:1", "cuda:", "cuda:x", "CPU", ""])
def test_other_kinds_of_devices_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="is not known; use auto, cpu, cuda, cuda:N or mps"):
        choose_device(name)


def test_a_device_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="'mps' was asked for, but torch sees no GPU"):
        choose_device("mps")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert choose_device("cuda:1") == torch.device("cuda:1")
    assert choose_device("cuda") == torch.device("cuda")
    with pytest.raises(ConfigError, match=r"torch sees 2 GPU\(s\); use cuda:0 to cuda:1\."):
        choose_device("cuda:2")


def test_environment_names_versions_and_device() -> None:
    found = describe_environment(torch.device("cpu"))
    assert found["device"] == "cpu"
    assert found["torch"] == torch.__version__
    assert all(isinstance(value, str) and value for value in found.values())
