"""The loop against a plain one: steps, rates, clipping, the choice of epochs, batches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from symprompt.engine.loop import Loop, Progress
from symprompt.tasks.config import LearningConfig
from symprompt.tasks.train import Score, TaskTraining, plan_epoch


class Lines:
    """Two linear maps as body and head, and inputs with classes: a model for the loop."""

    def __init__(self, seed: int = 0, rows: int = 37) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.inputs = torch.randn(rows, 5, generator=generator, dtype=torch.float64)
        self.classes = (self.inputs[:, 0] > 0).long()
        self.weights = torch.randint(1, 4, (rows,), generator=generator).double()
        self.body = nn.Parameter(torch.randn(5, 3, generator=generator, dtype=torch.float64))
        self.head = nn.Parameter(torch.randn(3, 2, generator=generator, dtype=torch.float64))
        self.unused = nn.Parameter(torch.ones(2, dtype=torch.float64))
        self.on = False
        parameters = {"body": self.body, "unused": self.unused}
        backbone = SimpleNamespace(device=torch.device("cpu"))
        self.tuned = SimpleNamespace(parameters=lambda: parameters, backbone=backbone)

    def head_parameters(self) -> dict[str, nn.Parameter]:
        return {"head": self.head}

    def loss(self, task: str, rows: Tensor, width: int) -> tuple[Tensor, Tensor]:
        assert self.on
        scores = self.inputs[rows] @ self.body @ self.head
        losses = functional.cross_entropy(scores, self.classes[rows], reduction="none")
        return losses, self.weights[rows]

    @contextmanager
    def training(self) -> Iterator[None]:
        self.on = True
        yield
        self.on = False


def train(
    model: Lines, config: LearningConfig, score: Score | None = None
) -> tuple[TaskTraining, Progress]:
    """Train the lines; without a score the last epoch is the best, so it is what stays."""
    lengths = np.arange(len(model.inputs)) % 20 + 1
    rising = iter(range(100))
    score = score or (lambda: (float(next(rising)), 0.0, {}))
    training = TaskTraining(model, {"toy": lengths}, {"toy": 20}, config, score, seed=5)
    return training, Loop(training).run()


@pytest.mark.parametrize("schedule", ["linear", "exponential", "constant"])
@pytest.mark.parametrize("warmup", [0.0, 0.3])
def test_the_loop_is_adamw_on_the_weighted_mean(schedule: str, warmup: float) -> None:
    config = LearningConfig(
        rate=0.03,
        head_rate=0.01,
        weight_decay=0.1,
        schedule=schedule,  # type: ignore[arg-type]
        warmup=warmup,
        clip=0.5,
        batch=8,
        epochs=3,
    )
    model, other = Lines(), Lines()
    train(model, config)
    plain = torch.optim.AdamW(
        [{"params": [other.body], "lr": 0.03}, {"params": [other.head], "lr": 0.01}],
        weight_decay=0.1,
    )
    steps = 5
    for epoch in range(3):
        from symprompt.runs.environment import derive_seed

        lengths = np.arange(len(model.inputs)) % 20 + 1
        seed = derive_seed(5, "epoch", epoch)
        plan = plan_epoch({"toy": lengths}, batch=8, widest={"toy": 20}, seed=seed)
        assert len(plan) == steps
        for place, step in enumerate(plan):
            done, total = epoch * steps + place, 3 * steps
            rising = warmup * total
            share = {
                "linear": min(1.0, (total - done) / (total - rising)),
                "exponential": 0.95**epoch,
                "constant": 1.0,
            }[schedule]
            rise = min(1.0, (done + 1) / rising) if rising else 1.0
            share = min(share, rise) if schedule == "linear" else share * rise
            for group, rate in zip(plain.param_groups, (0.03, 0.01), strict=True):
                group["lr"] = rate * share
            rows = torch.from_numpy(step.rows)
            other.on = True
            losses, weights = other.loss("toy", rows, step.width)
            plain.zero_grad()
            ((losses * weights).sum() / weights.sum()).backward()
            nn.utils.clip_grad_norm_([other.body, other.head], 0.5)
            plain.step()
    torch.testing.assert_close(model.body, other.body, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(model.head, other.head, rtol=1e-5, atol=1e-7)


def test_the_best_epoch_stays_and_ties_take_the_earlier() -> None:
    scores = iter([1.0, 3.0, 3.0, 2.0])
    model = Lines()
    kept: list[Tensor] = []

    def score() -> tuple[float, float, dict[str, float]]:
        kept.append(model.body.detach().clone())
        return next(scores), 0.0, {}

    training, _ = train(model, LearningConfig(rate=0.1, batch=8, epochs=4), score)
    assert training.best_epoch == 2
    assert torch.equal(model.body, kept[1])


def test_dev_is_looked_at_as_often_as_asked() -> None:
    model = Lines()
    config = LearningConfig(batch=8, epochs=5, choose_every=2)
    _, progress = train(model, config, lambda: (0.0, 0.0, {"accuracy": 1.0}))
    seen = [entry["epoch"] for entry in progress.history if "dev" in entry]
    assert seen == [2, 4, 5]


@given(st.lists(st.integers(1, 200), min_size=1, max_size=300), st.integers(1, 33))
def test_an_epoch_has_every_input_once_in_few_widths(lengths: list[int], batch: int) -> None:
    given = {"a": np.array(lengths), "b": np.array(lengths[:5])}
    widest = {name: int(own.max()) for name, own in given.items()}
    plan = plan_epoch(given, batch=batch, widest=widest, seed=1)
    for name, own in given.items():
        rows = np.concatenate([step.rows for step in plan if step.task == name])
        assert sorted(rows.tolist()) == list(range(len(own)))
    assert all(given[s.task][s.rows].max() <= s.width <= widest[s.task] for s in plan)
    assert all(0 < len(step.rows) <= batch for step in plan)
    assert len({step.width for step in plan}) <= 17


def test_other_epochs_and_seeds_have_other_orders() -> None:
    lengths = {"a": np.arange(1, 60)}
    orders = set()
    for seed in range(20):
        plan = plan_epoch(lengths, batch=4, widest={"a": 60}, seed=seed)
        orders.add(tuple(plan[0].rows.tolist()))
    assert len(orders) > 5
