"""The training step: stacked relations against relations alone, Adam, recorded steps, learning."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from symprompt.engine.loop import Loop
from symprompt.engine.stacked_adam import StackedAdam
from symprompt.errors import RunError, TrainingError
from symprompt.facts import FactSet
from symprompt.models import LanguageModel
from symprompt.probing.config import LearningConfig, RunConfig
from symprompt.probing.evaluate import predict
from symprompt.probing.recorded import CapturedSteps, room_for
from symprompt.probing.train import PromptTraining
from symprompt.runs.statistics import hits
from tiny.models import (
    Trained,
    causal_config,
    make_trainer,
    run_config,
    run_training,
    train,
    world_facts,
)

# ------------------------------------------------------------------------------------ StackedAdam


def run_torch(
    starts: list[Tensor],
    gradients: list[list[Tensor]],
    active: list[bool],
    rates: list[float],
    config: LearningConfig,
) -> list[Tensor]:
    """One relation trained by torch's own optimizer, over the steps in which it is active."""
    parameters = [nn.Parameter(start.clone()) for start in starts]
    kind = torch.optim.Adam if config.optimizer == "adam" else torch.optim.AdamW
    optimizer = kind(parameters, lr=1.0, weight_decay=config.weight_decay)
    for step, on in enumerate(active):
        if not on:
            continue
        for parameter, gradient in zip(parameters, gradients[step], strict=True):
            parameter.grad = gradient.clone()
        if config.clip:
            torch.nn.utils.clip_grad_norm_(parameters, config.clip)
        optimizer.param_groups[0]["lr"] = rates[step]
        optimizer.step()
    return [parameter.detach() for parameter in parameters]


@pytest.mark.parametrize("clip", [0.0, 1.5])
@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_stacked_adam_equals_torchs_for_each_relation(
    optimizer: Any, decay: float, clip: float
) -> None:
    config = LearningConfig(optimizer=optimizer, weight_decay=decay, clip=clip)
    generator = torch.Generator().manual_seed(0)
    relations, steps = 3, 12
    shapes = [(4, 5), (6,)]

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    starts = [draw(relations, *shape) for shape in shapes]
    # Relations with gradients of very different size: a clip over all of them would show.
    size = torch.tensor([0.05, 1.0, 30.0], dtype=torch.float64)
    gradients = [
        [draw(relations, *shape) * size.reshape(-1, *[1] * len(shape)) for shape in shapes]
        for _ in range(steps)
    ]
    active = torch.rand((steps, relations), generator=generator) < 0.6
    rates = 0.1 * torch.rand((steps, relations), generator=generator, dtype=torch.float64)
    parameters = {str(index): nn.Parameter(start.clone()) for index, start in enumerate(starts)}
    stacked = StackedAdam(parameters, config)
    for step in range(steps):
        before = {name: value.detach().clone() for name, value in parameters.items()}
        moments = [copy.deepcopy(store) for store in (stacked.mean, stacked.square)]
        for value, gradient in zip(parameters.values(), gradients[step], strict=True):
            value.grad = gradient.clone()
        stacked.step(active[step], rates[step])
        idle = ~active[step]
        for name, value in parameters.items():
            # Not nearly the same: the same bits, or an early-stopped relation would drift.
            assert torch.equal(value[idle], before[name][idle])
            assert not torch.equal(value[active[step]], before[name][active[step]]) or idle.all()
            for old, new in zip(moments, (stacked.mean, stacked.square), strict=True):
                assert torch.equal(old[name][idle], new[name][idle])
    assert torch.equal(stacked.steps, active.sum(0).double())
    for relation in range(relations):
        alone = run_torch(
            [start[relation] for start in starts],
            [[gradient[relation] for gradient in step] for step in gradients],
            active[:, relation].tolist(),
            rates[:, relation].tolist(),
            config,
        )
        for value, wanted in zip(parameters.values(), alone, strict=True):
            torch.testing.assert_close(value[relation].detach(), wanted, rtol=0, atol=1e-12)


# ------------------------------------------------------------------------ stacked equals alone


def check_same(stacked: Trained, alone: Trained, relation: int, tolerance: float) -> None:
    """Compare one relation of a stacked run with the same relation trained alone."""
    assert stacked.vectors().keys() == alone.vectors().keys()
    for part, value in stacked.vectors().items():
        torch.testing.assert_close(value[relation], alone.vectors()[part][0], rtol=0, atol=1e-9)
        ours, theirs = stacked.trainer.stopping[part], alone.trainer.stopping[part]
        assert ours.best[relation] == theirs.best[0]
        assert ours.stopped[relation] == theirs.stopped[0]
        assert ours.score[relation] == pytest.approx(theirs.score[0], abs=tolerance)
        for mine, other in zip(stacked.dev_history, alone.dev_history, strict=False):
            assert mine[part][relation] == pytest.approx(other[part][0], abs=tolerance)
    ours, theirs = stacked.predict(), alone.predict()
    ours = ours.take(np.flatnonzero(ours.relation == relation))
    for name in ("gold", "better", "equal", "better_filtered", "equal_filtered", "candidates"):
        assert np.array_equal(getattr(ours, name), getattr(theirs, name)), name
    assert np.array_equal(ours.known, theirs.known)
    # Scores are stored in float32, whose last bit may fall either way.
    for name in ("gold_score", "object_score", "subject_score"):
        one, other = getattr(ours, name), getattr(theirs, name)
        assert (one is None) == (other is None)
        if one is not None:
            np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)


CASES: dict[str, dict[str, Any]] = {
    "ptuning": {
        "method": {"name": "ptuning"},
        "learning": {"schedule": "exponential", "decay": 0.8, "select": "loss"},
    },
    "spe shared": {
        "method": {"name": "spe"},
        "learning": {"schedule": "linear", "clip": 0.05, "select": "loss"},
    },
    "spe separate": {
        "method": {"name": "spe", "vectors": "separate"},
        "learning": {
            "schedule": "exponential",
            "decay": 0.9,
            "clip": 0.1,
            "select": "mrr",
            "optimizer": "adamw",
            "weight_decay": 0.05,
        },
    },
    "spe whole kept": {
        "method": {"name": "spe", "vectors": "separate", "masking": "whole", "blanks": "kept"},
        "learning": {"schedule": "linear", "warmup": 0.2, "select": "loss", "weight_decay": 0.01},
    },
    "spe chain": {
        "method": {"name": "spe", "vectors": "separate", "masking": "chain"},
        "learning": {"schedule": "linear", "select": "mrr"},
    },
    "spe free": {
        "prompt": {"encoder": "free"},
        "method": {"name": "spe"},
        "learning": {"schedule": "constant", "select": "p@1", "drop_last": True},
    },
}


def case_config(name: str) -> RunConfig:
    case = CASES[name]
    training = {"epochs": 8, "patience": 2, "rate": 0.03, **case["learning"]}
    return run_config(
        **{**case, "learning": training, "dtype": "float64"},
    )


@pytest.mark.parametrize("name", [*CASES, "causal ptuning", "causal spe"])
def test_relations_trained_in_one_stack_equal_each_trained_alone(
    name: str, bert: LanguageModel, gpt2: LanguageModel, facts: FactSet
) -> None:
    method = {"name": name.removeprefix("causal "), "vectors": "separate"}
    config = case_config(name) if name in CASES else causal_config(method=method, dtype="float64")
    backbone = bert if name in CASES else gpt2
    stacked = train(config, backbone, facts)
    sizes = [len(rows) for rows in stacked.trainer.rows]
    assert len(set(sizes)) == 3
    assert min(sizes) < config.learning.batch < max(sizes)
    for relation, relation_name in enumerate(facts.names):
        alone = train(config, backbone, facts.select([relation_name]))
        check_same(stacked, alone, relation, tolerance=1e-6)


def test_a_relation_that_stops_early_is_frozen_while_others_go_on(
    bert: LanguageModel, facts: FactSet
) -> None:
    config = case_config("ptuning")
    stacked = train(config, bert, facts)
    progress = stacked.trainer.stopping["forth"]
    # This is what makes the comparison above one of early stopping: the relations differ in it.
    lasts = [len(train(config, bert, facts.select([name])).dev_history) for name in facts.names]
    assert len(set(lasts)) > 1
    assert len(stacked.dev_history) == max(lasts)
    steps = stacked.trainer.optimizers["forth"].steps.tolist()
    batches = [-(-len(rows) // config.learning.batch) for rows in stacked.trainer.rows]
    assert steps == [last * count for last, count in zip(lasts, batches, strict=True)]
    assert any(progress.best < np.array(lasts) - 1)


@pytest.mark.parametrize("name", ["ptuning", "spe separate"])
def test_splitting_a_batch_into_passes_changes_nothing(
    name: str, bert: LanguageModel, facts: FactSet
) -> None:
    config = case_config(name)
    whole, parts = train(config, bert, facts), train(config, bert, facts, max_tokens=30)
    for part, value in whole.vectors().items():
        torch.testing.assert_close(value, parts.vectors()[part], rtol=0, atol=1e-9)
    assert whole.trainer.best_epochs == parts.trainer.best_epochs


@pytest.mark.parametrize("max_tokens", [30, 4096])
def test_a_step_follows_the_gradient_of_each_relations_mean_loss(
    max_tokens: int, bert: LanguageModel, facts: FactSet
) -> None:
    # Adam hides a wrong scale of the gradient, so the gradient itself is looked at.
    config = run_config(
        prompt={"encoder": "free"}, learning={"batch": 8, "epochs": 1}, dtype="float64"
    )
    _, method, trainer = make_trainer(config, bert, facts, max_tokens=max_tokens)
    leaf = method.vectors()["forth"].detach().requires_grad_()
    losses = [method.loss(trainer.sentences, rows, {"forth": leaf}).mean() for rows in trainer.rows]
    torch.stack(losses).sum().backward()
    gradients: list[Tensor] = []
    optimizer = trainer.optimizers["forth"]
    original = optimizer.step

    def step(active: Tensor, rate: Tensor) -> None:
        gradient = optimizer.parameters["vectors"].grad
        assert gradient is not None
        gradients.append(gradient.clone())
        original(active, rate)

    optimizer.step = step  # type: ignore[method-assign]
    progress = run_training(trainer)
    assert len(gradients) == 1
    torch.testing.assert_close(gradients[0], leaf.grad, rtol=0, atol=1e-10)
    mean = float(torch.stack(losses).detach().mean())
    assert progress.history[0]["loss"] == pytest.approx(mean, rel=1e-5)


def test_small_passes_are_really_made(
    bert: LanguageModel, facts: FactSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = run_config(learning={"epochs": 1}, dtype="float64")
    sizes: list[int] = []
    original = bert.logits_at

    def counted(inputs: Any, positions: Tensor) -> Tensor:
        # Without a mask every token is a real one.
        real = inputs.embeddings[..., 0].numel() if inputs.mask is None else inputs.mask.sum()
        sizes.append(int(real))
        return original(inputs, positions)

    monkeypatch.setattr(bert, "logits_at", counted)
    _, _, trainer = make_trainer(config, bert, facts, max_tokens=60)
    run_training(trainer)
    longest = int(trainer.sentences.object_prompt.lengths.max())
    assert max(sizes) <= max(60, longest * 5)
    assert len(sizes) > 10


# ---------------------------------------------------------------------------- the clock and batches


def recorded_rates(config: RunConfig, backbone: LanguageModel, facts: FactSet) -> list[list[float]]:
    """Return, for each relation, the rates of the steps it took."""
    _, _, trainer = make_trainer(config, backbone, facts)
    rates: list[list[float]] = [[] for _ in facts.names]
    optimizer = trainer.optimizers["forth"]
    original = optimizer.step

    def step(active: Tensor, rate: Tensor) -> None:
        for relation in torch.nonzero(active).squeeze(1).tolist():
            rates[relation].append(float(rate[relation]))
        original(active, rate)

    optimizer.step = step  # type: ignore[method-assign]
    run_training(trainer)
    return rates


@pytest.mark.parametrize("schedule", ["constant", "exponential", "linear"])
@pytest.mark.parametrize("warmup", [0.0, 0.5])
def test_every_relation_follows_its_own_schedule(
    schedule: str, warmup: float, bert: LanguageModel, facts: FactSet
) -> None:
    epochs, rate, decay = 3, 0.02, 0.7
    config = run_config(
        prompt={"encoder": "free"},
        method={"name": "ptuning"},
        learning={
            "schedule": schedule, "warmup": warmup, "epochs": epochs, "rate": rate, "decay": decay
        },
    )  # fmt: skip
    found = recorded_rates(config, bert, facts)
    for relation, count in enumerate((2, 2, 1)):  # batches of four of 5, 7 and 2 facts
        total = epochs * count
        wanted = []
        for step in range(total):
            rise = min(1.0, (step + 1) / (warmup * total)) if warmup else 1.0
            share = {
                "constant": rise,
                "exponential": rise * decay ** (step // count),
                "linear": min(rise, (total - step) / (total - warmup * total)),
            }[schedule]
            wanted.append(rate * share)
        assert found[relation] == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize(("drop_last", "counts"), [(True, [4, 4, 2]), (False, [5, 7, 2])])
def test_an_epoch_reads_each_fact_once(
    drop_last: bool, counts: list[int], bert: LanguageModel, facts: FactSet
) -> None:
    config = run_config(learning={"drop_last": drop_last, "epochs": 1}, method={"name": "ptuning"})
    _, method, trainer = make_trainer(config, bert, facts)
    seen: list[int] = []
    original = method.loss

    def loss(sentences: Any, rows: np.ndarray, vectors: Any) -> Tensor:
        seen.extend(rows.tolist())
        return original(sentences, rows, vectors)

    method.loss = loss  # type: ignore[method-assign]
    run_training(trainer)
    assert max(Counter(seen).values()) == 1
    per_relation = Counter(trainer.owner[seen].tolist())
    assert [per_relation[index] for index in range(3)] == counts


def test_epochs_are_shuffled_differently(bert: LanguageModel, facts: FactSet) -> None:
    config = run_config(learning={"epochs": 2, "batch": 1}, method={"name": "ptuning"})
    _, method, trainer = make_trainer(config, bert, facts.select(["in"]))
    seen: list[int] = []
    original = method.loss

    def loss(sentences: Any, rows: np.ndarray, vectors: Any) -> Tensor:
        seen.extend(rows.tolist())
        return original(sentences, rows, vectors)

    method.loss = loss  # type: ignore[method-assign]
    run_training(trainer)
    assert sorted(seen[:7]) == sorted(seen[7:]) == list(range(7))
    assert seen[:7] != seen[7:]


def test_the_best_epochs_parameters_are_loaded_at_the_end(
    bert: LanguageModel, facts: FactSet
) -> None:
    config = run_config(learning={"epochs": 3}, dtype="float64")
    _, method, trainer = make_trainer(config, bert, facts)
    script = iter([[0.0, 2.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    vectors: list[Tensor] = []

    def scores() -> dict[str, np.ndarray]:
        vectors.append(method.vectors()["forth"].detach())
        return {"forth": np.array(next(script))}

    progress = run_training(trainer, scores)
    best = torch.stack([vectors[1][0], vectors[0][1], vectors[2][2]])
    assert torch.equal(method.vectors()["forth"].detach(), best)
    assert [entry["epoch"] for entry in progress.history] == [0, 1, 2]


def test_dropout_of_the_model_is_on_in_training_only(bert: LanguageModel, facts: FactSet) -> None:
    config = run_config(learning={"epochs": 1, "model_dropout": True}, method={"name": "ptuning"})
    _, method, trainer = make_trainer(config, bert, facts)
    modes: list[bool] = []
    original = method.loss

    def loss(sentences: Any, rows: np.ndarray, vectors: Any) -> Tensor:
        modes.append(bert.model.training)
        return original(sentences, rows, vectors)

    method.loss = loss  # type: ignore[method-assign]

    def scores() -> dict[str, np.ndarray]:
        modes.append(bert.model.training)
        return {"forth": np.zeros(3)}

    run_training(trainer, scores)
    assert modes == [True] * (len(modes) - 1) + [False]


# --------------------------------------------------------------------------------- broken numbers


def poison(encoder: nn.Module, relation: int) -> None:
    with torch.no_grad():
        for value in encoder.parameters():
            value[relation] = torch.nan


def test_a_loss_that_is_not_finite_names_relation_epoch_and_step(
    bert: LanguageModel, facts: FactSet
) -> None:
    config = run_config(learning={"epochs": 3}, dtype="float64")
    _, method, trainer = make_trainer(config, bert, facts)
    poison(method.encoders["forth"], 1)
    with pytest.raises(TrainingError, match=r"relation in is not finite at epoch 1, step 1;.*rate"):
        run_training(trainer)


def test_a_later_broken_epoch_is_named_too(bert: LanguageModel, facts: FactSet) -> None:
    config = run_config(learning={"epochs": 3}, dtype="float64")
    _, method, trainer = make_trainer(config, bert, facts)

    def scores() -> dict[str, np.ndarray]:
        poison(method.encoders["forth"], 2)
        return {"forth": np.zeros(3)}

    with pytest.raises(TrainingError, match="relation near is not finite at epoch 2, step 1"):
        run_training(trainer, scores)


# --------------------------------------------------------------------------------------- learning


def precision(rank: np.ndarray) -> float:
    return float(hits(rank, 1).mean())


@pytest.mark.parametrize("name", ["ptuning", "spe"])
def test_prompts_learn_to_ask_for_facts_never_asked_in_training(
    name: str, knowing_bert: LanguageModel
) -> None:
    facts = world_facts()
    method = {"name": name, "k": 6, "vectors": "separate"}
    config = run_config(
        prompt={"template": "<3> [X] <3> [Y] <3>"},
        method=method,
        learning={"epochs": 40, "rate": 0.005, "batch": 8, "select": "loss"},
    )
    problem, fresh, _ = make_trainer(config, knowing_bert, facts)
    drawn = {part: value.detach() for part, value in fresh.vectors().items()}
    before = predict(
        fresh, problem.sentences["test"], drawn, allowed=problem.allowed, k=6, max_tokens=4096
    )
    run = train(config, knowing_bert, facts)
    after = run.predict()
    majority = np.mean(
        [
            fact.object == Counter(other.object for other in relation.train).most_common(1)[0][0]
            for relation in facts.relations
            for fact in relation.test
        ]
    )
    found = precision(after.ranks().realistic)
    assert found >= precision(before.ranks().realistic) + 0.2
    assert found >= majority + 0.3
    assert run.progress.history[-1]["loss"] < 0.5 * run.progress.history[0]["loss"]
    assert after.asked_back == (name == "spe")
    if name == "spe":
        # One of twenty facts is noise; asking back must not cost more than that.
        assert precision(after.reranked(0.8).realistic) >= found - 0.05


# ------------------------------------------------------------------------------------------ state


class EndedError(Exception):
    """A training that was ended from outside."""


@pytest.mark.parametrize("ended", [2, 3, 5])
@pytest.mark.parametrize(
    "training",
    [
        {},
        {"patience": 1},
        {"weight_decay": 0.1, "clip": 0.5, "schedule": "linear"},
        {"model_dropout": True},
    ],
)
def test_a_training_goes_on_from_any_step(
    ended: int, training: dict[str, Any], bert: LanguageModel, facts: FactSet, tmp_path: Path
) -> None:
    config = run_config(method={"vectors": "separate"}, learning={"epochs": 4, **training})

    def make() -> PromptTraining:
        _, _, trainer = make_trainer(config, bert, facts)

        def scores() -> dict[str, np.ndarray]:
            """Scores that rise and fall, so that best epochs and early stops differ."""
            waves = np.sin(np.arange(3) + 2.0 * trainer.epoch)
            return {part: waves + index for index, part in enumerate(trainer.stopping)}

        trainer.scores = scores
        return trainer

    def end(stage: str, done: int, total: int, note: str) -> None:
        if done == ended:
            raise EndedError

    whole, resumed = make(), make()
    history = Loop(whole).run().history
    state = tmp_path / "state.safetensors"
    with pytest.raises(EndedError):
        Loop(make(), checkpoint=state, checkpoint_seconds=0.0, tick=end).run()
    assert Loop(resumed, checkpoint=state).run().history == history
    assert resumed.best_epochs == whole.best_epochs
    one, other = (trainer.state_dict()[0] for trainer in (whole, resumed))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(
    ("changed", "relations"),
    [
        ({}, ["capital", "in"]),
        ({"method": {"vectors": "shared"}}, None),
        ({"prompt": {"template": "<2> [X] <2> [Y] <2>"}}, None),
        ({"prompt": {"encoder": "free"}}, None),
    ],
)
def test_a_checkpoint_of_other_relations_or_another_shape_is_refused(
    changed: dict[str, Any],
    relations: list[str] | None,
    bert: LanguageModel,
    facts: FactSet,
    tmp_path: Path,
) -> None:
    config = run_config(method={"vectors": "separate"})
    some = facts.select(relations) if relations else facts
    _, _, other = make_trainer(run_config(**changed) if changed else config, bert, some)
    loop = Loop(other, checkpoint=tmp_path / "state", checkpoint_seconds=0.0)
    loop.run()
    _, _, trainer = make_trainer(config, bert, facts)
    with pytest.raises(RunError, match=r"other relations|damaged or of another training"):
        Loop(trainer, checkpoint=tmp_path / "state").run()


RECORDED: dict[str, dict[str, Any]] = {
    "ptuning": {"method": {"name": "ptuning"}},
    "spe shared": {"method": {"name": "spe"}, "learning": {"clip": 0.05}},
    "spe separate": {"method": {"name": "spe", "vectors": "separate", "train_weight": 0.3}},
    "spe free": {"prompt": {"encoder": "free"}, "method": {"name": "spe"}},
    "spe chain": {"method": {"name": "spe", "vectors": "separate", "masking": "chain"}},
    "spe whole": {"method": {"name": "spe", "vectors": "separate", "masking": "whole"}},
    "two object prompts": {"method": {"name": "spe", "vectors": "separate", "object_prompts": 2}},
    "spe second": {
        "method": {"name": "spe", "vectors": "separate", "choose_weight": "dev-fit"}
        | {"second": "chain", "train_weight": 0.6}
    },
}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("max_tokens", [40, 4096])
@pytest.mark.parametrize("name", list(RECORDED))
def test_fixed_shapes_train_as_passes_that_come_as_they_are(
    name: str,
    max_tokens: int,
    packed: bool,
    bert: LanguageModel,
    facts: FactSet,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(bert.__dict__, "longest_packed", 128 * packed)
    case = RECORDED[name]
    training = {"epochs": 3, "rate": 0.03, "schedule": "linear", **case.get("learning", {})}
    config = run_config(**{**case, "learning": training, "dtype": "float64"})
    found = {}
    for capture in (False, True):
        _, method, trainer = make_trainer(
            config, bert, facts, max_tokens=max_tokens, capture=capture
        )
        assert (trainer.captured is not None) == capture
        history = run_training(trainer).history
        found[capture] = (method.vectors(), [entry["loss"] for entry in history])
    for part, value in found[False][0].items():
        torch.testing.assert_close(value, found[True][0][part], rtol=0, atol=1e-9)
    assert found[False][1] == pytest.approx(found[True][1], rel=1e-5)


# The compiler has advice on float32 products, which is no error of ours.
@pytest.mark.filterwarnings("default")
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(("dtype", "allowed"), [("float32", 0.02), ("bfloat16", 0.25)])
@pytest.mark.parametrize(
    ("name", "max_tokens"), [*((name, 4096) for name in RECORDED), ("spe separate", 40)]
)
def test_recorded_graphs_train_as_kernels_launched_one_by_one(
    name: str,
    max_tokens: int,
    dtype: str,
    allowed: float,
    family_folder: Callable[[str], Path],
    facts: FactSet,
) -> None:
    case = RECORDED[name]
    training = {"epochs": 3, "rate": 1e-3, "schedule": "linear", **case.get("learning", {})}
    config = run_config(**{**case, "learning": training})
    backbone = LanguageModel.load(str(family_folder("bert")), device="cuda", dtype=dtype)
    assert (backbone.longest_packed > 0) == (dtype == "bfloat16")
    found = {}
    for capture in (False, True):
        _, method, trainer = make_trainer(
            config, backbone, facts, max_tokens=max_tokens, capture=capture
        )
        start = {part: value.detach().clone() for part, value in method.vectors().items()}
        run_training(trainer)
        assert (trainer.captured is not None) == capture, trainer.recorder.reason
        moved = {part: value.detach() - start[part] for part, value in method.vectors().items()}
        found[capture] = moved
    for part, value in found[False].items():
        assert float((value - found[True][part]).norm()) < allowed * float(value.norm())


def test_a_pass_holds_no_more_tokens_than_allowed(bert: LanguageModel, facts: FactSet) -> None:
    config = run_config(method={"name": "spe"}, dtype="float64")
    for most in (40, 100, 4096):
        _, _, trainer = make_trainer(config, bert, facts, max_tokens=most, capture=True)
        assert trainer.captured is not None
        epoch = trainer.captured.plan(trainer.plan())
        longest = int(trainer.sentences.object_prompt.lengths.max())
        for passes in epoch.steps:
            for entry in passes:
                assert entry.shape.tokens <= max(most, -(-longest // 8) * 8)


def test_every_sentence_of_an_epoch_stands_in_one_pass(bert: LanguageModel, facts: FactSet) -> None:
    config = run_config(method={"name": "spe", "train_weight": 0.5}, dtype="float64")
    _, _, trainer = make_trainer(config, bert, facts, max_tokens=100, capture=True)
    assert trainer.captured is not None
    plan = trainer.plan()
    epoch = trainer.captured.plan(plan)
    facts_read = sum(len(batch) for batches in plan for batch in batches)
    tokens = sum(
        int(trainer.sentences.subject_prompt.subject_lengths[batch].sum())
        for batches in plan
        for batch in batches
    )
    assert int((epoch.share > 0).sum()) == facts_read + tokens
    relations = sum(len(batches) for batches in plan)
    # Each relation's batch weighs 1 forth and 0.5 back, whatever its size.
    assert float(epoch.share.sum()) == pytest.approx(1.5 * relations)


def test_a_method_without_questions_is_not_recorded(
    load_family: Callable[..., LanguageModel], facts: FactSet
) -> None:
    config = causal_config(method={"name": "spe"}, dtype="float64")
    _, method, trainer = make_trainer(config, load_family("gpt2"), facts, max_tokens=100)
    assert method.queries(trainer.sentences, np.arange(2)) is None
    steps = CapturedSteps(
        method, trainer.sentences, trainer.optimizers, trainer.recorder, max_tokens=100
    )
    with pytest.raises(TypeError, match="gives no questions"):
        steps.plan(trainer.plan())


@pytest.mark.parametrize("sentences", [1, 15, 16, 17, 100, 328, 1000, 1230])
def test_rooms_are_few_and_not_much_larger_than_needed(sentences: int) -> None:
    room = room_for(sentences)
    assert sentences <= room
    assert room < sentences + max(16, sentences / 8 + 1)
    assert len({room_for(value) for value in range(1, sentences + 1)}) <= 8 * sentences.bit_length()
