"""Recording without a GPU: what is put back after rehearsals, and what happens if it fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch

from symprompt.accel.compiling import Recorder


class FakeGraph:
    """Notes what is recorded while it is, and replays by running it."""

    current: FakeGraph | None = None

    def __init__(self) -> None:
        self.works: list[Callable[[], None]] = []

    def replay(self) -> None:
        for work in self.works:
            work()


class FakeStream:
    device = torch.device("cpu")

    def wait_stream(self, other: object) -> None:
        pass


class Kernels:
    """Work as a list of kernels: recorded while a graph is, else run."""

    def __init__(self, *kernels: Callable[[], None]) -> None:
        self.kernels = kernels

    def __call__(self) -> None:
        for kernel in self.kernels:
            if FakeGraph.current is None:
                kernel()
            else:
                FakeGraph.current.works.append(kernel)


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Replace what CUDA does by its effect; "fails" has captures fail."""
    settings: dict[str, Any] = {"fails": False, "graphs": 0}

    @contextmanager
    def capture(graph: FakeGraph, pool: Any, stream: Any) -> Iterator[None]:
        FakeGraph.current = graph
        yield
        FakeGraph.current = None
        settings["graphs"] += 1
        if settings["fails"]:
            raise RuntimeError("operation not permitted\nwhen stream is capturing")

    for name, value in {
        "CUDAGraph": FakeGraph,
        "graph": capture,
        "Stream": lambda device: FakeStream(),
        "stream": lambda stream: nullcontext(),
        "current_stream": lambda device: FakeStream(),
        "synchronize": lambda device: None,
        "graph_pool_handle": lambda: (0, 1),
        "get_rng_state": lambda device: torch.get_rng_state(),
        "set_rng_state": lambda state, device: torch.set_rng_state(state),
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    return settings


def made_up() -> Recorder:
    recorder = Recorder(torch.device("cpu"))
    recorder.active = True
    return recorder


@pytest.mark.parametrize("fails", [False, True])
def test_rehearsals_leave_nothing_behind(pretended: dict[str, Any], fails: bool) -> None:
    pretended["fails"] = fails
    value = torch.zeros(2)
    recorder = made_up()
    torch.manual_seed(3)
    before = torch.get_rng_state()
    work = Kernels(lambda: value.add_(torch.rand(2)))
    replay = recorder.capture(work, [value])
    assert value.tolist() == [0, 0]
    assert torch.equal(torch.get_rng_state(), before)
    replay()
    torch.manual_seed(3)
    assert torch.equal(value, torch.rand(2))
    assert recorder.seconds > 0
    assert recorder.active is not fails
    assert recorder.reason == ("operation not permitted" if fails else "")
    # After a failure nothing more is tried.
    recorder.capture(work, [value])
    assert pretended["graphs"] == (1 if fails else 2)


def test_several_functions_become_graphs_of_their_own(pretended: dict[str, Any]) -> None:
    value = torch.ones(1)
    first, second = made_up().capture_all(
        [Kernels(lambda: value.mul_(2)), Kernels(lambda: value.add_(3))], [value]
    )
    second()
    first()
    assert value.item() == 8
    assert pretended["graphs"] == 2


def test_memory_that_runs_out_is_no_reason_to_go_on(pretended: dict[str, Any]) -> None:
    def full() -> None:
        raise torch.OutOfMemoryError("no memory")

    with pytest.raises(torch.OutOfMemoryError):
        made_up().capture(full)


def test_nothing_is_recorded_without_a_gpu() -> None:
    recorder = Recorder(torch.device("cpu"))
    assert recorder.capture(test_nothing_is_recorded_without_a_gpu) is (
        test_nothing_is_recorded_without_a_gpu
    )
    assert not recorder.reason
