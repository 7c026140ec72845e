"""Training through patterns: against a plain loop in float64, recorded, resumed; whole runs."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from symprompt import cli
from symprompt.accel.compiling import Recorder
from symprompt.config import shipped_configs
from symprompt.engine.loop import Loop, rate_share
from symprompt.errors import ConfigError, RunError, SympromptError, TrainingError
from symprompt.files.atomic import read_tensors
from symprompt.models import LanguageModel
from symprompt.report.records import load_runs
from symprompt.runs.folder import Folder
from symprompt.tasks import training as patterns
from symprompt.tasks.config import (
    PatternLearningConfig,
    PatternRunConfig,
    is_pattern_config,
    load_pattern_config,
)
from symprompt.tasks.patterns.data import VerbalExample
from symprompt.tasks.patterns.model import VerbalModel, VerbalProblem, measure
from symprompt.tasks.patterns.pattern import PTUNING, TASKS
from symprompt.tasks.predict import load_metrics
from symprompt.tasks.train import Session, tune
from symprompt.tasks.training import PatternTraining, Recipe, ask_zero_shot, batch_rows, tuning
from tiny.labelled import read_lines, write_long_model, write_task
from tiny.models import CAUSAL_FAMILIES, FAMILIES
from tiny.tasks import LEARNING, TEXT, make_problem, pattern_config


def own_copy(backbone: LanguageModel) -> LanguageModel:
    return copy.deepcopy(backbone, {id(backbone.vocabulary): backbone.vocabulary})


def plain_loop(
    problem: VerbalProblem, recipe: Recipe, learning: PatternLearningConfig
) -> dict[str, Tensor]:
    """The same steps with backward(), one example at a time, and torch's AdamW."""
    model = problem.make_model(recipe.seed)
    network = model.backbone.model.requires_grad_(True)
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
            (loss.sum() / len(rows)).backward()
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
    ("method", "template"),
    [("ptuning", TEXT), ("mp", TEXT.replace("<1> ", "")), ("cls", "")],
)
@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_methods_learn_what_the_premise_says(
    method: str,
    template: str,
    family: str,
    load_family: Callable[..., LanguageModel],
) -> None:
    backbone = load_family(family, "float32")
    problem = make_problem(backbone, method=method, template=template)
    learning = replace(LEARNING, rates=(1e-2,), steps=80, evaluate_every=20, weight_decay=0.0)
    with tuning(problem, learning) as training:
        row, _ = training.run(1)
        assert all(own.shape == (2, backbone.width) for own in training.prompt().values())
    assert row["dev"]["accuracy"] == 100
    assert row["val"] == {"accuracy": 100}


@pytest.mark.parametrize(
    ("method", "changes"),
    [
        ("ptuning", {"train_model": False, "encoder": "mlp"}),
        ("pt2", {"prefix_length": 4, "prefix_encoder": "free"}),
        ("pt2", {"prefix_length": 4, "prefix_encoder": "mlp"}),
    ],
)
@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_with_a_frozen_model_vectors_or_prefix_alone_learn(
    method: str, changes: dict[str, Any], family: str, load_family: Callable[..., LanguageModel]
) -> None:
    backbone = load_family(family, "float32")
    before = {name: value.clone() for name, value in backbone.model.named_parameters()}
    template = TEXT if method == "ptuning" else TEXT.replace("<1> ", "")
    problem = make_problem(backbone, method=method, template=template, **changes)
    learning = replace(LEARNING, prompt_rate=3e-2, steps=60, evaluate_every=20, model_dropout=False)
    with tuning(problem, learning) as training:
        assert all(name.startswith("extra.") for name in training.parameters)
        first = problem.look(training.model)[1]
        row, _ = training.run(1)
        (prompt,) = training.prompt().values()
        for name, value in backbone.model.named_parameters():
            assert torch.equal(value, before[name])
    assert row["dev"]["loss"] < 0.7 * first
    layers, heads, size = backbone.prefix_shape
    wanted = (2, backbone.width) if method == "ptuning" else (layers, 2, heads, 4, size)
    assert prompt.shape == wanted
    assert (row["trained"] == prompt.numel()) == ("free" in changes.values())


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

        training.step = broken
        with pytest.raises(TrainingError, match=r"the loss is nan \(seed 1, rate 0.003\)"):
            training.run(1)


def test_batches_go_through_every_example_in_another_order_each_epoch() -> None:
    recipe = Recipe(1, 1e-3, 4)
    epochs = [[batch_rows(epoch * 2 + step, 9, recipe) for step in range(2)] for epoch in range(2)]
    for steps in epochs:
        assert len(np.unique(np.concatenate(steps))) == 8
    assert not np.array_equal(epochs[0][0], epochs[1][0])
    assert len(batch_rows(5, 3, recipe)) == 3


def pretend(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let functions be rehearsed on a CPU as on a GPU; return how many are recorded."""
    made: list[int] = []

    def capture(
        self: Recorder, work: Callable[[], None], state: Sequence[Tensor] = ()
    ) -> Callable[[], None]:
        before, random = [value.clone() for value in state], torch.get_rng_state()
        for _ in range(2):
            work()
        with torch.no_grad():
            for value, old in zip(state, before, strict=True):
                value.copy_(old)
        torch.set_rng_state(random)
        made.append(1)
        return work

    monkeypatch.setattr(Recorder, "capture", capture)
    return made


def parameters_of(backbone: LanguageModel) -> dict[str, Tensor]:
    with tuning(make_problem(backbone), replace(LEARNING, micro_batch=3)) as training:
        training.run(1)
        training.run(2)
        return {name: own.detach().clone() for name, own in training.parameters.items()}


def test_recorded_steps_end_with_the_same_bits(
    bert: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = parameters_of(bert)
    made = pretend(monkeypatch)
    found = parameters_of(bert)
    # A first pass of three examples, a last one of one that updates; both seeds use the same.
    assert len(made) == 2
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def test_rehearsals_never_ask_beyond_the_width(
    bert: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch)
    monkeypatch.setattr(patterns, "_GRAIN", 1)
    problem = make_problem(bert)
    layout = problem.layouts["train"]
    asked: list[bool] = []
    loss = VerbalModel.loss

    def watched(self: VerbalModel, layout: Any, rows: Tensor, width: int) -> Tensor:
        asked.append(bool((layout.lengths[rows] <= width).all()))
        return loss(self, layout, rows, width)

    monkeypatch.setattr(VerbalModel, "loss", watched)
    # The first example is not the shortest: a pass as wide as the shortest cannot hold it.
    layout.widths[0] += 1
    layout.lengths[0] += 1
    assert int(layout.widths.argmin()) != 0
    with tuning(problem, LEARNING) as training:
        asked.clear()
        training.begin(Recipe(1, 1e-3, 1))
        for number in range(len(layout)):
            training.step(number)
    assert asked
    assert all(asked)


NAMES = [name for name in shipped_configs("tune") if is_pattern_config(name)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT that takes sentences as long as the published patterns spelled by letters."""
    folder = tmp_path_factory.mktemp("long")
    words = [*["Rome", "Paris", "is", "old", "the", "Yes", "No", "Maybe"], *'?:*()/"']
    return write_long_model(folder, words, positions=512)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    for task in TASKS:
        write_task(tmp_path / "data" / TASKS[task].folder, task)
    return tmp_path / "data"


@pytest.fixture
def config(data: Path, family_folder: Callable[[str], Path], tmp_path: Path) -> PatternRunConfig:
    """A short run of two seeds."""
    changes = {"seeds": [1, 2], "learning__steps": 2}
    return pattern_config(data, family_folder("bert"), tmp_path / "run", **changes)


def test_every_task_has_a_config_with_its_papers_pattern() -> None:
    assert {f"fewglue-{task}" for task in TASKS} <= set(NAMES)
    for task in TASKS:
        assert load_pattern_config(f"fewglue-{task}").pattern.template == PTUNING[task].text


@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_config_runs_from_the_command_line(
    name: str, model: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    place = ["--model", str(model), "--data", str(data), "--out", str(out), "--device", "cpu"]
    short = ["--seeds", "1", "2", "--epochs", "0", "--steps", "2", "--evaluate-every", "2"]
    cli.main(["tune", name, *place, *short, "--rates", "1e-3", "--batches", "4"])
    assert f"run folder: {out}" in capsys.readouterr().out
    metrics = load_metrics(Folder(out))
    task = TASKS[metrics["task"]]
    assert list(metrics["metrics"]) == list(task.metrics)
    assert metrics["seeds"] == [1, 2]
    assert all(len(entry["values"]) == 2 for entry in metrics["metrics"].values())
    assert "accuracy" in load_runs([str(out)]).tables().to_markdown()
    rows = read_lines(out / "predictions/1.jsonl")
    assert len(rows) == metrics["counts"]["val"]["examples"]
    assert all(row["prediction"] in task.labels for row in rows)
    if metrics["method"] == "ptuning":
        tensors, card = read_tensors(out / "prompts/1.safetensors")
        assert tensors["vectors"].shape[1] == 16
        assert card["pattern"] == metrics["pattern"]
    assert not (out / "state.safetensors").exists()


def test_a_run_is_gone_on_with_and_seeds_are_added(
    config: PatternRunConfig, tmp_path: Path
) -> None:
    session, stored = Session(), tmp_path / "run/seeds/1.json"
    both = tune(replace(config, out=str(tmp_path / "both")), session=session).metrics
    one = replace(config, seeds=(1,))
    tune(one, session=session)
    before = stored.read_bytes()
    # A finished run is returned as it is.
    assert tune(one, session=session).metrics["seeds"] == [1]
    ticks: list[Sequence[object]] = []
    found = tune(config, resume=True, session=session, tick=lambda *told: ticks.append(told))
    assert stored.read_bytes() == before
    assert [told[1:3] for told in ticks if told[0] == "seeds"] == [(1, 2), (2, 2)]
    assert found.metrics["metrics"] == both["metrics"]
    with pytest.raises(RunError, match="holds a run with other seeds"):
        tune(one, session=session)
    other = replace(config, learning=replace(config.learning, rates=(2e-5,)))
    with pytest.raises(RunError, match=r"another learning.rates"):
        tune(other, resume=True, session=session)


def test_trained_models_are_stored_where_asked_for(
    config: PatternRunConfig, tmp_path: Path
) -> None:
    tune(replace(config, seeds=(1,), save_model=True))
    stored = LanguageModel.load(str(tmp_path / "run/models/1"), device="cpu")
    first = LanguageModel.load(config.model, device="cpu")
    pairs = zip(stored.model.parameters(), first.model.parameters(), strict=True)
    assert any(not torch.equal(one, other) for one, other in pairs)


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ({"template": "pet-99"}, "published ones: pet-0"),
        ({"template": "{premise} [MASK]"}, "with vectors"),
        ({"template": "{premise} <1> [MASK]", "method": "mp"}, "without vectors"),
        ({"words": ("Yes",)}, "takes 2, for not_entailment, entailment"),
        ({"task": "copa", "template": "", "words": ("Yes",)}, "bring their answers"),
    ],
)
def test_a_pattern_that_does_not_serve_is_refused(
    pattern: dict[str, Any], message: str, config: PatternRunConfig
) -> None:
    with pytest.raises(ConfigError, match=message):
        tune(replace(config, pattern=replace(config.pattern, **pattern)))


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"out": ""}, ConfigError, "--out"),
        ({"data": ""}, ConfigError, "--data is missing; name the folder of rte's files"),
        ({"out": "data"}, RunError, "is not a run folder"),
    ],
)
def test_a_run_needs_a_folder_of_its_own(
    changes: dict[str, str],
    error: type[SympromptError],
    message: str,
    config: PatternRunConfig,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=message):
        tune(replace(config, **changes))


def test_metrics_are_superglues() -> None:
    def example(group: str, label: int) -> VerbalExample:
        return VerbalExample(group + str(label), {}, label, group=group)

    multirc = [example("a", 1), example("a", 0), example("b", 1), example("b", 1)]
    found = measure(TASKS["multirc"], multirc, [1, 0, 1, 0])
    assert found == pytest.approx({"em": 50.0, "f1a": 80.0, "accuracy": 75.0})
    # By hand: F1 of 0 is 2/3, of 1 is 1/2, of 2 is 0.
    cb = [example("", label) for label in (0, 0, 1, 2)]
    found = measure(TASKS["cb"], cb, [0, 1, 1, 1])
    assert found == pytest.approx({"accuracy": 50.0, "macro_f1": 100 * (2 / 3 + 1 / 2) / 3})
