"""A stack of models against each of them alone, for every family."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from symprompt.errors import ConfigError, ModelError
from symprompt.models import FullTuning, LanguageModel, LoraTuning, StackedModel, Tuning
from tiny.models import CAUSAL_FAMILIES, FAMILIES

REFUSED = "modernbert"  # its windows of attention are lost in a stack


@pytest.fixture(autouse=True)
def _loops_are_errors() -> None:
    """Make vmap warn, hence fail, where it would loop over relations one by one."""
    torch._C._functorch._set_vmap_fallback_warning_enabled(True)


def lora(model: nn.Module) -> Tuning:
    return LoraTuning(model, rank=3, alpha=6.0, targets=())


def make_rows(stacked: StackedModel) -> Tensor:
    start = stacked.tuning.start(("one", "two", "three"), (0,))
    noise = torch.randn(start.shape, generator=torch.Generator().manual_seed(0), dtype=start.dtype)
    return (start + 0.05 * noise).requires_grad_()


def make_sentences(backbone: LanguageModel) -> tuple[Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(1)
    ids = torch.randint(6, 40, (3, 4, 9), generator=draw)
    length = torch.randint(4, 10, (3, 4), generator=draw)
    at = torch.randint(0, 4, (3, 4), generator=draw)
    return ids, torch.arange(9) < length[..., None], at


def plain_copy(backbone: LanguageModel) -> LanguageModel:
    """The backbone with a model of its own that attends as a stack does."""
    copied = copy.copy(backbone)
    copied.model = copy.deepcopy(backbone.model)
    copied.model.set_attn_implementation("eager")
    return copied


def alone(backbone: LanguageModel, ids: Tensor, mask: Tensor, at: Tensor) -> Tensor:
    """The model's own answers, with logits at every position."""
    given = {"use_cache": False} if backbone.causal else {"attention_mask": mask.long()}
    model = backbone.model.base_model
    hooks, model._forward_hooks = model._forward_hooks, {}
    try:
        logits: Tensor = backbone.model(input_ids=ids, **given).logits
    finally:
        model._forward_hooks = hooks
    return logits[torch.arange(len(ids)), at]


@pytest.mark.parametrize("name", [*FAMILIES, *CAUSAL_FAMILIES])
def test_a_stack_of_models_answers_and_learns_as_each_alone(
    load_family: Callable[..., LanguageModel], name: str
) -> None:
    backbone = load_family(name)
    if name == REFUSED:
        with pytest.raises(ModelError, match="cannot be fine-tuned"):
            StackedModel(backbone, FullTuning)
        return
    stacked = StackedModel(backbone, FullTuning)
    rows = make_rows(stacked)
    ids, mask, at = make_sentences(backbone)
    found = stacked.logits_at(rows, ids, mask, at)
    found.logsumexp(-1).sum().backward()
    assert rows.grad is not None
    for index in range(3):
        plain = plain_copy(backbone)
        named = dict(plain.model.requires_grad_(True).named_parameters())
        for name, value in stacked.tuning.to_tensors(rows[index].detach()).items():
            named[name].data.copy_(value)
        wanted = alone(plain, ids[index], mask[index], at[index])
        torch.testing.assert_close(found[index], wanted, rtol=0, atol=1e-10)
        wanted.logsumexp(-1).sum().backward()
        for name, value in stacked.tuning.to_tensors(rows.grad[index]).items():
            gradient = named[name].grad
            wanted_gradient = torch.zeros_like(value) if gradient is None else gradient
            torch.testing.assert_close(value, wanted_gradient, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", ["bert", "distilbert", "gpt2", "llama"])
def test_adapters_are_a_low_rank_change_of_the_linear_layers(
    load_family: Callable[..., LanguageModel], name: str
) -> None:
    backbone = load_family(name)
    stacked = StackedModel(backbone, lora)
    tuning = stacked.tuning
    assert isinstance(tuning, LoraTuning)
    rows = make_rows(stacked).detach()
    ids, mask, at = make_sentences(backbone)
    found = stacked.logits_at(rows, ids, mask, at)
    for index in range(3):
        plain = plain_copy(backbone)
        parts = tuning.to_tensors(rows[index])
        for target in tuning.targets:
            down = parts[f"base_model.model.{target}.lora_A.weight"]
            up = parts[f"base_model.model.{target}.lora_B.weight"]
            layer = plain.model.get_submodule(target)
            change = 2.0 * up @ down
            layer.weight.data += change if isinstance(layer, nn.Linear) else change.T
        wanted = alone(plain, ids[index], mask[index], at[index])
        torch.testing.assert_close(found[index], wanted, rtol=0, atol=1e-10)


def test_the_backbone_stays_as_it_was(bert: LanguageModel) -> None:
    before = {name: value.clone() for name, value in bert.model.named_parameters()}
    attention = bert.model.config._attn_implementation
    stacked = StackedModel(bert, FullTuning)
    stacked.logits_at(make_rows(stacked), *make_sentences(bert)).sum().backward()
    assert bert.model.config._attn_implementation == attention
    for name, value in bert.model.named_parameters():
        assert torch.equal(value, before[name])
        assert value.grad is None


def test_tied_weights_are_one(bert: LanguageModel) -> None:
    tuning = FullTuning(bert.model)
    assert tuning.size == sum(value.numel() for value in bert.model.parameters())
    assert len(tuning.shapes) == len(list(bert.model.parameters()))


@pytest.mark.parametrize("make", [FullTuning, lora])
def test_rows_become_tensors_and_come_back(
    bert: LanguageModel, make: Callable[[nn.Module], Tuning]
) -> None:
    tuning = make(copy.deepcopy(bert).model)
    row = torch.arange(tuning.size, dtype=torch.float64)
    tensors = tuning.to_tensors(row)
    assert torch.equal(tuning.to_row(tensors), row)
    name = list(tuning.shapes)[1]
    with pytest.raises(ValueError, match=f"{name} does not fit"):
        tuning.to_row({key: value for key, value in tensors.items() if key != name})
    with pytest.raises(ValueError, match="extra does not fit"):
        tuning.to_row(tensors | {"extra": row})


def test_adapters_start_without_effect_and_depend_on_seed_and_relation_alone(
    bert: LanguageModel,
) -> None:
    tuning = lora(copy.deepcopy(bert).model)
    one = tuning.start(("a", "b"), (1,))
    assert torch.equal(one[1], tuning.start(("b",), (1,))[0])
    assert not torch.equal(one[0], one[1])
    assert not torch.equal(one, tuning.start(("a", "b"), (2,)))
    for name, value in tuning.to_tensors(one[0]).items():
        if "lora_B" in name:
            assert not value.any()
        else:
            assert 0.5 < float(value.abs().max()) * value.shape[1] ** 0.5 <= 1


def test_layers_are_chosen_by_the_ends_of_their_names(bert: LanguageModel) -> None:
    model = copy.deepcopy(bert).model
    few = LoraTuning(model, rank=2, alpha=2.0, targets=("query", "self.value"))
    assert len(few.targets) == 2 * model.config.num_hidden_layers
    every = LoraTuning(model, rank=2, alpha=2.0, targets=())
    assert not any("decoder" in name for name in every.targets)
    with pytest.raises(ConfigError, match=r"q_lin.*model's are: .*query"):
        LoraTuning(model, rank=2, alpha=2.0, targets=("q_lin",))


def test_half_precision_is_refused(load_family: Callable[..., LanguageModel]) -> None:
    with pytest.raises(ModelError, match=r"loaded in bfloat16.*float32"):
        StackedModel(load_family("bert", "bfloat16"), FullTuning)


def test_a_stack_is_as_large_as_memory_allows(
    bert: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    stacked = StackedModel(bert, FullTuning)
    each = stacked.tuning.size * 8 * 9
    for memory, wanted in ((each - 1, 1), (each * 3, 3), (each * 4 - 1, 3)):
        monkeypatch.setattr(LanguageModel, "training_memory", lambda _self, memory=memory: memory)
        assert stacked.relations_at_once() == wanted
