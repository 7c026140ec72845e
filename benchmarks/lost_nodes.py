"""Simulate the scheduler with jobs that fail and nodes that are lost: how long, how much twice.

Jobs go to free workers in their order. A job that fails, or whose node is lost, is tried again
elsewhere, after all that wait, at most so many times; it goes on from its last checkpoint. A worker
that hangs is found after ``--patience``. A lost node comes back after a while. The policy is that
of ``--on``; times are made up. ``--ray`` sets three local nodes of Ray, one of them killed, against
the simulation of the same.

    python benchmarks/lost_nodes.py [--ray]
"""

from __future__ import annotations

import argparse
import heapq
import os
import random
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Cluster:
    """Nodes of one worker each, and how often they fail; times in seconds; final."""

    nodes: int = 64
    fail: float = 0.01
    hang: float = 0.001
    node_hours: float = 1000.0
    """Mean time until a node is lost."""
    away: float = 1800.0
    """How long it is away."""
    notice: float = 30.0
    """Until its loss is known."""
    patience: float = 600.0
    retries: int = 3
    checkpoint: float = 60.0
    start: float = 20.0
    """Until a worker has loaded its model."""


@dataclass
class Outcome:
    """What came of all jobs; final."""

    seconds: float = 0.0
    done: int = 0
    given_up: int = 0
    tries: int = 0
    nodes_lost: int = 0
    work: float = 0.0
    """Seconds that workers were busy."""


def simulate(
    jobs: Sequence[float], cluster: Cluster, seed: int, lose: Sequence[float] = ()
) -> Outcome:
    """Run jobs of so many seconds; nodes are lost at random, and the first ones at ``lose``."""
    draw, found = random.Random(seed), Outcome()
    waiting, left = deque(range(len(jobs))), list(jobs)
    tries = [0] * len(jobs)
    free = deque(range(cluster.nodes))
    alive = [0] * cluster.nodes  # how often each was lost
    events: list[tuple[float, int, str, int, int, int]] = []
    count = 0

    def add(time: float, kind: str, node: int, job: int, life: int) -> None:
        nonlocal count
        count += 1
        heapq.heappush(events, (time, count, kind, node, job, life))

    def lost_after(time: float) -> float:
        return time + draw.expovariate(1 / (cluster.node_hours * 3600))

    for node in range(cluster.nodes):
        add(lose[node] if node < len(lose) else lost_after(0.0), "lost", node, -1, 0)
    running: dict[int, tuple[float, int]] = {}
    now = 0.0
    while waiting or running:
        while waiting and free:
            node = free.popleft()
            job = waiting.popleft()
            tries[job] += 1
            found.tries += 1
            running[job] = (now, node)
            whole = cluster.start + left[job]
            chance = draw.random()
            if chance < cluster.fail:
                add(now + draw.random() * whole, "failed", node, job, alive[node])
            elif chance < cluster.fail + cluster.hang:
                hung = now + draw.random() * whole
                add(hung + cluster.patience, "failed", node, job, alive[node])
            else:
                add(now + whole, "done", node, job, alive[node])
        now, _, kind, node, job, life = heapq.heappop(events)
        if kind == "back":
            free.append(node)
            add(lost_after(now), "lost", node, -1, 0)
            continue
        if kind == "lost":
            alive[node] += 1
            found.nodes_lost += 1
            free = deque(own for own in free if own != node)
            add(now + cluster.away, "back", node, -1, 0)
            for own, (begun, place) in running.items():
                if place == node:
                    running[own] = (begun + cluster.notice, -1)
                    add(now + cluster.notice, "noticed", node, own, alive[node])
            continue
        if kind != "noticed" and life != alive[node]:
            continue  # its node was lost before
        begun, _ = running.pop(job)
        found.work += now - begun
        if kind != "noticed":
            free.append(node)
        if kind == "done":
            found.done += 1
            continue
        kept = max(0.0, now - begun - cluster.start)
        left[job] -= min(left[job], kept // cluster.checkpoint * cluster.checkpoint)
        if tries[job] > cluster.retries:
            found.given_up += 1
        else:
            waiting.append(job)
    found.seconds = now
    return found


def _sleep(seconds: float) -> None:
    time.sleep(seconds)


def on_ray(jobs: int, seconds: float, lose: float) -> tuple[float, int]:
    """Run sleeping jobs on three local nodes of Ray, one of which is killed; return what it took.

    Returns:
        Seconds from the first job to the last, and how many were done.
    """
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray
    from ray.cluster_utils import Cluster as Local

    own = {"num_cpus": 1, "object_store_memory": 80 << 20}
    local = Local(initialize_head=True, head_node_args={**own, "include_dashboard": False})
    others = [local.add_node(**own) for _ in range(2)]
    ray.init(local.address, log_to_driver=False, logging_level="error")
    try:
        sleep = ray.remote(num_cpus=1, max_retries=3)(_sleep)
        # Workers start with their first task.
        ray.get([sleep.remote(2.0) for _ in range(6)], timeout=120)
        begun = time.monotonic()
        waiting = [sleep.remote(seconds) for _ in range(jobs)]
        killer = threading.Timer(lose, local.remove_node, (others[0], False))
        killer.start()
        done, _ = ray.wait(waiting, num_returns=jobs, timeout=jobs * seconds + 120)
        killer.join()
        return time.monotonic() - begun, len(done)
    finally:
        ray.shutdown()
        local.shutdown()


def compare(jobs: int, seconds: float, lose: float) -> None:
    """Print what the simulation says of three nodes beside what Ray does."""
    took, done = on_ray(jobs, seconds, lose)
    never = {"fail": 0.0, "hang": 0.0, "node_hours": 1e9, "away": 1e9, "start": 0.0}
    for notice in (0.0, 5.0, 10.0):
        cluster = Cluster(nodes=3, checkpoint=1e12, notice=notice, **never)
        own = simulate([seconds] * jobs, cluster, 0, [lose])
        print(f"simulated, a loss noticed after {notice:g} s: {own.seconds:.1f} s, {own.done} done")
    print(f"Ray on three local nodes: {took:.1f} s, {done} done")


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the flags."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=300.0, help="median time of a job")
    parser.add_argument("--nodes", type=int, default=64)
    parser.add_argument("--fail", type=float, default=0.01)
    parser.add_argument("--patience", type=float, default=600.0)
    parser.add_argument("--lose", type=int, default=0, help="so many nodes in mid-run, for sure")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ray", action="store_true", help="set three nodes of Ray against it")
    return parser.parse_args(words)


def main() -> None:
    """Print what came of ten thousand jobs for several policies."""
    flags = parse()
    if flags.ray:
        compare(18, 3.0, 7.0)
    else:
        print(report(flags))


def report(flags: argparse.Namespace) -> str:
    """Return the table of policies."""
    draw = random.Random(flags.seed)
    jobs = [draw.lognormvariate(0.0, 0.5) * flags.seconds for _ in range(flags.jobs)]
    needed = sum(jobs)
    middle = needed / flags.nodes / 2
    header = ("policy", "hours", "over the ideal", "done", "given up", "tries", "nodes lost")
    header = (*header, "work lost")
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    for name, changes in (
        ("nothing fails", {"fail": 0.0, "hang": 0.0, "node_hours": 1e9}),
        ("no second try", {"retries": 0}),
        ("3 more tries, from the start", {"checkpoint": 1e12}),
        ("3 more tries, from a checkpoint each minute", {}),
        ("the same, nodes lost ten times as often", {"node_hours": 100.0}),
    ):
        settings = {"nodes": flags.nodes, "fail": flags.fail, "patience": flags.patience}
        cluster = Cluster(**{**settings, **changes})  # type: ignore[arg-type]
        lose = [middle] * flags.lose if cluster.fail else []
        own = simulate(jobs, cluster, flags.seed, lose)
        ideal = (needed + cluster.start * flags.jobs) / flags.nodes
        twice = own.work - cluster.start * own.tries - sum(jobs) * own.done / flags.jobs
        cells = (
            f"{own.seconds / 3600:,.2f}",
            f"{own.seconds / ideal - 1:+.1%}",
            f"{own.done:,}",
            f"{own.given_up:,}",
            f"{own.tries:,}",
            f"{own.nodes_lost:,}",
            f"{max(0.0, twice) / needed:.2%}",
        )
        lines.append("| " + " | ".join((name, *cells)) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
