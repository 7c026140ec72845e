"""The job list: one run folder to be made for each method, model and seed, in a folder of them."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from symprompt.cluster.executor import Event, Executor, make_executor
from symprompt.config import flatten
from symprompt.errors import ConfigError, RunError, SympromptError
from symprompt.files.atomic import read_json, write_file, write_json
from symprompt.files.progress import Tick, silent
from symprompt.models import SHIPPED
from symprompt.models.loading import Source, find_model, fingerprint
from symprompt.probing import results as facts_results
from symprompt.probing.config import RunConfig
from symprompt.report.pages import Page
from symprompt.runs.folder import CONFIG, JOBS, LOCK, MANIFEST, Folder, Manifest
from symprompt.tasks import predict as tasks
from symprompt.tasks.config import PatternRunConfig, TuneConfig

try:
    import fcntl
except ImportError:  # no such locks on Windows; runs are still written atomically there
    fcntl = None  # type: ignore[assignment]

_SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
Config = RunConfig | TuneConfig | PatternRunConfig
AnySettings = TypeVar("AnySettings")
WORKER = "symprompt.papers.worker"
TIMES = "times.json"
_STATES_SECONDS = 2.0


@dataclass(frozen=True)
class Model:
    """A model of the tables: what it is called, where it is, and what its weights are."""

    name: str
    place: str
    source: Source = field(compare=False)
    fingerprint: str


@dataclass(frozen=True)
class Job:
    """One run folder to be made; final.

    Attributes:
        model: the model's name.
        row: the row of the tables that the run is for.
        source: a job that is made first, whose learned prompts this one queries again.
        tasks: the labelled task, or the tasks of a mixture.
        pattern: the name of the manual pattern, for runs that have one.
        full: trained on the whole training set, not on 32 examples.
    """

    model: str
    row: str
    config: Config
    source: Job | None = None
    tasks: tuple[str, ...] = ()
    pattern: str = ""
    full: bool = True

    @property
    def name(self) -> str:
        """The job's name: its model and its folder."""
        return f"{self.model}/{Path(self.config.out).name}"

    @property
    def command(self) -> Literal["train", "tune", "patterns"]:
        """What makes the run: ``train``, or ``tune`` with a head or through patterns."""
        if isinstance(self.config, RunConfig):
            return "train"
        return "tune" if isinstance(self.config, TuneConfig) else "patterns"

    @property
    def inputs(self) -> tuple[str, ...]:
        """The files and folders that it reads: what its config names, and the run before it."""
        named = [self.source.config.out] if self.source else []
        for key, value in flatten(self.config).items():
            for text in value if isinstance(value, tuple) else (value,):
                # An entry may be NAME=PLACE.
                for place in (text, text.partition("=")[2]) if isinstance(text, str) else ():
                    if place and key != "out" and os.path.exists(place):
                        named.append(place)
        return tuple(dict.fromkeys(named))

    @property
    def finished(self) -> bool:
        """Whether there is nothing left to make; a run through a pattern has all its seeds."""
        folder, config = Folder(self.config.out), self.config
        if not folder.finished or not isinstance(config, PatternRunConfig):
            return folder.finished
        wanted = config.seeds[:1] if config.pattern.method == "zero-shot" else config.seeds
        return folder.manifest.seeds == wanted

    def check_same(self) -> None:
        """Refuse a run folder that was made with another config; seeds may be added to patterns.

        Raises:
            RunError: naming the first key that differs.
        """
        folder = Folder(self.config.out)
        if folder.has(CONFIG):
            command = "train" if self.command == "train" else tasks.COMMAND
            folder.check(command, self.config, resume=True)


def load_metrics(config: Config) -> dict[str, Any]:
    """Return what a finished run states, and its figures."""
    of_facts = isinstance(config, RunConfig)
    load = facts_results.load_metrics if of_facts else tasks.load_metrics
    return load(Folder(config.out))


@dataclass(frozen=True)
class Plan(Generic[AnySettings]):
    """All jobs in the order in which they are begun, and what is not measured; final.

    Attributes:
        out: the folder of runs, tables and figures.
        about: what the folder will state about itself; its details are the settings that every run
            depends on.
        missing: row ("model/row") or task that has no runs -> why.
        inputs: files that some of the runs read.

    Raises:
        RunError: the folder or a run in it was made with other settings.
    """

    out: str
    settings: AnySettings
    models: tuple[Model, ...]
    jobs: tuple[Job, ...]
    about: Manifest
    missing: dict[str, str] = field(default_factory=dict)
    inputs: dict[Path, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._check()

    def of_row(self, model: str, row: str) -> tuple[Job, ...]:
        """Return the jobs of one row for one model, a job per seed."""
        return tuple(job for job in self.jobs if (job.model, job.row) == (model, row))

    def begin(self) -> Folder:
        """Begin the folder's manifest and write the jobs' inputs, the folder being held.

        Raises:
            RunError: the folder was made with other settings since the plan was made.
        """
        folder = Folder(self.out)
        models = self._check() | self._about_models()
        details = self.about.details | {"models": models}
        folder.start(None, self.about.model_copy(update={"details": details}))
        for path, content in self.inputs.items():
            if not path.is_file() or path.read_bytes() != content:
                write_file(path, content)
        return folder

    def _about_models(self) -> dict[str, dict[str, str]]:
        return {
            model.name: {"place": model.place, "fingerprint": model.fingerprint}
            for model in self.models
        }

    def _check(self) -> dict[str, dict[str, str]]:
        """Refuse a folder that was made otherwise; return the models that it has already."""
        folder = Folder(self.out)
        if folder.has(CONFIG):
            raise RunError(f"{self.out} holds another command's run; choose another --out.")
        folder.check(self.about.command, None, resume=True)
        stored = folder.manifest.details if folder.has(MANIFEST) else {}
        for key, value in self.about.details.items():
            if stored and stored.get(key) != value:
                raise RunError(
                    f"{self.out} was made with another value of {key} "
                    f"({_shown(stored.get(key))}, now {_shown(value)}); give the same, or "
                    "choose another --out."
                )
        models: dict[str, dict[str, str]] = stored.get("models", {})
        for name, about in self._about_models().items():
            if models.get(name, about) != about:
                raise RunError(
                    f"{self.out} was made with another model of the name {name} "
                    f"({models[name]['place']}, or its weights have changed); give it another "
                    f"name, as in --models other={about['place']}, or choose another --out."
                )
        for job in self.jobs:
            job.check_same()
        return models


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "all"
    return str(value)[:60] or '""'


@contextmanager
def hold_folder(folder: Path, *, patience: float = 10.0) -> Iterator[int | None]:
    """Hold a folder while the block runs; yields what workers inherit so that they hold it too.

    Args:
        patience: seconds to wait for the workers of a killed process, which end by themselves.

    Raises:
        RunError: another process holds the folder, or it cannot be written to.
    """
    if fcntl is None:
        yield None
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        stream = (folder / LOCK).open("w")
    except OSError as error:
        raise RunError(f"cannot write to {folder}: {error.strerror or error}.") from error
    with stream:
        until = time.monotonic() + patience
        while True:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if time.monotonic() > until:
                    raise RunError(
                        f"another process is at work in {folder}; wait for it, or choose another "
                        "--out."
                    ) from None
                time.sleep(0.05)
        yield stream.fileno()


def find_models(names: tuple[str, ...]) -> tuple[Model, ...]:
    """Look for models; one is called after its folder unless NAME=PLACE says otherwise.

    Raises:
        SympromptError: a name is not allowed or used twice, or there is no such model.
    """
    named: dict[str, str] = {}
    for text in names:
        name, given, place = text.partition("=")
        if not given:
            place = text
            name = SHIPPED if text == SHIPPED else Path(text).name.removesuffix(".gguf")
        if not _SAFE.fullmatch(name) or not place:
            raise ConfigError(
                f"--models has {text!r}; give a folder, hub name or GGUF file, or NAME=PLACE with "
                "a name of letters, digits, dots, dashes and underscores."
            )
        if name in named:
            raise ConfigError(
                f"--models has two models of the name {name} ({named[name]} and {place}); call one "
                f"otherwise, as in --models {name},other={place}."
            )
        named[name] = place
    sources = {name: find_model(place) for name, place in named.items()}
    return tuple(
        Model(name, named[name], source, fingerprint(source)) for name, source in sources.items()
    )


@dataclass
class Outcome:
    """How the jobs of a plan ended.

    Attributes:
        failed: job -> why.
        made: job -> seconds, device and peak memory, of those made by this call.
        skipped: jobs that were there from before.
    """

    failed: dict[str, str] = field(default_factory=dict)
    made: dict[str, dict[str, Any]] = field(default_factory=dict)
    skipped: tuple[str, ...] = ()

    def require_some(self, there: bool) -> None:
        """Refuse an outcome without a finished run.

        Raises:
            SympromptError: naming the first that failed.
        """
        if not there:
            whys = [f"{job}: {why}" for job, why in self.failed.items()]
            first = f"the first of {len(whys)} that failed is {whys[0]}" if whys else "none began."
            raise SympromptError(f"no run of the tables came to its end; {first}")


def run_plan(
    plan: Plan[Any],
    make_page: Callable[[Outcome], Page],
    *,
    executor: Executor | None,
    tick: Tick,
) -> tuple[Outcome, list[Path]]:
    """Make the runs of a plan that are missing, then write the page of all; return its files.

    Args:
        executor: where jobs run; where the settings say if it is None.
    """
    executor = executor or make_executor(plan.out, plan.settings, WORKER)
    with hold_folder(Path(plan.out)) as executor.held:
        folder = plan.begin()
        outcome = run_jobs(plan, executor, tick=tick)
        tick("tables", 0, 1, "")
        page = make_page(outcome)
        files = page.write(folder.path)
        folder.finish(records=page.records)
        tick("tables", 1, 1, "")
    return outcome, files


def load_times(out: Path) -> dict[str, Any]:
    """Return how long each run in a folder took, and how much memory, as far as it is known."""
    return dict(read_json(out / TIMES)) if (out / TIMES).is_file() else {}


class _States:
    """What becomes of jobs, in files that ``symprompt runs`` and ``--dry-run`` read."""

    def __init__(self, jobs: Sequence[Job], out: Path) -> None:
        self._path, self._written, self._times = out / JOBS, 0.0, out / TIMES
        self._runs = {job.name: os.path.relpath(job.config.out, out) for job in jobs}
        self._states = dict.fromkeys(self._runs, "waiting")
        self._write()

    def take(self, event: Event) -> None:
        """Take what is told of a job."""
        before = self._states.pop(event.job, "")
        if event.kind == "done":
            write_json(self._times, load_times(self._times.parent) | {event.job: event.about})
        else:
            kind = "running" if event.kind == "progress" else "failed"
            self._states[event.job] = f"{kind}: {event.note}"
        goes_on = event.kind == "progress" and before.startswith("running")
        if not goes_on or time.monotonic() - self._written > _STATES_SECONDS:
            self._write()

    def _write(self) -> None:
        self._written = time.monotonic()
        found = {self._runs[job]: state for job, state in self._states.items()}
        if found:
            write_json(self._path, found)
        else:
            self._path.unlink(missing_ok=True)


def run_jobs(plan: Plan[Any], executor: Executor, *, tick: Tick = silent) -> Outcome:
    """Run every job of a plan that is not finished; return how all ended.

    Args:
        tick: is called with the number of jobs that have ended, and what is being made.
    """
    todo = [job for job in plan.jobs if not job.finished]
    outcome = Outcome(skipped=tuple(job.name for job in plan.jobs if job not in todo))
    total, done = len(plan.jobs), len(outcome.skipped)
    tick("runs", done, total, f"{done} there from before" if done else "")
    if not todo:
        return outcome
    states = _States(todo, Path(plan.out))
    with closing(executor.run(todo)) as events:
        for event in events:
            states.take(event)
            if event.kind == "failed":
                outcome.failed[event.job] = event.note
            elif event.kind == "done":
                outcome.made[event.job] = dict(event.about)
            done += event.kind != "progress"
            shown = event.note if event.kind == "progress" else event.kind
            tick("runs", done, total, f"{event.job}: {shown}")
    return outcome
