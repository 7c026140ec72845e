"""Warm start: another run's encoders as the start of a new training."""

from __future__ import annotations

import torch

from symprompt.errors import RunError
from symprompt.probing.config import RunConfig
from symprompt.probing.folder import COMMANDS, ENCODER, load_card, run_config
from symprompt.probing.methods.base import Method
from symprompt.probing.prepare import Problem
from symprompt.runs.folder import Folder


def _check_source(source: Folder, config: RunConfig, problem: Problem, method: Method) -> None:
    """Refuse a run whose prompts were learned for something else than this run is about."""
    source.require_finished(*COMMANDS)
    if not source.has(ENCODER):
        raise RunError(
            f"{source.path} keeps no encoder to train further; it was made with keep_encoder = "
            "false, or by a method that learns nothing."
        )
    card = load_card(source)
    if card["base_model_fingerprint"] != problem.backbone.fingerprint:
        raise RunError(
            f"{source.path} was made by another model ({card['base_model']}); prompts fit only "
            "the model they were learned on."
        )
    for name, template, prompts in zip(
        problem.relations, problem.templates, problem.several, strict=True
    ):
        if name not in card["relations"]:
            raise RunError(f"{source.path} has no prompts for relation {name}.")
        theirs = card["relations"][name]["template"]
        if theirs != str(template):
            raise RunError(
                f"{source.path} was trained with another template for relation {name}: {theirs!r}, "
                f"not {str(template)!r}; vectors fit only the places they were learned in."
            )
        written = [str(prompt) for prompt in prompts]
        if card["relations"][name].get("prompts", []) != written:
            raise RunError(
                f"{source.path} was trained with other manual templates for relation {name}; "
                "vectors fit only the places they were learned in."
            )
    before, now = run_config(source).method, config.method
    if method.has_subject_prompt and before.name == now.name and before.blanks != now.blanks:
        raise RunError(
            f'{source.path} was trained with method.blanks = "{before.blanks}", not '
            f'"{now.blanks}"; its vectors learned that subject prompt.'
        )


def load_encoders(method: Method, source: Folder, config: RunConfig, problem: Problem) -> None:
    """Put another run's encoders in place, to train them further.

    Raises:
        RunError: they were learned for another model, template, method or subject prompt.
    """
    _check_source(source, config, problem, method)
    tensors, note = source.read_tensors(ENCODER)
    with source.refuse_damage(ENCODER):
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
