"""The backbone against plain full forwards of transformers, for every family."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoModel, BertConfig, ViTConfig

from symprompt.errors import ConfigError, ModelError
from symprompt.facts import FactSet
from symprompt.models import Inputs, LanguageModel
from tiny.models import FAMILIES, HIDES_DECODER, make_wordpiece, run_config, train

Load = Callable[..., LanguageModel]
Folder = Callable[[str], Path]


def make_batch(backbone: LanguageModel) -> tuple[Tensor, Tensor]:
    """Random sentences of lengths 9, 6 and 4, padded on the right."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(5, len(backbone.vocabulary), (3, 9), generator=generator)
    mask = torch.arange(9)[None] < torch.tensor([9, 6, 4])[:, None]
    return ids.masked_fill(~mask, backbone.vocabulary.pad_id), mask


def full_logits(backbone: LanguageModel, ids: Tensor, mask: Tensor) -> Tensor:
    """What the model says everywhere, asked with token ids in the ordinary way."""
    with torch.no_grad():
        output = backbone.model(input_ids=ids, attention_mask=mask.long())
    logits: Tensor = output.logits
    return logits


def test_logits_at_one_position_equal_the_full_forward(backbone: LanguageModel) -> None:
    ids, mask = make_batch(backbone)
    at = torch.tensor([7, 0, 3])
    found = backbone.logits_at(Inputs(backbone.embed(ids), mask), at)
    wanted = full_logits(backbone, ids, mask)[torch.arange(3), at]
    assert found.dtype == torch.float64
    assert found.shape == (3, backbone.vocabulary_size)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-9)
    # The comparison means something only if positions and sentences differ.
    assert (wanted[0] - wanted[1]).abs().max() > 1e-3


def test_logits_at_several_positions_equal_the_full_forward(backbone: LanguageModel) -> None:
    ids, mask = make_batch(backbone)
    at = torch.tensor([[8, 1], [5, 5], [0, 2]])
    found = backbone.logits_at(Inputs(backbone.embed(ids), mask), at)
    wanted = full_logits(backbone, ids, mask)[torch.arange(3)[:, None], at]
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-9)


def test_padding_changes_no_logits(backbone: LanguageModel) -> None:
    ids, mask = make_batch(backbone)
    at = torch.tensor([7, 2, 3])
    together = backbone.logits_at(Inputs(backbone.embed(ids), mask), at)
    for row, length in enumerate((9, 6, 4)):
        alone = Inputs(backbone.embed(ids[row : row + 1, :length]), mask[row : row + 1, :length])
        found = backbone.logits_at(alone, at[row : row + 1])
        torch.testing.assert_close(found[0], together[row], rtol=0, atol=1e-9)


def test_head_runs_at_the_wanted_positions_only(backbone: LanguageModel) -> None:
    ids, mask = make_batch(backbone)
    seen: list[tuple[int, ...]] = []
    # The head's last layer of its own; with the newer DeBERTa-v2 head that is an inner one.
    last = backbone.model.get_output_embeddings()
    handle = last.register_forward_pre_hook(lambda _, args: seen.append(args[0].shape[:-1]))
    try:
        backbone.logits_at(
            Inputs(backbone.embed(ids), mask), torch.tensor([[1, 2], [3, 4], [0, 1]])
        )
        full_logits(backbone, ids, mask)
    finally:
        handle.remove()
    # 3 x 2 wanted positions; the ordinary forward afterwards is not touched by the hook.
    assert [torch.Size(shape).numel() for shape in seen] == [6, 27]


def test_the_hook_is_off_again_after_an_error(bert: LanguageModel) -> None:
    ids, mask = make_batch(bert)
    with pytest.raises(RuntimeError):
        bert.logits_at(Inputs(bert.embed(ids), mask), torch.tensor([99, 0, 0]))
    assert full_logits(bert, ids, mask).shape[:2] == (3, 9)


def test_gradients_reach_embeddings_and_no_weight(backbone: LanguageModel) -> None:
    ids, mask = make_batch(backbone)
    embeddings = backbone.embed(ids).requires_grad_()
    backbone.logits_at(Inputs(embeddings, mask), torch.tensor([1, 1, 1])).sum().backward()
    assert embeddings.grad is not None
    assert embeddings.grad[mask].abs().sum() > 0
    assert all(not weight.requires_grad for weight in backbone.model.parameters())
    assert all(weight.grad is None for weight in backbone.model.parameters())


def digest(backbone: LanguageModel) -> str:
    total = hashlib.sha256()
    for name, value in backbone.model.state_dict().items():
        total.update(name.encode())
        total.update(value.contiguous().view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


def test_training_prompts_changes_no_bit_of_the_model(
    family: str, load_family: Load, facts: FactSet
) -> None:
    backbone = load_family(family, "float32")
    before = digest(backbone)
    config = run_config(learning={"epochs": 1})
    trained = train(config, backbone, facts.select(["near"]))
    assert digest(backbone) == before
    assert not backbone.model.training
    assert torch.isfinite(trained.vectors()["forth"]).all()


@pytest.mark.parametrize("name", [name for name in FAMILIES if name != HIDES_DECODER])
def test_half_precision_body_keeps_the_vocabulary_product_in_float32(
    name: str, load_family: Load
) -> None:
    exact, half = load_family(name, "float32"), load_family(name, "bfloat16")
    ids, mask = make_batch(half)
    at = torch.tensor([2, 1, 3])
    seen: list[Tensor] = []
    decoder = half.model.get_output_embeddings()
    handle = decoder.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    try:
        found = half.logits_at(Inputs(half.embed(ids), mask), at)
    finally:
        handle.remove()
    assert half.embed(ids).dtype == torch.bfloat16
    assert seen[0].dtype == torch.bfloat16
    assert found.dtype == torch.float32
    kept = exact.model.get_output_embeddings()
    wanted = seen[0].float() @ kept.weight.T
    if kept.bias is not None:
        wanted = wanted + kept.bias
    torch.testing.assert_close(found, wanted[:, 0], rtol=1e-6, atol=1e-6)
    # Rounding the weights first would be seen: the check above could fail.
    rounded = seen[0].float() @ kept.weight.bfloat16().float().T
    assert (rounded[:, 0] - seen[0].float()[:, 0] @ kept.weight.T).abs().max() > 1e-5
    # And the whole stays near the float32 model's answer.
    near = exact.logits_at(Inputs(exact.embed(ids), mask), at)
    assert (found - near).abs().mean() < 0.1 * near.std()


def test_hidden_last_product_refuses_half_precision(family_folder: Folder) -> None:
    folder = str(family_folder(HIDES_DECODER))
    with pytest.raises(ModelError, match="float32"):
        LanguageModel.load(folder, device="cpu", dtype="bfloat16")
    assert LanguageModel.load(folder, device="cpu", dtype="auto").dtype == torch.float32


@pytest.mark.parametrize("dtype", ["auto", "float32", "float64", "bfloat16"])
def test_load_gives_the_asked_dtype(family_folder: Folder, dtype: str) -> None:
    backbone = LanguageModel.load(str(family_folder("bert")), device="cpu", dtype=dtype)
    wanted = torch.float32 if dtype == "auto" else getattr(torch, dtype)
    assert backbone.dtype == wanted
    assert {weight.dtype for weight in backbone.model.parameters()} == {wanted}
    assert backbone.source == str(family_folder("bert"))


@pytest.mark.parametrize("name", ["roberta", "xlm-roberta", "mpnet"])
def test_max_length_leaves_room_for_the_padding_offset(name: str, load_family: Load) -> None:
    backbone = load_family(name)
    # Positions count from pad_id + 1 = 2, so 48 rows hold 46 tokens.
    assert backbone.max_length == 48 - backbone.vocabulary.pad_id - 1 == 46


def test_a_sentence_of_full_length_runs_and_equals_the_full_forward(
    backbone: LanguageModel,
) -> None:
    length = backbone.max_length
    assert length in (46, 48)
    generator = torch.Generator().manual_seed(2)
    ids = torch.randint(5, len(backbone.vocabulary), (1, length), generator=generator)
    mask = torch.ones_like(ids, dtype=torch.bool)
    found = backbone.logits_at(Inputs(backbone.embed(ids), mask), torch.tensor([length - 1]))
    wanted = full_logits(backbone, ids, mask)[:, -1]
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-9)


def test_tokenizer_limit_bounds_the_length(family_folder: Folder, tmp_path: Path) -> None:
    folder = tmp_path / "short"
    shutil.copytree(family_folder("bert"), folder)
    tokenizer = make_wordpiece()
    tokenizer.model_max_length = 20
    tokenizer.save_pretrained(folder)
    assert LanguageModel.load(str(folder), device="cpu").max_length == 20


def test_width_is_the_embedding_size_not_the_hidden_size(
    family: str, backbone: LanguageModel
) -> None:
    assert backbone.width == (16 if family in ("albert", "electra") else 32)
    assert backbone.embed(torch.tensor([[1, 2]])).shape == (1, 2, backbone.width)


def test_dropout_is_on_inside_the_context_only(bert: LanguageModel) -> None:
    with bert.dropout():
        assert bert.model.training
    assert not bert.model.training
    with pytest.raises(ZeroDivisionError), bert.dropout():
        raise ZeroDivisionError
    assert not bert.model.training


def test_fingerprint_tells_weights_apart_and_is_stable(
    family_folder: Folder, tmp_path: Path
) -> None:
    source = family_folder("bert")
    first = LanguageModel.load(str(source), device="cpu", dtype="float32")
    again = LanguageModel.load(str(source), device="cpu", dtype="float64")
    assert first.fingerprint == again.fingerprint
    changed = tmp_path / "changed"
    shutil.copytree(source, changed)
    weight = first.model.state_dict()
    next(iter(weight.values())).view(-1)[0].add_(1.0)
    first.model.save_pretrained(changed)
    other = LanguageModel.load(str(changed), device="cpu")
    assert other.fingerprint != again.fingerprint


# --------------------------------------------------------------------------- what cannot be loaded


def test_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"nowhere.*config\.json"):
        LanguageModel.load(str(tmp_path / "nowhere"), device="cpu")


def test_folder_without_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no config\.json"):
        LanguageModel.load(str(tmp_path), device="cpu")


def test_garbled_config_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{not json")
    with pytest.raises(ModelError, match="config"):
        LanguageModel.load(str(tmp_path), device="cpu")


def test_config_without_model_type_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"hidden_size": 4}')
    with pytest.raises(ModelError, match="config"):
        LanguageModel.load(str(tmp_path), device="cpu")


def test_folder_without_weights_is_refused(family_folder: Folder, tmp_path: Path) -> None:
    folder = tmp_path / "bare"
    shutil.copytree(family_folder("bert"), folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="cannot load weights"):
        LanguageModel.load(str(folder), device="cpu")


def test_pickled_weights_are_never_read(family_folder: Folder, tmp_path: Path) -> None:
    folder = tmp_path / "pickled"
    shutil.copytree(family_folder("bert"), folder)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match="safetensors"):
        LanguageModel.load(str(folder), device="cpu")


@pytest.mark.parametrize("kept", [0, 5, 2000])
def test_damaged_weights_are_refused(family_folder: Folder, tmp_path: Path, kept: int) -> None:
    folder = tmp_path / "damaged"
    shutil.copytree(family_folder("bert"), folder)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:kept])
    with pytest.raises(ModelError, match="cannot load weights"):
        LanguageModel.load(str(folder), device="cpu")


def test_model_with_neither_head_is_refused(tmp_path: Path) -> None:
    ViTConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=r"vit model.*neither a masked-LM nor a causal-LM head"):
        LanguageModel.load(str(tmp_path), device="cpu")


def test_model_without_its_masked_head_is_refused(tmp_path: Path) -> None:
    config = BertConfig(
        vocab_size=200, hidden_size=8, num_hidden_layers=1, num_attention_heads=1,
        intermediate_size=8,
    )  # fmt: skip
    AutoModel.from_config(config).save_pretrained(tmp_path)
    make_wordpiece().save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=r"weights are missing, such as cls\.predictions"):
        LanguageModel.load(str(tmp_path), device="cpu")


def test_tokenizer_without_mask_is_refused(family_folder: Folder, tmp_path: Path) -> None:
    folder = tmp_path / "maskless"
    shutil.copytree(family_folder("bert"), folder)
    tokenizer = make_wordpiece()
    tokenizer.mask_token = None
    for path in folder.glob("*token*"):
        path.unlink()
    tokenizer.save_pretrained(folder)
    with pytest.raises(ModelError, match="no mask token"):
        LanguageModel.load(str(folder), device="cpu")


def test_folder_without_tokenizer_is_refused(
    family: str, family_folder: Folder, tmp_path: Path
) -> None:
    # For most families transformers then makes up a tokenizer of special tokens alone.
    folder = tmp_path / "speechless"
    shutil.copytree(family_folder(family), folder)
    for path in folder.glob("*token*"):
        path.unlink()
    with pytest.raises(ModelError, match=re.escape(str(folder))):
        LanguageModel.load(str(folder), device="cpu")


@pytest.mark.parametrize(("device", "dtype"), [("gpu9", "auto"), ("cpu", "int8")])
def test_unknown_device_or_dtype_is_a_config_error(
    family_folder: Folder, device: str, dtype: str
) -> None:
    with pytest.raises(ConfigError, match="not known"):
        LanguageModel.load(str(family_folder("bert")), device=device, dtype=dtype)


def test_fingerprint_sees_a_change_in_the_middle_of_the_weights(
    family_folder: Folder, tmp_path: Path
) -> None:
    folder = tmp_path / "changed"
    shutil.copytree(family_folder("bert"), folder)
    before = LanguageModel.load(str(folder), device="cpu").fingerprint
    weights = folder / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[len(content) // 2] ^= 1
    weights.write_bytes(bytes(content))
    assert LanguageModel.load(str(folder), device="cpu").fingerprint != before


@pytest.mark.parametrize("change", [{"hidden_size": "x"}, {"hidden_size": 0}, {"hidden_act": "z"}])
def test_garbled_config_is_one_sentence(
    family_folder: Folder, tmp_path: Path, change: dict[str, object]
) -> None:
    folder = tmp_path / "garbled"
    shutil.copytree(family_folder("bert"), folder)
    config = json.loads((folder / "config.json").read_text()) | change
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="cannot"):
        LanguageModel.load(str(folder), device="cpu")


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


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_compiled_layers_answer_the_same(family: str, family_folder: Folder) -> None:
    backbone = LanguageModel.load(str(family_folder(family)), device="cpu", dtype="float64")
    ids = torch.tensor([[5, 6, 7, 8], [9, 8, 7, 6]])
    inputs = Inputs(backbone.embed(ids), torch.ones_like(ids, dtype=torch.bool))
    plain = backbone.logits_at(inputs, torch.tensor([1, 2]))
    backbone.compile_layers("eager")
    torch.testing.assert_close(backbone.logits_at(inputs, torch.tensor([1, 2])), plain)
