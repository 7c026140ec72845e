"""What a run on a labelled task stores, read back: its card, seeds, figures; and predict with it.

A run stores a prompt and its head, or what answers through a pattern.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NotRequired

import numpy as np
from pydantic import with_config
from torch import Tensor
from typing_extensions import TypedDict

from symprompt.config import build, override
from symprompt.errors import ConfigError, DataError, RunError, TemplateError
from symprompt.files.atomic import write_file
from symprompt.files.progress import Tick, silent
from symprompt.models import LanguageModel, Prefix
from symprompt.runs.folder import CONFIG, Folder
from symprompt.tasks.config import TuneConfig, load_pattern_config
from symprompt.tasks.data.examples import CUT, Example, LabelSet
from symprompt.tasks.data.load import load_examples
from symprompt.tasks.features import Features, Sheet, takes_types
from symprompt.tasks.kinds import KINDS, Kind, Target
from symprompt.tasks.patterns.data import VerbalData, load_verbal_file
from symprompt.tasks.patterns.model import VerbalModel, VerbalProblem
from symprompt.tasks.patterns.pattern import find_task
from symprompt.tasks.prepare import columns_of
from symprompt.tasks.trainables import (
    TRAINABLES,
    Outcome,
    TaskModel,
    ask,
    check_backbone,
    figures,
    make_task_head,
)

_FILE = "file"
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


def predict_file(
    run: str | Path,
    file: str | Path,
    *,
    columns: Sequence[str] = (),
    model: str = "",
    device: str = "auto",
    dtype: str = "auto",
    max_tokens: int = 0,
    out: str = "",
    tick: Tick = silent,
) -> Outcome:
    """Return what a run of tune predicts for the examples of a file, in their order.

    Of a run through a pattern the seed that did best on dev answers; WSC's rows have what the
    model wrote instead of a probability.

    Args:
        columns: role=column pairs for the file.
        model: where the model is now, if not where the run was made.
        dtype: auto, float32 or bfloat16, of the passes.
        out: file of JSON lines to write.

    Returns:
        One row for each example; figures too if every example has its label.

    Raises:
        SympromptError: the run, the file or the model cannot be used; a prompt for another model.
    """
    folder = Folder(run)
    through_pattern = folder.has(CONFIG) and "pattern.task" in folder.config_keys()
    predict = _predict_pattern if through_pattern else _predict_prompt
    outcome = predict(
        run, file, columns, model=model, device=device, dtype=dtype, most=max_tokens, tick=tick
    )
    if out:
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in outcome.rows)
        write_file(Path(out), lines.encode())
    return outcome


# ------------------------------------------------------------------------------ prompts and heads


@dataclass(frozen=True, eq=False)
class StoredPrompt:
    """A prompt file and its card: what a task needs besides the model; final.

    Attributes:
        path: the folder it was read from.
        card: what the prompt is.
        config: how what is trained and its head are made.
        tensors: its parameters.
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
            config = build(TuneConfig, {"method": method, **own})
            if card["kind"] not in KINDS:
                raise ValueError(f"kind is {card['kind']!r}")
            _ = {key: int(card["features"][key]) for key in ("max_length", "stride")}
        except (ConfigError, KeyError, TypeError, ValueError) as error:
            raise RunError(f"{folder.path / CARD} is damaged: {error}.") from error
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
    def target(self) -> Target:
        """The labels that its head scores, and how."""
        return Target(
            LabelSet(tuple(self.card["labels"])),
            LabelSet(tuple(self.card["relations"])),
            self.config.head,
            self.config.span,
            every_token=bool(self.card["features"].get("label_all_tokens", False)),
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
        return Prefix(states[None], shift_positions=self.config.prefix.shift_positions)

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

    def tensorise(self, examples: Sequence[Example], backbone: LanguageModel) -> Features:
        """Return examples as rows, as the prompt was trained on them."""
        own = self.card["features"]
        length, stride = int(own["max_length"]), int(own["stride"])
        types = takes_types(backbone)
        sheet = Sheet.make(backbone.vocabulary, max_length=length, stride=stride, token_types=types)
        return self.kind.tensorise(examples, sheet, self.target)

    def predict(self, examples: Sequence[Example], features: Features, scores: Tensor) -> Outcome:
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
        return Outcome(metrics, list(map(kind.row, examples, predictions)), tuple(notes))


def _predict_prompt(
    run: str | Path,
    file: str | Path,
    columns: Sequence[str],
    *,
    model: str,
    device: str,
    dtype: str,
    most: int,
    tick: Tick,
) -> Outcome:
    prompt = StoredPrompt.load(run)
    examples = load_examples(
        file,
        str(prompt.card["kind"]),
        columns=columns_of(columns),
        labels=prompt.target.labels,
        name=prompt.task,
    )
    prompt = replace(prompt, config=override(prompt.config, dtype=dtype))
    kept = TRAINABLES[prompt.config.method].dtype or dtype
    name = model or str(prompt.card["base_model"])
    backbone = LanguageModel.load(name, device=device, dtype=kept)
    trained = prompt.model(backbone)
    features = prompt.tensorise(examples, backbone)
    scores = ask(
        trained,
        prompt.task,
        prompt.kind,
        features,
        features.batch().to(backbone.device),
        max_tokens=most,
        tick=tick,
        stage="predicting",
    )
    return prompt.predict(examples, features, scores)


# ------------------------------------------------------------------------------ patterns


def _predict_pattern(
    run: str | Path,
    file: str | Path,
    columns: Sequence[str],
    *,
    model: str,
    device: str,
    dtype: str,
    most: int,
    tick: Tick,
) -> Outcome:
    folder = Folder(run)
    manifest = folder.require_finished(COMMAND)
    try:
        config = load_pattern_config(str(folder.path / CONFIG))
    except (ConfigError, DataError, TemplateError) as error:
        raise RunError(f"{folder.path} holds another kind of run: {error}") from error
    pattern = config.pattern
    if pattern.traits.verbal:
        # As the run read it, whatever a published one of its name is now.
        words = tuple(map(str, manifest.details["words"]))
        pattern = replace(pattern, template=str(manifest.details["pattern"]), words=words)
    task = find_task(pattern.task)
    examples = load_verbal_file(task, file, columns)
    kept = "float32" if dtype in ("auto", *_HALF) else dtype
    backbone = LanguageModel.load(model or config.model, device=device, dtype=kept)
    check_backbone(manifest.model, manifest.model_fingerprint, backbone, str(folder.path))
    data = VerbalData(task, {_FILE: examples})
    problem = VerbalProblem(backbone, data, pattern, max_tokens=most, splits=(_FILE,))
    trained = _load_trained(folder, problem, half=_HALF.get(dtype))
    return problem.ask(trained, _FILE, tick=tick)


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
