"""Prefixes to and from peft's folders, with peft itself where it is installed."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoModel

from symprompt.errors import ModelError, RunError
from symprompt.models import Inputs, LanguageModel, Prefix
from symprompt.prompts.exchange import read_peft, write_peft
from tiny.models import make_batch

AGREED = ("bert", "roberta", "xlm-roberta", "electra", "gpt2", "llama", "qwen2", "qwen3", "gemma")
NO_CACHE = ("albert", "distilbert", "deberta", "deberta-v2", "mpnet", "modernbert")


def peft_library() -> Any:
    # What it imports may warn of deprecations of its own.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import peft
    return peft


def make_prefix(backbone: LanguageModel, length: int = 4, tasks: int = 1, **more: Any) -> Prefix:
    layers, heads, size = backbone.prefix_shape
    draw = torch.Generator().manual_seed(1)
    states = torch.randn((tasks, layers, 2, heads, length, size), generator=draw)
    return Prefix(states, shift_positions=True, **more)


def load_body(folder: Path) -> Any:
    return AutoModel.from_pretrained(folder).double().eval()


@pytest.mark.parametrize("name", AGREED)
def test_peft_reads_what_is_written(
    load_family: Callable[..., LanguageModel],
    family_folder: Callable[[str], Path],
    tmp_path: Path,
    name: str,
) -> None:
    backbone = load_family(name)
    ids, mask = make_batch(backbone)
    # The second task's prefix is shorter.
    visible = torch.arange(4) < torch.tensor([[4], [3]])
    prefix = make_prefix(backbone, tasks=2, visible=visible)
    write_peft(tmp_path, prefix, backbone, task=1)
    adapted = peft_library().PeftModel.from_pretrained(load_body(family_folder(name)), tmp_path)
    with torch.no_grad():
        wanted = adapted(input_ids=ids, attention_mask=mask.long()).last_hidden_state
    own = Prefix(prefix.states, torch.ones(3, dtype=torch.long), True, visible)
    found = backbone.states(Inputs(backbone.embed(ids), mask), prefix=own)
    torch.testing.assert_close(found[mask], wanted[mask], rtol=0, atol=5e-5)


@pytest.mark.parametrize("projection", [False, True])
@pytest.mark.parametrize("name", ["bert", "roberta", "llama"])
def test_what_peft_saves_is_read(
    load_family: Callable[..., LanguageModel],
    family_folder: Callable[[str], Path],
    tmp_path: Path,
    name: str,
    projection: bool,
) -> None:
    backbone, peft = load_family(name), peft_library()
    ids, mask = make_batch(backbone)
    config = peft.PrefixTuningConfig(
        task_type="FEATURE_EXTRACTION", num_virtual_tokens=3, prefix_projection=projection
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        if projection and name == "llama":
            # The width of peft's inner vectors is the keys', which config alone does not tell.
            config.encoder_hidden_size = 16
        adapted = peft.get_peft_model(load_body(family_folder(name)), config).eval()
    with torch.no_grad():
        wanted = adapted(input_ids=ids, attention_mask=mask.long()).last_hidden_state
    adapted.save_pretrained(tmp_path)
    read = read_peft(tmp_path, backbone)
    assert read.task_type == "FEATURE_EXTRACTION"
    assert not read.others
    found = backbone.states(Inputs(backbone.embed(ids), mask), prefix=read.prefix)
    torch.testing.assert_close(found[mask], wanted[mask], rtol=0, atol=5e-5)


def test_what_is_written_is_read_again(bert: LanguageModel, tmp_path: Path) -> None:
    prefix = make_prefix(bert)
    head = {"base_model.model.classifier.weight": torch.ones(2, 32)}
    write_peft(tmp_path, prefix, bert, task_type="SEQ_CLS", others=head)
    read = read_peft(tmp_path, bert)
    assert torch.equal(read.prefix.states, prefix.states)
    assert read.prefix.shift_positions
    assert read.task_type == "SEQ_CLS"
    assert read.others.keys() == head.keys()


@pytest.mark.parametrize("name", [*NO_CACHE, "gemma2"])
def test_models_on_which_the_two_differ_are_refused(
    load_family: Callable[..., LanguageModel], tmp_path: Path, name: str
) -> None:
    backbone = load_family(name)
    said = "sliding window" if name == "gemma2" else "reads no cache of past keys and values"
    with pytest.raises(ModelError, match=said):
        write_peft(tmp_path / "out", make_prefix(backbone), backbone)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({"shift_positions": False}, {}, "positions that begin at 0"),
        ({"layers": "last:1"}, {}, "read in the layers last:1 alone, and peft's in all 2"),
        ({}, {"task": 1}, "task 1 was asked for, and the prefix has 1 tasks"),
        ({}, {"task_type": "NER"}, "task type 'NER' is not peft's"),
        ({"states": torch.zeros(1, 1, 2, 4, 4, 8)}, {}, "write it with the model it was learned"),
    ],
)
def test_a_prefix_that_peft_would_misread_is_refused(
    bert: LanguageModel,
    tmp_path: Path,
    change: dict[str, Any],
    options: dict[str, Any],
    message: str,
) -> None:
    with pytest.raises(ModelError, match=message):
        write_peft(tmp_path, replace(make_prefix(bert), **change), bert, **options)
    assert not list(tmp_path.iterdir())


def test_another_models_prefix_is_refused(
    bert: LanguageModel, load_family: Callable[..., LanguageModel], tmp_path: Path
) -> None:
    write_peft(tmp_path, make_prefix(bert), bert)
    with pytest.raises(ModelError, match="was learned for another model"):
        read_peft(tmp_path, load_family("electra"))
    # Peft notes the model's name alone.
    flat = torch.zeros(3, 128)
    save_file({"prompt_embeddings": flat}, tmp_path / "adapter_model.safetensors")
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    rewrite(tmp_path, config | {"base_model_name_or_path": "elsewhere", "num_virtual_tokens": 3})
    with pytest.raises(ModelError, match="was learned for elsewhere, and the model was loaded"):
        read_peft(tmp_path, bert)
    assert read_peft(tmp_path, bert, same_model=True).prefix.length == 3


def rewrite(folder: Path, config: Any) -> None:
    (folder / "adapter_config.json").write_text(json.dumps(config))


MISFIT = "load the model it was learned for"


@pytest.mark.parametrize(
    ("change", "weights", "message"),
    [
        ({"peft_type": "LORA"}, None, "is of LORA; only folders"),
        ([], None, "is of no known kind"),
        ({"num_layers": 3}, None, MISFIT),
        ({"num_attention_heads": 2}, None, MISFIT),
        ({"token_dim": 16}, None, MISFIT),
        ({"num_virtual_tokens": 9}, None, MISFIT),
        ({"num_transformer_submodules": 2}, None, MISFIT),
        ({}, {"other": torch.zeros(3)}, "holds no prompt_embeddings"),
        ({}, b"garbled", "cannot read"),
    ],
)
def test_damaged_and_other_folders_are_refused(
    bert: LanguageModel, tmp_path: Path, change: Any, weights: Any, message: str
) -> None:
    with pytest.raises(RunError, match="cannot read"):
        read_peft(tmp_path, bert)
    write_peft(tmp_path, make_prefix(bert), bert)
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    rewrite(tmp_path, config | change if isinstance(change, dict) else change)
    if isinstance(weights, dict):
        save_file(weights, tmp_path / "adapter_model.safetensors")
    elif weights is not None:
        (tmp_path / "adapter_model.safetensors").write_bytes(weights)
    with pytest.raises((RunError, ModelError), match=message):
        read_peft(tmp_path, bert)
