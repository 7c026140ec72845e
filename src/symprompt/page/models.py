"""Questions of the page to models: torch is imported with the first one, one is asked at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field

from symprompt.errors import ConfigError, SympromptError
from symprompt.page.data import SHIPPED, Library

if TYPE_CHECKING:
    from symprompt.models import LanguageModel
    from symprompt.probing.ask import Run
    from symprompt.tasks.predict import StoredPattern, StoredPrompt, TaskRun


class _Question(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class RunQuestion(_Question):
    """Ask a run for the objects of a subject, or for the subjects of an object."""

    run: int
    relation: str = Field(max_length=500)
    subject: str | None = Field(default=None, max_length=500)
    object: str | None = Field(default=None, max_length=500)
    top: int = Field(default=15, ge=1, le=200)


class TemplateQuestion(_Question):
    """Ask a model itself by a template; it is the model of a run, or one the page was given."""

    run: int
    template: str = Field(max_length=1000)
    subject: str = Field(max_length=500)
    words: bool = True
    top: int = Field(default=15, ge=1, le=200)


class TaskQuestion(_Question):
    """Have tuned prompts predict for one input, given by its parts, as first and second text."""

    runs: list[int] = Field(min_length=1, max_length=20)
    parts: list[str] = Field(min_length=1, max_length=4)


class WordQuestion(_Question):
    """Draw the occurrences of a word in the corpus, by the vectors of a model."""

    word: str = Field(min_length=1, max_length=100)
    run: int
    clusters: int = Field(default=3, ge=1, le=8)
    most: int = Field(default=400, ge=3, le=2000)


@dataclass
class Models:
    """The models behind the page; final. At most one language model is held.

    Attributes:
        library: what the page was given.
        model: where the runs' model is now, if it moved since.
        corpus: text files in which words are looked for.
    """

    library: Library
    model: str = ""
    device: str = "auto"
    corpus: tuple[str, ...] = ()
    _backbones: dict[tuple[str, str, str], LanguageModel] = field(default_factory=dict)
    _runs: dict[int, Run] = field(default_factory=dict)
    _tasks: dict[int, TaskRun] = field(default_factory=dict)

    def ask(self, question: RunQuestion) -> dict[str, Any]:
        """Return a run's answers as plain values."""
        from symprompt.probing.ask import Run

        _silence()
        source = self.library.source(question.run)
        if question.run not in self._runs:
            self._runs[question.run] = Run.load(source.path, backbones=self._backbones)
        return (
            self._runs[question.run]
            .ask(
                question.relation,
                subject=question.subject,
                object=question.object,
                top=question.top,
                model=self.model,
                device=self.device,
            )
            .to_dict()
        )

    def ask_template(self, question: TemplateQuestion) -> dict[str, Any]:
        """Return a model's answers to a sentence."""
        from symprompt.probing.ask import ask_template

        _silence()
        backbone = self._backbone(question.run)
        (answers,) = ask_template(
            backbone,
            question.template,
            [question.subject],
            top=question.top,
            words=question.words,
        )
        return answers.to_dict() | {"causal": backbone.causal}

    def _backbone(self, number: int) -> LanguageModel:
        from symprompt.probing.ask import load_once

        source = self.library.source(number)
        name = source.path
        if source.folder.holds_run and not source.folder.has("config.json"):
            name = self.model or source.folder.manifest.model
        return load_once(self._backbones, name, self.device, "auto")

    # ------------------------------------------------------------------ labelled tasks

    def predict(self, question: TaskQuestion) -> dict[str, Any]:
        """Return what each run predicts; deep prefixes of one model answer in one batch."""
        from symprompt.tasks.predict import StoredPrompt, TaskRun

        _silence()
        found: dict[int, dict[str, Any]] = {}
        together: dict[int, StoredPrompt] = {}
        for number in dict.fromkeys(question.runs):
            try:
                if number not in self._tasks:
                    self._tasks[number] = TaskRun.load(self.library.source(number).path)
                stored = self._tasks[number].stored
                given = _example(stored, question.parts)
                if isinstance(stored, StoredPrompt) and "prompt.prefix" in stored.tensors:
                    together[number] = stored
                    continue
                outcome = self._tasks[number].predict(
                    [given],
                    model=self.model,
                    device=self.device,
                    probabilities=bool(stored.classes),
                )
                found[number] = _told(stored, outcome.rows[0])
            except SympromptError as error:
                found[number] = {"error": str(error)}
        batches = 0
        for group in group_prompts(together):
            batches += 1
            try:
                found |= self._predict_together(group, question.parts)
            except SympromptError as error:
                found |= {number: {"error": str(error)} for number in group}
        return {
            "answers": {str(key): found[key] for key in sorted(found)},
            "batches": batches,
            "together": len(together),
        }

    def _predict_together(
        self, group: Mapping[int, StoredPrompt], parts: Sequence[str]
    ) -> dict[int, dict[str, Any]]:
        from symprompt.probing.ask import load_once
        from symprompt.tasks.serve import Server

        name = self.model or next(iter(group.values())).card["base_model"]
        backbone = load_once(self._backbones, name, self.device, "auto")
        server = Server(backbone, list(group.values()))
        examples = {stored.task: [_example(stored, parts)] for stored in group.values()}
        rows = server.answer(examples, probabilities=True)
        return {
            number: _told(stored, {"text": _text(stored, parts), **rows[stored.task][0]})
            for number, stored in group.items()
        }

    # ------------------------------------------------------------------ words

    def words(self, question: WordQuestion) -> dict[str, Any]:
        """Return a word's occurrences as points, their text, and each one's nearest others."""
        if not self.corpus:
            raise ConfigError("there is no text to look for words in; start with --corpus FILE.")
        from symprompt.embeddings.sense_map import draw_word

        _silence()
        backbone = self._backbone(question.run)
        forms = [form.strip() for form in question.word.split(",") if form.strip()]
        found = draw_word(
            forms, self.corpus, backbone, clusters=question.clusters, most=question.most
        )
        labels = sorted(set(found.labels))
        return {
            "word": found.word,
            "projection": found.projection,
            "labels": labels,
            "points": [[round(float(x), 4), round(float(y), 4)] for x, y in found.points],
            "label": [labels.index(own) for own in found.labels],
            "text": [list(own) for own in found.hover],
            "near": [] if found.near is None else found.near.tolist(),
        }


def _silence() -> None:
    from symprompt.models.loading import silence_transformers

    silence_transformers()


def _example(stored: StoredPrompt | StoredPattern, parts: Sequence[str]) -> object:
    """Return an input of the page as a task takes it.

    Raises:
        ConfigError: a part is missing.
    """
    count = len(stored.inputs)
    given = [part.strip() for part in parts][:count]
    if len(given) < count or not all(given):
        raise ConfigError(f"this task reads {' and '.join(stored.inputs)}; fill in {count} texts.")
    if stored.inputs[0] == "words":
        words = given[0].split()
        if count == 1:
            return words
        if given[1] not in words:
            raise ConfigError(f"the predicate {given[1]!r} is no word of the text.")
        return {"words": words, "predicate": words.index(given[1])}
    return given[0] if count == 1 else tuple(given)


def _text(stored: StoredPrompt | StoredPattern, parts: Sequence[str]) -> str:
    return " ".join(parts[0].split()) if stored.inputs[0] == "words" else parts[0].strip()


def _told(stored: StoredPrompt | StoredPattern, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a prediction with what is needed to draw it."""
    kind = str(stored.card["kind"]) if hasattr(stored, "card") else "classes"
    return {"kind": kind, "inputs": list(stored.inputs), **row}


def group_prompts(prompts: Mapping[int, StoredPrompt]) -> list[dict[int, StoredPrompt]]:
    """Return prompts that one batch can serve: one model, read alike, each of another task."""
    groups: list[tuple[Any, dict[int, StoredPrompt]]] = []
    for number, stored in prompts.items():
        prefix = stored.config.prefix
        same = (stored.card["base_model_fingerprint"], prefix.shift_positions, prefix.layers)
        for key, group in groups:
            if key == same and stored.task not in {own.task for own in group.values()}:
                group[number] = stored
                break
        else:
            groups.append((same, {number: stored}))
    return [group for _, group in groups]


def model_choices(library: Library) -> list[dict[str, Any]]:
    """Return the models that can be asked by a template: one source of each."""
    found: dict[str, dict[str, Any]] = {}
    for own in library.about():
        if own["kind"] == "broken":
            continue
        source = library.source(own["id"])
        name = source.path if own["kind"] == "model" else source.folder.manifest.model
        shown = name if name == SHIPPED else Path(name).name
        found.setdefault(name, {"id": own["id"], "name": shown})
    return list(found.values())
