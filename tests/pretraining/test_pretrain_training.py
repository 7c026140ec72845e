"""Pretraining steps: batches, micro-batches, precision, the loss curve, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from symprompt.engine.loop import Loop, Progress
from symprompt.errors import RunError, TrainingError
from symprompt.pretraining.sequences import Batch, Feed
from symprompt.pretraining.training import Pretraining, short_number
from tiny.text import CPU, Rows, make_training, pretrain_config, rounding_errors

VOCABULARY = 40


def run(training: Pretraining, **options: Any) -> Progress:
    try:
        return Loop(training, **options).run()
    finally:
        training.feed.close()


def weights_after(**changes: Any) -> torch.Tensor:
    training = make_training(pretrain_config(**changes))
    run(training)
    return training.optimizer.values


# ---------------------------------------------------------------------------------------- batches


def test_epochs_follow_each_other_and_leave_nothing_out() -> None:
    rows = Rows(count=10)
    feed = Feed(rows, batch=4)
    seen = np.concatenate([indices for step in range(5) for _, indices in feed.rows(step)])
    assert sorted(seen[:10]) == list(range(10))
    assert sorted(seen[10:]) == list(range(10))
    assert [epoch for epoch, _ in feed.rows(2)] == [0, 1]
    batch, tokens = feed.make(2, CPU)
    assert batch.is_next.tolist() == [True, True, False, False]
    assert tokens == 4 * 16


def test_batches_made_ahead_are_those_of_their_steps() -> None:
    feed = Feed(Rows(), batch=4)
    # Also where a training goes on from another step than the one before.
    for step in (*range(3, 12), 5, 6):
        batch, _ = feed.take(step, 12, CPU)
        assert torch.equal(batch.ids, feed.make(step, CPU)[0].ids)
    feed.close()


def test_an_error_in_the_other_thread_is_raised_here() -> None:
    class Broken(Rows):
        def batch(self, indices: np.ndarray, epoch: int) -> Batch[np.ndarray]:
            raise RunError("the corpus is damaged.")

    with pytest.raises(RunError, match="damaged"):
        Feed(Broken(), 4).take(0, 3, CPU)


# ------------------------------------------------------------------------------------------- steps


@pytest.mark.parametrize(
    ("family", "objective"),
    [
        ("bert", "mlm"),
        ("bert", "mlm+sbo"),
        ("bert", "mlm+nsp"),
        ("electra", "mlm+nsp"),
        ("electra", "mlm+sbo"),
    ],
)
def test_results_do_not_depend_on_the_micro_batch(family: str, objective: str) -> None:
    changes: dict[str, Any] = {"objective": objective, "shape": {"family": family}}
    if objective == "mlm+sbo":
        changes["corruption"] = {"kind": "spans", "share": 0.3}
    if objective == "mlm+nsp":
        changes["corpus"] = {"packing": "pairs"}
    whole, pieces = (
        weights_after(learning={"micro_batch": micro, "steps": 4, "epsilon": 1e-3}, **changes)
        for micro in (0, 5)
    )
    torch.testing.assert_close(whole, pieces, atol=2e-6, rtol=1e-4)


def test_dropout_is_drawn_from_the_step_and_not_from_the_global_state() -> None:
    before = torch.random.get_rng_state()
    one, other = (weights_after(shape={"dropout": 0.3}) for _ in range(2))
    assert torch.equal(one, other)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert not torch.equal(one, weights_after())


def test_passes_in_bfloat16_learn_the_same_thing_roughly() -> None:
    losses = []
    for dtype in ("float32", "bfloat16"):
        config = pretrain_config(dtype=dtype, learning={"steps": 30, "rate": 5e-3})
        training = make_training(config)
        losses.append([row["loss"] for row in run(training).history])
        assert training.optimizer.values.dtype == torch.float32
    assert losses[0][-1] < losses[0][0]
    assert losses[0] == pytest.approx(losses[1], abs=0.05)
    assert losses[0] != losses[1]


def test_the_validation_loss_is_the_same_every_time() -> None:
    training = make_training(pretrain_config())
    batch = Rows().batch(np.arange(8), 0).to(CPU)
    first = training.validate(batch)
    assert first == training.validate(batch)
    assert first["mlm"] == pytest.approx(np.log(VOCABULARY), abs=0.2)
    assert training.pretrainer.training


def test_the_curve_has_losses_rates_and_validation_where_it_is_due() -> None:
    training = make_training(pretrain_config(evaluate_every=5))
    said: list[tuple[str, int, int, str]] = []
    progress = run(training, tick=lambda *told: said.append(told))
    assert [row["step"] for row in progress.history] == list(range(1, 13))
    assert [row["step"] for row in progress.history if row["validation"]] == [5, 10, 12]
    assert all(row["parts"] == {"mlm": row["loss"]} for row in progress.history)
    assert progress.history[-1]["rate"] == pytest.approx(2e-3 / (12 - 1.2))
    assert training.tokens == 12 * 16 * 16
    assert training.steady_tokens == 11 * 16 * 16
    assert 0 < progress.recording < progress.seconds
    assert said[0] == ("training", 0, 12, "")
    assert said[-1][:3] == ("training", 12, 12)
    assert said[-1][3].startswith(f"loss {progress.history[-1]['loss']:.3f}, ")
    assert said[-1][3].endswith(" tokens/s")


# ------------------------------------------------------------------------------------------- state


def test_a_state_of_another_dtype_or_shape_is_refused(tmp_path: Path) -> None:
    state = tmp_path / "state"
    run(
        make_training(pretrain_config(checkpoint_seconds=0.0)),
        checkpoint=state,
        checkpoint_seconds=0,
    )
    with pytest.raises(RunError, match="begun in float32 and would go on in bfloat16"):
        run(make_training(pretrain_config(dtype="bfloat16")), checkpoint=state)
    with pytest.raises(RunError, match="the optimiser's values do not fit"):
        run(make_training(pretrain_config(shape={"layers": 2})), checkpoint=state)


def test_a_loss_that_is_not_finite_stops_with_its_step() -> None:
    training = make_training(pretrain_config())

    def tick(_: str, done: int, __: int, ___: str) -> None:
        if done == 3:
            training.optimizer.values[0] = float("nan")

    with pytest.raises(TrainingError, match=r"not finite at step 4; lower learning\.rate"):
        run(training, tick=tick)


@pytest.mark.parametrize(
    ("value", "shown"), [(2.2134e6, "2.21 M"), (45_300, "45.3 k"), (870, "870"), (3e9, "3 G")]
)
def test_numbers_are_short(value: float, shown: str) -> None:
    assert short_number(value) == shown


@pytest.mark.parametrize("family", ["bert", "electra"])
def test_gradients_of_bfloat16_passes_are_those_of_float32(family: str) -> None:
    # 8,192 tokens: a sum of that many terms in bfloat16 is off by whole factors.
    def make(dtype: str) -> Pretraining:
        shape = {"family": family, "layers": 1, "hidden": 16, "heads": 2, "embedding": 16}
        learning = {"batch": 512, "steps": 1, "clip": 0.0}
        return make_training(pretrain_config(dtype=dtype, shape=shape, learning=learning))

    for name, error in rounding_errors(make, least=1e-6).items():
        # What norms get is a small difference of large sums.
        assert error < (0.25 if "LayerNorm" in name else 0.02), (name, error)
