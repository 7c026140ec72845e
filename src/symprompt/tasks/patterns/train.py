"""``symprompt tune`` for configs with a pattern: one run folder for all seeds of a method.

A folder holds ``config.toml``, ``environment.json``, ``seeds/N.json`` (what came of a seed, of its
grid), ``predictions/N.jsonl``, ``prompts/N.safetensors`` (P-tuning's vectors or a prefix, with a
card), ``weights.safetensors`` (where the model is trained too: its numbers, and a head's, of the
seed that did best on dev), ``models/N`` if asked for, and ``metrics.json``, written last: a run is
finished when it is there. ``state.safetensors`` holds an unfinished training.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from symprompt.config import differing_keys, recipe_of, to_toml
from symprompt.errors import ConfigError, RunError
from symprompt.files.atomic import read_json, read_tensors, write_file, write_json, write_tensors
from symprompt.files.progress import Tick, silent
from symprompt.models import LanguageModel
from symprompt.runs.environment import describe_environment
from symprompt.runs.folder import CONFIG, ENVIRONMENT, METRICS, STATE
from symprompt.tasks.patterns.config import (
    PatternRunConfig,
    load_pattern_config,
    trains_model,
)
from symprompt.tasks.patterns.data import load_verbal
from symprompt.tasks.patterns.folder import WEIGHTS, on_dev, prompt_file, seed_file
from symprompt.tasks.patterns.methods import METHODS
from symprompt.tasks.patterns.prepare import VerbalProblem
from symprompt.tasks.patterns.superglue import VerbalData
from symprompt.tasks.patterns.tuner import Outcome, VerbalTuner, ask_zero_shot, tuning


def tune_pattern(
    config: PatternRunConfig,
    *,
    resume: bool = False,
    backbone: LanguageModel | None = None,
    tick: Tick = silent,
) -> dict[str, Any]:
    """Train (or only ask) a task through a pattern for every seed, and write a run folder.

    Args:
        config: the model, data, pattern and how it is learned.
        resume: go on with an unfinished run, or add seeds to a finished one.
        backbone: the model, if it is loaded already; it is as it was when this returns.
        tick: told of progress, a seed at a time.

    Returns:
        What ``metrics.json`` holds: per metric the mean over seeds, their deviation and each one's
        value, in percent; the entry that ``symprompt.report.tasks`` shows.

    Raises:
        SympromptError: the config, data, pattern or folder does not serve.
    """
    if not config.data:
        raise ConfigError(
            f"--data is missing; name the folder of {config.pattern.task}'s files, or the one "
            "above it."
        )
    out = _open(config, resume=resume)
    data = load_verbal(
        config.pattern.task,
        config.data,
        held_out=config.pattern.held_out,
        split_seed=config.pattern.split_seed,
    )
    backbone = backbone or load_for_tuning(config)
    tick("acceleration", 1, 1, backbone.accelerate(config.compile))
    problem = VerbalProblem(backbone, data, config.pattern, max_tokens=config.max_tokens)
    _write_start(out, config, problem)
    seeds = config.seeds
    if not METHODS[config.pattern.method].learns:
        # Nothing is drawn, so all seeds would be the same.
        seeds = seeds[:1]
    missing = [seed for seed in seeds if not _seed_path(out, seed).is_file()]
    tick("seeds", len(seeds) - len(missing), len(seeds), problem.task.name)
    for outcome in _outcomes(problem, config, missing, out):
        _write_outcome(out, config, problem, outcome)
        done = sum(_seed_path(out, seed).is_file() for seed in seeds)
        main = problem.task.metrics[0]
        tick("seeds", done, len(seeds), f"{main} {outcome.metrics[main]:.1f}")
    metrics = _summary(problem, config, [read_json(_seed_path(out, seed)) for seed in seeds])
    write_json(out / METRICS, metrics)
    return metrics


def load_for_tuning(config: PatternRunConfig) -> LanguageModel:
    """Load a model with weights that can be trained: float32, whatever the device."""
    dtype = "float32" if config.dtype == "auto" else config.dtype
    return LanguageModel.load(config.model, device=config.device, dtype=dtype)


def _outcomes(
    problem: VerbalProblem, config: PatternRunConfig, seeds: Sequence[int], out: Path
) -> Any:
    """Give each seed's outcome while the model is as the seed left it."""
    if not seeds:
        return
    if not METHODS[config.pattern.method].learns:
        yield ask_zero_shot(problem, seeds[0])
        return
    with tuning(
        problem,
        config.learning,
        state=out / STATE,
        key=_key(config, problem),
        checkpoint_seconds=config.checkpoint_seconds,
    ) as tuner:
        for seed in seeds:
            outcome = tuner.run(seed)
            if config.save_model:
                _save_model(tuner, out / "models" / str(seed))
            if config.keep_weights and trains_model(config.pattern):
                _keep_weights(tuner, outcome, out)
            yield outcome


def _keep_weights(tuner: VerbalTuner, outcome: Outcome, out: Path) -> None:
    """Store the trained weights if no seed before did better on dev; one seed's are enough."""
    place = out / WEIGHTS
    if place.is_file():
        before = _seed_path(out, int(read_tensors(place)[1]["seed"]))
        # A kill may have come between a seed's weights and what came of it.
        if before.is_file() and on_dev(read_json(before)) >= on_dev(outcome.to_json()):
            return
    # A prompt is stored by itself; a head is nothing without the model it was learned with.
    kinds = ("model.",) if tuner.problem.method.prompt else ("model.", "extra.")
    tensors = {
        name: value for name, value in tuner.training.parameters.items() if name.startswith(kinds)
    }
    write_tensors(place, tensors, {"seed": outcome.seed})


def _save_model(tuner: VerbalTuner, folder: Path) -> None:
    backbone = tuner.problem.backbone
    backbone.model.save_pretrained(folder)
    backbone.vocabulary.tokenizer.save_pretrained(folder)


def _key(config: PatternRunConfig, problem: VerbalProblem) -> str:
    """Return what a checkpoint is of: all that changes the numbers."""
    return json.dumps([recipe_of(config), problem.backbone.fingerprint])


def _open(config: PatternRunConfig, *, resume: bool) -> Path:
    """Return the run folder, refusing one that holds something else.

    Raises:
        ConfigError: no folder is named.
        RunError: it holds a run already, or another one than is to be gone on with.
    """
    if not config.out:
        raise ConfigError("no run folder is given; say where with --out.")
    out = Path(config.out)
    stored = out / CONFIG
    if not stored.is_file():
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise RunError(f"{out} is there and is no run; give an empty or a new folder.")
        return out
    if not resume:
        raise RunError(f"{out} holds a run already; go on with it (--resume) or take another.")
    other = differing_keys(load_pattern_config(str(stored)), config)
    if other:
        raise RunError(
            f"{out} was made with another {', '.join(other)}; go on with the same config or take "
            "another folder."
        )
    return out


def _seed_path(out: Path, seed: int) -> Path:
    return out / seed_file(seed)


def _write_start(out: Path, config: PatternRunConfig, problem: VerbalProblem) -> None:
    write_file(out / CONFIG, to_toml(config).encode())
    device = problem.backbone.device
    environment = describe_environment(device) | {
        "dtype": str(problem.backbone.dtype).removeprefix("torch."),
        "model_fingerprint": problem.backbone.fingerprint,
    }
    write_json(out / ENVIRONMENT, environment)


def _write_outcome(
    out: Path, config: PatternRunConfig, problem: VerbalProblem, outcome: Outcome
) -> None:
    rows = problem.rows("val", outcome.answers)
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    write_file(out / "predictions" / f"{outcome.seed}.jsonl", lines.encode())
    if outcome.prompt:
        card = {
            "base_model": config.model,
            "base_model_fingerprint": problem.backbone.fingerprint,
            "model_trained": trains_model(config.pattern),
            "task": problem.task.name,
            "pattern": problem.worded.text,
            "words": list(problem.worded.words),
            "seed": outcome.seed,
            "val": outcome.metrics,
        }
        write_tensors(out / prompt_file(outcome.seed), outcome.prompt, card)
    write_json(_seed_path(out, outcome.seed), outcome.to_json())


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


def _summary(
    problem: VerbalProblem, config: PatternRunConfig, rows: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    data: VerbalData = problem.data
    body = problem.backbone.model.base_model
    return {
        "model": config.model,
        "task": problem.task.name,
        "method": config.pattern.method,
        "model_trained": trains_model(config.pattern),
        "pattern": problem.worded.text,
        "words": list(problem.worded.words),
        "split": "val",
        "seeds": [row["seed"] for row in rows],
        "metrics": summarise_seeds([row["val"] for row in rows]),
        "dev": summarise_seeds([{"accuracy": row["dev"]["accuracy"]} for row in rows]),
        "seconds": round(sum(t["seconds"] for row in rows for t in row["tried"]) / len(rows), 2),
        # Seeds of older runs do not say how many numbers they trained.
        "trainable_parameters": max((row.get("trained") or 0 for row in rows), default=0) or None,
        "model_parameters": sum(value.numel() for value in body.parameters()),
        "counts": data.counts(),
        "notes": list(data.notes),
        "cut": problem.cuts(),
    }
