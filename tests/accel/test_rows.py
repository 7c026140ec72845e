"""Joined products and a last layer at the asked positions give the model's own numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from transformers import (
    AutoModel,
    BertConfig,
    BertModel,
    ErnieConfig,
    PretrainedConfig,
    XmodConfig,
)

from symprompt.accel.packing import (
    LONGEST,
    Packing,
    attend_asked,
    attend_row,
    packed_attention,
)
from symprompt.accel.rows import RowLayers
from symprompt.errors import ModelError
from symprompt.models import Inputs, LanguageModel, pack
from tiny.models import CAUSAL_FAMILIES, FAMILIES

LIKE_BERT = ["bert", "roberta", "xlm-roberta", "electra"]
"""Families whose own layers read packed rows too."""
FOUND = [*LIKE_BERT, "mpnet"]
"""Families that must be found; the others are refused."""
SIZES: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 32,
    "max_position_embeddings": 32,
}


def make_row(backbone: LanguageModel) -> tuple[Tensor, Packing, Tensor]:
    """Return embeddings of sentences of several lengths, one empty, and where they are asked."""
    packing, _ = pack(torch.tensor([4, 1, 6, 0, 3]), 16, 6)
    ids = torch.randint(0, 15, (16,), generator=torch.Generator().manual_seed(3))
    return backbone.embed(ids)[None].detach(), packing, torch.tensor([3, 4, 6, 10, 13])


@pytest.fixture
def with_rows(
    load_family: Callable[..., LanguageModel],
) -> Iterator[Callable[[str], LanguageModel]]:
    """Give backbones that read packed rows by their joined products, as on CUDA."""
    changed = []

    def load(name: str) -> LanguageModel:
        backbone = load_family(name)
        backbone.__dict__["row_layers"] = backbone.find_row_layers()
        changed.append(backbone)
        return backbone

    yield load
    for backbone in changed:
        backbone.__dict__.pop("row_layers", None)


@pytest.mark.parametrize("name", [*FAMILIES, *CAUSAL_FAMILIES])
def test_layers_of_berts_kind_are_found_and_no_others(
    name: str, load_family: Callable[..., LanguageModel]
) -> None:
    found = load_family(name).find_row_layers()
    assert (found is not None) == (name in FOUND)


@pytest.mark.parametrize(
    "config",
    [
        ErnieConfig(use_task_id=True, **SIZES),
        XmodConfig(languages=["en_XX"], default_language="en_XX", **SIZES),
    ],
)
def test_layers_that_read_more_weights_are_refused(config: PretrainedConfig) -> None:
    # Drawn small they change little, which half precision would pass over.
    assert RowLayers.of(AutoModel.from_config(config), 0) is None


def test_a_last_layer_with_other_heads_is_refused() -> None:
    body = BertModel(BertConfig(**SIZES))
    inner = body.encoder.layer[-1].attention.self
    for name in ("query", "key", "value"):
        setattr(inner, name, torch.nn.Linear(24, 16))
    assert RowLayers.of(body, 0) is None


@pytest.mark.parametrize(
    "options",
    [{"num_hidden_layers": 1}, {"hidden_act": "relu"}, {"type_vocab_size": 1}],
    ids=["one layer", "relu", "one type"],
)
def test_unusual_models_get_their_own_states(options: dict[str, Any]) -> None:
    body = BertModel(BertConfig(**{**SIZES, **options})).double().eval()
    layers = RowLayers.of(body, 0)
    assert layers is not None
    words = torch.randn(1, 6, 24, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    packing, _ = pack(torch.tensor([6]), 6, 6)
    with torch.no_grad():
        wanted = body(inputs_embeds=words).last_hidden_state[0, 4]
        found = layers.states_at(Inputs(words, None, packing=packing), torch.tensor([4]))
    torch.testing.assert_close(found[0], wanted)


@pytest.mark.parametrize("name", LIKE_BERT)
def test_answers_and_gradients_are_the_models_own(
    name: str, with_rows: Callable[[str], LanguageModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    backbone = with_rows(name)
    embeddings, packing, at = make_row(backbone)
    calls = []
    states_at = RowLayers.states_at

    def watched(self: RowLayers, inputs: Inputs, positions: Tensor) -> Tensor:
        calls.append(1)
        return states_at(self, inputs, positions)

    monkeypatch.setattr(RowLayers, "states_at", watched)
    found = []
    for joined in (True, False):
        if not joined:
            backbone.__dict__["row_layers"] = None
        leaf = embeddings.clone().requires_grad_()
        logits = backbone.logits_at(Inputs(leaf, None, packing=packing), at)
        weight = torch.linspace(-1, 1, logits.numel(), dtype=logits.dtype).view_as(logits)
        # Of the sentence without tokens nothing is taken.
        real = torch.tensor([0, 1, 2, 4])
        (gradient,) = torch.autograd.grad((logits.log_softmax(-1) * weight)[real].sum(), [leaf])
        found.append((logits[real].detach(), gradient[:, :14]))
    assert len(calls) == 1
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-9)


def test_scores_by_distance_are_those_of_each_sentence_alone(
    with_rows: Callable[[str], LanguageModel],
) -> None:
    backbone = with_rows("mpnet")
    table = backbone.model.base_model.encoder.relative_attention_bias.weight
    before = table.detach().clone()
    # Large enough to matter; then what was joined before is no longer the model's.
    with torch.no_grad():
        table.copy_(torch.linspace(-3, 3, table.numel(), dtype=table.dtype).view_as(table))
    embeddings, packing, at = make_row(backbone)
    inputs = Inputs(embeddings, None, packing=packing)
    with pytest.raises(ModelError, match="joined products alone, and its weights have changed"):
        backbone.logits_at(inputs, at)
    backbone.__dict__["row_layers"] = backbone.find_row_layers()
    assert backbone.can_pack()
    try:
        leaf = embeddings.clone().requires_grad_()
        found = backbone.logits_at(Inputs(leaf, None, packing=packing), at)
        weight = torch.linspace(-1, 1, found[0].numel(), dtype=found.dtype)
        for row, (begin, end) in {0: (0, 4), 1: (4, 5), 2: (5, 11), 4: (11, 14)}.items():
            alone = embeddings[:, begin:end].clone().requires_grad_()
            wanted = backbone.logits_at(Inputs(alone, None), at[row : row + 1] - begin)
            torch.testing.assert_close(found[row], wanted[0], rtol=0, atol=1e-9)
            (one,) = torch.autograd.grad(found[row] @ weight, [leaf], retain_graph=True)
            (other,) = torch.autograd.grad(wanted[0] @ weight, [alone])
            torch.testing.assert_close(one[:, begin:end], other, rtol=0, atol=1e-9)
            assert not one[:, :begin].any()
            assert not one[:, end:].any()
    finally:
        with torch.no_grad():
            table.copy_(before)


@pytest.mark.parametrize(
    "name", ["encoder.layer.0.attention.self.query.weight", "embeddings.LayerNorm.weight"]
)
def test_changed_weights_are_not_answered_from_the_joined_ones(
    name: str, with_rows: Callable[[str], LanguageModel]
) -> None:
    backbone = with_rows("bert")
    embeddings, packing, at = make_row(backbone)
    inputs = Inputs(embeddings, None, packing=packing)
    layers = backbone.row_layers
    assert layers is not None
    assert layers.fits(inputs)
    weight = backbone.model.base_model.get_parameter(name)
    with torch.no_grad():
        before = backbone.logits_at(inputs, at)
        weight.mul_(1.5)
        assert not layers.fits(inputs)
        after = backbone.logits_at(inputs, at)
        weight.div_(1.5)
    assert not torch.allclose(before, after)


def test_the_models_own_forward_is_put_back_after_an_error(
    with_rows: Callable[[str], LanguageModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    backbone = with_rows("bert")
    embeddings, packing, at = make_row(backbone)

    def fail(*_args: object, **_given: object) -> None:
        raise RuntimeError("the head is broken")

    with monkeypatch.context() as patch:
        patch.setattr(backbone.model.cls, "forward", fail)
        with pytest.raises(RuntimeError, match="head is broken"):
            backbone.logits_at(Inputs(embeddings, None, packing=packing), at)
    assert "forward" not in vars(backbone.model.base_model)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(("heads", "size"), [(8, 64), (9, 64), (4, 24), (6, 32), (5, 16)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("longest", [70, 40, 30])
@pytest.mark.parametrize("by_distance", [False, True])
def test_the_row_kernels_are_what_plain_tensors_give(
    heads: int, size: int, dtype: torch.dtype, longest: int, by_distance: bool
) -> None:
    lengths = torch.tensor([17, 1, min(40, longest), 0, longest, 9])
    total, tokens, width = int(lengths.sum()), int(lengths.sum()) + 5, heads * size
    packing, _ = pack(lengths, tokens, longest)
    generator = torch.Generator().manual_seed(1)
    near = {"rtol": 0, "atol": 1e-2 if dtype == torch.float16 else 6e-2}
    joined = torch.randn(tokens, 3 * width, generator=generator).to(dtype)
    query = torch.randn(heads, len(lengths), width, generator=generator).to(dtype)
    states = torch.randn(tokens, width, generator=generator).to(dtype)
    bias = torch.zeros(0)
    if by_distance:
        bias = torch.randn(heads, 2 * LONGEST - 1, generator=generator)

    def row(joined: Tensor) -> Tensor:
        within = packing.within.to(joined.device)
        own = bias.to(joined.device, torch.promote_types(joined.dtype, torch.float32))
        return attend_row(joined, within, own, heads, packing.window, size**-0.5)[:total]

    def asked(query: Tensor, states: Tensor) -> Tensor:
        starts = packing.starts.to(states.device)
        seen = attend_asked(query, states, starts, packing.block, width**-0.5)
        return seen[:, [0, 1, 2, 4, 5]]

    def interface(*three: Tensor) -> Tensor:
        mask = packing.as_mask().to(three[0].device)
        return packed_attention(torch.nn.Module(), *three, mask)[0][:, :total]

    # As transformers' attention interface gives them, one token's heads together.
    apart = [
        torch.randn(1, tokens, heads, size, generator=generator).to(dtype).transpose(1, 2)
        for _ in range(3)
    ]
    for work, given in ((row, [joined]), (asked, [query, states]), (interface, apart)):
        results = []
        for device, kind in (("cuda", dtype), ("cpu", torch.float64)):
            leaves = [one.to(device, kind).requires_grad_() for one in given]
            own = work(*leaves)
            weight = torch.linspace(-1, 1, own.numel()).view_as(own).to(own)
            found = own, *torch.autograd.grad((own * weight).sum(), leaves)
            results.append([one.detach().double().cpu() for one in found])
        for one, other in zip(*results, strict=True):
            torch.testing.assert_close(one, other, **near)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_gelu_kernels_are_what_plain_tensors_give() -> None:
    from symprompt.accel.gelu_kernels import gelu

    generator = torch.Generator().manual_seed(1)
    states = (4 * torch.randn(7, 1001, generator=generator)).bfloat16()
    results = []
    for work, device, dtype in (
        (gelu, "cuda", torch.bfloat16),
        (functional.gelu, "cpu", torch.float64),
    ):
        leaf = states.to(device, dtype).requires_grad_()
        out = work(leaf)
        (gradient,) = torch.autograd.grad((out * torch.linspace(-1, 1, 1001).to(out)).sum(), [leaf])
        results.append([one.detach().double().cpu() for one in (out, gradient)])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=8e-3, atol=1e-5)


def test_queries_of_a_sentence_see_that_sentence_alone() -> None:
    generator = torch.Generator().manual_seed(2)
    packing, _ = pack(torch.tensor([3, 2]), 5, 3)
    query = torch.randn(4, 2, 8, generator=generator, dtype=torch.float64)
    states = torch.randn(5, 8, generator=generator, dtype=torch.float64)
    found = attend_asked(query, states, packing.starts, 16, 0.5)
    for sentence, part in enumerate((slice(0, 3), slice(3, 5))):
        for head in range(4):
            weights = torch.softmax(states[part] @ query[head, sentence] * 0.5, 0)
            torch.testing.assert_close(found[head, sentence], weights @ states[part])
