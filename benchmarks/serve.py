"""Requests a second of ``symprompt serve RUN``, and how long the slowest of a hundred waits.

The command is started as a user would, and 1, 8 and 64 clients ask it over loopback, each on a
connection of its own, one question or input a request and the next when the answer has come; so
many requests, or so long, whichever ends first. Clients share the machine's cores with the server.

    python benchmarks/serve.py RUN --requests 2000 --seconds 20
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from symprompt import Run, load
from symprompt.probing.results import load_facts


def main() -> None:
    """Start the server, ask it by more and more clients, print rates and times."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--requests", type=int, default=2000, help="most for each number of them")
    parser.add_argument("--seconds", type=float, default=20, help="longest for each of them")
    parser.add_argument("--top", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    flags = parser.parse_args()
    path, bodies = _bodies(flags.run, flags.top)
    words = [sys.executable, "-m", "symprompt.cli", "serve", flags.run, "--device", flags.device]
    process = subprocess.Popen([*words, "--rate", "1e6"], stdout=subprocess.PIPE, text=True)
    found: list[dict[str, Any]] = []
    try:
        assert process.stdout is not None
        address = re.search(r"http://([^/]+)/(\S+)/", process.stdout.readline())
        if address is None:
            raise SystemExit("the server ended")
        host, token = address.groups()
        _ask(host, f"/{token}/{path}", bodies, 50, time.monotonic() + flags.seconds)
        for clients in flags.clients:
            before = _health(host, token)
            load_before, begun = os.getloadavg()[0], time.monotonic()
            until, each = begun + flags.seconds, -(-flags.requests // clients)
            with ThreadPoolExecutor(clients) as threads:
                calls = [
                    threads.submit(_ask, host, f"/{token}/{path}", bodies, each, until)
                    for _ in range(clients)
                ]
                times = np.array([own for call in calls for own in call.result()])
            seconds, after = time.monotonic() - begun, _health(host, token)
            asked, batches = (after[name] - before[name] for name in ("requests", "batches"))
            found.append(
                {
                    "clients": clients,
                    "requests": len(times),
                    "requests/s": len(times) / seconds,
                    "p50 ms": float(np.percentile(times, 50)) * 1e3,
                    "p99 ms": float(np.percentile(times, 99)) * 1e3,
                    "a batch": asked / max(batches, 1),
                    "load": load_before,
                }
            )
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(20)
    if flags.json:
        print(json.dumps(found, indent=1))
        return
    for own in found:
        print(
            f"{own['clients']:3} clients: {own['requests/s']:8,.1f} requests/s, "
            f"p50 {own['p50 ms']:7.1f} ms, p99 {own['p99 ms']:7.1f} ms, {own['a batch']:5.1f} in a "
            f"batch ({own['requests']:,} requests, load before {own['load']:.1f})"
        )


def _bodies(folder: str, top: int) -> tuple[str, list[bytes]]:
    """Return where to ask and some requests, drawn from the run's own facts or texts."""
    run, draw = load(folder), random.Random(0)
    if isinstance(run, Run):
        facts = [fact for own in load_facts(run.folder).relations for fact in own.all()]
        asked = [{"relation": own.relation, "subject": own.subject} for own in facts]
        rows: list[Any] = [{"questions": [own], "top": top} for own in draw.choices(asked, k=1000)]
        return "ask", [json.dumps(own).encode() for own in rows]
    words = ["the", "invoice", "is", "wrong", "and", "late", "but", "thank", "you"]
    texts = [" ".join(draw.choices(words, k=draw.randint(5, 30))) for _ in range(1000)]
    count = len(run.stored.inputs)
    given = [text if count == 1 else [text] * count for text in texts]
    return "predict", [json.dumps({"inputs": [own]}).encode() for own in given]


def _ask(host: str, path: str, bodies: list[bytes], count: int, until: float) -> list[float]:
    """Send requests one after the other; return how long each took."""
    opened, times = http.client.HTTPConnection(host, timeout=60), []
    opened.connect()
    # As other clients do; else the body waits 40 ms for the head's receipt.
    opened.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    draw = random.Random(time.monotonic())
    for _ in range(count):
        begun = time.monotonic()
        if begun > until:
            break
        opened.request("POST", path, draw.choice(bodies))
        answer = opened.getresponse()
        body = answer.read()
        times.append(time.monotonic() - begun)
        if answer.status != 200 or b'"error"' in body:
            raise SystemExit(f"status {answer.status}: {body[:300]!r}")
    opened.close()
    return times


def _health(host: str, token: str) -> dict[str, Any]:
    opened = http.client.HTTPConnection(host, timeout=60)
    opened.request("GET", f"/{token}/health")
    told: dict[str, Any] = json.loads(opened.getresponse().read())
    opened.close()
    return told


if __name__ == "__main__":
    main()
