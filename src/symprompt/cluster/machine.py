"""The settings that say where jobs run."""

from __future__ import annotations

from dataclasses import fields
from typing import Literal

from symprompt.config import Amount, Common, Count, Positive, Several, settings


@settings
class Jobs:
    """Where jobs run, how many side by side, and how often one is tried."""

    on: Common[str] = "here"
    """Where jobs run: here; ray, which starts Ray on this machine; or HOST:PORT or ray://HOST:PORT,
    which joins a cluster."""
    disk: Literal["shared", "own"] = "shared"
    """On a cluster: shared, where all nodes see the folder, the model and the data at the same
    paths; own, where they do not: what jobs read is sent to each node once, what they write comes
    back. Then paths are given from the working directory."""
    jobs: Positive = 1
    """Jobs side by side on each device."""
    threads: Count = 0
    """CPU threads of each job; 0 leaves them to torch."""
    memory_gib: Amount = 0.0
    """Most memory to take on each GPU, in GiB; 0 sets no bound."""
    retries: Count = 2
    """Times a job is tried again after its worker died, its node was lost or full, or it hung."""
    patience: Positive = 3600
    """Seconds without progress after which a job is taken to hang."""

    @property
    def as_given(self) -> Jobs | None:
        """What is said of jobs; None where all is as it is without a word."""
        own = Jobs(**{entry.name: getattr(self, entry.name) for entry in fields(Jobs)})
        return None if own == Jobs() else own


@settings
class Machine(Jobs):
    """Where jobs run, with the devices by name."""

    devices: Several[str] = ()
    """Devices to work on, such as cuda:0 cuda:1 or cpu; empty takes every GPU, else the CPU. On a
    cluster: cpu, or empty."""
