"""Passes that read a prefix: precision, masks, dropout, compiled layers, training, refusals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from test_backbone_prefix import SERVED, close, make_inputs, make_states
from torch._dynamo.utils import counters

from symprompt.errors import ModelError
from symprompt.models import Inputs, LanguageModel, Prefix
from tiny.models import HIDES_DECODER


@pytest.mark.parametrize("name", [name for name in SERVED if name != HIDES_DECODER])
def test_half_precision_is_near_to_whole(
    load_family: Callable[..., LanguageModel], name: str
) -> None:
    whole, half = load_family(name, "float32"), load_family(name, "bfloat16")
    inputs = make_inputs(whole)
    states = make_states(whole) * 0.5
    wanted = whole.states(inputs, prefix=Prefix(states))
    rounded = replace(inputs, embeddings=inputs.embeddings.bfloat16())
    # Learned numbers stay float32; each pass rounds them as the model is rounded.
    learned = states.requires_grad_()
    found = half.states(rounded, prefix=Prefix(learned))
    assert found.dtype == torch.bfloat16
    plain = half.states(rounded)
    error = (found - wanted)[inputs.mask].float().norm() / wanted[inputs.mask].norm()
    moved = (plain - wanted)[inputs.mask].float().norm() / wanted[inputs.mask].norm()
    assert error < 0.1 < moved
    found[inputs.mask].float().square().sum().backward()
    assert learned.grad is not None
    assert learned.grad.dtype == torch.float32
    assert learned.grad.isfinite().all()


def test_a_model_in_float32_runs_under_autocast(load_family: Callable[..., LanguageModel]) -> None:
    backbone = load_family("bert", "float32")
    inputs, prefix = make_inputs(backbone), Prefix(make_states(backbone))
    wanted = backbone.states(inputs, prefix=prefix)
    with torch.autocast("cpu", torch.bfloat16):
        found = backbone.states(inputs, prefix=prefix)
    close(found, wanted, inputs.mask, atol=0.3)


def test_a_batch_without_padding_needs_no_mask(bert: LanguageModel, gpt2: LanguageModel) -> None:
    for backbone in (bert, gpt2):
        inputs = make_inputs(backbone, (6, 6))
        prefix = Prefix(make_states(backbone))
        wanted = backbone.states(inputs, prefix=prefix)
        found = backbone.states(replace(inputs, mask=None), prefix=prefix)
        close(found, wanted, None, atol=1e-12)


def test_a_mask_that_the_caller_made_is_widened(bert: LanguageModel) -> None:
    inputs = make_inputs(bert)
    prefix = Prefix(make_states(bert))
    wanted = bert.states(inputs, prefix=prefix)
    assert inputs.mask is not None
    made = torch.zeros(3, 1, 7, 7).double().masked_fill(~inputs.mask[:, None, None], -1e9)
    found = bert.states(replace(inputs, mask=made), prefix=prefix)
    close(found, wanted, inputs.mask, atol=1e-12)


def test_padding_changes_nothing(load_family: Callable[..., LanguageModel]) -> None:
    for name in ("bert", "deberta-v2", "llama", "gemma2", "modernbert"):
        backbone = load_family(name)
        inputs = make_inputs(backbone)
        prefix = Prefix(make_states(backbone))
        both = backbone.states(inputs, prefix=prefix)
        alone = Inputs(inputs.embeddings[1:2, :5], torch.ones(1, 5, dtype=torch.bool))
        close(both[1:2, :5], backbone.states(alone, prefix=prefix), None, atol=5e-5)


def test_logits_are_asked_after_a_prefix_too(bert: LanguageModel) -> None:
    inputs = make_inputs(bert)
    prefix = Prefix(make_states(bert))
    at = torch.tensor([1, 3, 2])
    found = bert.logits_at(replace(inputs, prefix=prefix), at)
    wanted = bert.model.cls(bert.states(inputs, prefix=prefix))[torch.arange(3), at]
    close(found, wanted, None)


def test_what_is_added_between_layers_goes_with_a_prefix(bert: LanguageModel) -> None:
    inputs = make_inputs(bert)
    prefix = Prefix(make_states(bert))
    moved = replace(inputs, added=lambda layer: torch.ones(3, 7, 32).double())
    both = bert.states(moved, prefix=prefix)
    for other in (bert.states(moved), bert.states(inputs, prefix=prefix)):
        assert not torch.allclose(both, other, atol=1e-3)


def test_dropout_is_drawn_for_each_row_and_scaled(bert: LanguageModel) -> None:
    inputs = make_inputs(bert, (5, 5))
    same = replace(inputs, embeddings=inputs.embeddings[:1].expand(2, -1, -1))
    prefix = Prefix(make_states(bert), dropout=0.5)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        one, other = bert.states(same, prefix=prefix)
        again = bert.states(same, prefix=prefix)[0]
    assert not torch.allclose(one, other, atol=1e-3)
    assert not torch.allclose(one, again, atol=1e-3)
    slots = [layer.attention.self.prefix_slot for layer in bert.model.bert.encoder.layer]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        with bert.attention.reading(prefix, 2):
            taken = [slot.take(2, torch.float64) for slot in slots]
    kept = torch.stack(taken[0], 1)
    wanted = prefix.states[:, 0].expand_as(kept)
    gone = kept == 0
    assert 0.3 < gone.double().mean().item() < 0.7
    torch.testing.assert_close(kept[~gone], 2 * wanted[~gone])


@pytest.fixture
def counted() -> Iterator[Counter[str]]:
    """What torch counts of its compiling, from nothing on."""
    torch.compiler.reset()
    counters.clear()
    yield counters["stats"]
    torch.compiler.reset()


@pytest.mark.parametrize("name", ["bert", "deberta-v2"])
def test_compiled_layers_read_it(
    load_family: Callable[..., LanguageModel],
    family_folder: Callable[[str], Path],
    name: str,
    counted: Counter[str],
) -> None:
    whole = load_family(name, "float32")
    backbone = LanguageModel.load(str(family_folder(name)), device="cpu", dtype="float32")
    # Before it is set up for prefixes.
    backbone.compile_layers(backend="eager")
    inputs, prefix = make_inputs(backbone), Prefix(make_states(backbone, 4))
    wanted = whole.states(inputs, prefix=prefix)
    for _ in range(2):
        close(backbone.states(inputs, prefix=prefix), wanted, inputs.mask, 1e-5)
    # One graph serves all layers: nothing is compiled again for a count of calls.
    assert counted["unique_graphs"] == 1
    if name == "bert":
        close(backbone.states(inputs), whole.states(inputs), inputs.mask, 1e-5)
        close(backbone.states(inputs, prefix=prefix), wanted, inputs.mask, 1e-5)


# torch looks at the gradient of every tensor it meets; its warning is hidden unless an error.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
def test_gradients_go_through_compiled_layers(
    load_family: Callable[..., LanguageModel],
    family_folder: Callable[[str], Path],
    counted: Counter[str],
) -> None:
    whole = load_family("bert", "float32")
    backbone = LanguageModel.load(str(family_folder("bert")), device="cpu", dtype="float32")
    backbone.compile_layers(backend="eager")
    inputs, prefix = make_inputs(backbone), Prefix(make_states(backbone, 4).requires_grad_())
    slopes = [
        torch.autograd.grad(own.states(inputs, prefix=prefix)[:, 0].sum(), prefix.states)[0]
        for own in (whole, backbone)
    ]
    close(*slopes, None, 1e-4)
    # What the first layer reads needs no gradient, what the others read does.
    assert counted["unique_graphs"] == 2


def test_only_the_prefix_of_a_frozen_model_learns(bert: LanguageModel) -> None:
    inputs, states = make_inputs(bert), make_states(bert).requires_grad_()
    assert not bert.states(inputs).requires_grad
    bert.states(inputs, prefix=Prefix(states)).sum().backward()
    assert states.grad is not None
    assert all(own.grad is None for own in bert.model.parameters())
    with torch.no_grad():
        assert not bert.states(inputs, prefix=Prefix(states)).requires_grad


def test_a_model_may_learn_with_its_prefix(family_folder: Callable[[str], Path]) -> None:
    backbone = LanguageModel.load(str(family_folder("bert")), device="cpu", dtype="float32")
    backbone.model.base_model.requires_grad_(True)
    inputs, states = make_inputs(backbone), make_states(backbone).requires_grad_()
    found = backbone.states(inputs, prefix=Prefix(states), grad_model=True)
    found.square().sum().backward()
    weight = backbone.model.bert.encoder.layer[1].attention.self.key.weight
    assert weight.grad is not None
    assert weight.grad.abs().sum() > 0
    assert backbone.states(inputs, grad_model=True).requires_grad
    assert not backbone.states(replace(inputs, embeddings=inputs.embeddings.detach())).requires_grad


def test_token_types_reach_models_that_know_them(load_family: Callable[..., LanguageModel]) -> None:
    for name, known in (
        ("bert", True),
        ("albert", True),
        ("electra", True),
        ("roberta", None),
        ("distilbert", False),
        ("deberta", None),
        ("modernbert", False),
        ("gpt2", False),
        ("llama", False),
    ):
        backbone = load_family(name)
        inputs = make_inputs(backbone)
        types = torch.ones(3, 7, dtype=torch.long)
        types[:, :3] = 0
        plain = backbone.states(inputs)
        zeros = backbone.states(replace(inputs, types=torch.zeros_like(types)))
        close(zeros, plain, inputs.mask, atol=1e-12)
        typed = backbone.states(replace(inputs, types=types))
        if known is not None:
            assert backbone.positions.reads_types == known
        assert (
            torch.allclose(typed[inputs.mask], plain[inputs.mask]) != backbone.positions.reads_types
        )


def wrong(bert: LanguageModel, **more: Any) -> Prefix:
    return replace(Prefix(make_states(bert)), **more)


def test_a_prefix_that_does_not_fit_is_refused(bert: LanguageModel, gpt2: LanguageModel) -> None:
    inputs = make_inputs(bert)
    plain = bert.states(inputs)
    cases = [
        (wrong(bert, states=torch.zeros(1, 3, 2, 4, 3, 8)), "serves only the model it was learned"),
        (wrong(bert, states=torch.zeros(1, 2, 2, 4, 3)), "serves only the model it was learned"),
        (wrong(bert, row=torch.zeros(2, dtype=torch.long)), "for a batch of 3 rows"),
        (wrong(bert, visible=torch.ones(1, 2, dtype=torch.bool)), r"give one \[tasks, length\]"),
    ]
    for prefix, said in cases:
        with pytest.raises(ModelError, match=said):
            bert.states(inputs, prefix=prefix)
    long = Prefix(make_states(bert, 42), shift_positions=True)
    with pytest.raises(ModelError, match=r"7 tokens after a prefix of 42 .* and the model has 48"):
        bert.states(inputs, prefix=long)
    # Without a shift there is no limit to a prefix.
    assert bert.states(inputs, prefix=replace(long, shift_positions=False)).isfinite().all()
    close(bert.states(inputs), plain, None, atol=0)


def test_a_pass_that_leaves_layers_out_is_refused(family_folder: Callable[[str], Path]) -> None:
    backbone = LanguageModel.load(str(family_folder("bert")), device="cpu", dtype="float32")
    inputs, prefix = make_inputs(backbone), Prefix(make_states(backbone))
    last = backbone.model.bert.encoder.layer[1]
    kept = last.forward
    last.forward = lambda hidden_states, *_args, **_more: hidden_states
    with pytest.raises(ModelError, match="BertModel read the prefix in 1 of its 2 layers"):
        backbone.states(inputs, prefix=prefix)
    last.forward = kept
    assert backbone.states(inputs, prefix=prefix).isfinite().all()
    assert backbone.prefix_shape == (2, 4, 8)


def test_shapes_follow_key_value_heads(load_family: Callable[..., LanguageModel]) -> None:
    assert load_family("llama").prefix_shape == (2, 2, 8)
    assert load_family("albert").prefix_shape == (2, 4, 8)
    assert load_family("deberta").prefix_shape.width == 32
