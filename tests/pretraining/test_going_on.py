"""Going on from a trained model: what is kept, trained, made and refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM, AutoTokenizer, T5Config

from symprompt import LanguageModel, cli, prepare_pretraining
from symprompt.errors import ConfigError, ModelError, RunError
from symprompt.models.trained import Trained, find_positions, find_segments, read_record
from symprompt.pretraining.config import PretrainConfig, WeightsConfig
from symprompt.pretraining.parent import HEADS_FILE, load_parent
from symprompt.pretraining.tokenizer import find_specials
from symprompt.pretraining.train import pretrain
from symprompt.pretraining.training import Pretrainer, Pretraining
from tiny.models import FAMILIES
from tiny.text import (
    interrupt_after,
    make_training,
    pretrain_config,
    rounding_errors,
    write_text,
)

Folder = Callable[[str], Path]
PAIRS: dict[str, Any] = {"objective": "mlm+nsp", "corpus": {"packing": "pairs", "length": 32}}
SPANS: dict[str, Any] = {"objective": "mlm+sbo", "corruption": {"kind": "spans"}}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text(tmp_path_factory.mktemp("text") / "colours.txt", documents=40)


def going_on(model: Path | str, out: Path | str, **changes: Any) -> PretrainConfig:
    learning = {"steps": 3, "batch": 8} | changes.pop("learning", {})
    return pretrain_config(out, model=str(model), learning=learning, **changes)


def body_of(folder: Path, to: Path) -> Path:
    """Save a family's encoder without its head."""
    AutoModel.from_pretrained(folder).save_pretrained(to)
    AutoTokenizer.from_pretrained(folder).save_pretrained(to)
    return to


def load_whole(folder: Path) -> Any:
    config = AutoConfig.from_pretrained(folder)
    if not getattr(config, "legacy", True):
        # As in loading: some releases of transformers look for a weight to tie.
        config.tie_word_embeddings = False
    model, info = AutoModelForMaskedLM.from_pretrained(
        folder, config=config, output_loading_info=True
    )
    assert not any(info.values()), info
    return model.eval()


def moved(one: Any, other: Any) -> set[str]:
    """The names of the weights that differ; all have the same shapes."""
    before, after = dict(one.named_parameters()), dict(other.named_parameters())
    assert before.keys() == after.keys()
    return {name for name in before if not torch.equal(before[name], after[name])}


# ------------------------------------------------------------------------------ every family


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", list(FAMILIES))
def test_every_family_is_trained_on_and_loads_whole(
    family: str, dtype: str, family_folder: Folder, text: Path, tmp_path: Path
) -> None:
    parent = family_folder(family)
    made = pretrain(going_on(parent, tmp_path / "out", dtype=dtype), [str(text)])
    before, after = load_whole(parent), load_whole(made.folder)
    assert len(moved(before, after)) >= 0.9 * len(list(before.parameters()))
    assert after.config.to_dict().keys() >= before.config.to_dict().keys() - {"dtype"}
    for key in ("hidden_dropout_prob", "dropout", "attention_dropout"):
        assert getattr(after.config, key, None) == getattr(before.config, key, None)
    card = (made.folder / "README.md").read_text()
    assert f"continued from {parent.name}" in card
    assert "the parent's tokenizer" in card
    tokenizer = AutoTokenizer.from_pretrained(made.folder)
    assert tokenizer("The city of Paris") == AutoTokenizer.from_pretrained(parent)(
        "The city of Paris"
    )
    assert LanguageModel.load(str(made.folder), device="cpu").vocabulary.mask_id is not None


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "albert"])
def test_the_last_layer_and_a_new_head_are_trained_and_the_rest_stays_equal(
    family: str, dtype: str, family_folder: Folder, text: Path, tmp_path: Path
) -> None:
    parent = body_of(family_folder(family), tmp_path / "body")
    config = going_on(parent, tmp_path / "out", dtype=dtype, weights={"layers": 1})
    made = pretrain(config, [str(text)])
    before = load_parent(config).model
    after = load_whole(made.folder)
    changed = moved(before, after)
    own = {id(value) for value in before.base_model.parameters()}
    bodily = {name for name, value in before.named_parameters() if id(value) in own} & changed
    heads = {name for name, value in before.named_parameters() if id(value) not in own}
    assert heads <= changed
    assert bodily
    # The last of two layers, and what comes after it.
    assert all("layer.1." in name or "layers.1." in name or "final_norm" in name for name in bodily)
    assert after.get_output_embeddings() is not None
    card = (made.folder / "README.md").read_text()
    assert "had no masked-LM head" in card
    assert "| layers trained | the last 1, the head |" in card
    assert made.training["model"]["trained_parameters"] < made.training["model"]["parameters"]


def test_the_head_alone_and_albert(family_folder: Folder, text: Path, tmp_path: Path) -> None:
    parent = family_folder("albert")
    with pytest.raises(ModelError, match=r"no list of 2 layers with weights of their own"):
        pretrain(going_on(parent, tmp_path / "out", weights={"layers": 1}), [str(text)])
    assert not list(tmp_path.glob("out*"))
    made = pretrain(going_on(parent, tmp_path / "out", weights={"layers": 0}), [str(text)])
    changed = moved(load_whole(parent), load_whole(made.folder))
    assert changed
    assert all(name.startswith("predictions.") for name in changed)


def test_frozen_layers_keep_nothing_for_a_gradient(family_folder: Folder) -> None:
    config = going_on(family_folder("mpnet"), "", weights={"layers": 1})
    pretrainer = Pretrainer(load_parent(config).model)
    ids = torch.full((2, 8), 7)
    zeros = torch.zeros_like(ids)

    def kept(layers: int) -> int:
        pretrainer.freeze(layers)
        seen: list[int] = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda value: seen.append(value.numel()) or value, lambda value: value
        ):
            pretrainer.reader.states_at(ids, None, zeros, zeros[:, :2])
        return sum(seen)

    every, last, head = kept(-1), kept(1), kept(0)
    assert head == 0
    assert 0 < last < 0.5 * every


# ------------------------------------------------------------------------------ runs


def test_it_goes_on_from_where_the_model_was(text: Path, tmp_path: Path) -> None:
    first = pretrain_config(
        tmp_path / "first", shape={"hidden": 32}, learning={"steps": 120, "rate": 6e-3}
    )
    parent = pretrain(first, [str(text)])
    second = going_on(parent.folder, tmp_path / "second", learning={"rate": 1e-5, "batch": 16})
    made = pretrain(second, [str(text)])
    begun = made.training["history"][0]["loss"]
    assert begun < 0.7 * parent.training["history"][0]["loss"]
    assert made.training["parent"]["name"] == "first"
    assert made.training["inputs"]["model"]["name"] == "first"
    # A finished run is what it was, and another parent is another run.
    assert pretrain(second, [str(text)]).training == made.training
    weights = load_file(parent.folder / "model.safetensors")
    save_file(
        {name: value + 1 for name, value in weights.items()},
        parent.folder / "model.safetensors",
        {"format": "pt"},
    )
    with pytest.raises(RunError, match="was made with another model than is there now"):
        pretrain(second, [str(text)])


@pytest.mark.parametrize("layers", [-1, 1])
def test_a_run_that_was_stopped_goes_on_to_the_same_weights(
    layers: int, family_folder: Folder, text: Path, tmp_path: Path
) -> None:
    parent = body_of(family_folder("mpnet"), tmp_path / "body")
    changes: dict[str, Any] = {"weights": {"layers": layers}, "learning": {"steps": 6}}
    whole = pretrain(going_on(parent, tmp_path / "whole", **changes), [str(text)])

    config = going_on(parent, tmp_path / "stopped", **changes)
    with pytest.raises(KeyboardInterrupt):
        pretrain(config, [str(text)], tick=interrupt_after(3))
    with pytest.raises(RunError, match="--resume"):
        pretrain(config, [str(text)])
    other = body_of(family_folder("bert"), tmp_path / "other")
    with pytest.raises(RunError, match=r"(another|differs|other)"):
        pretrain(replace(config, model=str(other)), [str(text)], resume=True)
    made = pretrain(config, [str(text)], resume=True)
    assert not moved(load_whole(whole.folder), load_whole(made.folder))


def test_text_can_be_prepared_for_a_model_and_for_no_other(
    family_folder: Folder, text: Path, tmp_path: Path
) -> None:
    parent = family_folder("mpnet")
    prepared = tmp_path / "prepared"
    prepare_pretraining(going_on(parent, prepared, weights={"layers": 1}), [str(text)])
    made = pretrain(going_on(parent, tmp_path / "out", prepared=str(prepared)))
    again = pretrain(going_on(parent, tmp_path / "again"), [str(text)])
    assert not moved(load_whole(made.folder), load_whole(again.folder))
    with pytest.raises(RunError, match="holds text of another tokenizer than that of"):
        pretrain(going_on(family_folder("bert"), tmp_path / "other", prepared=str(prepared)))
    assert not list(tmp_path.glob("other*"))


@pytest.mark.parametrize(
    ("family", "objective"),
    [("mpnet", SPANS), ("albert", SPANS), ("distilbert", PAIRS), ("deberta-v2", PAIRS)],
)
def test_other_objectives_go_with_every_family(
    family: str, objective: dict[str, Any], family_folder: Folder, text: Path, tmp_path: Path
) -> None:
    made = pretrain(going_on(family_folder(family), tmp_path / "out", **objective), [str(text)])
    parts = tuple(objective["objective"].split("+"))
    assert tuple(made.training["loss"]) == parts
    assert load_file(made.folder / HEADS_FILE)
    record = read_record(load_whole(made.folder).config)
    assert record is not None
    assert record.objectives == parts


def test_dropout_is_the_runs_and_the_saved_config_keeps_its_own(
    family_folder: Folder, text: Path, tmp_path: Path
) -> None:
    parent = family_folder("distilbert")
    shares = {}
    for share in (0.0, 0.3):
        model = load_parent(going_on(parent, "", shape={"dropout": share})).model
        shares[share] = {part.p for part in model.modules() if isinstance(part, nn.Dropout)}
        assert model.config.dropout == model.config.attention_dropout == 0.1
    assert shares == {0.0: {0.0}, 0.3: {0.3}}


# ------------------------------------------------------------------------------ larger tables


@pytest.mark.parametrize("family", list(FAMILIES))
def test_more_positions_repeat_those_there_are(
    family: str, family_folder: Folder, text: Path, tmp_path: Path
) -> None:
    parent = family_folder(family)
    config = going_on(parent, tmp_path / "out", corpus={"length": 64}, learning={"batch": 4})
    before, larger = load_whole(parent), load_parent(config)
    table, first = find_positions(before.base_model)
    new, _ = find_positions(larger.model.base_model)
    if table is None:
        assert larger.lineage.positions is None
    else:
        assert new is not None
        there = 48 - first
        assert larger.lineage.positions == (there, 64)
        assert new.weight.shape == (64 + first, table.weight.shape[1])
        assert torch.equal(new.weight[:48], table.weight)
        assert torch.equal(new.weight[48:], table.weight[first : first + 64 - there])
    # Short texts are read as before.
    ids = torch.full((1, 6), 7)
    with torch.no_grad():
        torch.testing.assert_close(larger.model.eval()(ids).logits, before(ids).logits)
    made = pretrain(config, [str(text)])
    loaded = LanguageModel.load(str(made.folder), device="cpu")
    assert loaded.max_length == 64
    assert AutoTokenizer.from_pretrained(made.folder).model_max_length == 64
    if table is not None:
        assert "are 64 now, their rows repeated" in (made.folder / "README.md").read_text()
        with pytest.raises(
            ConfigError, match=r"64 positions and the model has 4[68] that are trained"
        ):
            load_parent(replace(config, weights=WeightsConfig(layers=0)))


def test_pairs_give_roberta_a_second_segment_and_a_next_sentence_head(
    family_folder: Folder, text: Path, tmp_path: Path
) -> None:
    parent = family_folder("roberta")
    model = AutoModelForMaskedLM.from_pretrained(parent)
    model.config.type_vocab_size = 1
    kinds = model.base_model.embeddings.token_type_embeddings
    kinds.weight = nn.Parameter(kinds.weight[:1].detach().clone())
    one = tmp_path / "one"
    model.save_pretrained(one)
    AutoTokenizer.from_pretrained(parent).save_pretrained(one)
    config = going_on(one, tmp_path / "out", **PAIRS)
    larger = load_parent(config)
    assert larger.lineage.segments == (1, 2)
    rows = find_segments(larger.model.base_model)
    assert rows is not None
    assert torch.equal(rows.weight[0], rows.weight[1])
    made = pretrain(config, [str(text)])
    after = find_segments(load_whole(made.folder).base_model)
    assert after is not None
    assert not torch.equal(after.weight[0], after.weight[1])
    heads = load_file(made.folder / HEADS_FILE)
    assert heads
    # A further phase takes the head up where this one left it.
    taken = load_parent(going_on(made.folder, "", **PAIRS)).heads
    assert all(torch.equal(taken[name], value) for name, value in heads.items())


def test_rows_that_were_never_trained_are_made_anew(text: Path, tmp_path: Path) -> None:
    first = pretrain(pretrain_config(tmp_path / "first"), [str(text)])
    model = load_whole(first.folder)
    table = model.base_model.embeddings.position_embeddings.weight.detach()
    wide = nn.Parameter(torch.cat([table, torch.randn_like(table)]))
    model.base_model.embeddings.position_embeddings.weight = wide
    model.config.max_position_embeddings = 32
    model.save_pretrained(tmp_path / "wide")
    AutoTokenizer.from_pretrained(first.folder).save_pretrained(tmp_path / "wide")
    untrained = ("untrained", 0, 0, "positions 16 to 31, segment 1 (by the model's record)")
    for length, made in ((16, None), (24, (16, 24))):
        said: list[tuple[str, int, int, str]] = []

        def tick(*given: Any, said: list[tuple[str, int, int, str]] = said) -> None:
            said.append(given)

        config = going_on(tmp_path / "wide", "", corpus={"length": length})
        parent = load_parent(config, tick)
        assert said == [untrained]
        assert parent.lineage.positions == made
        found, _ = find_positions(parent.model.base_model)
        assert found is not None
        assert torch.equal(found.weight[16:], wide[16:] if made is None else table)
    config = going_on(tmp_path / "wide", tmp_path / "out", corpus={"length": 24})
    second = pretrain(config, [str(text)])
    record = read_record(AutoConfig.from_pretrained(second.folder))
    assert record == Trained(24, 1, ("mlm",))
    assert LanguageModel.load(str(second.folder), device="cpu").max_length == 24


@pytest.mark.parametrize(("rate", "warned"), [(9e-4, False), (1e-3, True)])
def test_a_rate_for_training_from_scratch_is_warned_of(
    rate: float, warned: bool, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A folder called as the model that ships is no less a folder.
    monkeypatch.chdir(tmp_path)
    first = pretrain(pretrain_config(tmp_path / "shipped"), [str(text)])
    said = []
    config = going_on("./shipped", tmp_path / "out", learning={"rate": rate})
    second = pretrain(config, [str(text)], tick=lambda *given: said.append(given))
    notes = [note for stage, _, _, note in said if stage == "rate"]
    assert len(notes) == warned
    assert all("0.001 is one for training from scratch" in note for note in notes)
    tokenizers = [
        (folder / "tokenizer.json").read_bytes() for folder in (first.folder, second.folder)
    ]
    assert tokenizers[0] == tokenizers[1]


def test_berts_own_next_sentence_head_goes_on(text: Path, tmp_path: Path) -> None:
    first = pretrain(pretrain_config(tmp_path / "first", **PAIRS), [str(text)])
    still = {"learning": {"rate": 1e-12}}
    made = pretrain(going_on(first.folder, tmp_path / "second", **PAIRS, **still), [str(text)])
    before, after = (load_file(each.folder / HEADS_FILE) for each in (first, made))
    assert before.keys() == after.keys()
    for name, value in before.items():
        torch.testing.assert_close(after[name], value, rtol=1e-5, atol=1e-7)


# ------------------------------------------------------------------------------ what is refused


def _no_tokenizer(folder: Path) -> None:
    for path in folder.glob("*token*"):
        path.unlink()


def _pickled(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    torch.save(weights, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def _larger_vocabulary(folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens([f"word{number}" for number in range(300)])
    tokenizer.save_pretrained(folder)


def _no_mask(folder: Path) -> None:
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        if (folder / name).exists():
            stored = json.loads((folder / name).read_text())
            stored.pop("mask_token", None)
            (folder / name).write_text(json.dumps(stored))


def _of_t5(folder: Path) -> None:
    T5Config().save_pretrained(folder)


def _no_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def _half_a_head(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights.pop("cls.predictions.transform.dense.weight")
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


@pytest.mark.parametrize(
    ("family", "spoil", "told"),
    [
        ("gpt2", None, "is a gpt2 model, and pretraining goes on with masked language models"),
        ("bert", _no_tokenizer, "has no tokenizer; save the model's own"),
        ("bert", _pickled, "its weights as pytorch_model.bin, and only safetensors"),
        ("bert", _larger_vocabulary, "tokens and the model"),
        ("bert", _no_mask, "mask"),
        ("bert", _half_a_head, "1 weights are missing"),
        ("bert", _of_t5, "is a t5 model"),
        ("bert", _no_config, "is not a model folder"),
    ],
)
def test_what_cannot_be_gone_on_from_is_refused_before_anything_is_written(
    family: str,
    spoil: Callable[[Path], None] | None,
    told: str,
    family_folder: Folder,
    text: Path,
    tmp_path: Path,
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(family_folder(family), folder)
    if spoil is not None:
        spoil(folder)
    with pytest.raises(ModelError) as error:
        pretrain(going_on(folder, tmp_path / "out"), [str(text)])
    assert told in str(error.value)
    assert "\n" not in str(error.value)
    assert not list(tmp_path.glob("out*"))


def test_flags_that_a_model_answers_itself_are_refused(
    family_folder: Folder, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parent = str(family_folder("bert"))
    given = ["pretrain", "pretrain-tiny", "--text", str(text), "--length", "16"]
    given += ["--model", parent]
    for flags, told in (
        (["--hidden", "64"], "shape.hidden is 64, and --model has a shape of its own"),
        (["--layers", "1"], "--weights.layers trains its last layers"),
        (["--size", "300"], "vocabulary.size is 300, and --model has a vocabulary of its own"),
        (["--weights.layers", "3"], "weights.layers is 3, and the model has 2 layers"),
        (["--out", parent], "choose another --out"),
    ):
        with pytest.raises(SystemExit) as stopped:
            cli.main([*given, "--out", str(tmp_path / "out"), *flags])
        assert stopped.value.code == 2
        assert told in capsys.readouterr().err
        assert not list(tmp_path.glob("out*"))
    with pytest.raises(ConfigError, match="no model to go on from"):
        pretrain_config(weights={"layers": 1})


@pytest.mark.parametrize("family", ["roberta", "albert", "distilbert", "deberta-v2", "mpnet"])
def test_gradients_of_bfloat16_passes_are_those_of_float32(
    family: str, family_folder: Folder
) -> None:
    # 4,096 tokens: a sum of that many terms in bfloat16 is off by whole factors.
    def make(dtype: str) -> Pretraining:
        learning = {"clip": 0.0, "steps": 1, "batch": 256}
        config = going_on(family_folder(family), "", dtype=dtype, learning=learning)
        parent = load_parent(config)
        with torch.no_grad():
            for weight in parent.model.parameters():
                # As a model begins: sums of states so large are rounded too coarsely to compare.
                weight.mul_(0.2 if weight.dim() > 1 else 1.0)
        return make_training(config, parent, find_specials(parent.tokenizer))

    for name, error in rounding_errors(make, least=1e-4).items():
        # What norms get is a small difference of large sums.
        assert error < (0.25 if "norm" in name.lower() else 0.05), (name, error)
