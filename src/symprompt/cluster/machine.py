"""The settings that say where jobs run."""

from __future__ import annotations

from symprompt.config import Amount, Common, Count, Positive, Several, settings


@settings
class Machine:
    """Where jobs run, and how often one is tried."""

    on: Common[str] = "here"
    """Where jobs run: here; ray, which starts Ray on this machine; or HOST:PORT or ray://HOST:PORT,
    which joins a cluster whose nodes share the disk."""
    devices: Several[str] = ()
    """Devices to work on, such as cuda:0 cuda:1 or cpu; empty takes every GPU, else the CPU. On a
    cluster: cpu, or empty."""
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
