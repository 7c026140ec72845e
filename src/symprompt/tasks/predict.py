"""What a run on a labelled task stores, read back: its card, seeds, figures; and predict with it.

A run stores a prompt and its head, or what answers through a pattern.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NotRequired, TypeVar

import numpy as np
from pydantic import with_config
from torch import Tensor
from typing_extensions import TypedDict

from symprompt.config import build, override
from symprompt.errors import ConfigError, DataError, RunError, TemplateError
from symprompt.files.atomic import to_json_lines, write_file
from symprompt.files.progress import Tick, silent
from symprompt.files.reading import TABLES, GivenRows, Row, Source, source_of
from symprompt.files.stream import Bad, Block, Format, Made, Reader, Shard, Streamed, stream
from symprompt.models import LanguageModel, Prefix
from symprompt.runs.folder import CONFIG, MANIFEST, Folder
from symprompt.tasks.config import (
    PatternConfig,
    PatternRunConfig,
    TuneConfig,
    load_pattern_config,
)
from symprompt.tasks.data.examples import CUT, Example, LabelSet, TextExample
from symprompt.tasks.data.load import check_kind, load_examples
from symprompt.tasks.features import Features, Sheet, takes_types
from symprompt.tasks.kinds import KINDS, Kind, Target
from symprompt.tasks.kinds.classes import ClassPrediction
from symprompt.tasks.patterns.data import VerbalData, VerbalExample, load_verbal_file
from symprompt.tasks.patterns.data import columns_of as verbal_columns
from symprompt.tasks.patterns.model import VerbalModel, VerbalProblem
from symprompt.tasks.patterns.pattern import VerbalTask, find_task
from symprompt.tasks.prepare import columns_of
from symprompt.tasks.tables import run_summary
from symprompt.tasks.trainables import (
    TRAINABLES,
    Outcome,
    TaskModel,
    ask,
    check_backbone,
    figures,
    make_task_head,
    round_shares,
)

T = TypeVar("T")
_FILE = "file"
_BLOCKS = "blocks"
_COLUMNS: dict[str, type] = {
    "id": str,
    "text": str,
    "prediction": str,
    "probability": float,
    "gold": str,
}
_HALF = {"float32": False, "bfloat16": True}
COMMAND = "tune"
CARD = "card.json"
PROMPT = "prompt.safetensors"
WEIGHTS = "weights.safetensors"


@with_config(extra="allow")
class Card(TypedDict):
    """What a stored prompt is: enough to use it on new inputs without the run's config."""

    format: int
    method: str
    task: str
    kind: str
    labels: list[str]
    columns: list[str]
    base_model: str
    base_model_fingerprint: str
    file: str
    trainable_parameters: int
    features: dict[str, Any]
    prefix: dict[str, Any]
    lora: dict[str, Any]
    weights: dict[str, Any]
    head: dict[str, Any]
    span: dict[str, Any]
    relations: list[str]
    metrics: NotRequired[dict[str, dict[str, float]]]
    threshold: NotRequired[float | None]


class DevScore(TypedDict):
    """How a seed did on dev, which chooses."""

    accuracy: float
    loss: float


@with_config(extra="allow")
class SeedOutcome(TypedDict):
    """What came of a seed of a run through a pattern."""

    seed: int
    val: dict[str, float]
    dev: DevScore


def open_task(path: str | Path) -> Folder:
    """Return the folder of a finished run on one labelled task.

    Raises:
        RunError: there is none; the message names what to do.
    """
    folder = Folder(path)
    folder.require_finished(COMMAND)
    if not folder.has(CARD):
        raise RunError(
            f"{folder.path} has no {CARD}, so it is no run on one labelled task; give a folder "
            "made by tune, or one of the folders of tasks in it."
        )
    return folder


def load_metrics(folder: Folder) -> dict[str, Any]:
    """Return what a finished run states and its figures.

    Those of a mixture are each task's; those of a run through a pattern are, per metric, the mean,
    deviation and values of its seeds.

    Raises:
        RunError: the run is damaged.
    """
    manifest = folder.manifest
    kept = ("method", "model", "model_fingerprint", "device", "dtype", "versions", "seconds")
    found = {
        "task": manifest.data,
        **{key: getattr(manifest, key) for key in kept},
        **manifest.details,
    }
    if "tasks" in found:
        inner = {name: load_metrics(Folder(folder.path / name)) for name in found["tasks"]}
        return found | {"seed": manifest.seeds[0], "splits": {}, "tasks": inner}
    by_seed: dict[str, dict[int, dict[str, float]]] = {}
    for record in manifest.records:
        seed = record.seeds[0] if record.seeds else manifest.seeds[0]
        by_seed.setdefault(record.split, {}).setdefault(seed, {})[record.metric] = record.value
    if "pattern" not in found:
        splits = {split: next(iter(own.values())) for split, own in by_seed.items()}
        return found | {"seed": manifest.seeds[0], "splits": splits}
    return found | {
        "seeds": list(manifest.seeds),
        "metrics": summarise_seeds(list(by_seed[found["split"]].values())),
        "dev": summarise_seeds(list(by_seed["dev"].values())),
        "seconds": manifest.seconds["training"],
    }


def summarise_seeds(rows: Sequence[Mapping[str, float]]) -> dict[str, dict[str, Any]]:
    """Return per metric the mean over seeds, the deviation (of a sample) and the values."""
    found = {}
    for name in rows[0]:
        values = [float(row[name]) for row in rows]
        deviation = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
        found[name] = {
            "value": round(float(np.mean(values)), 3),
            "deviation": round(deviation, 3),
            "values": [round(value, 3) for value in values],
        }
    return found


def best_seed(folder: Folder) -> int:
    """Return the seed that did best on dev: the highest accuracy, then the lowest loss."""
    if not folder.manifest.seeds:
        raise RunError(f"{folder.path / MANIFEST} is damaged: seeds is missing.")
    return max(
        folder.manifest.seeds,
        key=lambda seed: on_dev(folder.load(seed_file(seed), SeedOutcome)["dev"]),
    )


def on_dev(found: Mapping[str, Any]) -> tuple[float, float]:
    """Return how good an evaluation of dev is: the higher, the better."""
    return float(found["accuracy"]), -float(found["loss"])


def seed_file(seed: int) -> str:
    """Return where what came of a seed is stored."""
    return f"seeds/{seed}.json"


def prompt_file(seed: int) -> str:
    """Return where a seed's vectors or prefix are stored."""
    return f"prompts/{seed}.safetensors"


# ------------------------------------------------------------------------------ predictions


class TaskRun:
    """A finished run on a labelled task: its figures, and predictions by what it learned; final.

    Example:
        >>> run = TaskRun.load("runs/tickets")
        >>> found = run.predict(["My invoice is wrong."], probabilities=True)
        >>> sorted(found.rows[0]["probabilities"])
        ['billing', 'delivery', 'praise', 'technical']
    """

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self._ready: dict[tuple[str, ...], Any] = {}

    def __repr__(self) -> str:
        return f"TaskRun({str(self.folder.path)!r}, {self.folder.about})"

    def _repr_html_(self) -> str:
        return run_summary(self.metrics).to_html()

    @classmethod
    def load(cls, path: str | Path) -> TaskRun:
        """Open a finished run folder; the model is loaded when it is asked to predict."""
        folder = Folder(path)
        folder.require_finished(COMMAND)
        return cls(folder)

    @cached_property
    def metrics(self) -> dict[str, Any]:
        """What the run states, and its figures."""
        return load_metrics(self.folder)

    @cached_property
    def stored(self) -> StoredPrompt | StoredPattern:
        """What the run has learned."""
        if self.folder.has(CONFIG) and "pattern.task" in self.folder.config_keys():
            return StoredPattern.load(self.folder)
        return StoredPrompt.load(self.folder.path)

    def predict(
        self,
        given: Path | Iterable[object],
        *,
        columns: Sequence[str] | Mapping[str, str] = (),
        model: str = "",
        device: str = "auto",
        dtype: str = "auto",
        max_tokens: int = 0,
        probabilities: bool = False,
        out: str = "",
        overwrite: bool = False,
        tick: Tick = silent,
    ) -> Outcome:
        """Return what the run predicts for examples, in their order.

        Of a run through a pattern the seed that did best on dev answers; WSC's rows have what the
        model wrote instead of a probability.

        Args:
            given: texts, pairs of texts, lists of words, questions with their contexts, or
                dictionaries by column, with labels if there are; or the path of a file.
            columns: what the file or the dictionaries call their columns, as {"text": "ticket"} or
                ("text=ticket",), where it is not as in training.
            model: where the model is now, if not where the run was made.
            dtype: auto, float32 or bfloat16, of the passes.
            probabilities: give those of all classes too.
            out: file of JSON lines to write.
            overwrite: write it even if it is there.

        Returns:
            One row for each example; figures too if every example has its label.

        Raises:
            SympromptError: the run, an example or the model cannot be used; a prompt for another
                model.
        """
        stored = self.stored
        if out and not overwrite and Path(out).exists():
            raise ConfigError(f"{out} exists; choose another --out, or give --overwrite.")
        self._check_probabilities(probabilities)
        if isinstance(columns, Mapping):
            columns = [f"{role}={column}" for role, column in columns.items()]
        examples = stored.read(given, columns)
        outcome = stored.ask(
            self.load_model(model, device, dtype, tick),
            examples,
            max_tokens=max_tokens,
            probabilities=probabilities,
            tick=tick,
        )
        rows = _with_texts(outcome, examples)
        if out:
            write_file(Path(out), to_json_lines(rows))
        return replace(outcome, rows=rows)

    def load_model(
        self, model: str = "", device: str = "auto", dtype: str = "auto", tick: Tick = silent
    ) -> Any:
        """Load what predicts, once; see ``predict``."""
        key = (model, device, dtype)
        if key not in self._ready:
            self._ready[key] = self.stored.prepare(model, device=device, dtype=dtype, tick=tick)
        return self._ready[key]

    def predict_stream(
        self,
        file: str | Path,
        out: str | Path,
        *,
        columns: Sequence[str] = (),
        model: str = "",
        device: str = "auto",
        dtype: str = "auto",
        max_tokens: int = 0,
        probabilities: bool = False,
        overwrite: bool = False,
        shard: Shard | None = None,
        tick: Tick = silent,
    ) -> tuple[Streamed, Outcome]:
        """Write what the run predicts for a file's examples, in constant memory.

        Killed at any moment, the same call goes on where it was. Rows that are no examples are
        listed by line beside the file. See ``predict``, ``streams``.

        Args:
            out: a .csv or .parquet file, or one of JSON lines.
            shard: predict for these examples of the file alone, and write a piece.

        Returns:
            What was written; and figures where every example has its label, without rows. Of tags,
            spans, answers and patterns there are figures of no more than a block of rows.
        """
        reader, roles = self.reader(file, columns, probabilities=probabilities), list(columns)
        ready = self.load_model(model, device, dtype, tick)
        predictor = _Predictor(self.stored, ready, str(file), roles, max_tokens, probabilities)
        about = {
            "command": "predict",
            "run": self.folder.digest,
            "columns": roles,
            "device": self.stored.backbone(ready).device.type,
            "dtype": dtype,
            "max_tokens": max_tokens,
            "probabilities": probabilities,
        }
        done = stream(
            reader,
            Path(out),
            predictor.start,
            form=prediction_format(probabilities),
            about=about,
            overwrite=overwrite,
            shard=shard,
            stage="predicting",
            tick=tick,
        )
        metrics = predictor.metrics(done) or tallied_figures(self.stored, done.tally)
        return done, Outcome(metrics, [], tuple(predictor.notes))

    def streams(self, file: str | Path) -> bool:
        """Return whether a file's examples stand in rows or lines, so that it can be streamed."""
        suffix = Path(file).suffix.lower()
        return suffix in TABLES or (suffix == ".txt" and self.stored.inputs == ("text",))

    def reader(
        self, file: str | Path, columns: Sequence[str], *, probabilities: bool = False
    ) -> Reader:
        """Return what reads a file's examples block by block; see ``predict_stream``."""
        self._check_probabilities(probabilities)
        stored, header = self.stored, True
        if isinstance(stored, StoredPrompt):
            header = not columns_of([*stored.card["columns"], *columns]).numbered
        return Reader(Path(file), lines_as="text", any_case=False, header=header)

    def _check_probabilities(self, wanted: bool) -> None:
        if wanted and not self.stored.classes:
            raise ConfigError(
                f"{self.folder.path} predicts no classes, so there are no probabilities of all of "
                "them; leave --probabilities out."
            )


class _Predictor:
    """Predicts block by block; what is computed depends on the block alone."""

    def __init__(
        self,
        stored: StoredPrompt | StoredPattern,
        ready: Any,
        name: str,
        columns: Sequence[str],
        max_tokens: int,
        probabilities: bool,
    ) -> None:
        self.stored, self.ready, self.name, self.columns = stored, ready, name, columns
        self.options: Any = {"max_tokens": max_tokens, "probabilities": probabilities}
        self.notes: dict[str, None] = {}
        self.whole: list[Outcome] = []

    def start(self, block: Block) -> Callable[[], Made]:
        """Begin a block."""
        bad: list[Bad] = []
        read = _by_halves(block.rows, self._read, bad)
        asked = list(_by_halves([own for found in read for own in found], self._ask, bad))
        rows = [row for outcome, examples in asked for row in _with_texts(outcome, examples)]
        self.whole = [outcome for outcome, _ in asked]
        for outcome in self.whole:
            self.notes |= dict.fromkeys(outcome.notes)
        tally = Counter({_BLOCKS: 1})
        if isinstance(self.stored, StoredPrompt) and self.stored.kind.closed:
            tally.update(json.dumps([row.get("gold"), row["prediction"]]) for row in rows)
        return lambda: Made(rows, bad, tally)

    def _read(self, rows: Sequence[tuple[int, Row]]) -> list[tuple[int, Any]]:
        """Return examples with their lines."""
        lines = [line for line, _ in rows]
        given = GivenRows([row for _, row in rows], lines, self.name)
        examples = self.stored.read(given, self.columns)
        if len(examples) != len(rows):
            lines = lines[:1] * len(examples)
        return list(zip(lines, examples, strict=True))

    def _ask(self, lined: Sequence[tuple[int, Any]]) -> tuple[Outcome, list[Any]]:
        """Return what is predicted for examples, and these."""
        examples = [example for _, example in lined]
        return self.stored.ask(self.ready, examples, tick=silent, **self.options), examples

    def metrics(self, done: Streamed) -> dict[str, float]:
        """Return the figures of a file of one block."""
        alone = len(self.whole) == done.tally.get(_BLOCKS) == 1
        return dict(self.whole[0].metrics) if alone else {}


def _by_halves(
    lined: Sequence[tuple[int, Any]],
    work: Callable[[Sequence[tuple[int, Any]]], T],
    bad: list[Bad],
) -> Iterator[T]:
    """Yield what is made of some lines, all at once or, where one is refused, by halves.

    Args:
        bad: takes each line that is refused, and why.
    """
    if not lined:
        return
    try:
        made = work(lined)
    except DataError as error:
        if len(lined) == 1:
            bad.append((lined[0][0], str(error)))
            return
        half = len(lined) // 2
        yield from _by_halves(lined[:half], work, bad)
        yield from _by_halves(lined[half:], work, bad)
        return
    yield made


def _with_texts(outcome: Outcome, examples: Sequence[Any]) -> list[dict[str, Any]]:
    """Return the rows of predictions with what was asked about."""
    return [
        {"id": row["id"], "text": example.text, **row}
        for row, example in zip(outcome.rows, examples, strict=True)
    ]


def prediction_format(probabilities: bool) -> Format:
    """Return how predictions are written."""
    return Format(_COLUMNS | ({"probabilities": str} if probabilities else {}))


def tallied_figures(
    stored: StoredPrompt | StoredPattern, tally: Mapping[str, int]
) -> dict[str, float]:
    """Return the figures of counted pairs of gold and predicted classes, if all have a gold."""
    counts = {name: count for name, count in tally.items() if name != _BLOCKS}
    pairs = [(*json.loads(name), count) for name, count in counts.items()]
    if not pairs or any(gold is None for gold, _, _ in pairs):
        return {}
    assert isinstance(stored, StoredPrompt)
    gold = [own for name, _, n in pairs for own in [TextExample("", (), name)] * n]
    found = [own for _, name, n in pairs for own in [ClassPrediction(name, 0.0, ())] * n]
    return figures(stored.kind, gold, found)


def predict_file(run: str | Path, file: str | Path, **options: Any) -> Outcome:
    """Return what a run of tune predicts for the examples of a file, in their order.

    Args:
        options: as ``TaskRun.predict`` takes them: columns, model, device, dtype, max_tokens,
            probabilities, out, overwrite.

    Raises:
        SympromptError: the run, the file or the model cannot be used; a prompt for another model.

    Example:
        >>> found = predict_file("runs/tickets", "tickets.csv")
        >>> len(found.rows)
        200
    """
    return TaskRun.load(run).predict(Path(file), **options)


# ------------------------------------------------------------------------------ prompts and heads


@dataclass(frozen=True, eq=False)
class StoredPrompt:
    """A prompt file and its card: what a task needs besides the model; final.

    Attributes:
        path: the folder it was read from.
        card: what the prompt is.
        config: how what is trained and its head are made.
        tensors: its parameters.

    Example:
        >>> StoredPrompt.load("runs/tickets").task
        'tickets'
    """

    path: str
    card: Card
    config: TuneConfig
    tensors: dict[str, Tensor]

    @classmethod
    def load(cls, path: str | Path) -> StoredPrompt:
        """Read the prompt of a finished run.

        Raises:
            RunError: there is none, or it is damaged.
        """
        folder = open_task(path)
        card = folder.load(CARD, Card)
        try:
            method = "pt2" if card["method"] == "mpt2" else card["method"]
            tables = ("prefix", "lora", "head", "weights", "span")
            own = {key: value for key, value in card.items() if key in tables}
            # Runs before there was a choice had segments of every model that reads them.
            features = {"segments": "on"} | card["features"]
            config = build(TuneConfig, {"method": method, "task": features, **own})
            check_kind(card["kind"])
        except ConfigError as error:
            raise RunError(f"{folder.path / CARD} is damaged: {error}") from error
        tensors, _ = folder.read_tensors(card["file"])
        # A network that made a prefix is not stored, only what it gave.
        plain = replace(config, prefix=replace(config.prefix, encoder="free"))
        return cls(str(path), card, plain, tensors)

    @property
    def task(self) -> str:
        """The task's name."""
        return str(self.card["task"])

    @property
    def kind(self) -> Kind[Any, Any]:
        """The kind of task."""
        return KINDS[self.card["kind"]]

    @property
    def inputs(self) -> tuple[str, ...]:
        """The roles of what is asked about, in order."""
        return self.kind.inputs

    @property
    def classes(self) -> tuple[str, ...]:
        """The classes that have probabilities; none for tags, answers and spans."""
        return self.target.labels.names if self.kind.closed else ()

    @property
    def target(self) -> Target:
        """The labels that its head scores, and how."""
        return Target(
            LabelSet(tuple(self.card["labels"])),
            LabelSet(tuple(self.card["relations"])),
            self.config.head,
            self.config.span,
            every_token=self.config.task.label_all_tokens,
        )

    def prefix(self) -> Prefix:
        """Return the keys and values, for a pass of one's own or for ``write_peft``.

        Raises:
            RunError: the run learned something else.
        """
        states = self.tensors.get("prompt.prefix")
        if states is None:
            raise RunError(
                f"{self.path} was trained by {self.card['method']}, which learns no prefix; give a "
                "run of pt2 or mpt2."
            )
        config = self.config.prefix
        return Prefix(states[None], shift_positions=config.shift_positions, layers=config.layers)

    def model(self, backbone: LanguageModel) -> TaskModel:
        """Return the model with this prompt and head in place.

        Raises:
            RunError: the prompt is for another model.
        """
        card = self.card
        check_backbone(card["base_model"], card["base_model_fingerprint"], backbone, self.path)
        trained = TRAINABLES[self.config.method](backbone, self.config)
        head = make_task_head(self.kind, self.target, trained.backbone, seed=())
        model = TaskModel(trained, {self.task: head})
        model.load(self.task, self.tensors)
        return model

    def read(self, given: Source | Iterable[object], columns: Sequence[str]) -> Sequence[Any]:
        """Return examples of a file, or of what ``TaskRun.predict`` takes.

        Args:
            columns: role=column pairs, where they are not as in training.
        """
        roles = columns_of([*self.card["columns"], *columns])
        listed = given if isinstance(given, list | tuple) else ()
        if listed and all(isinstance(one, Example) for one in listed):
            return listed
        return load_examples(
            source_of(given, [getattr(roles, name) for name in self.inputs]),
            self.card["kind"],
            columns=roles,
            labels=self.target.labels,
        )

    def prepare(self, model: str, *, device: str, dtype: str, tick: Tick = silent) -> TaskModel:
        """Load the model, wherever it is now, and put this prompt and head in place."""
        own = replace(self, config=override(self.config, dtype=dtype))
        kept = TRAINABLES[own.config.method].dtype or dtype
        name = model or self.card["base_model"]
        return own.model(LanguageModel.load(name, device=device, dtype=kept, tick=tick))

    def backbone(self, model: TaskModel) -> LanguageModel:
        """Return the language model of what ``prepare`` returned."""
        return model.tuned.backbone

    def ask(
        self,
        model: TaskModel,
        examples: Sequence[Example],
        *,
        max_tokens: int,
        probabilities: bool,
        tick: Tick,
    ) -> Outcome:
        """Return what is predicted for examples."""
        features = self.tensorise(examples, model.tuned.backbone)
        scores = ask(
            model,
            self.task,
            self.kind,
            features,
            features.batch(model.tuned.backbone.device),
            max_tokens=max_tokens,
            tick=tick,
            stage="predicting",
        )
        return self.predict(examples, features, scores, probabilities=probabilities)

    def tensorise(self, examples: Sequence[Example], backbone: LanguageModel) -> Features:
        """Return examples as rows, as the prompt was trained on them."""
        task = self.config.task
        types = takes_types(backbone, task.segments)
        sheet = Sheet.make(
            backbone.vocabulary, max_length=task.max_length, stride=task.stride, types=types
        )
        return self.kind.tensorise(examples, sheet, self.target)

    def predict(
        self,
        examples: Sequence[Example],
        features: Features,
        scores: Tensor,
        *,
        probabilities: bool = False,
    ) -> Outcome:
        """Return predictions from the scores of rows; figures too where every label is known."""
        kind, threshold = self.kind, self.card.get("threshold")
        predictions = kind.decode(
            scores.numpy(), features, examples, self.target, threshold=threshold
        )
        labelled = all(map(kind.is_labelled, examples))
        metrics = figures(kind, examples, predictions) if labelled else {}
        notes = [f"{CUT}: {features.cut}"] if features.cut else []
        known = {*self.target.labels.names, *self.target.relations.names}
        missed = Counter(name for entry in examples for name in entry.labels if name not in known)
        if missed:
            listed = ", ".join(f"{label!r} ({count})" for label, count in missed.most_common(5))
            more = f" and {len(missed) - 5} more" if len(missed) > 5 else ""
            notes.append(f"labels that training does not have, counted as missed: {listed}{more}")
        rows = list(map(kind.row, examples, predictions))
        for row, own in zip(rows, predictions if probabilities else (), strict=False):
            row["probabilities"] = round_shares(self.classes, own.probabilities)
        return Outcome(metrics, rows, tuple(notes))


# ------------------------------------------------------------------------------ patterns


@dataclass(frozen=True, eq=False)
class StoredPattern:
    """What a run through a pattern learned, its best seed's; final."""

    folder: Folder
    config: PatternRunConfig
    pattern: PatternConfig

    @classmethod
    def load(cls, folder: Folder) -> StoredPattern:
        """Read a finished run.

        Raises:
            RunError: it is damaged.
        """
        try:
            config = load_pattern_config(str(folder.path / CONFIG))
        except (ConfigError, DataError, TemplateError) as error:
            raise RunError(f"{folder.path} holds another kind of run: {error}") from error
        pattern = config.pattern
        if pattern.traits.verbal:
            # As the run read it, whatever a published one of its name is now.
            with folder.refuse_damage(MANIFEST):
                words = tuple(map(str, folder.manifest.details["words"]))
                text = str(folder.manifest.details["pattern"])
            pattern = replace(pattern, template=text, words=words)
        return cls(folder, config, pattern)

    @property
    def task(self) -> VerbalTask:
        """What is asked."""
        return find_task(self.pattern.task)

    @property
    def inputs(self) -> tuple[str, ...]:
        """The columns of what is asked about, in order."""
        return verbal_columns(self.task)

    @property
    def classes(self) -> tuple[str, ...]:
        """The labels, which have probabilities but where an answer is written."""
        written = self.task.kind == "span" and self.pattern.traits.verbal
        return () if written else self.task.labels

    def read(self, given: Source | Iterable[object], columns: Sequence[str]) -> Sequence[Any]:
        """Return examples of a file, or of what ``TaskRun.predict`` takes."""
        return load_verbal_file(self.task, source_of(given, self.inputs), columns)

    def prepare(
        self, model: str, *, device: str, dtype: str, tick: Tick = silent
    ) -> tuple[LanguageModel, bool | None]:
        """Load the model, wherever it is now; return whether its passes are in half precision."""
        manifest = self.folder.manifest
        kept = "float32" if dtype in ("auto", *_HALF) else dtype
        name = model or self.config.model
        backbone = LanguageModel.load(name, device=device, dtype=kept, tick=tick)
        own = manifest.model, manifest.model_fingerprint
        check_backbone(*own, backbone, str(self.folder.path))
        return backbone, _HALF.get(dtype)

    def backbone(self, model: tuple[LanguageModel, bool | None]) -> LanguageModel:
        """Return the language model of what ``prepare`` returned."""
        return model[0]

    def ask(
        self,
        model: tuple[LanguageModel, bool | None],
        examples: Sequence[VerbalExample],
        *,
        max_tokens: int,
        probabilities: bool,
        tick: Tick,
    ) -> Outcome:
        """Return what is answered to examples."""
        backbone, half = model
        data = VerbalData(self.task, {_FILE: examples})
        problem = VerbalProblem(
            backbone,
            data,
            self.pattern,
            max_tokens=max_tokens,
            splits=(_FILE,),
            # As in training; runs that do not state it took all there are.
            positions=self.folder.manifest.positions or backbone.positions,
        )
        trained = _load_trained(self.folder, problem, half=half)
        return problem.ask(trained, _FILE, probabilities=probabilities, tick=tick)


def _load_trained(folder: Folder, problem: VerbalProblem, *, half: bool | None) -> VerbalModel:
    """Return the model as training left it; of a model trained too, the weights that were kept."""
    tensors: dict[str, Tensor] = {}
    joint = problem.config.joint
    if joint and not folder.has(WEIGHTS):
        raise RunError(
            f"{folder.path} trained the language model too and has no {WEIGHTS}, so it cannot "
            "answer; make the run again in another folder, with keep_weights."
        )
    seed = best_seed(folder)
    if joint:
        tensors, about = folder.read_tensors(WEIGHTS)
        with folder.refuse_damage(WEIGHTS):
            seed = int(about["seed"])
    if problem.config.traits.prompt:
        tensors |= folder.read_tensors(prompt_file(seed))[0]
    with folder.refuse_damage(WEIGHTS if joint else prompt_file(seed)):
        try:
            return problem.load_model(tensors, half=half)
        except RuntimeError as error:
            raise ValueError(f"its parameters do not fit ({error})") from error
