"""Causal backbones against plain full forwards of transformers, for every causal family."""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    BertConfig,
    BertLMHeadModel,
    XLNetConfig,
    XLNetLMHeadModel,
)

from symprompt.errors import ModelError
from symprompt.facts import FactSet
from symprompt.models import Inputs, LanguageModel, load_vocabulary
from tiny.causal import CAUSAL_FAMILIES, causal_config, make_byte_level
from tiny.models import CITIES, COUNTRIES, make_wordpiece, train

Load = Callable[..., LanguageModel]
Folder = Callable[[str], Path]


def tolerance(family: str) -> float:
    """How far equal computations may be apart: see ``CausalFamily.exact``."""
    return 1e-9 if CAUSAL_FAMILIES[family].exact else 2e-5


def make_batch(backbone: LanguageModel) -> tuple[Tensor, Tensor]:
    """Random sentences of lengths 9, 6 and 4, padded on the right."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(5, len(backbone.vocabulary), (3, 9), generator=generator)
    mask = torch.arange(9)[None] < torch.tensor([9, 6, 4])[:, None]
    return ids.masked_fill(~mask, backbone.vocabulary.pad_id), mask


def full_logits(backbone: LanguageModel, ids: Tensor, mask: Tensor) -> Tensor:
    """What the model says everywhere, asked with token ids in the ordinary way."""
    with torch.no_grad():
        logits: Tensor = backbone.model(input_ids=ids, attention_mask=mask.long()).logits
    return logits


def test_a_causal_model_is_told_by_its_config(causal: LanguageModel, bert: LanguageModel) -> None:
    assert causal.causal
    assert causal.vocabulary.causal
    assert not bert.causal


def test_logits_at_equal_the_full_forward(causal_family: str, causal: LanguageModel) -> None:
    ids, mask = make_batch(causal)
    wanted = full_logits(causal, ids, mask)
    inputs, near = Inputs(causal.embed(ids), mask), {"rtol": 0, "atol": tolerance(causal_family)}
    one = torch.tensor([7, 0, 3])
    found = causal.logits_at(inputs, one)
    assert found.shape == (3, causal.vocabulary_size)
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, wanted[torch.arange(3), one], **near)
    several = torch.tensor([[8, 1], [5, 5], [0, 2]])
    found = causal.logits_at(inputs, several)
    torch.testing.assert_close(found, wanted[torch.arange(3)[:, None], several], **near)
    rows, flat = torch.tensor([2, 0, 0, 0, 1]), torch.tensor([3, 8, 1, 0, 5])
    found = causal.logits_at(inputs, flat, rows)
    torch.testing.assert_close(found, wanted[rows, flat], **near)
    assert (wanted[0, 7] - wanted[1, 0]).abs().max() > 1e-2


def test_an_independent_load_gives_the_same_logits(
    causal_family: str, causal: LanguageModel, family_folder: Folder
) -> None:
    # Tied or not, normed, scaled and capped as transformers itself does it.
    model: Any = AutoModelForCausalLM.from_pretrained(
        family_folder(causal_family), dtype=torch.float64
    ).eval()
    ids, mask = make_batch(causal)
    with torch.no_grad():
        wanted = model(input_ids=ids, attention_mask=mask.long()).logits[torch.arange(3), [8, 5, 3]]
    found = causal.logits_at(Inputs(causal.embed(ids), mask), torch.tensor([8, 5, 3]))
    torch.testing.assert_close(found, wanted, rtol=0, atol=2e-5)
    if causal_family == "gemma2":
        assert found.abs().max() <= 3.0


def test_neither_padding_nor_what_follows_changes_logits(
    causal_family: str, causal: LanguageModel
) -> None:
    ids, mask = make_batch(causal)
    at = torch.tensor([7, 2, 3])
    together = causal.logits_at(Inputs(causal.embed(ids), mask), at)
    for row, last in enumerate(at.tolist()):
        cut = ids[row : row + 1, : last + 1]
        alone = causal.logits_at(
            Inputs(causal.embed(cut), torch.ones_like(cut, dtype=torch.bool)), at[row : row + 1]
        )
        torch.testing.assert_close(alone[0], together[row], rtol=0, atol=tolerance(causal_family))


def test_head_runs_at_the_wanted_positions_only(causal: LanguageModel) -> None:
    ids, mask = make_batch(causal)
    seen: list[int] = []
    head = causal.model.get_output_embeddings()
    handle = head.register_forward_pre_hook(lambda _, args: seen.append(args[0][..., 0].numel()))
    try:
        inputs = Inputs(causal.embed(ids), mask)
        causal.logits_at(inputs, torch.tensor([[1, 2], [3, 4], [0, 1]]))
        causal.logits_at(inputs, torch.tensor([1, 2, 3, 0]), torch.tensor([0, 0, 0, 1]))
        full_logits(causal, ids, mask)
    finally:
        handle.remove()
    assert seen == [6, 4, 27]


def test_half_precision_keeps_the_last_product_and_rotary_angles_in_float32(
    causal_family: str, load_family: Load
) -> None:
    exact, half = load_family(causal_family, "float32"), load_family(causal_family, "bfloat16")
    ids, mask = make_batch(half)
    at = torch.tensor([2, 1, 3])
    seen: list[Tensor] = []
    head = half.model.get_output_embeddings()
    handle = head.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    try:
        found = half.logits_at(Inputs(half.embed(ids), mask), at)
    finally:
        handle.remove()
    assert {weight.dtype for weight in half.model.parameters()} == {torch.bfloat16}
    assert found.dtype == torch.float32
    wanted = seen[0].float()[:, 0] @ exact.model.get_output_embeddings().weight.T
    if causal_family == "gemma2":
        wanted = 3.0 * torch.tanh(wanted / 3.0)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    computed = {
        name: buffer for name, buffer in half.model.named_buffers() if buffer.is_floating_point()
    }
    assert bool(computed) == (causal_family != "gpt2")
    for name, buffer in computed.items():
        assert torch.equal(buffer, dict(exact.model.named_buffers())[name])


def digest(backbone: LanguageModel) -> str:
    total = hashlib.sha256()
    for name, value in backbone.model.state_dict().items():
        total.update(name.encode())
        total.update(value.contiguous().view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


@pytest.mark.parametrize("method", ["ptuning", "spe"])
def test_training_prompts_changes_no_bit_of_the_model(
    method: str, causal_family: str, load_family: Load, facts: FactSet
) -> None:
    backbone = load_family(causal_family, "float32")
    before = digest(backbone)
    config = causal_config(method={"name": method}, learning={"epochs": 1})
    trained = train(config, backbone, facts.select(["near"]))
    assert digest(backbone) == before
    assert not backbone.model.training
    assert torch.isfinite(trained.vectors()["forth"]).all()


def test_the_frame_is_what_the_tokenizer_puts_before_a_sentence(causal: LanguageModel) -> None:
    vocabulary = causal.vocabulary
    start = vocabulary.tokenizer.bos_token_id
    assert vocabulary.prefix == ([] if start is None else [start])
    assert vocabulary.suffix == []
    assert vocabulary.mask_id is None


def test_a_tokenizer_without_padding_pads_with_its_last_token(gpt2: LanguageModel) -> None:
    assert gpt2.vocabulary.tokenizer.pad_token_id is None
    assert gpt2.vocabulary.pad_id == gpt2.vocabulary.tokenizer.eos_token_id


def test_names_are_read_as_inside_a_sentence(causal: LanguageModel) -> None:
    vocabulary = causal.vocabulary
    found = vocabulary.single_tokens([*COUNTRIES, *CITIES])
    assert None not in found
    assert len(set(found)) == len(COUNTRIES) + len(CITIES)
    (host, whole) = vocabulary.encode(["city", "city Paris"])
    assert host + vocabulary.encode_words(["Paris"])[0] == whole
    assert vocabulary.encode_names(["Paris"], [True]) == vocabulary.encode_words(["Paris"])
    assert vocabulary.encode_names(["Paris"], [False]) == vocabulary.encode(["Paris"])
    (token,) = vocabulary.single_tokens(["Paris"])
    assert token is not None
    assert vocabulary.text(token) == "Paris"


def test_lengths_widths_and_fingerprints(
    causal_family: str, causal: LanguageModel, family_folder: Folder, tmp_path: Path
) -> None:
    assert causal.max_length == 48
    assert causal.width == 32
    assert causal.token_budget(training=True) >= 1024
    folder = tmp_path / "changed"
    shutil.copytree(family_folder(causal_family), folder)
    assert LanguageModel.load(str(folder), device="cpu").fingerprint == causal.fingerprint
    weights = folder / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[len(content) // 2] ^= 1
    weights.write_bytes(bytes(content))
    assert LanguageModel.load(str(folder), device="cpu").fingerprint != causal.fingerprint


def test_load_vocabulary_knows_the_kind(family_folder: Folder) -> None:
    assert load_vocabulary(str(family_folder("gpt2"))).causal
    assert not load_vocabulary(str(family_folder("bert"))).causal


def test_a_model_of_both_kinds_stays_masked(tmp_path: Path) -> None:
    config = BertConfig(
        vocab_size=200, hidden_size=8, num_hidden_layers=1, num_attention_heads=1,
        intermediate_size=8, is_decoder=True,
    )  # fmt: skip
    BertLMHeadModel(config).save_pretrained(tmp_path)
    make_wordpiece().save_pretrained(tmp_path)
    assert not LanguageModel.load(str(tmp_path), device="cpu").causal


def test_padding_beyond_a_sliding_window_is_harmless(load_family: Load) -> None:
    backbone = load_family("gemma2")
    ids, _ = make_batch(backbone)
    ids, mask = ids[:, :1].repeat(1, 20), torch.arange(20)[None] < torch.tensor([[20], [9], [2]])
    found = backbone.logits_at(Inputs(backbone.embed(ids), mask), torch.tensor([19, 8, 1]))
    assert torch.isfinite(found).all()


def test_a_model_that_sees_what_follows_is_refused(tmp_path: Path) -> None:
    tokenizer = make_byte_level()
    config = XLNetConfig(vocab_size=len(tokenizer), d_model=16, n_layer=1, n_head=2, d_inner=16)
    model = XLNetLMHeadModel(config)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.5, generator=generator)
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="xlnet model, whose answers change with what comes after"):
        LanguageModel.load(str(tmp_path), device="cpu")


def test_missing_weights_are_refused_by_name(family_folder: Folder, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = tmp_path / "beheaded"
    shutil.copytree(family_folder("llama"), folder)
    weights = load_file(folder / "model.safetensors")
    del weights["lm_head.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"no complete causal-LM model.*lm_head\.weight"):
        LanguageModel.load(str(folder), device="cpu")


def test_a_head_that_is_not_read_position_by_position_is_refused(load_family: Load) -> None:
    backbone = load_family("llama-tied")
    ids, mask = make_batch(backbone)
    # As if the head did not see what the hook hands on.
    handle = backbone.model.register_forward_hook(
        lambda _, args, output: type(output)(logits=output.logits.repeat(1, 2, 1))
    )
    try:
        with pytest.raises(ModelError, match="position by position"):
            backbone.logits_at(Inputs(backbone.embed(ids), mask), torch.tensor([1, 1, 1]))
    finally:
        handle.remove()


def test_gguf_without_its_packages_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    find = importlib.util.find_spec
    monkeypatch.setattr(
        "symprompt.models.loading.find_spec", lambda name: None if name == "gguf" else find(name)
    )
    with pytest.raises(ModelError, match=r"needs the package gguf.*\[gguf\]"):
        LanguageModel.load(str(tmp_path / "model.gguf"), device="cpu")


def test_bad_gguf_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("symprompt.models.loading.find_spec", lambda name: name)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError, match=r"there is no file nowhere\.gguf"):
        LanguageModel.load("nowhere.gguf", device="cpu")
    (tmp_path / "model.gguf").write_bytes(b"GGUF and then nothing")
    with pytest.raises(ModelError, match=r"cannot read the config of model.*model\.gguf"):
        LanguageModel.load(str(tmp_path / "model.gguf"), device="cpu")
