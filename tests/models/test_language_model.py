"""Every family's language model against plain full forwards of transformers."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend
from transformers import AutoModelForCausalLM

from symprompt.errors import ModelError
from symprompt.facts import FactSet
from symprompt.models import Inputs, LanguageModel
from tiny.models import (
    CAUSAL_FAMILIES,
    FAMILIES,
    HIDES_DECODER,
    causal_config,
    make_batch,
    make_inputs,
    run_config,
    train,
)

Load = Callable[..., LanguageModel]
Folder = Callable[[str], Path]
EVERY = [*FAMILIES, *CAUSAL_FAMILIES]
LENGTHS = (9, 6, 4)


@pytest.fixture(params=EVERY)
def family(request: pytest.FixtureRequest) -> str:
    """Every family's name in turn, masked and causal."""
    return str(request.param)


@pytest.fixture
def near(family: str) -> dict[str, float]:
    """How far equal computations may be apart: see ``Family.exact``."""
    exact = family in FAMILIES or CAUSAL_FAMILIES[family].exact
    return {"rtol": 0, "atol": 1e-9 if exact else 2e-5}


def full_logits(backbone: LanguageModel, ids: Tensor, mask: Tensor) -> Tensor:
    """The logits everywhere, from token ids in the ordinary way."""
    with torch.no_grad():
        logits: Tensor = backbone.model(input_ids=ids, attention_mask=mask.long()).logits
    return logits


@contextmanager
def head_inputs(backbone: LanguageModel) -> Iterator[list[Tensor]]:
    """Collect what the last layer of the head reads; in one family that is an inner one."""
    seen: list[Tensor] = []
    last = backbone.model.get_output_embeddings()
    handle = last.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    try:
        yield seen
    finally:
        handle.remove()


def test_logits_at_equal_the_full_forward(backbone: LanguageModel, near: dict[str, float]) -> None:
    ids, mask = make_batch(backbone, LENGTHS)
    wanted = full_logits(backbone, ids, mask)
    inputs = Inputs(backbone.embed(ids), mask)
    one = torch.tensor([7, 0, 3])
    found = backbone.logits_at(inputs, one)
    assert (found.shape, found.dtype) == ((3, backbone.vocabulary_size), torch.float64)
    torch.testing.assert_close(found, wanted[torch.arange(3), one], **near)
    several = torch.tensor([[8, 1], [5, 5], [0, 2]])
    found = backbone.logits_at(inputs, several)
    torch.testing.assert_close(found, wanted[torch.arange(3)[:, None], several], **near)
    rows, flat = torch.tensor([2, 0, 0, 0, 1]), torch.tensor([3, 8, 1, 0, 5])
    found = backbone.logits_at(inputs, flat, rows)
    torch.testing.assert_close(found, wanted[rows, flat], **near)
    # The comparison means something only if positions and sentences differ.
    assert (wanted[0, 7] - wanted[1, 0]).abs().max() > 1e-3


def test_an_independent_load_gives_the_same_logits(
    causal_family: str, causal: LanguageModel, family_folder: Folder
) -> None:
    # Tied or not, normed, scaled and capped as transformers itself does it.
    model: Any = AutoModelForCausalLM.from_pretrained(
        family_folder(causal_family), dtype=torch.float64, attn_implementation="eager"
    ).eval()
    ids, mask = make_batch(causal, LENGTHS)
    with torch.no_grad():
        wanted = model(input_ids=ids, attention_mask=mask.long()).logits[torch.arange(3), [8, 5, 3]]
    found = causal.logits_at(Inputs(causal.embed(ids), mask), torch.tensor([8, 5, 3]))
    torch.testing.assert_close(found, wanted, rtol=0, atol=2e-5)
    if causal_family == "gemma2":
        assert found.abs().max() <= 3.0


def test_neither_padding_nor_what_a_causal_model_must_not_see_changes_logits(
    backbone: LanguageModel, near: dict[str, float]
) -> None:
    ids, mask = make_batch(backbone, LENGTHS)
    at = torch.tensor([7, 2, 3])
    together = backbone.logits_at(Inputs(backbone.embed(ids), mask), at)
    for row, length in enumerate(at + 1 if backbone.causal else LENGTHS):
        alone = Inputs(backbone.embed(ids[row : row + 1, :length]), mask[row : row + 1, :length])
        found = backbone.logits_at(alone, at[row : row + 1])
        torch.testing.assert_close(found[0], together[row], **near)


def test_head_runs_at_the_wanted_positions_only(backbone: LanguageModel) -> None:
    ids, mask = make_batch(backbone, LENGTHS)
    inputs = Inputs(backbone.embed(ids), mask)
    with head_inputs(backbone) as seen:
        backbone.logits_at(inputs, torch.tensor([[1, 2], [3, 4], [0, 1]]))
        backbone.logits_at(inputs, torch.tensor([1, 2, 3, 0]), torch.tensor([0, 0, 0, 1]))
        full_logits(backbone, ids, mask)
    # The ordinary forward afterwards is not touched by the hook.
    assert [states[..., 0].numel() for states in seen] == [6, 4, 27]


def test_the_hook_is_off_again_after_an_error(bert: LanguageModel) -> None:
    ids, mask = make_batch(bert, LENGTHS)
    with pytest.raises(RuntimeError):
        bert.logits_at(Inputs(bert.embed(ids), mask), torch.tensor([99, 0, 0]))
    assert full_logits(bert, ids, mask).shape[:2] == (3, 9)


def test_gradients_reach_embeddings_and_no_weight(backbone: LanguageModel) -> None:
    ids, mask = make_batch(backbone, LENGTHS)
    embeddings = backbone.embed(ids).requires_grad_()
    backbone.logits_at(Inputs(embeddings, mask), torch.tensor([1, 1, 1])).sum().backward()
    assert embeddings.grad is not None
    assert embeddings.grad[mask].abs().sum() > 0
    for weight in backbone.model.parameters():
        assert (weight.requires_grad, weight.grad) == (False, None)


def test_training_prompts_changes_no_bit_of_the_model(
    family: str, load_family: Load, facts: FactSet
) -> None:
    backbone = load_family(family, "float32")
    before = {name: value.clone() for name, value in backbone.model.state_dict().items()}
    config = (causal_config if backbone.causal else run_config)(learning={"epochs": 1})
    trained = train(config, backbone, facts.select(["near"]))
    for name, value in backbone.model.state_dict().items():
        assert torch.equal(value.view(torch.uint8), before[name].view(torch.uint8)), name
    assert not backbone.model.training
    assert torch.isfinite(trained.vectors()["forth"]).all()


@pytest.mark.parametrize("name", [name for name in EVERY if name != HIDES_DECODER])
def test_half_precision_keeps_the_last_product_and_rotary_angles_in_float32(
    name: str, load_family: Load
) -> None:
    exact, half = load_family(name, "float32"), load_family(name, "bfloat16")
    ids, mask = make_batch(half, LENGTHS)
    at = torch.tensor([2, 1, 3])
    with head_inputs(half) as seen:
        found = half.logits_at(Inputs(half.embed(ids), mask), at)
    assert {weight.dtype for weight in half.model.parameters()} == {torch.bfloat16}
    assert half.embed(ids).dtype == seen[0].dtype == torch.bfloat16
    assert found.dtype == torch.float32
    kept, states = exact.model.get_output_embeddings(), seen[0].float()[:, 0]
    wanted = states @ kept.weight.T + (0 if kept.bias is None else kept.bias)
    if name == "gemma2":
        wanted = 3.0 * torch.tanh(wanted / 3.0)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    # Rounding the weights first would be seen: the check above could fail.
    rounded = states @ kept.weight.bfloat16().float().T
    assert (rounded - states @ kept.weight.T).abs().max() > 1e-5
    if not half.causal:
        # The whole stays near the float32 model's answer.
        whole = exact.logits_at(Inputs(exact.embed(ids), mask), at)
        assert (found - whole).abs().mean() < 0.1 * whole.std()
        return
    computed = {key: own for key, own in half.model.named_buffers() if own.is_floating_point()}
    assert bool(computed) == (name != "gpt2")
    for key, buffer in computed.items():
        assert torch.equal(buffer, dict(exact.model.named_buffers())[key])


def test_a_sentence_of_full_length_runs_and_equals_the_full_forward(
    family: str, backbone: LanguageModel, near: dict[str, float]
) -> None:
    # Positions that count from pad_id + 1 = 2 leave room for 46 tokens in 48 rows.
    length = 46 if family in ("roberta", "xlm-roberta", "mpnet") else 48
    assert backbone.max_length == length
    generator = torch.Generator().manual_seed(2)
    ids = torch.randint(5, len(backbone.vocabulary), (1, length), generator=generator)
    mask = torch.ones_like(ids, dtype=torch.bool)
    found = backbone.logits_at(Inputs(backbone.embed(ids), mask), torch.tensor([length - 1]))
    wanted = full_logits(backbone, ids, mask)[:, -1]
    torch.testing.assert_close(found, wanted, **near)


def test_kind_and_width_are_the_models(family: str, backbone: LanguageModel) -> None:
    assert backbone.causal == backbone.vocabulary.causal == (family in CAUSAL_FAMILIES)
    # The width is the embedding size, not the hidden size.
    assert backbone.width == (16 if family in ("albert", "electra") else 32)
    assert backbone.embed(torch.tensor([[1, 2]])).shape == (1, 2, backbone.width)
    assert backbone.token_budget(training=True) >= 1024


def test_dropout_is_on_inside_the_context_only(bert: LanguageModel) -> None:
    with bert.dropout():
        assert bert.model.training
    assert not bert.model.training
    with pytest.raises(ZeroDivisionError), bert.dropout():
        raise ZeroDivisionError
    assert not bert.model.training


def test_the_fingerprint_sees_one_bit_of_the_weights_and_no_dtype(
    family: str, backbone: LanguageModel, family_folder: Folder, tmp_path: Path
) -> None:
    folder = shutil.copytree(family_folder(family), tmp_path / "copy")
    assert LanguageModel.load(str(folder), device="cpu").fingerprint == backbone.fingerprint
    weights = folder / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[len(content) // 2] ^= 1
    weights.write_bytes(bytes(content))
    assert LanguageModel.load(str(folder), device="cpu").fingerprint != backbone.fingerprint


def test_padding_beyond_a_sliding_window_is_harmless(load_family: Load) -> None:
    backbone = load_family("gemma2")
    ids, _ = make_batch(backbone, LENGTHS)
    ids, mask = ids[:, :1].repeat(1, 20), torch.arange(20)[None] < torch.tensor([[20], [9], [2]])
    found = backbone.logits_at(Inputs(backbone.embed(ids), mask), torch.tensor([19, 8, 1]))
    assert torch.isfinite(found).all()


def test_a_head_that_is_not_read_position_by_position_is_refused(load_family: Load) -> None:
    backbone = load_family("llama-tied")
    ids, mask = make_batch(backbone, LENGTHS)
    # As if the head did not see what the hook hands on.
    handle = backbone.model.register_forward_hook(
        lambda _, args, output: type(output)(logits=output.logits.repeat(1, 2, 1))
    )
    try:
        with pytest.raises(ModelError, match="position by position"):
            backbone.logits_at(Inputs(backbone.embed(ids), mask), torch.tensor([1, 1, 1]))
    finally:
        handle.remove()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_vocabulary_product_in_parts_is_the_float32_one(
    family_folder: Folder,
) -> None:
    halved = LanguageModel.load(str(family_folder("bert")), device="cuda", dtype="bfloat16")
    plain = halved.model.get_output_embeddings()
    hidden = torch.randn(9, plain.in_features, device="cuda").bfloat16().requires_grad_()
    logits = plain(hidden)
    expected = hidden.float() @ plain.weight.float().mT + plain.bias.float()
    assert logits.dtype == torch.float32
    # The decoder's own weight was halved; its float32 copy is what the product runs on.
    torch.testing.assert_close(logits, expected, rtol=2e-2, atol=2e-2)
    (gradient,) = torch.autograd.grad(logits.square().sum(), hidden)
    assert gradient.dtype == torch.bfloat16
    assert bool(gradient.isfinite().all())


def test_gradients_in_bfloat16_on_a_cpu_are_those_in_float32(load_family: Load) -> None:
    gradients = []
    for dtype in ("float32", "bfloat16"):
        backbone = load_family("bert", dtype)
        inputs = make_inputs(backbone, LENGTHS)
        given = inputs.embeddings.detach().clone().requires_grad_()
        logits = backbone.logits_at(Inputs(given, inputs.mask), torch.tensor([1, 2, 3]))
        logits.log_softmax(1)[:, 5].sum().backward()
        assert given.grad is not None
        gradients.append(given.grad.float())
        # Only where there is a backward pass are the others slow.
        plain = [SDPBackend.MATH]
        assert (backbone._attention_kernels == plain) == (dtype == "bfloat16")
        with torch.no_grad():
            assert backbone._attention_kernels != plain
    near = 0.05 * float(gradients[0].abs().max())
    torch.testing.assert_close(gradients[1], gradients[0], rtol=0, atol=near)
