"""Workers that are forks of a process which has imported torch, as that takes seconds."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

from symprompt.papers import worker


class Forked:
    """What a slot needs of a process, for one that was forked."""

    def __init__(self, device: str) -> None:
        orders, self._orders = os.pipe()
        self._answers, answers = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._orders)
            os.close(self._answers)
            worker.run_worker(os.fdopen(orders), os.fdopen(answers, "w"), device, 1, 0.0)
            os._exit(0)
        os.close(orders)
        os.close(answers)
        self.stdin = os.fdopen(self._orders, "w")
        self.stdout = os.fdopen(self._answers)
        self._code: int | None = None
        # A slot and whoever stops it may wait for one process at once, which can be done once.
        self._waiting = threading.Lock()

    def poll(self) -> int | None:
        with self._waiting:
            if self._code is None:
                done, status = os.waitpid(self.pid, os.WNOHANG)
                self._code = os.waitstatus_to_exitcode(status) if done else None
            return self._code

    def wait(self) -> int:
        while self.poll() is None:
            time.sleep(0.005)
        assert self._code is not None
        return self._code

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


def fork_worker(device: str, *_: Any) -> Forked:
    return Forked(device)
