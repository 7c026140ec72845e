"""What every method trains of every family, frozen layers among it, and that nothing else moves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from symprompt.config import build
from symprompt.engine.loop import Loop
from symprompt.errors import ConfigError, ModelError, RunError
from symprompt.files.atomic import read_tensors
from symprompt.models import LanguageModel
from symprompt.models.language_model import Inputs
from symprompt.models.layers import trained_parameters
from symprompt.tasks.config import LearningConfig, TuneConfig
from symprompt.tasks.data.examples import LabelSet
from symprompt.tasks.features import Batch
from symprompt.tasks.kinds import KINDS, Target
from symprompt.tasks.predict import predict_file
from symprompt.tasks.trainables import TaskModel, TunedModel, make_task_head
from symprompt.tasks.training import TaskTraining
from tiny.labelled import write_toy
from tiny.models import CAUSAL_FAMILIES, FAMILIES
from tiny.tasks import full_weights, run_toy, tuned

TARGET = Target(LabelSet.of_tags(["B-X"]))
METHODS = ("ft", "pt", "pt2", "lora")


def config_of(method: str, **tables: object) -> TuneConfig:
    return build(TuneConfig, {"method": method, "prefix": {"length": 3}, **tables})


def make_batch(backbone: LanguageModel, *, rows: int = 6, width: int = 5) -> Batch:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(5, 30, (rows, width), generator=generator)
    lengths = torch.tensor([width - row % 3 for row in range(rows)])
    ids[torch.arange(width) >= lengths[:, None]] = backbone.vocabulary.pad_id
    labels = torch.where(torch.arange(width) < lengths[:, None], ids % 3, -100)
    return Batch(ids, lengths, targets={"labels": labels})


def make_model(backbone: LanguageModel, config: TuneConfig, batch: Batch) -> TaskModel:
    body = tuned(backbone, config, seed=1)
    head = make_task_head(KINDS["tagging"], TARGET, backbone, seed=(1,))
    return TaskModel(body, {"toy": head}, {"toy": batch})


def weights_of(backbone: LanguageModel) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in backbone.model.state_dict().items()}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("family", [*FAMILIES, *CAUSAL_FAMILIES])
def test_every_method_learns_on_every_family(
    family: str, method: str, load_family: Callable[..., LanguageModel]
) -> None:
    _learns(load_family(family), config_of(method))


def _losses(model: TaskModel, batch: Batch, learning: LearningConfig) -> list[float]:
    """Train and return each epoch's loss; the last epoch is the one that stays."""
    rising = iter(range(100))

    def score() -> tuple[float, float, dict[str, float]]:
        return float(next(rising)), 0.0, {}

    training = TaskTraining(model, {"toy": batch.lengths.numpy()}, learning, score, seed=1)
    return [row["loss"] for row in Loop(training).run().history]


def _learns(backbone: LanguageModel, config: TuneConfig) -> None:
    before, batch = weights_of(backbone), make_batch(backbone)
    model = make_model(backbone, config, batch)
    started = {key: value.clone() for key, value in model.tensors("toy").items()}
    rate = 1e-3 if config.method == "ft" else 1e-2
    losses = _losses(model, batch, replace(config.learning, rate=rate, epochs=8, batch=3))
    assert losses[-1] < losses[0]
    moved = model.tensors("toy")
    assert all(not torch.equal(moved[key], started[key]) for key in moved if "prompt" in key)
    assert any(not torch.equal(moved[key], started[key]) for key in moved if "head" not in key)
    after = backbone.model.state_dict()
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert not any(value.requires_grad for value in backbone.model.parameters())
    if config.dtype == "bfloat16":
        with torch.no_grad():
            half = model.tuned.states(batch).dtype
        assert half == (torch.float32 if config.method == "ft" else torch.bfloat16)
        assert all(own.dtype == torch.float32 for own in model.tuned.parameters().values())


@pytest.mark.parametrize("method", METHODS)
def test_every_method_learns_in_half_precision_with_numbers_kept_in_float32(
    load_family: Callable[..., LanguageModel], method: str
) -> None:
    backbone = load_family("bert", "float32" if method == "ft" else "bfloat16")
    _learns(backbone, config_of(method, dtype="bfloat16"))


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
        model = make_model(bert, config_of(method), make_batch(bert))
        assert model.size == size + 3 * hidden + 3


# One module called twice: its weights are both layers'.
SHARED = "albert"


def gradients(body: TunedModel) -> set[str]:
    """Return the names of the weights that a loss moves."""
    ids = torch.tensor([[5, 6, 7, 8]])
    batch = Batch(ids, torch.tensor([4]))
    draws = torch.Generator().manual_seed(0)
    width = int(body.backbone.model.config.get_text_config().hidden_size)
    probe = torch.randn(width, generator=draws, dtype=torch.float64)
    loss = (body.states(batch) @ probe).square().sum()
    named = body.parameters()
    found = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    return {
        name
        for name, value in zip(named, found, strict=True)
        if value is not None and bool(value.abs().max() > 1e-12)
    }


@pytest.mark.parametrize("family", [*FAMILIES, *CAUSAL_FAMILIES])
def test_the_last_layers_of_every_family_are_trained_alone(
    family: str, load_family: Callable[..., LanguageModel]
) -> None:
    """Hold the last layer's weights against what a gradient of all weights says."""
    backbone = load_family(family)
    if family == SHARED:
        with pytest.raises(ModelError, match="weights of their own"):
            full_weights(backbone, 1)
        return
    last, two, everything = (full_weights(backbone, layers) for layers in (1, 2, -1))
    names = [set(body.parameters()) for body in (last, two, everything)]
    assert names[0] < names[1] < names[2]
    assert gradients(last) == gradients(everything) & names[0]
    frozen = names[2] - names[0]
    body = last.backbone.model.base_model
    assert not any(body.get_parameter(n.removeprefix("body.")).requires_grad for n in frozen)
    embedding = backbone.model.get_input_embeddings().weight
    trained = two.parameters().values()
    assert not any(value.shape == embedding.shape and value.dim() > 1 for value in trained)
    # The norm after the last layer is nearer to the head than the layer is.
    assert not backbone.causal or {"body.norm.weight", "body.ln_f.weight"} & names[0]


def test_a_frozen_model_keeps_nothing_for_a_gradient(
    load_family: Callable[..., LanguageModel],
) -> None:
    body = full_weights(load_family("bert"), 0)
    assert body.parameters() == {}
    states = body.states(Batch(torch.tensor([[5, 6]]), torch.tensor([2])))
    assert not states.requires_grad


def test_more_layers_than_there_are_is_refused(load_family: Callable[..., LanguageModel]) -> None:
    with pytest.raises(ConfigError, match=r"weights\.layers is 3, and the model has 2"):
        trained_parameters(load_family("bert").model, 3)
    with pytest.raises(ConfigError, match=r"weights\.layers is -2"):
        build(TuneConfig, {"method": "ft", "weights": {"layers": -2}})


@pytest.mark.parametrize("layers", [0, 1])
def test_a_run_trains_and_stores_only_what_is_not_frozen(
    layers: int, knowing_bert: LanguageModel, tmp_path: Path
) -> None:
    model, data = Path(knowing_bert.source), write_toy(tmp_path / "data", "tagging")
    run = run_toy(
        data,
        model,
        tmp_path / "run",
        "tagging",
        method="ft",
        weights__layers=layers,
        learning__rate=2e-2 if layers == 0 else 3e-3,
        learning__epochs=12,
    )
    tensors, _ = read_tensors(run.folder.path / "weights.safetensors")
    body = {name for name in tensors if name.startswith("body.")}
    assert bool(body) == bool(layers)
    assert all(".1." in name for name in body)
    assert run.metrics["trainable_parameters"] == sum(v.numel() for v in tensors.values())
    assert run.metrics["splits"]["test"]["f1"] > 60
    found = predict_file(tmp_path / "run", data / "test.jsonl", device="cpu")
    assert found.metrics == run.metrics["splits"]["test"]
