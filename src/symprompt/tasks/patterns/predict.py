"""Answer a user's file through the pattern of a finished run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from symprompt.errors import ConfigError, RunError
from symprompt.files.progress import Tick, silent
from symprompt.models import LanguageModel
from symprompt.runs.folder import Folder
from symprompt.tasks.outcome import Outcome
from symprompt.tasks.patterns.config import PatternConfig, trains_model
from symprompt.tasks.patterns.data import load_verbal_file
from symprompt.tasks.patterns.folder import (
    COMMAND,
    WEIGHTS,
    best_seed,
    pattern_config,
    prompt_file,
)
from symprompt.tasks.patterns.methods import METHODS
from symprompt.tasks.patterns.model import VerbalModel
from symprompt.tasks.patterns.prepare import VerbalProblem
from symprompt.tasks.patterns.superglue import VerbalData, find_task
from symprompt.tasks.stored import check_backbone

_FILE = "file"
_HALF = {"float32": False, "bfloat16": True}


def predict_verbal(
    run: str | Path,
    file: str | Path,
    *,
    columns: Sequence[str] = (),
    model: str = "",
    device: str = "auto",
    dtype: str = "auto",
    max_tokens: int = 0,
    tick: Tick = silent,
) -> Outcome:
    """Return what a run answers to the examples of a file: labels, each with its probability.

    The seed that did best on dev answers. WSC's rows have what the model wrote instead of a
    probability.

    Args:
        columns: the task's name of a column = the file's.
        model: where the model is now, if not where the run says.
        dtype: auto, float32 or bfloat16, of the passes.

    Raises:
        SympromptError: the run, the file or the model cannot be used.
    """
    folder = Folder(run)
    manifest = folder.require_finished(COMMAND)
    config = pattern_config(folder)
    task = find_task(config.pattern.task)
    examples = load_verbal_file(task, file, columns=_columns_of(columns))
    name = model or config.model
    kept = "float32" if dtype in ("auto", *_HALF) else dtype
    backbone = LanguageModel.load(name, device=device, dtype=kept)
    check_backbone(manifest.model, manifest.model_fingerprint, backbone, str(folder.path))
    data = VerbalData(task, {_FILE: examples}, str(file))
    pattern = _stored_pattern(config.pattern, manifest.details)
    problem = VerbalProblem(backbone, data, pattern, max_tokens=max_tokens, splits=(_FILE,))
    trained = _load_trained(folder, problem, half=_HALF.get(dtype))
    answers = problem.answer(trained, _FILE, tick=tick)
    labelled = all(example.label is not None for example in examples)
    found = problem.measure(_FILE, answers) if labelled else {}
    return Outcome(found, problem.rows(_FILE, answers), _notes(problem))


def _columns_of(pairs: Sequence[str]) -> dict[str, str]:
    found = {}
    for pair in pairs:
        name, equals, column = pair.partition("=")
        if not (name and equals and column):
            raise ConfigError(f"--columns has {pair!r}; give name=column, as in premise=text.")
        found[name] = column
    return found


def _stored_pattern(config: PatternConfig, details: Mapping[str, Any]) -> PatternConfig:
    """Return the pattern as the run read it, whatever a published one of its name says now."""
    if not METHODS[config.method].verbal:
        return config
    words = tuple(map(str, details["words"]))
    return replace(config, template=str(details["pattern"]), words=words)


def _load_trained(folder: Folder, problem: VerbalProblem, *, half: bool | None) -> VerbalModel:
    """Return the model as training left it; of a model trained too, the weights that were kept."""
    tensors: dict[str, Tensor] = {}
    joint = trains_model(problem.config)
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
    if problem.method.prompt:
        tensors |= folder.read_tensors(prompt_file(seed))[0]
    with folder.refuse_damage(WEIGHTS if joint else prompt_file(seed)):
        try:
            # A network that made vectors or a prefix is not stored, only what it gave.
            plain = replace(problem.config, prefix_encoder="free", encoder="free")
            extra = problem.make_extra(0, plain)
            problem.method.load(extra, tensors)
            _load_weights(problem.backbone, tensors)
        except RuntimeError as error:
            raise ValueError(f"its numbers do not fit ({error})") from error
    return VerbalModel(problem.backbone, extra, half=half)


@torch.no_grad()
def _load_weights(backbone: LanguageModel, tensors: Mapping[str, Tensor]) -> None:
    own = dict(backbone.model.named_parameters())
    for name, value in tensors.items():
        if name.startswith("model."):
            own[name.removeprefix("model.")].copy_(value)


def _notes(problem: VerbalProblem) -> tuple[str, ...]:
    cut = problem.cuts()[_FILE]
    if not cut["examples"]:
        return ()
    return (
        f"examples longer than {problem.max_length} tokens: {cut['examples']}; the ends of their "
        f"longest fields were left out, {cut['tokens']} tokens in all",
    )
