"""Loading a model: the asked dtype and kind, the shipped one, the hub, and what is refused."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import struct
import tomllib
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, Mock

import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoTokenizer,
    BertConfig,
    BertLMHeadModel,
    ViTConfig,
    XLNetConfig,
    XLNetLMHeadModel,
)

import symprompt
from symprompt.cli import flags
from symprompt.errors import ConfigError, ModelError
from symprompt.models import SHIPPED, LanguageModel, load_vocabulary, loading, locate_model
from symprompt.models.loading import FOLDER
from symprompt.probing.config import RunConfig
from symprompt.probing.results import load_facts
from symprompt.probing.results import run_config as stored_config
from tiny.hub import Hub
from tiny.models import (
    HIDES_DECODER,
    WORDS,
    make_byte_level,
    make_facts,
    make_wordpiece,
    run_config,
)
from tiny.runs import Call, other_model, write_csv

Folder = Callable[[str], Path]
REFUSE = Mock(side_effect=AssertionError("nothing is to be asked"))
LOADERS = pytest.mark.parametrize("load", [LanguageModel.load, load_vocabulary])


def small_bert(**more: Any) -> BertConfig:
    return BertConfig(
        vocab_size=200, hidden_size=8, num_hidden_layers=1, num_attention_heads=1,
        intermediate_size=8, **more,
    )  # fmt: skip


@pytest.mark.parametrize("dtype", ["auto", "float32", "float64", "bfloat16"])
def test_load_gives_the_asked_dtype(family_folder: Folder, dtype: str) -> None:
    backbone = LanguageModel.load(str(family_folder("bert")), device="cpu", dtype=dtype)
    wanted = torch.float32 if dtype == "auto" else getattr(torch, dtype)
    assert backbone.dtype == wanted
    assert {weight.dtype for weight in backbone.model.parameters()} == {wanted}
    assert backbone.source == str(family_folder("bert"))


def test_hidden_last_product_refuses_half_precision(family_folder: Folder) -> None:
    folder = str(family_folder(HIDES_DECODER))
    with pytest.raises(ModelError, match="float32"):
        LanguageModel.load(folder, device="cpu", dtype="bfloat16")
    assert LanguageModel.load(folder, device="cpu", dtype="auto").dtype == torch.float32


@pytest.mark.parametrize(("device", "dtype"), [("gpu9", "auto"), ("cpu", "int8")])
def test_unknown_device_or_dtype_is_a_config_error(
    family_folder: Folder, device: str, dtype: str
) -> None:
    with pytest.raises(ConfigError, match="not known"):
        LanguageModel.load(str(family_folder("bert")), device=device, dtype=dtype)


def test_tokenizer_limit_bounds_the_length(family_folder: Folder, tmp_path: Path) -> None:
    folder = shutil.copytree(family_folder("bert"), tmp_path / "short")
    tokenizer = make_wordpiece()
    tokenizer.model_max_length = 20
    tokenizer.save_pretrained(folder)
    assert LanguageModel.load(str(folder), device="cpu").max_length == 20


def test_load_vocabulary_knows_the_kind(family_folder: Folder) -> None:
    assert load_vocabulary(str(family_folder("gpt2"))).causal
    assert not load_vocabulary(str(family_folder("bert"))).causal


def test_a_model_of_both_kinds_stays_masked(tmp_path: Path) -> None:
    BertLMHeadModel(small_bert(is_decoder=True)).save_pretrained(tmp_path)
    make_wordpiece().save_pretrained(tmp_path)
    assert not LanguageModel.load(str(tmp_path), device="cpu").causal


# --------------------------------------------------------------------------- what cannot be loaded


def cut_weights(folder: Path, kept: int) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:kept])


def change_config(folder: Path, **change: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))


def change_mask(folder: Path, mask: str | None) -> None:
    tokenizer = make_wordpiece()
    tokenizer.mask_token = mask
    for path in folder.glob("*token*"):
        path.unlink()
    tokenizer.save_pretrained(folder)


def change_weight(folder: Path, value: float) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["bert.encoder.layer.0.output.dense.bias"][3] = value
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "folder is gone": (shutil.rmtree, r"copy.*config\.json"),
    "no config": (lambda own: (own / "config.json").unlink(), r"no config\.json"),
    "config is no JSON": (lambda own: (own / "config.json").write_text("{not json"), "config"),
    "no model type": (lambda own: (own / "config.json").write_text('{"hidden_size": 4}'), "config"),
    "size is text": (lambda own: change_config(own, hidden_size="x"), "cannot"),
    "size is zero": (lambda own: change_config(own, hidden_size=0), "cannot"),
    "no such activation": (lambda own: change_config(own, hidden_act="z"), "cannot"),
    "no weights": (
        lambda own: (own / "model.safetensors").unlink(),
        "copy holds no weights; model.safetensors is missing",
    ),
    "pickled weights": (
        lambda own: (own / "model.safetensors").rename(own / "pytorch_model.bin"),
        "its weights as pytorch_model.bin, and only safetensors and GGUF are read",
    ),
    "weights of another shape": (
        lambda own: change_config(own, intermediate_size=96),
        r"does not fit its config\.json: bert\.encoder\.layer\.0\S+ is \[\d+.*\[96\] by the conf",
    ),
    "empty weights": (lambda own: cut_weights(own, 0), "cannot load weights"),
    "cut header": (lambda own: cut_weights(own, 5), "cannot load weights"),
    "cut weights": (lambda own: cut_weights(own, 2000), "cannot load weights"),
    "no mask token": (lambda own: change_mask(own, None), "no mask token"),
    "masked with padding": (lambda own: change_mask(own, "[PAD]"), "as its mask and its pad token"),
    "NaN": (
        lambda own: change_weight(own, torch.nan),
        r"not finite.*layer\.0\.output\.dense\.bias",
    ),
    "infinity": (lambda own: change_weight(own, torch.inf), "copy holds a weight that is not fin"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_folder_is_refused(family_folder: Folder, tmp_path: Path, damage: str) -> None:
    folder = shutil.copytree(family_folder("bert"), tmp_path / "copy")
    work, message = DAMAGES[damage]
    work(folder)
    with pytest.raises(ModelError, match=message):
        LanguageModel.load(str(folder), device="cpu")


@LOADERS
def test_folder_without_tokenizer_is_refused(
    load: Callable[[str], object], family: str, family_folder: Folder, tmp_path: Path
) -> None:
    # For most families transformers then makes up a tokenizer of special tokens alone.
    folder = shutil.copytree(family_folder(family), tmp_path / "speechless")
    for path in folder.glob("*token*"):
        path.unlink()
    with pytest.raises(ModelError, match=re.escape(f"{folder} has no tokenizer; save the model's")):
        load(str(folder))


@pytest.mark.parametrize(
    ("tokens", "rows", "fits"),
    [
        (30522, 30522, True),
        (50280, 50368, True),  # ModernBERT
        (250102, 251000, True),  # mDeBERTa-v3
        (50295, 51200, True),  # Phi-2
        (151665, 152064, True),  # Qwen2.5
        (100015, 102400, True),  # DeepSeek
        (9000, 16384, False),
        (16385, 16384, False),
        (70, 150, False),
    ],
)
def test_a_tokenizer_of_another_size_is_refused(tokens: int, rows: int, fits: bool) -> None:
    vocabulary = MagicMock()
    vocabulary.__len__.return_value = tokens
    vocabulary.tokenizer.get_vocab.return_value = {"last": tokens - 1}
    said = rf"has {tokens:,} tokens and the model {rows:,}; save the model's own"
    with nullcontext() if fits else pytest.raises(ModelError, match=said):
        loading.refuse_other_size(vocabulary, rows, "model")


def test_the_fingerprint_covers_the_whole_tokenizer(family_folder: Folder, tmp_path: Path) -> None:
    folder = shutil.copytree(family_folder("bert"), tmp_path / "copy")
    found = {loading.fingerprint(loading.find_model(str(folder)))}
    for words in (WORDS, WORDS[::-1]):
        tokenizer = make_wordpiece(words=words)
        tokenizer.sep_token = "[CLS]"
        tokenizer.save_pretrained(folder)
        found.add(loading.fingerprint(loading.find_model(str(folder))))
    assert len(found) == 3


def test_model_with_neither_head_is_refused(tmp_path: Path) -> None:
    ViTConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=r"vit model.*neither a masked-LM nor a causal-LM head"):
        LanguageModel.load(str(tmp_path), device="cpu")


def test_missing_weights_are_refused_by_name(family_folder: Folder, tmp_path: Path) -> None:
    AutoModel.from_config(small_bert()).save_pretrained(tmp_path / "bert")
    make_wordpiece().save_pretrained(tmp_path / "bert")
    with pytest.raises(ModelError, match=r"weights are missing, such as cls\.predictions"):
        LanguageModel.load(str(tmp_path / "bert"), device="cpu")
    folder = shutil.copytree(family_folder("llama"), tmp_path / "beheaded")
    weights = load_file(folder / "model.safetensors")
    del weights["lm_head.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"no complete causal-LM model.*lm_head\.weight"):
        LanguageModel.load(str(folder), device="cpu")


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


def test_bad_gguf_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF and then nothing")
    find = importlib.util.find_spec
    for there, path, message in (
        (False, tmp_path / "model.gguf", r"needs the package gguf.*\[gguf\]"),
        (True, "nowhere.gguf", r"there is no file nowhere\.gguf"),
        (True, tmp_path / "model.gguf", r"cannot read the config of model.*model\.gguf"),
    ):
        monkeypatch.setattr(
            loading,
            "find_spec",
            lambda name, there=there: there or None if name == "gguf" else find(name),
        )
        with pytest.raises(ModelError, match=message):
            LanguageModel.load(str(path), device="cpu")


# ----------------------------------------------------------------------------------------- the hub


@LOADERS
def test_a_hub_that_cannot_be_reached_is_asked_once(
    load: Callable[[str], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = Mock(side_effect=ConnectionError("Name or service not known"))
    monkeypatch.setattr(loading, "get_hf_file_metadata", hub)
    monkeypatch.setattr(loading.AutoConfig, "from_pretrained", REFUSE)
    start = "^there is no folder 'no-such/model', and the hub"
    with pytest.raises(
        ModelError, match=rf"{start}.* cannot be reached \(Name or service not known\)[^\n]*$"
    ):
        load("no-such/model")
    hub.assert_called_once()
    assert hub.call_args.args[0].endswith("no-such/model/resolve/main/config.json")


def test_a_name_that_is_none_of_the_hubs_is_told_by_transformers() -> None:
    with pytest.raises(ModelError, match="cannot read the config of model"):
        load_vocabulary("a name/with/too/many")


def test_what_the_hub_says_is_told(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.add("you/run", {"symprompt.json": b"{}"})
    for name, message in (
        ("you/nothing", "there is no folder 'you/nothing', and the hub has no you/nothing, or it"),
        ("you/run", "you/run on the hub has no config.json and is no model; name another"),
        ("nothing", "there is no folder 'nothing', and the hub has no nothing"),
    ):
        with pytest.raises(ModelError, match=message):
            load_vocabulary(name)
    hub.failing["/resolve/"] = 418
    monkeypatch.setenv("HF_TOKEN", hub.reader)
    with pytest.raises(ModelError, match="answers with an error") as said:
        load_vocabulary("you/run")
    assert hub.reader not in str(said.value)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError, match="and HF_HUB_OFFLINE keeps from looking for it on the"):
        load_vocabulary("you/nothing")


def test_a_folder_and_the_cache_need_no_hub_and_others_ask_it_once(
    monkeypatch: pytest.MonkeyPatch, family_folder: Folder
) -> None:
    monkeypatch.setattr(loading, "get_hf_file_metadata", REFUSE)
    assert load_vocabulary(str(family_folder("bert")))
    config = loading.AutoConfig.from_pretrained(family_folder("bert"))
    monkeypatch.setattr(loading.AutoConfig, "from_pretrained", lambda *_, **__: config)
    with monkeypatch.context() as patch:
        patch.setattr(loading, "try_to_load_from_cache", lambda *_: "config.json")
        assert loading.find_model("some/model").config is config
    hub = Mock()
    monkeypatch.setattr(loading, "get_hf_file_metadata", hub)
    assert loading.find_model("some/model").place == "some/model"
    hub.assert_called_once()


def test_a_single_model_is_refused_before_it_is_looked_for(
    call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(loading, "get_hf_file_metadata", REFUSE)
    out = tmp_path / "words.txt"
    code, _, said = call("data", "vocabulary", "--models", "no-such-model", "--out", out)
    assert code == 2
    assert "1 model was named; a shared vocabulary needs at least two" in said
    assert not out.exists()


# ---------------------------------------------------------------------------- the name "shipped"


@pytest.fixture
def packaged(family_folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tiny model in the place of the packaged one."""
    folder = shutil.copytree(family_folder("bert"), tmp_path / "package/models/shipped")
    monkeypatch.setattr(loading, "FOLDER", folder)
    return folder


def test_the_name_is_every_commands_default() -> None:
    assert RunConfig().model == flags.CheckFlags(source="world").model == flags.DemoFlags().model
    assert RunConfig().model == SHIPPED


def test_the_name_loads_the_packaged_model_whatever_lies_beside_it(
    packaged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    other_model(packaged, tmp_path / "shipped")
    assert locate_model(SHIPPED) == str(packaged)
    named, by_path, other = (
        LanguageModel.load(name, device="cpu") for name in (SHIPPED, str(packaged), "./shipped")
    )
    assert named.source == SHIPPED
    assert named.fingerprint == by_path.fingerprint != other.fingerprint
    assert len(load_vocabulary(SHIPPED)) == len(by_path.vocabulary)
    for name in ("bert-base-cased", "./shipped", "shipped/", "/models/shipped", "Shipped"):
        assert locate_model(name) == name


def test_a_run_keeps_the_name_and_the_fingerprint(packaged: Path, tmp_path: Path) -> None:
    data = write_csv(make_facts(), tmp_path / "facts.csv")
    config = run_config(model=SHIPPED, data=str(data), out=str(tmp_path / "run"), dtype="float32")
    run = symprompt.train(config)
    card = json.loads((tmp_path / "run/prompts.json").read_text())
    own = LanguageModel.load(str(packaged), device="cpu").fingerprint
    assert stored_config(run.folder).model == card["base_model"] == SHIPPED
    assert card["base_model_fingerprint"] == own
    fact = load_facts(run.folder).facts("test")[0]
    assert run.ask(fact.relation, subject=fact.subject, top=2, device="cpu")


@LOADERS
def test_an_installation_without_it_says_so_in_one_sentence(
    load: Callable[[str], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "FOLDER", tmp_path / "none")
    said = (
        r'^the model "shipped" is not in this installation[^\n]*name another model with --model\.$'
    )
    with pytest.raises(ModelError, match=said):
        load(SHIPPED)


# ------------------------------------------------------------------------- the model that ships


def test_the_folder_is_packaged_small_and_holds_a_model_and_nothing_else() -> None:
    assert Path(symprompt.__file__).parent / "models" / "shipped" == FOLDER
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    listed = tomllib.loads(text)["tool"]["setuptools"]["package-data"]["symprompt"]
    assert "models/shipped/*" in listed
    sizes = {path.name: path.stat().st_size for path in FOLDER.rglob("*") if path.is_file()}
    assert sum(sizes.values()) <= 32 * 2**20, sizes
    model = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    record = {"README.md", "config.toml", "heads.safetensors", "history.json", "symprompt.json"}
    assert set(sizes) == model | record
    card = (FOLDER / "README.md").read_text(encoding="utf-8").lower()
    for word in ("data", "licen[cs]e", "steps", "lama"):
        assert re.search(word, card), word


def test_the_weights_are_half_precision_on_disk() -> None:
    with (FOLDER / "model.safetensors").open("rb") as stream:
        (length,) = struct.unpack("<Q", stream.read(8))
        header = json.loads(stream.read(length))
    kinds = {entry["dtype"] for name, entry in header.items() if name != "__metadata__"}
    assert kinds == {"F16"}


def test_transformers_loads_it_whole_and_without_a_warning(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model, report = AutoModelForMaskedLM.from_pretrained(FOLDER, output_loading_info=True)
        tokenizer = AutoTokenizer.from_pretrained(FOLDER)
    assert not any(report.values()), report
    said = capfd.readouterr()
    assert "warning" not in (said.out + said.err).lower()
    assert tokenizer.mask_token_id is not None
    assert len(tokenizer) <= model.get_input_embeddings().weight.shape[0]
    assert tokenizer.tokenize("Paris") == ["Paris"]  # cased


def test_it_answers_a_question_in_plain_words() -> None:
    backbone = LanguageModel.load("shipped", device="cpu")
    assert backbone.dtype == torch.float32
    tokenizer = backbone.vocabulary.tokenizer
    ids = tokenizer(f"Paris is the capital of {tokenizer.mask_token} .", return_tensors="pt")
    with torch.no_grad():
        logits = backbone.model(**ids).logits[0]
    at = (ids["input_ids"][0] == tokenizer.mask_token_id).nonzero().item()
    first = [backbone.vocabulary.text(int(token)) for token in logits[at].topk(20).indices]
    assert "France" in first
