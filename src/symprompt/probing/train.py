"""Train a run: facts, model and method in, a finished run folder out."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, cast

from torch import Tensor

from symprompt.engine.loop import Loop
from symprompt.errors import ConfigError
from symprompt.facts import Split, load_word_list
from symprompt.files.progress import Tick, silent
from symprompt.models import LanguageModel
from symprompt.probing.ask import Run
from symprompt.probing.config import RunConfig, model_dtype
from symprompt.probing.evaluate import predict
from symprompt.probing.finetuning import fine_tune
from symprompt.probing.folder import (
    CARD,
    ENCODER,
    PROMPTS,
    VOCABULARY,
    Card,
    load_card,
    load_prompts,
    write_facts,
)
from symprompt.probing.methods.base import Method
from symprompt.probing.methods.finetune import FineTune
from symprompt.probing.predictions import Predictions
from symprompt.probing.prepare import Problem, load_config_facts, make_method, prepare
from symprompt.probing.rerank import SubjectPrompt, load_subject_prompt, with_subject_prompt
from symprompt.probing.results import (
    add_prompt_weights,
    add_wordings,
    describe_run,
    method_name,
    require_dev,
    write_results,
)
from symprompt.probing.warm_start import load_encoders
from symprompt.runs.folder import HISTORY, STATE, Folder

Vectors = dict[str, Tensor]


@dataclass(frozen=True)
class _Job:
    """One run in the making; ``seconds`` fills up stage by stage."""

    folder: Folder
    config: RunConfig
    problem: Problem
    method: Method
    tick: Tick
    way_back: SubjectPrompt | None
    seconds: dict[str, float] = field(default_factory=dict)


def train(
    config: RunConfig,
    *,
    resume: bool = False,
    tick: Tick = silent,
    backbone: LanguageModel | None = None,
) -> Run:
    """Train a method on all relations at once, evaluate it, and write the run folder.

    Args:
        config: what to do; ``model``, ``data`` and ``out`` must be set.
        resume: go on with an unfinished run; the numbers are those of an unbroken one.
        tick: called with every step of progress.
        backbone: the model, if it is loaded already.

    Returns:
        The finished run; one that was finished before is returned as it is.

    Raises:
        SympromptError: one clear sentence; an interrupted run keeps what it had.
    """
    for name, what in (("model", "model"), ("data", "facts"), ("out", "run folder to write")):
        if not getattr(config, name):
            raise ConfigError(f"--{name} is missing; name the {what}.")
    if config.rerank:
        config = with_subject_prompt(config, Folder(config.rerank))
    folder = Folder(config.out)
    if folder.check("train", config, resume=resume):
        return Run(folder)
    # Everything that can be wrong with the input is found before the folder is made.
    facts = load_config_facts(config.data, config.facts)
    dtype = model_dtype(config.method.name, config.dtype)
    backbone = backbone or LanguageModel.load(config.model, device=config.device, dtype=dtype)
    problem = prepare(config, backbone, facts, prompts=_chosen(folder))
    method = make_method(config, problem)
    chosen = backbone.accelerate(config.compile, tokens=_tokens(config, method, problem))
    if method.has_subject_prompt or config.rerank:
        require_dev(config, problem.sentences)
    way_back = load_subject_prompt(config, problem) if config.rerank else None
    if config.start_from:
        load_encoders(method, Folder(config.start_from), config, problem)
    method.check_learning(config)
    folder.start(config, describe_run("train", config, problem.facts, backbone))
    job = _Job(folder, config, problem, method, tick, way_back)
    _record(job)
    tick("acceleration", 1, 1, chosen)
    if method.in_stacks:
        _evaluate(job, _fine_tune(job))
    else:
        _evaluate(job, _predict(job, _learn(job)))
    return Run(folder)


def _tokens(config: RunConfig, method: Method, problem: Problem) -> float:
    """Return about how many tokens training reads.

    A query has some 16, and a subject of three tokens as many queries of its own.
    """
    facts = len(problem.sentences.get("train", ())) * config.learning.epochs
    return 16.0 * facts * (4 if method.has_subject_prompt else 1)


def _chosen(folder: Folder) -> dict[str, list[str]]:
    """Return the prompts that an unfinished run has chosen, so that it goes on with the same."""
    about = load_card(folder)["relations"] if folder.has(CARD) else {}
    return {name: own["prompts"] for name, own in about.items() if own.get("prompts")}


def _record(job: _Job) -> None:
    """Write what the run is about: its card, facts and word list."""
    folder, config, problem = job.folder, job.config, job.problem
    folder.write_json(CARD, _card(config, problem, job.method))
    write_facts(folder, problem.facts)
    if config.facts.vocabulary not in ("full", "objects"):
        # A copy, so that the run can be asked when the list has moved.
        words = load_word_list(config.facts.vocabulary)
        folder.write(VOCABULARY, "".join(word + "\n" for word in words).encode())


def _card(config: RunConfig, problem: Problem, method: Method) -> Card:
    return {
        "base_model": config.model,
        "base_model_fingerprint": problem.backbone.fingerprint,
        "method": method_name(config),
        "parts": list(method.parts),
        "relations": {
            relation.name: {  # type: ignore[misc]
                "label": relation.label,
                "template": str(template),
                "manual_template": relation.template,
            }
            | ({"prompts": [str(prompt) for prompt in prompts]} if prompts else {})
            for relation, template, prompts in zip(
                problem.facts.relations,
                problem.templates,
                problem.several,
                strict=True,
            )
        },
    }


def _learn(job: _Job) -> Vectors:
    """Train, or take up where a killed run was; write the prompts; return them."""
    folder, method = job.folder, job.method
    if not method.parts:
        return {}
    if not folder.has(PROMPTS):
        # Without epochs there need be no training facts: stored prompts may be asked new ones.
        history: dict[str, Any] = {"epochs": [], "best_epoch": {}, "seconds": 0.0}
        if "train" in method.needed_splits(job.config):
            history = _train(job)
        folder.write_json(HISTORY, history)
        note: dict[str, Any] = {"relations": job.problem.relations}
        if job.config.keep_encoder and method.encoders:
            tensors = {
                f"{part}/{name}": value
                for part, encoder in method.encoders.items()
                for name, value in encoder.named_parameters()
            }
            folder.write_tensors(ENCODER, tensors, note)
        prompts = method.found_prompts()
        note |= {} if prompts is None else {"wordings": prompts}
        folder.write_tensors(PROMPTS, method.vectors(), note)
    # Read back even when just written: a resumed run must see the same numbers.
    stored = load_prompts(folder, list(method.parts))
    job.seconds.update(_trained_seconds(folder))
    folder.remove(STATE)
    return {part: value.to(job.problem.backbone.device) for part, value in stored.items()}


def _train(job: _Job) -> dict[str, Any]:
    """Train the method in place; return the run's history."""
    config, method = job.config, job.method
    module, _, name = method.learner.partition(":")
    training = getattr(import_module(module), name).of_run(config, job.problem, method)
    progress = Loop(
        training,
        checkpoint=job.folder.path / STATE,
        checkpoint_seconds=config.checkpoint_seconds,
        tick=job.tick,
    ).run()
    return {
        "epochs": progress.history,
        "best_epoch": training.best_epochs,
        "seconds": round(progress.seconds, 2),
        "recording": round(progress.recording, 2),
        "unfilled": method.unfilled_relations(),
    }


def _trained_seconds(folder: Folder) -> dict[str, float]:
    """Return the time that all the processes that took part in it spent in training.

    Recording steps stands apart where there was any: it takes as long however much is trained.
    """
    history = folder.read_json(HISTORY)
    with folder.refuse_damage(HISTORY):
        whole = float(history["seconds"])
        # What is not trained records nothing.
        recording = float(history.get("recording", 0.0))
    if not recording:
        return {"training": whole}
    return {"recording": recording, "training": max(0.0, whole - recording)}


def _fine_tune(job: _Job) -> dict[Split, Predictions]:
    """Fine-tune every relation and ask it; write the history."""
    method = cast(FineTune, job.method)
    tuned = fine_tune(job.folder, job.config, job.problem, method, job.tick)
    job.folder.write_json(HISTORY, tuned.history)
    job.seconds.update(tuned.seconds)
    return tuned.found


def _evaluate(job: _Job, found: dict[Split, Predictions]) -> None:
    """Ask back if another run is to, and write what was found; the metrics come last."""
    folder, facts = job.folder, job.problem.facts
    if job.way_back is not None:
        found = job.way_back.ask(found, tick=job.tick, seconds=job.seconds)
    if job.method.found_prompts() is not None:
        card = load_card(folder)
        add_wordings(folder, card["relations"])
        folder.write_json(CARD, card)
    add_prompt_weights(folder)
    write_results(
        folder,
        job.config,
        facts,
        found,
        job.problem.text,
        job.problem.object_counts,
        candidates=job.problem.counts(),
        dropped=facts.dropped_by_reason(),
        seconds=job.seconds,
        unfilled=folder.read_json(HISTORY).get("unfilled", []) if folder.has(HISTORY) else [],
    )


def _predict(job: _Job, vectors: Vectors) -> dict[Split, Predictions]:
    config, problem = job.config, job.problem
    found: dict[Split, Predictions] = {}
    for split in ("dev", "test"):
        if split not in problem.sentences:
            continue
        begun = time.perf_counter()
        found[split] = predict(
            job.method,
            problem.sentences[split],
            vectors,
            allowed=problem.allowed,
            k=problem.candidates(config.method.k),
            max_tokens=config.max_tokens or problem.backbone.token_budget(),
            tick=job.tick,
            stage=f"asking {split}",
        )
        job.seconds[f"asking {split}"] = time.perf_counter() - begun
    return found
