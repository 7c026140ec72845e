"""Training: against a plain loop in float64, seeds, resuming, and that it learns."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from symprompt.engine.loop import Loop, rate_share
from symprompt.errors import TrainingError
from symprompt.models import LanguageModel
from symprompt.tasks.config import PatternLearningConfig
from symprompt.tasks.patterns.model import VerbalProblem
from symprompt.tasks.patterns.train import (
    PatternTraining,
    Recipe,
    ask_zero_shot,
    batch_rows,
    tuning,
)
from tiny.models import CAUSAL_FAMILIES, FAMILIES
from tiny.tasks import LEARNING, TEXT, make_problem


def own_copy(backbone: LanguageModel) -> LanguageModel:
    return copy.deepcopy(backbone, {id(backbone.vocabulary): backbone.vocabulary})


def plain_loop(
    problem: VerbalProblem, recipe: Recipe, learning: PatternLearningConfig
) -> dict[str, Tensor]:
    """The same steps with backward(), one example at a time, and torch's AdamW."""
    model = problem.make_model(recipe.seed)
    network = model.backbone.model.requires_grad_(True)
    assert model.extra is not None
    matrices = [value for value in network.parameters() if value.dim() > 1]
    others = [value for value in network.parameters() if value.dim() < 2]
    optimizer = torch.optim.AdamW(
        [
            {"params": matrices, "weight_decay": learning.weight_decay, "lr": recipe.rate},
            {"params": others, "weight_decay": 0.0, "lr": recipe.rate},
            {
                "params": list(model.extra.parameters()),
                "weight_decay": 0.0,
                "lr": learning.prompt_rate,
            },
        ]
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: float(rate_share(step, learning.steps, warmup=learning.warmup)),
    )
    layout = problem.layouts["train"]
    everything = [*network.parameters(), *model.extra.parameters()]
    for step in range(learning.steps):
        rows = batch_rows(step, len(layout), recipe)
        for row in rows:
            loss = model.loss(layout, torch.tensor([row]), int(layout.ids.shape[2]))
            (loss.sum() / len(rows)).backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(everything, learning.clip)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    named = {f"model.{name}": value for name, value in network.named_parameters()}
    return named | {f"extra.{name}": value for name, value in model.extra.named_parameters()}


@pytest.mark.parametrize("micro", [0, 3])
def test_steps_are_those_of_a_plain_loop(bert: LanguageModel, micro: int) -> None:
    learning = replace(LEARNING, steps=5, warmup=0.4, micro_batch=micro, clip=0.5)
    recipe = Recipe(7, 3e-3, 4)
    wanted = plain_loop(make_problem(own_copy(bert)), recipe, learning)
    problem = make_problem(own_copy(bert))
    problem.backbone.model.requires_grad_(True)
    training = PatternTraining(problem, learning)
    training.begin(recipe)
    for step in range(5):
        training.step(step)
    assert len(training.parameters) > 20
    for name, value in training.parameters.items():
        torch.testing.assert_close(value, wanted[name], rtol=1e-6, atol=1e-8)


def run_of(training: PatternTraining, seed: int) -> tuple[dict[str, Any], dict[str, Tensor]]:
    row, _ = training.run(seed)
    return row, {name: value.detach().clone() for name, value in training.parameters.items()}


def test_a_seed_gives_the_same_numbers_whatever_was_trained_before(bert: LanguageModel) -> None:
    before = {name: value.clone() for name, value in bert.model.named_parameters()}
    with tuning(make_problem(bert), LEARNING) as training:
        training.run(1)
        one, values = run_of(training, 2)
    with tuning(make_problem(bert), LEARNING) as training:
        other, same = run_of(training, 2)
        third, different = run_of(training, 3)
    assert one["dev"] == other["dev"]
    assert all(torch.equal(values[name], same[name]) for name in values)
    assert any(not torch.equal(different[name], same[name]) for name in values)
    assert third["dev"]["loss"] != one["dev"]["loss"]
    # The model is as it was.
    for name, value in bert.model.named_parameters():
        assert torch.equal(value, before[name])
        assert value.grad is None
        assert not value.requires_grad


def test_a_tuner_leaves_no_memory_behind(bert: LanguageModel) -> None:
    gc.collect()
    gc.disable()
    try:
        with tuning(make_problem(bert), LEARNING) as training:
            training.run(1)
        left = weakref.ref(training)
        del training
        # On a GPU it holds recordings: nothing else would be told to look for it.
        assert left() is None
    finally:
        gc.enable()


def test_a_checkpoint_of_another_recipe_is_not_gone_on_from(
    bert: LanguageModel, tmp_path: Path
) -> None:
    state = tmp_path / "state.safetensors"
    problem = make_problem(bert)
    with tuning(problem, LEARNING, state=state, key="a", checkpoint_seconds=0) as training:
        training.train(Recipe(5, 3e-3, 4))
        assert state.is_file()
        for key, seed, done in (("b", 5, 0), ("a", 6, 0), ("a", 5, 12)):
            about = {"run": key, "recipe": {"seed": seed, "rate": 3e-3, "batch": 4}}
            training.begin(Recipe(seed, 3e-3, 4))
            assert Loop(training, checkpoint=state, key=about)._resume().done == done


def test_dev_chooses_the_setting_and_patience_stops(bert: LanguageModel) -> None:
    learning = replace(LEARNING, rates=(1e-3, 1e-9), prompt_rate=1e-9, batches=(2, 8), patience=1)
    with tuning(make_problem(bert), learning) as training:
        row, _ = training.run(1)
    assert len(row["tried"]) == 4
    best = max(row["tried"], key=lambda entry: (entry["accuracy"], -entry["loss"]))
    assert (row["rate"], row["batch"]) == (best["rate"], best["batch"])
    assert row["dev"] == {key: best[key] for key in ("accuracy", "loss", "step")}
    # A rate of nothing changes nothing, so the second look is the last.
    assert {entry["steps"] for entry in row["tried"] if entry["rate"] == 1e-9} == {8}


@pytest.mark.parametrize(
    ("method", "template", "train_model"),
    [("ptuning", TEXT, True), ("mp", TEXT.replace("<1> ", ""), True), ("cls", "", True)],
)
@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_methods_learn_what_the_premise_says(
    method: str,
    template: str,
    train_model: bool,
    family: str,
    load_family: Callable[..., LanguageModel],
) -> None:
    backbone = load_family(family, "float32")
    problem = make_problem(backbone, method=method, template=template, train_model=train_model)
    learning = replace(LEARNING, rates=(1e-2,), steps=80, evaluate_every=20, weight_decay=0.0)
    with tuning(problem, learning) as training:
        row, _ = training.run(1)
        assert all(own.shape == (2, backbone.width) for own in training.prompt().values())
    assert row["dev"]["accuracy"] == 100
    assert row["val"] == {"accuracy": 100}


def test_with_a_frozen_model_the_vectors_alone_learn(bert: LanguageModel) -> None:
    problem = make_problem(bert, train_model=False, encoder="mlp")
    learning = replace(LEARNING, prompt_rate=3e-2, steps=60, evaluate_every=20)
    before = {name: value.clone() for name, value in bert.model.named_parameters()}
    with tuning(problem, learning) as training:
        assert all(name.startswith("extra.") for name in training.parameters)
        first = problem.look(training.model)[1]
        row, _ = training.run(1)
        assert all(torch.equal(own, before[name]) for name, own in bert.model.named_parameters())
    assert row["dev"]["loss"] < 0.7 * first


@pytest.mark.parametrize("family", [*FAMILIES, *CAUSAL_FAMILIES])
def test_every_family_trains_and_goes_back(
    family: str, load_family: Callable[..., LanguageModel]
) -> None:
    backbone = load_family(family)
    problem = make_problem(backbone)
    before, _ = ask_zero_shot(problem, 3)
    with tuning(problem, replace(LEARNING, steps=2, evaluate_every=1)) as training:
        row, _ = training.run(3)
    assert row["tried"][0]["steps"] == 2
    assert ask_zero_shot(problem, 3)[0] == before


def test_a_loss_that_is_no_number_is_told(bert: LanguageModel) -> None:
    with tuning(make_problem(bert), LEARNING) as training:
        step = training.step

        def broken(number: int) -> None:
            step(number)
            training.losses.fill_(torch.nan)

        training.step = broken  # type: ignore[method-assign]
        with pytest.raises(TrainingError, match=r"the loss is nan \(seed 1, rate 0.003\)"):
            training.run(1)


def test_batches_go_through_every_example_in_another_order_each_epoch() -> None:
    recipe = Recipe(1, 1e-3, 4)
    epochs = [[batch_rows(epoch * 2 + step, 9, recipe) for step in range(2)] for epoch in range(2)]
    for steps in epochs:
        assert len(np.unique(np.concatenate(steps))) == 8
    assert not np.array_equal(epochs[0][0], epochs[1][0])
    assert len(batch_rows(5, 3, recipe)) == 3
