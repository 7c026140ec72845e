"""An executor that runs jobs in this process, one after the other, as a worker would."""

from __future__ import annotations

import queue
from collections.abc import Generator, Mapping, Sequence
from typing import Any

from symprompt.errors import SympromptError
from symprompt.papers.executor import Event, Executor
from symprompt.papers.jobs import Job
from symprompt.papers.worker import Worker


class InlineExecutor(Executor):
    """Runs jobs here; final."""

    def run(self, jobs: Sequence[Job]) -> Generator[Event, None, None]:
        """Run jobs, each after its source; see ``Executor.run``."""
        told: queue.Queue[Mapping[str, Any]] = queue.Queue()
        worker = Worker("cpu", told.put)
        for job in jobs:
            try:
                worker.make(job.name, job.config, job.source.config.out if job.source else "")
            except SympromptError as error:
                told.put({"job": job.name, "kind": "failed", "note": str(error)})
                worker.forget()
            while not told.empty():
                yield Event(**told.get())
