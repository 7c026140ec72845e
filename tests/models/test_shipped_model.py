"""The model that ships: small, complete, loadable by transformers alone, and with a card."""

from __future__ import annotations

import json
import re
import struct
import tomllib
import warnings
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForMaskedLM, AutoTokenizer

from symprompt.models import LanguageModel
from symprompt.models.loading import FOLDER

LARGEST = 32 * 2**20


def test_the_folder_is_small() -> None:
    sizes = {path.name: path.stat().st_size for path in FOLDER.rglob("*") if path.is_file()}
    assert sum(sizes.values()) <= LARGEST, sizes


def test_it_holds_what_a_model_folder_holds_and_nothing_else() -> None:
    names = {path.name for path in FOLDER.iterdir()}
    needed = {"config.json", "model.safetensors", "tokenizer.json", "README.md"}
    allowed = needed | {"tokenizer_config.json", "pretrain.toml", "training.json"}
    assert needed <= names <= allowed


def test_it_is_installed_with_the_package() -> None:
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    listed = tomllib.loads(text)["tool"]["setuptools"]["package-data"]["symprompt"]
    assert "models/shipped/*" in listed


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


def test_its_card_says_where_it_comes_from() -> None:
    card = (FOLDER / "README.md").read_text(encoding="utf-8").lower()
    for word in ("data", "licen[cs]e", "steps", "lama"):
        assert re.search(word, card), word
