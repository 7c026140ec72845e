"""The functions behind the command line: train a run, and ask a finished one."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from symprompt.backbone import Backbone
from symprompt.checkpoint import load_state, state_note, state_tensors
from symprompt.config import RunConfig, check_config
from symprompt.errors import ConfigError, DataError, RunError
from symprompt.evaluation import dev_scores, predict
from symprompt.facts import Fact, Split, load_facts
from symprompt.methods import Method
from symprompt.metrics import measure
from symprompt.predictions import Predictions, choose_weights
from symprompt.problem import Problem, lay_out, make_method, prepare
from symprompt.runs import (
    CARD,
    ENCODER,
    ENVIRONMENT,
    HISTORY,
    METRICS,
    PROMPTS,
    STATE,
    RunFolder,
)
from symprompt.runtime import Tick, describe_environment, silent
from symprompt.train import Trainer

Vectors = dict[str, Tensor]


def train(
    config: RunConfig,
    *,
    resume: bool = False,
    tick: Tick = silent,
    backbone: Backbone | None = None,
) -> Run:
    """Train a method on all relations at once, evaluate it, and write the run folder.

    Args:
        config: what to do; ``model``, ``data`` and ``out`` must be set.
        resume: go on with an unfinished run; the numbers are those of an unbroken one.
        tick: told of progress.
        backbone: the model, if it is loaded already.

    Returns:
        The finished run; one that was finished before is returned as it is.

    Raises:
        SympromptError: one clear sentence; an interrupted run keeps what it had.
    """
    check_config(config)
    for name in ("model", "data", "out"):
        if not getattr(config, name):
            raise ConfigError(f"--{name} is missing; say which {name} the run is for.")
    folder = RunFolder(config.out)
    if folder.has("config.toml") and folder.start(config, resume=resume):
        return Run(folder)
    # Everything that can be wrong with the input is found before the folder is made.
    facts = load_facts(
        config.data,
        layout=config.facts.layout,
        relations=config.facts.relations,
        templates=config.facts.templates,
        seed=config.facts.split_seed,
    )
    backbone = backbone or Backbone.load(config.model, device=config.device, dtype=config.dtype)
    problem = prepare(config, backbone, facts)
    method = make_method(config, problem)
    if method.asks_back and config.method.choose_weight != "fixed":
        _require_dev(config, problem)
    if config.start_from:
        _load_encoders(method, RunFolder(config.start_from), problem)
    folder.start(config, resume=resume)
    _record(folder, config, problem, method)
    seconds: dict[str, float] = {}
    vectors = _learn(folder, config, problem, method, tick, seconds)
    _evaluate(folder, config, problem, method, vectors, tick, seconds)
    return Run(folder)


def _require_dev(config: RunConfig, problem: Problem) -> None:
    if "dev" not in problem.sentences:
        raise DataError(
            f'method.choose_weight = "{config.method.choose_weight}" needs dev facts, and there '
            "are none; add some, or choose fixed."
        )


def _record(folder: RunFolder, config: RunConfig, problem: Problem, method: Method) -> None:
    """Write what the run is about, or on resuming check that model and facts are the same."""
    about = {
        "model": config.model,
        "model_fingerprint": problem.backbone.fingerprint,
        "facts_fingerprint": problem.facts.fingerprint(),
        "dtype": str(problem.backbone.dtype).removeprefix("torch."),
    }
    if folder.has(ENVIRONMENT):
        stored = folder.read_json(ENVIRONMENT)
        for key in ("model_fingerprint", "facts_fingerprint"):
            if stored[key] != about[key]:
                what = key.removesuffix("_fingerprint")
                raise RunError(
                    f"{folder.path} was begun with other {what} than are there now; give the same "
                    f"{what}, or choose another --out."
                )
        if stored["dtype"] != about["dtype"]:
            raise RunError(
                f"{folder.path} was begun in {stored['dtype']} and would go on in "
                f"{about['dtype']}; resume on the same kind of device, or choose another --out."
            )
    folder.write_json(ENVIRONMENT, about | describe_environment(problem.backbone.device))
    folder.write_json(CARD, _card(config, problem, method))
    folder.write_facts(problem.facts)


def _card(config: RunConfig, problem: Problem, method: Method) -> dict[str, Any]:
    return {
        "base_model": config.model,
        "base_model_fingerprint": problem.backbone.fingerprint,
        "method": config.method.name,
        "parts": list(method.encoders),
        "relations": {
            relation.name: {
                "label": relation.label,
                "template": str(template),
                "manual_template": relation.template,
            }
            for relation, template in zip(problem.facts.relations, problem.templates, strict=True)
        },
    }


def _learn(
    folder: RunFolder,
    config: RunConfig,
    problem: Problem,
    method: Method,
    tick: Tick,
    seconds: dict[str, float],
) -> Vectors:
    """Train, or take up where a killed run was; write the prompts; return them."""
    if not method.encoders:
        return {}
    if not folder.has(PROMPTS):
        begun = time.perf_counter()
        # Without epochs there need be no training facts: stored prompts may be asked new ones.
        history: dict[str, Any] = {"epochs": [], "best_epoch": {}}
        if config.training.epochs:
            history = _train(folder, config, problem, method, tick)
        seconds["training"] = time.perf_counter() - begun
        folder.write_json(HISTORY, history)
        note = {"relations": problem.relations}
        if config.keep_encoder:
            tensors = {
                f"{part}/{name}": value
                for part, encoder in method.encoders.items()
                for name, value in encoder.named_parameters()
            }
            folder.write_tensors(ENCODER, tensors, note)
        folder.write_tensors(PROMPTS, method.vectors(), note)
    # Read back even when just written: a resumed run must see the same numbers.
    stored, _ = folder.read_tensors(PROMPTS)
    folder.remove(STATE)
    return {part: value.to(problem.backbone.device) for part, value in stored.items()}


def _train(
    folder: RunFolder, config: RunConfig, problem: Problem, method: Method, tick: Tick
) -> dict[str, Any]:
    """Train the method's encoders in place; return the run's history."""
    trainer = Trainer(
        method,
        problem.sentences["train"],
        problem.relations,
        config.training,
        seed=config.seed,
        max_tokens=config.max_tokens or problem.backbone.token_budget(training=True),
    )
    if folder.has(STATE):
        load_state(trainer, *folder.read_tensors(STATE))
    trainer.run(
        lambda: dev_scores(
            method,
            problem.sentences["dev"],
            config.training,
            allowed=problem.allowed,
            max_tokens=config.max_tokens or problem.backbone.token_budget(),
        ),
        tick=tick,
        checkpoint=lambda state: folder.write_tensors(
            STATE, state_tensors(state), state_note(state)
        ),
        checkpoint_seconds=config.checkpoint_seconds,
    )
    epochs = {part: progress.epoch.tolist() for part, progress in trainer.parts.items()}
    return {"epochs": trainer.history, "best_epoch": epochs}


def _load_encoders(method: Method, source: RunFolder, problem: Problem) -> None:
    """Put another run's encoders in place, to train them further."""
    source.require_finished()
    if not source.has(ENCODER):
        raise RunError(
            f"{source.path} keeps no encoder to train further; it was made with keep_encoder = "
            "false, or by a method that learns nothing."
        )
    card = source.read_json(CARD)
    if card["base_model_fingerprint"] != problem.backbone.fingerprint:
        raise RunError(
            f"{source.path} was made by another model ({card['base_model']}); prompts fit only "
            "the model they were learned on."
        )
    tensors, note = source.read_tensors(ENCODER)
    missing = [name for name in problem.relations if name not in note["relations"]]
    if missing:
        raise RunError(f"{source.path} has no prompts for relation {missing[0]}.")
    rows = [note["relations"].index(name) for name in problem.relations]
    with torch.no_grad():
        for part, encoder in method.encoders.items():
            wanted = {f"{part}/{name}": value for name, value in encoder.named_parameters()}
            # Both ways: the parameters of an MLP are also among those of an LSTM with an MLP.
            theirs = {name for name in tensors if name.startswith(f"{part}/")}
            for name in sorted(wanted.keys() | theirs):
                stored, value = tensors.get(name), wanted.get(name)
                if stored is None or value is None or stored.shape[1:] != value.shape[1:]:
                    raise RunError(
                        f"{source.path} was trained with another method, template or encoder: "
                        f"{name} does not fit."
                    )
                value.copy_(stored[rows])


def _evaluate(
    folder: RunFolder,
    config: RunConfig,
    problem: Problem,
    method: Method,
    vectors: Vectors,
    tick: Tick,
    seconds: dict[str, float],
) -> None:
    relations = len(problem.relations)
    weights = torch.full((relations,), config.method.weight, dtype=torch.float64)
    found: dict[Split, Predictions] = {}
    for split in ("dev", "test"):
        if split not in problem.sentences:
            continue
        begun = time.perf_counter()
        found[split] = predict(
            method,
            problem.sentences[split],
            vectors,
            allowed=problem.allowed,
            k=config.method.k,
            max_tokens=config.max_tokens or problem.backbone.token_budget(),
            tick=tick,
            stage=f"asking {split}",
        )
        seconds[f"asking {split}"] = time.perf_counter() - begun
    choose = config.method.choose_weight
    if method.asks_back and choose != "fixed":
        weights = choose_weights(found["dev"], relations, per_relation=choose == "dev-relation")
    for split, predictions in found.items():
        shown = np.unique(predictions.candidates.numpy()).tolist()
        text = {token: problem.backbone.vocabulary.text(token) for token in shown}
        folder.write_predictions(split, predictions, problem.facts.facts(split), weights, text)
    report = {
        "model": config.model,
        "method": config.method.name,
        "data": config.data,
        "seed": config.seed,
        "device": folder.read_json(ENVIRONMENT)["device"],
        "dtype": folder.read_json(ENVIRONMENT)["dtype"],
        "vocabulary": config.facts.vocabulary,
        "k": config.method.k if method.asks_back else None,
        "weights": dict(zip(problem.relations, weights.tolist(), strict=True))
        if method.asks_back
        else None,
        "dropped": problem.facts.dropped_by_reason(),
        "seconds": {stage: round(value, 2) for stage, value in seconds.items()},
    }
    for split, predictions in found.items():
        report[split] = measure(predictions, problem.relations, weights)
    folder.write_json(METRICS, report)


@dataclass(frozen=True)
class Answer:
    """One ranked answer: its text and its log-probabilities; backward and joint may be missing."""

    text: str
    forward: float
    backward: float | None = None
    joint: float | None = None


class Run:
    """A finished run, to be read or asked; final.

    Example:
        >>> run = Run.load("runs/capitals")                            # doctest: +SKIP
        >>> run.ask("P36", subject="Luxembourg")[0].text               # doctest: +SKIP
    """

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self._loaded: dict[tuple[str, str], tuple[RunConfig, Problem, Method, Vectors]] = {}

    @classmethod
    def load(cls, path: str | Path) -> Run:
        """Open a finished run folder; the model is loaded when a question is asked."""
        folder = RunFolder(path)
        folder.require_finished()
        return cls(folder)

    @property
    def metrics(self) -> dict[str, Any]:
        """Everything in metrics.json."""
        metrics: dict[str, Any] = self.folder.read_json(METRICS)
        return metrics

    def predictions(self, split: Split = "test") -> tuple[Predictions, list[Fact]]:
        """Return a split's stored predictions and their facts."""
        return self.folder.load_predictions(split)

    def ask(
        self,
        relation: str,
        *,
        subject: str | None = None,
        object: str | None = None,
        top: int = 10,
        model: str = "",
        device: str = "auto",
        tick: Tick = silent,
    ) -> list[Answer]:
        """Ask for the object of a subject, or for the subject of an object.

        Args:
            relation: a relation of the run.
            subject: rank objects for this subject; asked back where the method does.
            object: rank the known subjects by forward + weight * backward for this object.
            top: how many answers.
            model: where the model is now, if it moved since the run was made.
        """
        if (subject is None) == (object is None):
            raise ConfigError("give either a subject or an object to ask about.")
        if top < 1:
            raise ConfigError(f"top is {top}; it must be at least 1.")
        config, problem, method, vectors = self._load(model, device)
        problem.facts[relation]
        weight = float((self.metrics["weights"] or {}).get(relation, 0.0))
        if subject is not None:
            answers = _objects(config, problem, method, vectors, relation, subject, weight)
        else:
            assert object is not None
            answers = _subjects(config, problem, method, vectors, relation, object, weight, tick)
        return answers[:top]

    def _load(self, model: str, device: str) -> tuple[RunConfig, Problem, Method, Vectors]:
        if (model, device) not in self._loaded:
            config = self.folder.load_config()
            card = self.folder.read_json(CARD)
            backbone = Backbone.load(model or config.model, device=device, dtype=config.dtype)
            if backbone.fingerprint != card["base_model_fingerprint"]:
                raise RunError(
                    f"{self.folder.path} was made by another model than {model or config.model}: "
                    "its weights differ; name the right one with --model."
                )
            problem = prepare(config, backbone, self.folder.load_facts())
            method = make_method(config, problem)
            stored = self.folder.read_tensors(PROMPTS)[0] if method.encoders else {}
            vectors = {part: value.to(backbone.device) for part, value in stored.items()}
            self._loaded = {(model, device): (config, problem, method, vectors)}
        return self._loaded[model, device]


def _objects(
    config: RunConfig,
    problem: Problem,
    method: Method,
    vectors: Vectors,
    relation: str,
    subject: str,
    weight: float,
) -> list[Answer]:
    if not subject.strip():
        raise DataError("the subject is empty; give the name to ask about.")
    vocabulary = problem.backbone.vocabulary
    if vocabulary.mask_id in vocabulary.encode_words([subject])[0]:
        raise DataError(f"the subject {subject!r} holds the model's mask; give a plain name.")
    # The true object is not known: any object of the relation holds its place, masked anyway.
    placeholder = problem.facts[relation].all()[0].object
    fact = Fact(relation, subject.strip(), placeholder)
    sentences = lay_out(
        problem.backbone,
        problem.templates,
        problem.relations,
        [fact],
        {(relation, fact.subject): [placeholder]},
        swapped=config.method.blanks == "swapped",
    )
    found = predict(
        method,
        sentences,
        vectors,
        allowed=problem.allowed,
        k=config.method.k,
        max_tokens=problem.backbone.token_budget(),
    )
    texts = [vocabulary.text(token) for token in found.candidates[0].tolist()]
    return _rank(texts, found.forward[0], found.backward[0] if method.asks_back else None, weight)


@torch.no_grad()
def _subjects(
    config: RunConfig,
    problem: Problem,
    method: Method,
    vectors: Vectors,
    relation: str,
    object: str,
    weight: float,
    tick: Tick,
) -> list[Answer]:
    if not method.asks_back:
        raise ConfigError(
            f"this run's method, {config.method.name}, learned no way back; ask for objects, or "
            "train spe."
        )
    place = problem.relations.index(relation)
    after_space = problem.templates[place].space_before("object")
    vocabulary = problem.backbone.vocabulary
    if vocabulary.single_tokens([object], after_space=after_space)[0] is None:
        raise DataError(f"object {object!r} is not one token of the model, so it cannot be asked.")
    names = sorted({fact.subject for fact in problem.facts[relation].all()})
    facts = [Fact(relation, name, object) for name in names]
    sentences = lay_out(
        problem.backbone,
        problem.templates,
        problem.relations,
        facts,
        {(relation, name): [object] for name in names},
        swapped=config.method.blanks == "swapped",
    )
    budget = problem.backbone.token_budget()
    forward, backward = [], []
    step = 256
    for start in range(0, len(names), step):
        rows = torch.arange(start, min(start + step, len(names))).numpy()
        gold = sentences.gold[rows, None]
        forward.append(method.scores(sentences, rows, vectors).gather(1, gold)[:, 0])
        backward.append(
            method.subject_scores(sentences, rows, gold, vectors, max_tokens=budget)[:, 0]
        )
        tick("asking back", int(rows[-1]) + 1, len(names), "")
    return _rank(names, torch.cat(forward).cpu(), torch.cat(backward).cpu(), weight)


def _rank(
    texts: list[str], forward: Tensor, backward: Tensor | None, weight: float
) -> list[Answer]:
    if backward is None:
        answers = [Answer(text, score) for text, score in zip(texts, forward.tolist(), strict=True)]
        return sorted(answers, key=lambda answer: -answer.forward)
    joint = forward + weight * backward
    order = joint.argsort(descending=True, stable=True).tolist()
    return [
        Answer(texts[row], float(forward[row]), float(backward[row]), float(joint[row]))
        for row in order
    ]
