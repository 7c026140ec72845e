"""Freezing: which weights of every family are trained, and that no other moves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from symprompt.config import build
from symprompt.errors import ConfigError, ModelError
from symprompt.files.atomic import read_tensors
from symprompt.models import LanguageModel
from symprompt.tasks.config import TuneConfig
from symprompt.tasks.features import Batch
from symprompt.tasks.predict import predict_file
from symprompt.tasks.trainables import TunedModel, trained_parameters
from tiny.labelled import write_toy
from tiny.tasks import full_weights, run_toy

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


def check_last_layer(backbone: LanguageModel) -> None:
    """Hold the last layer's weights against what a gradient of all weights says."""
    everything = full_weights(backbone)
    last = full_weights(backbone, 1)
    two = full_weights(backbone, 2)
    names = [set(body.parameters()) for body in (last, two, everything)]
    assert names[0] < names[1] < names[2]
    assert gradients(last) == gradients(everything) & names[0]
    frozen = names[2] - names[0]
    body = last.backbone.model.base_model
    assert not any(body.get_parameter(n.removeprefix("body.")).requires_grad for n in frozen)
    embedding = backbone.model.get_input_embeddings().weight
    trained = two.parameters().values()
    assert not any(value.shape == embedding.shape and value.dim() > 1 for value in trained)


def test_the_last_layers_of_every_family_are_trained_alone(
    backbone: LanguageModel, family: str
) -> None:
    if family == SHARED:
        with pytest.raises(ModelError, match="weights of their own"):
            full_weights(backbone, 1)
        return
    check_last_layer(backbone)


def test_the_last_layers_of_every_causal_family_are_trained_alone(causal: LanguageModel) -> None:
    check_last_layer(causal)
    body = full_weights(causal, 1)
    # The norm after the last layer is nearer to the head than the layer is.
    assert {"body.norm.weight", "body.ln_f.weight"} & set(body.parameters())


def test_a_frozen_model_keeps_nothing_for_a_gradient(
    load_family: Callable[..., LanguageModel],
) -> None:
    body = full_weights(load_family("bert"), 0)
    assert body.parameters() == {}
    states = body.states(Batch(torch.tensor([[5, 6]]), torch.tensor([2])))
    assert not states.requires_grad


def test_more_layers_than_there_are_is_refused(load_family: Callable[..., LanguageModel]) -> None:
    with pytest.raises(ConfigError, match=r"weights\.layers is 3, and the model has 2"):
        trained_parameters(load_family("bert"), 3)
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
