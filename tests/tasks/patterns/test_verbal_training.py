"""Training: against a plain loop in float64, seeds, resuming, and that it learns."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from symprompt.errors import TrainingError
from symprompt.models import LanguageModel
from symprompt.tasks.patterns.config import LearningConfig
from symprompt.tasks.patterns.prepare import VerbalProblem
from symprompt.tasks.patterns.stepping import Stepper
from symprompt.tasks.patterns.training import Recipe, batch_rows, rate_share
from symprompt.tasks.patterns.tuner import Outcome, VerbalTuner, ask_zero_shot, tuning
from tiny.causal import CAUSAL_FAMILIES
from tiny.models import FAMILIES
from tiny.pattern import LEARNING, TEXT, make_problem


def own_copy(backbone: LanguageModel) -> LanguageModel:
    return copy.deepcopy(backbone, {id(backbone.vocabulary): backbone.vocabulary})


def plain_loop(
    problem: VerbalProblem, recipe: Recipe, learning: LearningConfig
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
        optimizer, lambda step: rate_share(step, learning.steps, learning.warmup)
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
    learning = replace(LEARNING, steps=5, warmup=2, micro_batch=micro, clip=0.5)
    recipe = Recipe(7, 3e-3, 4)
    wanted = plain_loop(make_problem(own_copy(bert)), recipe, learning)
    problem = make_problem(own_copy(bert))
    problem.backbone.model.requires_grad_(True)
    stepper = Stepper(problem.make_model(7), problem.layouts["train"], learning)
    for step in range(5):
        share = rate_share(step, 5, 2)
        rates = {"model": recipe.rate * share, "extra": learning.prompt_rate * share}
        stepper.step(batch_rows(step, len(problem.layouts["train"]), recipe), rates)
    assert len(stepper.parameters) > 20
    for name, value in stepper.parameters.items():
        torch.testing.assert_close(value, wanted[name], rtol=1e-6, atol=1e-8)


def outcome_of(tuner: VerbalTuner, seed: int) -> tuple[Outcome, dict[str, Tensor]]:
    outcome = tuner.run(seed)
    return outcome, {
        name: value.detach().clone() for name, value in tuner.stepper.parameters.items()
    }


def test_a_seed_gives_the_same_numbers_whatever_was_trained_before(bert: LanguageModel) -> None:
    before = {name: value.clone() for name, value in bert.model.named_parameters()}
    with tuning(make_problem(bert), LEARNING) as tuner:
        tuner.run(1)
        one, values = outcome_of(tuner, 2)
    with tuning(make_problem(bert), LEARNING) as tuner:
        other, same = outcome_of(tuner, 2)
        third, different = outcome_of(tuner, 3)
    assert one.dev == other.dev
    assert all(torch.equal(values[name], same[name]) for name in values)
    assert any(not torch.equal(different[name], same[name]) for name in values)
    assert third.dev.loss != one.dev.loss
    # The model is as it was.
    for name, value in bert.model.named_parameters():
        assert torch.equal(value, before[name])
        assert value.grad is None
        assert not value.requires_grad


def test_a_tuner_leaves_no_memory_behind(bert: LanguageModel) -> None:
    gc.collect()
    gc.disable()
    try:
        with tuning(make_problem(bert), LEARNING) as tuner:
            tuner.run(1)
        left = weakref.ref(tuner.stepper)
        del tuner
        # On a GPU it holds recordings: nothing else would be told to look for it.
        assert left() is None
    finally:
        gc.enable()


def test_a_training_that_was_stopped_ends_as_an_unbroken_one(
    bert: LanguageModel, tmp_path: Path
) -> None:
    problem = make_problem(bert)
    with tuning(problem, LEARNING) as tuner:
        wanted, values = outcome_of(tuner, 5)
    state = tmp_path / "state.safetensors"
    with tuning(problem, LEARNING, state=state, key="a", checkpoint_seconds=0) as tuner:
        look, looks = tuner.training.look, 0

        def stop() -> tuple[float, float]:
            nonlocal looks
            looks += 1
            if looks == 3:
                raise KeyboardInterrupt
            return look()

        tuner.training.look = stop
        with pytest.raises(KeyboardInterrupt):
            tuner.run(5)
    assert state.is_file()
    with tuning(problem, LEARNING, state=state, key="a", checkpoint_seconds=0) as tuner:
        made: list[int] = []
        steps = tuner.training._steps

        def count(recipe: Recipe, first: int, number: int, most: int) -> None:
            made.append(first)
            steps(recipe, first, number, most)

        tuner.training._steps = count  # type: ignore[method-assign]
        found, same = outcome_of(tuner, 5)
    assert made == [8]
    assert found.dev == wanted.dev
    assert [entry["step"] for entry in found.tried] == [entry["step"] for entry in wanted.tried]
    assert all(torch.equal(values[name], same[name]) for name in values)
    assert not state.exists()


def test_a_checkpoint_of_something_else_is_not_gone_on_from(
    bert: LanguageModel, tmp_path: Path
) -> None:
    state = tmp_path / "state.safetensors"
    problem = make_problem(bert)
    with tuning(problem, LEARNING, state=state, key="a", checkpoint_seconds=0) as tuner:
        tuner.stepper.reset(problem.make_extra(5))
        tuner.training.run(Recipe(5, 3e-3, 4))
        assert state.is_file()
        tuner.training.key = "b"
        assert tuner.training._resume(Recipe(5, 3e-3, 4)).step == 0
        tuner.training.key = "a"
        assert tuner.training._resume(Recipe(6, 3e-3, 4)).step == 0
        assert tuner.training._resume(Recipe(5, 3e-3, 4)).step == 12


def test_dev_chooses_the_setting_and_patience_stops(bert: LanguageModel) -> None:
    learning = replace(LEARNING, rates=(1e-3, 1e-9), prompt_rate=1e-9, batches=(2, 8), patience=1)
    with tuning(make_problem(bert), learning) as tuner:
        outcome = tuner.run(1)
    assert len(outcome.tried) == 4
    best = max(outcome.tried, key=lambda entry: (entry["accuracy"], -entry["loss"]))
    assert outcome.recipe == Recipe(1, best["rate"], best["batch"])
    assert (outcome.dev.accuracy, outcome.dev.loss) == (best["accuracy"], best["loss"])
    # A rate of nothing changes nothing, so the second look is the last.
    assert {entry["steps"] for entry in outcome.tried if entry["rate"] == 1e-9} == {8}


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
    with tuning(problem, learning) as tuner:
        outcome = tuner.run(1)
    assert outcome.dev.accuracy == 100
    assert outcome.metrics == {"accuracy": 100}
    assert all(value.shape == (2, backbone.width) for value in outcome.prompt.values())


def test_with_a_frozen_model_the_vectors_alone_learn(bert: LanguageModel) -> None:
    problem = make_problem(bert, train_model=False, encoder="mlp")
    learning = replace(LEARNING, prompt_rate=3e-2, steps=60, evaluate_every=20)
    before = {name: value.clone() for name, value in bert.model.named_parameters()}
    with tuning(problem, learning) as tuner:
        assert all(name.startswith("extra.") for name in tuner.stepper.parameters)
        first = problem.look(tuner.model)[1]
        outcome = tuner.run(1)
        assert all(torch.equal(own, before[name]) for name, own in bert.model.named_parameters())
    assert outcome.dev.loss < 0.7 * first


@pytest.mark.parametrize("family", [*FAMILIES, *CAUSAL_FAMILIES])
def test_every_family_trains_and_goes_back(
    family: str, load_family: Callable[..., LanguageModel]
) -> None:
    backbone = load_family(family)
    problem = make_problem(backbone)
    before = ask_zero_shot(problem, 3)
    with tuning(problem, replace(LEARNING, steps=2, evaluate_every=1)) as tuner:
        outcome = tuner.run(3)
    assert outcome.tried[0]["steps"] == 2
    assert ask_zero_shot(problem, 3).dev == before.dev


def test_a_loss_that_is_no_number_is_told(bert: LanguageModel) -> None:
    with tuning(make_problem(bert), LEARNING) as tuner:
        tuner.stepper.take_loss = lambda: float("nan")  # type: ignore[method-assign]
        with pytest.raises(TrainingError, match="the loss is nan after step 4"):
            tuner.run(1)


def test_batches_go_through_every_example_in_another_order_each_epoch() -> None:
    recipe = Recipe(1, 1e-3, 4)
    epochs = [[batch_rows(epoch * 2 + step, 9, recipe) for step in range(2)] for epoch in range(2)]
    for steps in epochs:
        assert len(np.unique(np.concatenate(steps))) == 8
    assert not np.array_equal(epochs[0][0], epochs[1][0])
    assert len(batch_rows(5, 3, recipe)) == 3


def test_rates_rise_and_fall() -> None:
    shares = [rate_share(step, 10, 2) for step in range(10)]
    assert shares[:3] == [0.0, 0.5, 1.0]
    assert shares[9] == pytest.approx(1 / 8)
    assert rate_share(0, 10, 0) == 1
