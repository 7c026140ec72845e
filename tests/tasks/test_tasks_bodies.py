"""Bodies: what every method trains of every family, and that nothing else moves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from symprompt.config import build
from symprompt.engine.loop import Loop
from symprompt.errors import ModelError, RunError
from symprompt.models import LanguageModel
from symprompt.models.language_model import Inputs
from symprompt.tasks.config import LearningConfig, TuneConfig
from symprompt.tasks.data.examples import LabelSet
from symprompt.tasks.features import Batch
from symprompt.tasks.kinds import KINDS, Target
from symprompt.tasks.train import TaskTraining
from symprompt.tasks.trainables import TaskModel, TunedModel, make_task_head
from tiny.tasks import full_weights, tuned

TARGET = Target(LabelSet.of_tags(["B-X"]))
METHODS = ("ft", "pt", "pt2", "lora")
# MPNet has attention of its own, which reads no prefix: it is refused by name.
NO_PREFIX = ("mpnet",)


def config_of(method: str, **tables: object) -> TuneConfig:
    return build(TuneConfig, {"method": method, "prefix": {"length": 3}, **tables})


def make_batch(backbone: LanguageModel, *, rows: int = 6, width: int = 5) -> Batch:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(5, 30, (rows, width), generator=generator)
    lengths = torch.tensor([width - row % 3 for row in range(rows)])
    ids[torch.arange(width) >= lengths[:, None]] = backbone.vocabulary.pad_id
    labels = torch.where(torch.arange(width) < lengths[:, None], ids % 3, -100)
    return Batch(ids, lengths, targets={"labels": labels})


def make_model(backbone: LanguageModel, method: str, batch: Batch) -> TaskModel:
    body = tuned(backbone, config_of(method), seed=1)
    head = make_task_head(KINDS["tagging"], TARGET, backbone, seed=(1,))
    return TaskModel(body, {"toy": head}, {"toy": batch})


def weights_of(backbone: LanguageModel) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in backbone.model.state_dict().items()}


@pytest.mark.parametrize("method", METHODS)
def test_every_method_learns_on_every_family(
    backbone: LanguageModel, family: str, method: str
) -> None:
    if method == "pt2" and family in NO_PREFIX:
        with pytest.raises(ModelError, match="attention"):
            tuned(backbone, config_of(method), seed=1)
        return
    _learns(backbone, method)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_learns_on_every_causal_family(causal: LanguageModel, method: str) -> None:
    _learns(causal, method)


def _losses(model: TaskModel, batch: Batch, learning: LearningConfig) -> list[float]:
    """Train and return each epoch's loss; the last epoch is the one that stays."""
    lengths, widest = {"toy": batch.lengths.numpy()}, {"toy": int(batch.ids.shape[1])}
    rising = iter(range(100))

    def score() -> tuple[float, float, dict[str, float]]:
        return float(next(rising)), 0.0, {}

    training = TaskTraining(model, lengths, widest, learning, score, seed=1)
    return [row["loss"] for row in Loop(training).run().history]


def _learns(backbone: LanguageModel, method: str) -> None:
    before, batch = weights_of(backbone), make_batch(backbone)
    model = make_model(backbone, method, batch)
    started = {key: value.clone() for key, value in model.tensors("toy").items()}
    config = config_of(method, learning={"rate": 1e-3 if method == "ft" else 1e-2, "epochs": 8})
    losses = _losses(model, batch, replace(config.learning, batch=3))
    assert losses[-1] < losses[0]
    moved = model.tensors("toy")
    assert all(not torch.equal(moved[key], started[key]) for key in moved if "prompt" in key)
    assert any(not torch.equal(moved[key], started[key]) for key in moved if "head" not in key)
    after = backbone.model.state_dict()
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert not any(value.requires_grad for value in backbone.model.parameters())


@pytest.mark.parametrize("method", METHODS)
def test_every_method_learns_in_half_precision_with_numbers_kept_in_float32(
    load_family: Callable[..., LanguageModel], method: str
) -> None:
    backbone = load_family("bert", "float32" if method == "ft" else "bfloat16")
    batch = make_batch(backbone)
    body = tuned(backbone, config_of(method, dtype="bfloat16"), seed=1)
    head = make_task_head(KINDS["tagging"], TARGET, backbone, seed=(1,))
    model = TaskModel(body, {"toy": head}, {"toy": batch})
    config = config_of(method, learning={"rate": 1e-3 if method == "ft" else 1e-2, "epochs": 8})
    with torch.no_grad():
        assert body.states(batch).dtype == (torch.float32 if method == "ft" else torch.bfloat16)
    losses = _losses(model, batch, replace(config.learning, batch=3))
    assert losses[-1] < losses[0]
    assert all(value.dtype == torch.float32 for value in body.parameters().values())


@pytest.mark.parametrize("method", METHODS)
def test_stored_numbers_give_the_same_states(bert: LanguageModel, method: str) -> None:
    batch = make_batch(bert)
    body = tuned(bert, config_of(method), seed=1)
    with torch.no_grad():
        for value in body.parameters().values():
            value.add_(torch.randn(value.shape, generator=torch.Generator().manual_seed(3)) * 0.1)
        wanted = body.states(batch)
        other = tuned(bert, config_of(method), seed=2)
        other.load(body.tensors())
        assert torch.equal(other.states(batch), wanted)


def test_a_network_behind_a_prefix_is_stored_as_what_it_gave(bert: LanguageModel) -> None:
    batch = make_batch(bert)
    config = config_of("pt2", prefix={"length": 3, "encoder": "mlp", "hidden": 7})
    body = tuned(bert, config, seed=1)
    with torch.no_grad():
        wanted = body.states(batch)
        other = tuned(bert, config, seed=2)
        other.load(body.tensors())
        torch.testing.assert_close(other.states(batch), wanted)


def test_stored_numbers_of_another_length_are_refused(bert: LanguageModel) -> None:
    body = tuned(bert, config_of("pt2"), seed=1)
    other = tuned(bert, config_of("pt2", prefix={"length": 4}), seed=1)
    with pytest.raises(RunError, match=r"prompt\.prefix is shape"):
        other.load(body.tensors())
    with pytest.raises(RunError, match="vectors is nothing"):
        tuned(bert, config_of("pt"), seed=1).load({})


def test_input_prompts_are_words_in_front_and_cls_stays_cls(bert: LanguageModel) -> None:
    batch = make_batch(bert, rows=1)
    body = tuned(bert, config_of("pt"), seed=1)
    words = torch.tensor([[7, 8, 9]])
    with torch.no_grad():
        body.load({"prompt.vectors": bert.embed(words)[0]})
        ids = torch.cat((words, batch.ids), 1)
        inputs = Inputs(bert.embed(ids), torch.ones_like(ids, dtype=torch.bool))
        wanted = bert.states(inputs)[:, 3:]
        torch.testing.assert_close(body.states(batch), wanted)


def test_fresh_adapters_and_weights_change_nothing(bert: LanguageModel) -> None:
    batch = make_batch(bert)
    with torch.no_grad():
        plain = bert.states(Inputs(bert.embed(batch.ids), batch.mask))
        for method in ("ft", "lora"):
            states = tuned(bert, config_of(method), seed=1).states(batch)
            torch.testing.assert_close(states, plain)


def test_half_precision_weights_are_not_fine_tuned(
    load_family: Callable[..., LanguageModel],
) -> None:
    with pytest.raises(ModelError, match="bfloat16"):
        full_weights(load_family("bert", "bfloat16"))


def test_dropout_of_the_model_is_on_in_training_alone(bert: LanguageModel) -> None:
    batch = make_batch(bert)
    config = config_of("pt2", learning={"dropout": 0.5})
    body: TunedModel = tuned(bert, config, seed=1)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        plain = body.states(batch)
        with body.training():
            assert not torch.allclose(body.states(batch), plain)
        assert torch.equal(body.states(batch), plain)


def test_trainable_numbers_are_counted(bert: LanguageModel) -> None:
    config = bert.model.config
    layers, hidden = config.num_hidden_layers, config.hidden_size
    sizes = {
        "pt": 3 * hidden,
        "pt2": 3 * layers * 2 * hidden,
        "ft": sum(value.numel() for value in bert.model.base_model.parameters()),
    }
    for method, size in sizes.items():
        model = make_model(bert, method, make_batch(bert))
        assert model.size == size + 3 * hidden + 3
