"""A reproduction on three nodes of Ray, one of which is killed; run by the test beside it.

    python three_nodes.py MODEL DATA FOLDER

What happened is written to FOLDER/told.json. In a process of its own, which ends with its nodes.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

sys.path.insert(0, str(Path(__file__).parents[1]))

import ray
import torch
from odd_worker import HOWS, Odd, OddJob
from ray.cluster_utils import Cluster

from symprompt import Run, ask_file
from symprompt.cluster import executor, nodes
from symprompt.cluster.machine import Jobs, Machine
from symprompt.cluster.nodes import RayExecutor
from symprompt.errors import SympromptError
from symprompt.files.stream import Reader
from symprompt.papers.report import reproduce
from symprompt.papers.settings import FactSettings
from symprompt.papers.shards import AskShard, ShardedFile
from symprompt.probing.results import load_facts
from symprompt.runs.folder import Folder
from tiny.forking import fork_worker

METHODS = ("majority", "manual", "ptuning", "spe")
# Ray notices sooner that a node is gone than it does by itself.
SOON = {"health_check_initial_delay_ms": 1000, "health_check_period_ms": 500}
SOON |= {"health_check_timeout_ms": 1000, "health_check_failure_threshold": 3}
STORE = 80 << 20


def make_settings(model: str, data: str, out: Path, **changes: Any) -> FactSettings:
    """Return settings of a small reproduction, one thread a job."""
    return FactSettings(
        data=data,
        models=(f"toy={model}",),
        methods=METHODS,
        seeds=(34, 35),
        # Training is to take longer than what lies between two beats, a second.
        epochs=120,
        draws=50,
        pool=0,
        threads=1,
        out=str(out),
        **changes,
    )


def kill_node(cluster: Cluster, node: Any) -> None:
    """Kill a node with all that runs on it at once, as a loss of power does."""
    raylet = node.all_processes["raylet"][0].process.pid
    pids = [raylet]
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            # The parent is the second word after the name, which stands in brackets.
            if int(path.read_text().rpartition(")")[2].split()[1]) == raylet:
                pids.append(int(path.parent.name))
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    cluster.remove_node(node, allow_graceful=False)


def run_odd(folder: Path, address: str) -> dict[str, Any]:
    """Run jobs that die, hang, meet a full disk or are refused; return how each ended."""
    machine = Machine(on=address, retries=2, patience=6, threads=1)
    jobs = [OddJob(how, Odd(how=how, out=str(folder / how))) for how in HOWS]
    folder.mkdir()
    events = list(RayExecutor(folder, machine, "odd_worker").run(jobs))
    return {event.job: asdict(event) for event in events if event.kind != "progress"}


def stop_in_work(folder: Path, address: str) -> dict[str, Any]:
    """Close an executor in the middle of a job, as Ctrl-C does; return whether its worker ended."""
    folder.mkdir()
    job = OddJob("hangs", Odd(how="hangs", out=str(folder / "hangs")))
    events = RayExecutor(folder, Machine(on=address, threads=1), "odd_worker").run([job])
    note = next(events).note
    pids = folder / "hangs" / "pids"
    until = time.monotonic() + 30
    while not pids.is_file() and time.monotonic() < until:
        time.sleep(0.05)
    pid = int(pids.read_text())
    begun = time.monotonic()
    events.close()
    while Path(f"/proc/{pid}").exists() and time.monotonic() < begun + 30:
        time.sleep(0.05)
    return {"note": note, "seconds": time.monotonic() - begun}


def refuse_unseen(folder: Path, address: str) -> str:
    """Run a job in a folder whose files the nodes do not see; return what is said."""
    folder.mkdir()
    executor = RayExecutor(folder, Machine(on=address), "odd_worker")
    executor._token = "what the nodes read is another"
    written = nodes.write_file
    nodes.write_file = lambda path, content: written(path, b"of another folder")
    try:
        list(executor.run([OddJob("well", Odd(how="well", out=str(folder / "well")))]))
    except SympromptError as error:
        return str(error)
    finally:
        nodes.write_file = written
    return ""


def write_questions(run: Path, file: Path) -> int:
    """Write questions about all facts of a run, both ways; return how many."""
    rows = ["relation,subject,object"]
    for fact in (fact for one in load_facts(Folder(run)).relations for fact in one.all()):
        rows += [f"{fact.relation},{fact.subject},", f"{fact.relation},,{fact.object}"] * 4
    file.write_text("\n".join(rows))
    return len(rows) - 1


def ask(base: Path, run: Path, name: str, **where: Any) -> None:
    """Ask a run the questions by jobs."""
    out, file = str(base / f"answers-{name}.jsonl"), str(base / "questions.csv")
    config = AskShard(run=str(run), file=file, out=out, top=3, device="cpu")
    ShardedFile(config, Jobs(threads=1, **where)).make()


def reproduce_few(place: Path, name: str, **where: Any) -> dict[str, Any]:
    """Make few runs by paths from a folder."""
    os.chdir(place)
    few = {"methods": ("manual", "ptuning"), "seeds": (34,), "devices": ("cpu",)}
    settings = replace(make_settings("model", "deep/data", Path("out"), **where), **few)
    made = reproduce(settings).outcome.made
    os.rename("out", name)
    return made


def work_here(base: Path, model: str, data: str) -> dict[str, Any]:
    """Do on this machine, in forks of this process, what nodes will do."""
    told: dict[str, Any] = {}
    executor.launch = fork_worker
    for name, jobs in (("one", 1), ("four", 4)):
        here = make_settings(model, data, base / name, jobs=jobs, devices=("cpu",))
        told[name] = sorted(reproduce(here).outcome.made)
    (run,) = (base / "one").glob("runs/toy/*spe-34")
    told["asked"] = write_questions(run, base / "questions.csv")
    whole = base / "answers-whole.jsonl"
    ask_file(Run.load(run), base / "questions.csv", whole, top=3, device="cpu")
    ask(base, run, "four", jobs=4)
    places = base / "places"
    shutil.copytree(run, places / "run")
    shutil.copytree(model, places / "model")
    shutil.copytree(data, places / "deep/data")
    told["same"] = reproduce_few(places, "same")
    return told


def work_on_own_disks(base: Path, address: str) -> dict[str, Any]:
    """Reproduce, and ask, on nodes that are sent what they read, by paths from a folder."""
    made = reproduce_few(base / "places", "own", on=address, disk="own")
    os.chdir(base / "places/deep")
    place = {"run": "../run", "model": "../model", "file": "../../questions.csv"}
    config = AskShard(**place, out="answers.jsonl", top=3, device="cpu")
    ShardedFile(config, Jobs(threads=1, on=address, disk="own")).make()
    said = ""
    try:
        absolute = replace(config, file=str(base / "questions.csv"), out="again.jsonl")
        ShardedFile(absolute, Jobs(on=address, disk="own")).make()
    except SympromptError as error:
        said = str(error)
    left = [path.name for path in Path(tempfile.gettempdir()).glob("symprompt-*")]
    return {"made": made, "absolute": said, "left": left}


def main() -> None:
    model, data, folder = sys.argv[1:]
    base = Path(folder)
    begun = time.monotonic()
    passed: dict[str, int] = {}

    def pass_by(what: str) -> None:
        passed[what] = round(time.monotonic() - begun)

    Reader.__init__.__kwdefaults__["block"] = 32
    torch.set_num_threads(1)
    # Before Ray, whose threads no fork may have.
    told = work_here(base, model, data) | {"passed": passed}
    pass_by("done here")
    cluster = Cluster(
        initialize_head=True,
        head_node_args={
            "num_cpus": 1,
            "object_store_memory": STORE,
            "include_dashboard": False,
            "_system_config": SOON,
        },
    )
    others = [cluster.add_node(num_cpus=1, object_store_memory=STORE) for _ in range(2)]
    told["nodes"] = 1 + len(others)
    # Joined once for all but the last, so that processes of the nodes need not start anew.
    ray.init(cluster.address, log_to_driver=False, logging_level="error")
    notes: list[str] = []
    by_id = {node.node_id: node for node in others}

    def kill_in_training() -> None:
        """Kill a node other than the head as soon as a job trains on it."""
        while "killed" not in told:
            time.sleep(0.05)
            for beat in base.glob("nodes/logs/*/*.json"):
                with suppress(OSError):
                    seen = json.loads(beat.read_text())
                    stage, _, far = seen["note"].partition(" ")
                    if seen["node"] not in by_id or stage != "training" or "killed" in told:
                        continue
                    done, total = map(int, far.split("/"))
                    if done < 0.7 * total:
                        told["killed"] = f"toy/{beat.stem}"
                        kill_node(cluster, by_id[seen["node"]])

    threading.Thread(target=kill_in_training, daemon=True).start()
    settings = make_settings(model, data, base / "nodes", on=cluster.address, patience=60)
    made = reproduce(settings, tick=lambda *tick: notes.append(tick[3]))
    pass_by("reproduced")
    told["made"] = made.outcome.made
    told["failed"] = made.outcome.failed
    told["notes"] = notes
    (run,) = (base / "nodes").glob("runs/toy/*spe-34")
    ask(base, run, "nodes", on=cluster.address)
    pass_by("asked")
    told["own"] = work_on_own_disks(base, cluster.address)
    pass_by("own disks")
    told["odd"] = run_odd(base / "odd", cluster.address)
    told["stopped"] = stop_in_work(base / "stopped", cluster.address)
    pass_by("odd jobs")
    ray.shutdown()
    told["unseen"] = refuse_unseen(base / "unseen", cluster.address)
    cluster.shutdown()
    pass_by("all")
    (base / "told.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main()
