"""Jobs on the nodes of a Ray cluster.

Ray places each attempt at a job and tells when it has ended; the run folder says whether the job is
done. How far an attempt is stands in a file, OUT/logs/MODEL/RUN.json, so one that hangs is seen. An
attempt that ended badly is made again, on another node if there is one: Ray itself retries nothing.
Where nodes have disks of their own, files travel (``carry``), and attempts tell a ``Board``.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from symprompt.cluster import carry
from symprompt.cluster.executor import Event, Executor, Job, write_order
from symprompt.cluster.machine import Machine
from symprompt.errors import STOPPING, ConfigError, RunError, counted
from symprompt.files.atomic import write_file, write_json
from symprompt.runs.environment import describe_environment

NEED = "--on needs Ray: pip install 'symprompt[cluster]', or leave --on out to work here"
TOKEN = "cluster"
_POLL_SECONDS = 0.5
_NODES_SECONDS = 5.0
_BEAT_SECONDS = 1.0
_ANSWER_SECONDS = 120.0
_END_SECONDS = 10.0
_BUSY_SECONDS = 120.0
# Nothing but a few lines of text goes through Ray's store of objects.
_STORE_BYTES = 80 << 20
_NODE_LABEL = "ray.io/node-id"


# ---------------------------------------------------------------------- on a node

_kept: dict[tuple[Any, ...], Any] = {}


class Board:
    """Where attempts tell how far they are, for who cannot read a node's files."""

    def __init__(self) -> None:
        self._told: dict[str, dict[str, Any]] = {}

    def tell(self, key: str, told: dict[str, Any]) -> None:
        """Take how far an attempt is."""
        self._told[key] = told

    def read(self) -> dict[str, dict[str, Any]]:
        """Return how far each is."""
        return self._told


def look(folder: str, place: str, paths: Sequence[str]) -> dict[str, Any]:
    """Return what a node sees: the folder's token, paths that are not there, versions."""
    with suppress(OSError):
        os.chdir(place)
    missing = [path for path in (place, *paths) if not Path(path).exists()]
    return {"token": _read_token(folder), "missing": missing, "versions": _packages()}


def work(order: Mapping[str, Any]) -> dict[str, Any]:
    """Make one job on this node; return how it ended."""
    host, beat = socket.gethostname(), Path(order["beat"])
    ray = import_module("ray")
    node = ray.get_runtime_context().get_node_id()
    cargo, last, number, came = order["cargo"], 0.0, 0, 0
    ended: dict[str, Any] = {}

    def tell(answer: Mapping[str, Any]) -> None:
        nonlocal last, number
        if answer["kind"] != "progress":
            ended.update(answer)
        elif not number or time.monotonic() - last > _BEAT_SECONDS:
            last, number = time.monotonic(), number + 1
            told = {"node": node, "host": host, "at": number, "note": answer["note"]}
            if cargo is None:
                write_json(beat, told)
            else:
                order["board"].tell.remote(order["beat"], told)

    try:
        tell_first = {"kind": "progress", "note": f"begun on {host}"}
        if cargo is not None:
            tell(tell_first)
            place, came = carry.unpack(
                cargo,
                carry.folder_of(order["token"], node),
                lambda piece: ray.get(piece, timeout=_ANSWER_SECONDS),
            )
            os.chdir(place)
        else:
            os.chdir(order["place"])
            if _read_token(order["folder"]) != order["token"]:
                raise OSError("it does not see the same files there")
            tell(tell_first)
    except (OSError, RunError) as error:
        note = f"node {host} cannot work in {order['folder']}: {str(error).rstrip('.')}."
        return {"job": order["name"], "kind": "failed", "note": note, "elsewhere": True}
    kind = tuple(order[name] for name in ("work", "device", "threads", "memory_gib"))
    kind += (os.getcwd(),)
    worker = _kept.pop(kind, None)
    if worker is None:
        # One of another kind holds a model, and two may not fit.
        _kept.clear()
        worker = import_module(kind[0]).start(kind[1], tell, *kind[2:4])
    worker.tell = tell
    # The process of an attempt before this one may hold the run folder for a moment yet.
    sound = worker.answer(order, patience=_BUSY_SECONDS)
    if sound:
        _kept[kind] = worker
    ended["about"] = {**ended.get("about", {}), "node": host}
    if cargo is not None:
        ended["about"] |= {"received": came, "node": f"{host} {node[:12]}"}
        ended["files"] = carry.collect(order["out"]) if ended["kind"] == "done" else {}
    return ended


def clear(token: str) -> None:
    """Delete what this node holds for a command."""
    os.chdir(tempfile.gettempdir())
    carry.clear(carry.folder_of(token, import_module("ray").get_runtime_context().get_node_id()))


def _read_token(folder: str) -> str:
    try:
        return (Path(folder) / "inputs" / TOKEN).read_text()
    except OSError:
        return ""


def _packages() -> dict[str, str]:
    """Return the versions that results depend on."""
    found = describe_environment(torch.device("cpu"))
    left_out = ("python", "platform", "device", "threads")
    return {name: version for name, version in found.items() if name not in left_out}


# ---------------------------------------------------------------------- where it is ordered


@dataclass
class _Attempt:
    """One try at a job on some node."""

    job: Job
    number: int
    beat: Path
    since: float
    seen: bytes = b""
    node: str = ""
    host: str = ""
    begun: bool = False


@dataclass
class _Trouble:
    """What went wrong with a job so far, and on which nodes."""

    whys: list[str] = field(default_factory=list)
    nodes: set[str] = field(default_factory=set)


class RayExecutor(Executor):
    """The nodes of a Ray cluster, one job on each device or more; final.

    See ``make_executor``.

    Raises:
        ConfigError: Ray is not installed, or the place is none of those allowed.
    """

    def __init__(self, folder: str | Path, machine: Machine, work: str) -> None:
        self._given = str(folder)
        self.folder = Path(folder).absolute()
        self._cargo: carry.Cargo | None = None
        self._board: Any = None
        self._far: Mapping[str, Mapping[str, Any]] = {}
        self.machine = machine
        self.work = work
        self._token = secrets.token_hex(8)
        self._trouble: dict[str, _Trouble] = {}
        host, _, port = machine.on.removeprefix("ray://").rpartition(":")
        self._address = (host, int(port)) if host and port.isdigit() else None
        if machine.on != "ray" and self._address is None:
            raise ConfigError(
                f"--on is {machine.on!r}; give here, ray, HOST:PORT or ray://HOST:PORT."
            )
        if machine.devices not in ((), ("cpu",)):
            raise ConfigError(
                f"--devices is {' '.join(machine.devices)}, and on a cluster Ray gives each job "
                "its device; give cpu, or leave it out."
            )
        try:
            self._ray = import_module("ray")
        except ImportError:
            raise ConfigError(f"{NEED}.") from None

    def run(self, jobs: Sequence[Job]) -> Generator[Event, None, None]:
        """Run jobs on the cluster's nodes; see ``Executor.run``."""
        if self.machine.disk == "own":
            self.folder = Path(carry.relative(self._given))
        with self._joined():
            if self.machine.disk == "own":
                self._cargo = carry.Cargo(self._ray.put)
                here = self._place(self._ray.get_runtime_context().get_node_id(), soft=True)
                board = self._ray.remote(num_cpus=0, scheduling_strategy=here)(Board)
                self._board = board.remote()
            write_file(self.folder / "inputs" / TOKEN, self._token.encode())
            self._check_nodes(jobs)
            running: dict[Any, _Attempt] = {}
            try:
                yield from self._run(jobs, running)
            finally:
                for ref in running:
                    with suppress(Exception):
                        self._ray.cancel(ref, force=True)
                if running:
                    with suppress(Exception):
                        self._ray.wait(
                            list(running), num_returns=len(running), timeout=_END_SECONDS
                        )
                if self._cargo is not None:
                    with suppress(Exception):
                        refs = list(self._on_each(clear, self._token))
                        self._ray.wait(refs, num_returns=len(refs), timeout=_END_SECONDS)
                        self._ray.kill(self._board)

    def _run(
        self, jobs: Sequence[Job], running: dict[Any, _Attempt]
    ) -> Generator[Event, None, None]:
        ray, waiting = self._ray, deque(jobs)
        nodes, looked = self._nodes(), time.monotonic()
        needs = self._needs(nodes)
        device = "cuda" if "num_gpus" in needs else "cpu"
        moved = time.monotonic()
        # A worker that had a GPU ends with its job, so that it holds none of the GPU's memory.
        order = ray.remote(**needs, max_retries=0, max_calls=int("num_gpus" in needs))(work)
        while waiting or running:
            if time.monotonic() - looked > _NODES_SECONDS:
                nodes, looked = self._nodes(), time.monotonic()
            for job in list(waiting):
                if len(running) >= max(1, _count_places(nodes, needs)):
                    break
                if job.source is not None and not job.source.finished:
                    going = [*waiting, *(attempt.job for attempt in running.values())]
                    if job.source.name not in [one.name for one in going]:
                        waiting.remove(job)
                        why = f"{job.source.name} is not there to query again."
                        yield Event(job.name, "failed", why)
                    continue
                waiting.remove(job)
                ref, attempt = self._begin(order, job, nodes, device)
                running[ref] = attempt
            if not running:
                continue
            done, _ = ray.wait(list(running), num_returns=1, timeout=_POLL_SECONDS)
            for ref in done:
                attempt = running.pop(ref)
                event = self._end(ref, attempt)
                yield event
                if event.kind == "progress":
                    waiting.appendleft(attempt.job)
            if self._board is not None and running:
                self._far = self._ask_board()
            for ref, attempt in list(running.items()):
                note = self._beat(attempt)
                if note:
                    yield Event(attempt.job.name, "progress", note)
                elif time.monotonic() - attempt.since > self._limit(attempt.begun):
                    del running[ref]
                    ray.cancel(ref, force=True)
                    event = self._give_up(attempt)
                    yield event
                    if event.kind == "progress":
                        waiting.appendleft(attempt.job)
            if any(attempt.begun for attempt in running.values()):
                moved = time.monotonic()
            elif time.monotonic() - moved > 2 * self._limit(False):
                raise RunError(
                    f"no job found a place on the Ray cluster for {2 * self._limit(False):.0f} s "
                    f"(each needs {_shown(needs)}); look at it with ray status."
                )

    def _limit(self, begun: bool) -> float:
        """Return after how many seconds without a word an attempt is given up.

        One that has not begun may wait for Ray to start a process, on a busy machine for long.
        """
        patience = self.machine.patience
        return patience if begun else max(patience, _ANSWER_SECONDS)

    def _ask_board(self) -> Mapping[str, Mapping[str, Any]]:
        """Return how far attempts are, as far as it is known.

        Raises:
            RunError: the board is lost, with the node that it is on.
        """
        ray = self._ray
        try:
            found: Mapping[str, Mapping[str, Any]] = ray.get(
                self._board.read.remote(), timeout=_END_SECONDS
            )
        except ray.exceptions.GetTimeoutError:
            return self._far  # it is asked again; what hangs is seen by patience
        except ray.exceptions.RayError as error:
            raise RunError(
                "the node that the Ray cluster is ordered from was lost; the same command goes on."
            ) from error
        return found

    def _give_up(self, attempt: _Attempt) -> Event:
        """Return what becomes of a job whose attempt was stopped, as it did not get on."""
        patience = self.machine.patience
        if attempt.begun:
            why = f"it showed no progress for {patience} s{_on(attempt.host)}"
            return self._again(attempt, why)
        # Others are at work there. It is no attempt, and any node will do now.
        self._trouble[attempt.job.name].nodes.clear()
        waited = f"it found no place for {self._limit(False):.0f} s and waits"
        return Event(attempt.job.name, "progress", waited)

    def _begin(
        self, order: Any, job: Job, nodes: Sequence[Mapping[str, Any]], device: str
    ) -> tuple[Any, _Attempt]:
        """Order an attempt at a job, on a node where it has not failed if there is one."""
        machine = self.machine
        trouble = self._trouble.setdefault(job.name, _Trouble())
        beat = self.folder / "logs" / f"{job.name}.json"
        beat.unlink(missing_ok=True)
        attempt = _Attempt(job, len(trouble.whys) + 1, beat, time.monotonic())
        there = {str(node["NodeID"]) for node in nodes}
        options: dict[str, Any] = {}
        if trouble.nodes & there and there - trouble.nodes:
            avoided = ",".join(sorted(trouble.nodes & there))
            options["label_selector"] = {_NODE_LABEL: f"!in({avoided})"}
        told: dict[str, Any] = write_order(job, self.folder) | {
            "work": self.work,
            "folder": str(self.folder),
            "place": os.getcwd(),
            "token": self._token,
            "beat": str(beat),
            "attempt": attempt.number,
            "device": device,
            "threads": machine.threads,
            "memory_gib": machine.memory_gib / machine.jobs,
            "out": job.config.out,
            "board": self._board,
            "cargo": None,
        }
        if self._cargo is not None:
            beat.parent.mkdir(parents=True, exist_ok=True)
            told["beat"] = f"{job.name} {attempt.number}"
            told["cargo"] = self._cargo.pack([*job.inputs, told["config"]], job.config.out)
        return order.options(**options).remote(told), attempt

    def _end(self, ref: Any, attempt: _Attempt) -> Event:
        """Return how an attempt ended; "progress" if the job is to be tried again."""
        ray = self._ray
        self._beat(attempt)
        on = _on(attempt.host)
        try:
            answer = ray.get(ref, timeout=_ANSWER_SECONDS if self._cargo else _END_SECONDS)
        except ray.exceptions.OutOfMemoryError:
            return self._again(attempt, f"there was not enough memory{on}")
        except (ray.exceptions.NodeDiedError, ray.exceptions.ObjectLostError):
            return self._again(attempt, f"its node was lost{on}")
        except ray.exceptions.WorkerCrashedError:
            return self._again(attempt, f"its worker died{on}")
        except ray.exceptions.RayError as error:
            # What an error of the node's own code says stands in its last line.
            last = (str(error).strip().splitlines() or [""])[-1]
            return self._again(attempt, f"{type(error).__name__}{on}: {last}".rstrip(".: "))
        if files := answer.pop("files", {}):
            carry.store(files, attempt.job.config.out)
        event = Event(**answer)
        if event.kind == "failed":
            if event.elsewhere:
                return self._again(attempt, event.note.rstrip("."))
            return event
        return self._finish(attempt, event.about)

    def _finish(self, attempt: _Attempt, about: Mapping[str, Any]) -> Event:
        """Return that a job is done if its folder says so, which another node may show later."""
        job, whys = attempt.job, self._trouble[attempt.job.name].whys
        until = time.monotonic() + _END_SECONDS
        while not job.finished:
            if time.monotonic() > until:
                why = f"it was made{_on(attempt.host)}, and {job.config.out} does not show it here"
                return self._again(attempt, why)
            time.sleep(_POLL_SECONDS)
        attempt.beat.unlink(missing_ok=True)
        return Event(job.name, "done", about={**about, "again": whys} if whys else about)

    def _again(self, attempt: _Attempt, why: str) -> Event:
        """Return that a job is tried again, or has failed for good; it may also be done."""
        job, trouble = attempt.job, self._trouble[attempt.job.name]
        if job.finished:
            return self._finish(attempt, {})
        trouble.whys.append(why)
        if attempt.node:
            trouble.nodes.add(attempt.node)
        with (self.folder / "logs" / "cluster.log").open("a") as log:
            stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            log.write(f"{stamp} {job.name}, attempt {attempt.number}: {why}\n")
        if attempt.number > self.machine.retries:
            tried = counted(attempt.number, "attempt")
            return Event(job.name, "failed", f"{why}; {tried} failed.")
        return Event(job.name, "progress", f"{why}; it is tried again")

    def _beat(self, attempt: _Attempt) -> str:
        """Look how far an attempt is; return what there is to say since the last look."""
        if self._cargo is not None:
            told = self._far.get(f"{attempt.job.name} {attempt.number}")
            seen = b"" if told is None else json.dumps(told).encode()
        else:
            try:
                seen = attempt.beat.read_bytes()
            except OSError:
                return ""
        if seen == attempt.seen:
            return ""
        attempt.seen, attempt.since, attempt.begun = seen, time.monotonic(), True
        told = json.loads(seen)
        attempt.node, attempt.host = told["node"], told["host"]
        return str(told["note"])

    # ------------------------------------------------------------------ the cluster

    @contextmanager
    def _joined(self) -> Iterator[None]:
        """Start Ray here or join it while the block runs; one that is joined already stays so."""
        ray, on = self._ray, self.machine.on
        if ray.is_initialized():
            yield
            return
        # Ray takes signals for itself, and would tell its makers how it is used.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        in_main = threading.current_thread() is threading.main_thread()
        kept = {number: signal.getsignal(number) for number in STOPPING} if in_main else {}
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
        if on == "ray":
            # Without an address Ray would join what runs on this machine already.
            options |= {"address": "local", "include_dashboard": False}
            options["object_store_memory"] = _STORE_BYTES
        else:
            options["address"] = on
        reached = False
        try:
            if self._address is not None:
                # Ray itself would try for minutes.
                socket.create_connection(self._address, _END_SECONDS).close()
                reached = True
            with _importable():
                ray.init(**options)
        except Exception as error:  # Ray's errors here have no base of their own
            first = (str(error).strip().splitlines() or [type(error).__name__])[0]
            what = "Ray cannot be started here" if on == "ray" else f"no Ray answers at {on}"
            # Something is there, and Ray does not say so where a token is wrong.
            hint = "; if it asks for a token, set RAY_AUTH_MODE and RAY_AUTH_TOKEN as it has them"
            raise RunError(f"{what}: {first.rstrip('.')}{hint if reached else ''}.") from error
        for number, handler in kept.items():
            signal.signal(number, handler)
        try:
            yield
        finally:
            ray.shutdown()

    def _nodes(self) -> list[Mapping[str, Any]]:
        """Return the nodes that Ray counts alive.

        Raises:
            RunError: Ray does not answer, or has no node.
        """
        try:
            nodes = [node for node in self._ray.nodes() if node["Alive"]]
        except Exception as error:  # Ray's errors here have no base of their own
            raise RunError(
                f"the Ray cluster does not answer any more ({type(error).__name__}); the same "
                "command goes on when it is there again."
            ) from error
        if not nodes:
            raise RunError("the Ray cluster has no node left; the same command goes on later.")
        return nodes

    def _needs(self, nodes: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        """Return what Ray sets apart for a job: a share of a GPU, or of the smallest node's CPUs.

        Raises:
            RunError: no node has what jobs need.
        """
        machine = self.machine
        if not machine.devices and any(node["Resources"].get("GPU") for node in nodes):
            return {"num_gpus": 1 / machine.jobs, "num_cpus": 0}
        cpus = [int(node["Resources"]["CPU"]) for node in nodes if node["Resources"].get("CPU")]
        if not cpus:
            raise RunError("no node of the Ray cluster has a CPU or GPU for jobs; start it so.")
        return {"num_cpus": max(1, min(cpus) // machine.jobs)}

    def _place(self, node: str, *, soft: bool) -> Any:
        """Return what has Ray put a task on a node."""
        strategies = import_module("ray.util.scheduling_strategies")
        return strategies.NodeAffinitySchedulingStrategy(node_id=node, soft=soft)

    def _on_each(self, task: Callable[..., Any], *given: Any) -> dict[Any, str]:
        """Begin a task on every node; return what stands for its result, and the node's name."""
        begun = {}
        for node in self._nodes():
            there = self._place(node["NodeID"], soft=False)
            own = self._ray.remote(num_cpus=0, max_retries=0, scheduling_strategy=there)(task)
            name = f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})"
            begun[own.remote(*given)] = name
        return begun

    def _check_nodes(self, jobs: Sequence[Job]) -> None:
        """Refuse a cluster of which a node does not see the files, or computes with other versions.

        Raises:
            RunError: naming the node and what it lacks.
        """
        ray, shared = self._ray, self._cargo is None
        paths = sorted({path for job in jobs for path in job.inputs if os.sep in path})
        asked = self._on_each(look, str(self.folder), os.getcwd(), paths if shared else [])
        ray.wait(list(asked), num_returns=len(asked), timeout=_ANSWER_SECONDS)
        here, sound = _packages(), 0
        for ref, name in asked.items():
            try:
                seen = ray.get(ref, timeout=_POLL_SECONDS)
            except ray.exceptions.RayTaskError as error:
                last = str(error).strip().splitlines()[-1]
                raise RunError(f"node {name} cannot run symprompt: {last}") from error
            except (ray.exceptions.RayError, TimeoutError):
                continue  # a node that is lost, though Ray counts it alive for a while
            sound += 1
            lacks = [] if seen["token"] == self._token else [str(self.folder)]
            lacks += seen["missing"]
            if lacks and shared:
                raise RunError(
                    f"node {name} does not see {lacks[0]} as this machine does; put the folder, "
                    "the model and the data on a disk that all nodes share, at the same path, or "
                    "have them sent with --disk own."
                )
            for package, version in here.items():
                if seen["versions"].get(package) != version:
                    raise RunError(
                        f"node {name} has {package} {seen['versions'].get(package)}, here it is "
                        f"{version}, and numbers may differ; install the same versions."
                    )
        if not sound:
            raise RunError(
                f"no node of the Ray cluster answered in {_ANSWER_SECONDS:.0f} s; look at it with "
                "ray status."
            )


def _count_places(nodes: Sequence[Mapping[str, Any]], needs: Mapping[str, float]) -> int:
    """Return how many jobs the nodes hold at a time."""
    kind, amount = ("GPU", needs["num_gpus"]) if "num_gpus" in needs else ("CPU", needs["num_cpus"])
    return sum(int(node["Resources"].get(kind, 0) / amount + 1e-6) for node in nodes)


def _shown(needs: Mapping[str, float]) -> str:
    return " and ".join(f"{value:g} of {name}" for name, value in needs.items() if value)


def _on(host: str) -> str:
    return f" on node {host}" if host else ""


@contextmanager
def _importable() -> Iterator[None]:
    """Let nodes that are started in the block find this package where it was found here."""
    before = os.environ.get("PYTHONPATH")
    paths = [str(Path(__file__).parents[2]), before or ""]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
