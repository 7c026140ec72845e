"""Deep prefixes of every family against loops by hand; precision, masks, compiling, refusals."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters

from symprompt.errors import ModelError
from symprompt.models import LanguageModel, Prefix
from symprompt.models import prefix as prefix_module
from tiny.models import CAUSAL_FAMILIES, FAMILIES, HIDES_DECODER, make_inputs
from tiny.prefix import reference

EXACT = ("bert", "roberta", "xlm-roberta", "albert", "electra", "distilbert", "mpnet", "gpt2")
SERVED = (*FAMILIES, *CAUSAL_FAMILIES)


def make_states(backbone: LanguageModel, length: int = 3, tasks: int = 1) -> Tensor:
    layers, heads, size = backbone.prefix_shape
    draw = torch.Generator().manual_seed(1)
    return torch.randn((tasks, layers, 2, heads, length, size), generator=draw).to(backbone.dtype)


def close(found: Tensor, wanted: Tensor, mask: Tensor | None, atol: float = 1e-9) -> None:
    if mask is not None:
        found, wanted = found[mask], wanted[mask]
    torch.testing.assert_close(found, wanted, rtol=0, atol=atol)


@pytest.mark.parametrize("name", SERVED)
def test_every_layer_of_every_family_reads_its_prefix(
    load_family: Callable[..., LanguageModel], name: str
) -> None:
    backbone = load_family(name)
    inputs = make_inputs(backbone)
    plain = backbone.states(inputs)
    assert plain.shape[:2] == inputs.embeddings.shape[:2]
    states = make_states(backbone).requires_grad_()
    found = backbone.states(inputs, prefix=Prefix(states))
    assert found.shape == plain.shape
    assert not torch.allclose(found, plain, atol=1e-3)
    (slope,) = torch.autograd.grad(found[:, 0].square().sum(), states)
    assert (slope.abs().sum((0, 3, 5)) > 0).all()
    # And nothing stays behind.
    close(backbone.states(inputs), plain, None, atol=0)


@pytest.mark.parametrize("shift", [False, True])
@pytest.mark.parametrize("name", SERVED)
def test_every_family_equals_a_pass_without_the_interface(
    load_family: Callable[..., LanguageModel], name: str, shift: bool
) -> None:
    backbone = load_family(name)
    # Longer than the windows of ModernBERT and Gemma 2 and MPNet's narrow buckets, with padding.
    inputs = make_inputs(backbone, (24 if name == "mpnet" else 9, 5, 7))
    states = make_states(backbone).requires_grad_()
    wanted = reference(backbone, inputs, states[0], shift=shift)
    found = backbone.states(inputs, prefix=Prefix(states, shift_positions=shift))
    # The scale of DeBERTa's position terms is float32 in transformers, rotary angles are too.
    exact = name in EXACT
    close(found, wanted, inputs.mask, atol=1e-9 if exact else 5e-5)
    assert inputs.mask is not None
    slopes = [
        torch.autograd.grad(own[inputs.mask].square().sum(), states)[0] for own in (found, wanted)
    ]
    close(*slopes, None, atol=1e-8 if exact else 5e-3)


@pytest.mark.parametrize("layers", ["first:1", "last:1"])
@pytest.mark.parametrize("name", SERVED)
def test_chosen_layers_read_it_and_the_others_do_not(
    load_family: Callable[..., LanguageModel], name: str, layers: str
) -> None:
    backbone = load_family(name)
    inputs = make_inputs(backbone, (9, 5, 7))
    states = make_states(backbone).requires_grad_()
    place = layers == "last:1"
    wanted = reference(backbone, inputs, states[0], shift=False, layers=[int(place)])
    prefix = Prefix(states[:, int(place), None], layers=layers)
    found = backbone.states(inputs, prefix=prefix)
    exact = name in EXACT
    close(found, wanted, inputs.mask, atol=1e-9 if exact else 5e-5)
    assert not torch.allclose(found, backbone.states(inputs, prefix=Prefix(states)), atol=1e-3)
    assert not torch.allclose(found, backbone.states(inputs), atol=1e-3)
    slopes = [torch.autograd.grad(own[:, 0].square().sum(), states)[0] for own in (found, wanted)]
    close(*slopes, None, atol=1e-8 if exact else 5e-3)
    assert slopes[0][:, int(not place)].count_nonzero() == 0


@pytest.mark.parametrize("name", ["bert", "deberta", "mpnet", "gpt2"])
def test_naming_every_layer_is_all_of_them(
    load_family: Callable[..., LanguageModel], name: str
) -> None:
    backbone = load_family(name)
    inputs, states = make_inputs(backbone), make_states(backbone, 4, tasks=2)
    visible, row = torch.arange(4) < torch.tensor([[4], [2]]), torch.tensor([1, 0, 1])
    prefix = Prefix(states, row, visible=visible)
    wanted = backbone.states(inputs, prefix=prefix)
    for text in ("1,2", "2,1", "1-2", "first:2", "last:2"):
        close(backbone.states(inputs, prefix=replace(prefix, layers=text)), wanted, None, atol=0)
    # Tasks of several lengths in a batch, in one layer alone.
    some = replace(prefix, states=states[:, 1:], layers="2")
    mixed = backbone.states(inputs, prefix=some)
    for task, length in ((0, 4), (1, 2)):
        rows = row == task
        assert inputs.mask is not None
        own = replace(inputs, embeddings=inputs.embeddings[rows], mask=inputs.mask[rows])
        short = states[task : task + 1, 1:, ..., :length, :]
        close(mixed[rows], backbone.states(own, prefix=Prefix(short, layers="2")), own.mask, 5e-5)


@pytest.mark.parametrize("name", SERVED)
def test_a_prefix_of_no_keys_is_no_prefix(
    load_family: Callable[..., LanguageModel], name: str
) -> None:
    backbone = load_family(name)
    inputs = make_inputs(backbone)
    plain = backbone.states(inputs)
    none = backbone.states(inputs, prefix=Prefix(make_states(backbone, 0)))
    close(none, plain, None, atol=0)
    # Nor is one that no row sees.
    hidden = Prefix(make_states(backbone), visible=torch.zeros(1, 3, dtype=torch.bool))
    close(backbone.states(inputs, prefix=hidden), plain, inputs.mask, atol=5e-5)


def test_a_family_that_bypasses_the_interface_is_refused(
    load_family: Callable[..., LanguageModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefix_module, "_SERVED", {})
    backbone = copy.deepcopy(load_family("mpnet"))
    backbone.__dict__.pop("attention", None)
    for module in backbone.model.modules():
        vars(module).pop("forward", None)
    with pytest.raises(ModelError, match="MPNetModel called transformers' attention interface 0"):
        print(backbone.prefix_shape)
    # And is as it was: plain passes go on.
    inputs = make_inputs(backbone)
    states = torch.randn(1, 2, 2, 4, 3, 8).double()
    with pytest.raises(ModelError, match="MPNetModel called transformers' attention interface 0"):
        backbone.states(inputs, prefix=Prefix(states))
    assert backbone.states(inputs).isfinite().all()


@pytest.mark.parametrize("name", SERVED)
def test_rows_of_two_tasks_in_one_batch_equal_each_alone(
    load_family: Callable[..., LanguageModel], name: str
) -> None:
    backbone = load_family(name)
    inputs = make_inputs(backbone)
    states = make_states(backbone, 4, tasks=2)
    visible = torch.arange(4) < torch.tensor([[4], [2]])
    row = torch.tensor([1, 0, 1])
    mixed = backbone.states(inputs, prefix=Prefix(states, row, visible=visible))
    for task, length in ((0, 4), (1, 2)):
        rows = row == task
        assert inputs.mask is not None
        own = replace(inputs, embeddings=inputs.embeddings[rows], mask=inputs.mask[rows])
        alone = backbone.states(own, prefix=Prefix(states[task : task + 1, ..., :length, :]))
        close(mixed[rows], alone, own.mask, atol=5e-5)


# ------------------------------------------------------------------- passes that read a prefix


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


def test_masks_of_every_kind_are_read_alike(bert: LanguageModel, gpt2: LanguageModel) -> None:
    for backbone in (bert, gpt2):
        # A batch without padding needs none.
        inputs, prefix = make_inputs(backbone, (6, 6)), Prefix(make_states(backbone))
        wanted = backbone.states(inputs, prefix=prefix)
        found = backbone.states(replace(inputs, mask=None), prefix=prefix)
        close(found, wanted, None, atol=1e-12)
    # One that the caller made is widened.
    inputs, prefix = make_inputs(bert), Prefix(make_states(bert))
    assert inputs.mask is not None
    made = torch.zeros(3, 1, 7, 7).double().masked_fill(~inputs.mask[:, None, None], -1e9)
    found = bert.states(replace(inputs, mask=made), prefix=prefix)
    close(found, bert.states(inputs, prefix=prefix), inputs.mask, atol=1e-12)


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
    kept = torch.stack(taken[0][:2], 1)
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


@pytest.mark.parametrize("name", ["bert", "deberta-v2", "mpnet"])
def test_compiled_layers_read_it_where_they_are_chosen(
    load_family: Callable[..., LanguageModel],
    family_folder: Callable[[str], Path],
    name: str,
    counted: Counter[str],
) -> None:
    whole = load_family(name, "float32")
    backbone = LanguageModel.load(str(family_folder(name)), device="cpu", dtype="float32")
    backbone.compile_layers(backend="eager")
    inputs = make_inputs(backbone)
    prefix = Prefix(make_states(backbone, 4)[:, 1:], layers="last:1")
    wanted = whole.states(inputs, prefix=prefix)
    for _ in range(2):
        close(backbone.states(inputs, prefix=prefix), wanted, inputs.mask, 1e-5)
    # One graph for layers that read it, one for the others.
    assert counted["unique_graphs"] == 2


@pytest.mark.parametrize("name", ["bert", "deberta-v2", "mpnet"])
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


@pytest.mark.parametrize("name", ["bert", "deberta", "deberta-v2", "mpnet"])
def test_a_copy_of_the_model_reads_with_its_own_weights(
    load_family: Callable[..., LanguageModel], name: str
) -> None:
    backbone = load_family(name)
    inputs, prefix = make_inputs(backbone), Prefix(make_states(backbone))
    before = [backbone.states(inputs), backbone.states(inputs, prefix=prefix)]
    other = copy.deepcopy(backbone, {id(backbone.vocabulary): backbone.vocabulary})
    with torch.no_grad():
        for own in other.model.parameters():
            own.mul_(2)
    for wanted, given in zip(before, (None, prefix), strict=True):
        assert not torch.allclose(other.states(inputs, prefix=given), wanted, atol=1e-3)
        close(backbone.states(inputs, prefix=given), wanted, None, atol=0)
    # The layers of the copy learn, those that were copied do not.
    other.model.base_model.requires_grad_(True)
    other.states(inputs, grad_model=True).square().sum().backward()
    assert all(
        own.grad is not None
        for path, own in other.model.base_model.named_parameters()
        if ".layer.0.attention." in path and not path.endswith("bias")
    )


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
            assert backbone.reads_types == known
        assert torch.allclose(typed[inputs.mask], plain[inputs.mask]) != backbone.reads_types


MISFIT = "serves only the model it was learned"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"states": torch.zeros(1, 3, 2, 4, 3, 8)}, MISFIT),
        ({"states": torch.zeros(1, 2, 2, 4, 3)}, MISFIT),
        ({"layers": "last:1"}, r"reads \[tasks, 1, 2, 4, length, 8\]"),
        ({"row": torch.zeros(2, dtype=torch.long)}, "for a batch of 3 rows"),
        ({"visible": torch.ones(1, 2, dtype=torch.bool)}, r"give one \[tasks, length\]"),
        (
            {"states": torch.zeros(1, 2, 2, 4, 42, 8), "shift_positions": True},
            r"7 tokens after a prefix of 42 .* and the model has 48",
        ),
    ],
)
def test_a_prefix_that_does_not_fit_is_refused(
    bert: LanguageModel, change: dict[str, Any], message: str
) -> None:
    inputs = make_inputs(bert)
    plain, prefix = bert.states(inputs), replace(Prefix(make_states(bert)), **change)
    with pytest.raises(ModelError, match=message):
        bert.states(inputs, prefix=prefix)
    close(bert.states(inputs), plain, None, atol=0)
    if prefix.shift_positions:  # without a shift there is no limit to a prefix
        found = bert.states(inputs, prefix=replace(prefix, shift_positions=False))
        assert found.isfinite().all()


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
