"""Several processes of one run: this one's rank, and sums over all of them.

``torchrun`` gives the ranks in the environment; without it there is one process.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from symprompt.errors import ConfigError, TrainingError, is_out_of_memory
from symprompt.runs.environment import choose_device

# The first process may learn a vocabulary and tokenise for hours while the others wait.
_PATIENCE = timedelta(hours=24)
# A step, or the writing of a checkpoint, that takes longer has lost a process.
_STEP = timedelta(minutes=15)


@dataclass(frozen=True)
class ProcessGroup:
    """The processes of a run, seen from one of them.

    Attributes:
        rank: this one's number.
        size: how many there are.
        device: where this one computes.
        patient: the same processes, to wait for each other as long as it takes.
    """

    rank: int
    size: int
    device: torch.device
    patient: Any = None

    @property
    def is_first(self) -> bool:
        """Whether this is the process that prepares, writes and reports."""
        return self.rank == 0

    def add_up(self, value: Tensor) -> None:
        """Replace a tensor by its sum over all processes.

        Raises:
            TrainingError: one of them is lost.
        """
        if self.size > 1:
            with self._refusing_loss():
                dist.all_reduce(value)

    def any(self, flag: bool, *, patient: bool = False) -> bool:
        """Return whether the flag is set in any process; all must call.

        Args:
            patient: wait for hours if need be.
        """
        if self.size == 1:
            return flag
        value = torch.tensor(float(flag), device="cpu" if patient else self.device)
        with self._refusing_loss():
            dist.all_reduce(value, group=self.patient if patient else None)
            return bool(value.item())

    @contextmanager
    def _refusing_loss(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise
            told = str(error).splitlines()[0]
            raise TrainingError(
                f"one of the {self.size} processes is lost, so this one, number {self.rank}, stops "
                f"({told}); what was written is kept: start torchrun again with --resume, with any "
                "number of processes that divides the batch."
            ) from error

    def wait(self) -> None:
        """Wait until every process is here."""
        if self.size > 1:
            self.any(False)

    def share(self, batch: int) -> slice:
        """Return the rows of a batch that are this process's.

        Raises:
            ConfigError: the processes do not divide the batch.
        """
        if batch % self.size:
            raise ConfigError(
                f"learning.batch is {batch} and there are {self.size} processes; they must divide "
                "the batch."
            )
        rows = batch // self.size
        return slice(self.rank * rows, (self.rank + 1) * rows)


def is_first_process() -> bool:
    """Return whether this process is the one that writes and prints."""
    return os.environ.get("RANK", "0") == "0"


@contextmanager
def join_group(device: str) -> Iterator[ProcessGroup]:
    """Join the processes that torchrun started, if it did; leave them when the block ends.

    Args:
        device: as in the config; "auto" and "cuda" take the GPU of this process's local rank.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    chosen = choose_device(device)
    if chosen.type == "cuda" and size > 1:
        chosen = choose_device(f"cuda:{os.environ.get('LOCAL_RANK', '0')}")
    elif chosen.type == "cuda" and chosen.index is None:
        chosen = torch.device("cuda", torch.cuda.current_device())
    # Kernels compiled for a GPU are launched on the current one.
    with torch.cuda.device(chosen) if chosen.type == "cuda" else nullcontext():
        if size == 1:
            yield ProcessGroup(0, 1, chosen)
            return
        if chosen.type not in ("cuda", "cpu"):
            raise ConfigError(f"several processes train on cuda or cpu, not on {chosen.type}.")
        backend = "nccl" if chosen.type == "cuda" else "gloo"
        dist.init_process_group(backend, timeout=_STEP)
        patient = dist.new_group(backend="gloo", timeout=_PATIENCE)
        try:
            yield ProcessGroup(dist.get_rank(), size, chosen, patient)
        finally:
            dist.destroy_process_group()
