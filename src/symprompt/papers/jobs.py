"""The job list: one run folder to be made for each method, model and seed."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from symprompt.errors import ConfigError, SympromptError
from symprompt.files.atomic import write_file, write_json
from symprompt.models import SHIPPED
from symprompt.models.loading import Source, find_model, fingerprint
from symprompt.papers import records
from symprompt.papers.folder import RECORD, merge_record
from symprompt.papers.recipes import Config
from symprompt.probing.config import RunConfig
from symprompt.tasks.config import TuneConfig

_SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
AnySettings = TypeVar("AnySettings")


@dataclass(frozen=True)
class Model:
    """A model of the tables: what it is called, where it is, and whether it is causal."""

    name: str
    place: str
    causal: bool


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
    def finished(self) -> bool:
        """Whether there is nothing left to make."""
        return records.finished(self.config)

    @property
    def begun(self) -> bool:
        """Whether a folder is there."""
        return records.begun(self.config)


@dataclass(frozen=True)
class Plan(Generic[AnySettings]):
    """All jobs in the order in which they are begun, and what is not measured; final.

    Attributes:
        out: the folder of runs, tables and figures.
        missing: row ("model/row") or task that has no runs -> why.
        record: what the folder is about.
        inputs: files that some of the runs read.
    """

    out: str
    settings: AnySettings
    models: tuple[Model, ...]
    jobs: tuple[Job, ...]
    missing: dict[str, str]
    record: dict[str, Any]
    inputs: dict[Path, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for job in self.jobs:
            records.check_same(job.config)

    def of_row(self, model: str, row: str) -> tuple[Job, ...]:
        """Return the jobs of one row for one model, a job per seed."""
        return tuple(job for job in self.jobs if (job.model, job.row) == (model, row))

    def write(self) -> None:
        """Write the folder's record and the jobs' inputs, the folder being held.

        Raises:
            RunError: the folder was made with other settings since the plan was made.
        """
        kept = {key: value for key, value in self.record.items() if key != "models"}
        record = merge_record(self.out, kept, self.record["models"])
        for job in self.jobs:
            records.check_same(job.config)
        write_json(Path(self.out) / RECORD, record)
        for path, content in self.inputs.items():
            if not path.is_file() or path.read_bytes() != content:
                write_file(path, content)


def find_models(
    names: tuple[str, ...],
) -> tuple[tuple[Model, ...], dict[str, Source], dict[str, dict[str, str]]]:
    """Look for models; return them, their sources by name, and what a folder's record keeps.

    Raises:
        SympromptError: a name is not allowed or used twice, or there is no such model.
    """
    named = name_models(names)
    sources = {name: find_model(place) for name, place in named.items()}
    models = tuple(Model(name, named[name], source.causal) for name, source in sources.items())
    about = {
        name: {"place": named[name], "fingerprint": fingerprint(source)}
        for name, source in sources.items()
    }
    return models, sources, about


def name_models(models: tuple[str, ...]) -> dict[str, str]:
    """Return name -> place; a model is called after its folder unless NAME=PLACE says otherwise."""
    named: dict[str, str] = {}
    for text in models:
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
    return named


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
