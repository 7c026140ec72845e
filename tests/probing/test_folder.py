"""What a run on facts stores reads back bit for bit; what is damaged is one sentence."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from symprompt.errors import RunError
from symprompt.facts import FactSet
from symprompt.files.atomic import read_arrays
from symprompt.probing.results import (
    CARD,
    FACTS,
    Predictions,
    load_asked,
    load_card,
    load_facts,
    load_weights,
    run_config,
    write_facts,
    write_predictions,
)
from symprompt.runs.folder import CONFIG, MANIFEST, Folder, Manifest

RELATIONS = ("capital", "in")


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "run")


# ------------------------------------------------------------------------------- predictions


def make_predictions(*, asked_back: bool, facts: int = 7, k: int = 5) -> Predictions:
    """Random numbers of every size, among them awkward ones."""
    draw = np.random.default_rng(0)

    def scores(*shape: int) -> np.ndarray:
        size = 10.0 ** draw.uniform(-44, 38, shape)
        return (-draw.random(shape) * size).astype(np.float32)

    def counts(*shape: int) -> np.ndarray:
        return draw.integers(0, 30000, shape)

    forward = scores(facts, k)
    forward[0] = np.array([-0.0, -1 / 3, -1e-45, -3.4e38, -16777217.0], dtype=np.float32)
    backward = scores(facts, k) if asked_back else np.full((facts, k), np.nan, dtype=np.float32)
    return Predictions(
        relation=np.arange(facts) % 2,
        gold=counts(facts),
        gold_score=scores(facts),
        better=counts(facts),
        equal=counts(facts),
        better_filtered=counts(facts),
        equal_filtered=counts(facts),
        candidates=counts(facts, k),
        object_score=forward,
        subject_score=backward,
        known=counts(facts, k) % 2 == 0,
        terms={"frequency": scores(facts, k)} if asked_back else {},
    )


def write_card(folder: Folder, facts: FactSet) -> None:
    about = {
        relation.name: {
            "label": relation.label,
            "template": "[X] [Y]",
            "manual_template": relation.template,
        }
        for relation in facts.relations
    }
    card = {"base_model": "m", "base_model_fingerprint": "f", "method": "spe", "parts": ["forth"]}
    folder.write_json(CARD, card | {"relations": about})


def write_some(folder: Folder, facts: FactSet, *, asked_back: bool) -> Predictions:
    chosen = facts.select(RELATIONS)
    write_card(folder, chosen)
    predictions = make_predictions(asked_back=asked_back)
    pairs = {name: iter(chosen[name].all()) for name in RELATIONS}
    listed = [next(pairs[RELATIONS[row % 2]]) for row in range(len(predictions))]
    text = {token: f"wörd{token}" for token in np.unique(predictions.candidates).tolist()}
    write_predictions(folder, "test", predictions, listed, RELATIONS, text)
    return predictions


@pytest.mark.parametrize("asked_back", [True, False])
def test_predictions_read_back_bit_for_bit(
    folder: Folder, facts: FactSet, asked_back: bool
) -> None:
    written = write_some(folder, facts, asked_back=asked_back)
    asked = load_asked(Folder(folder.path), "test")
    found = asked.predictions
    assert found.asked_back is asked_back
    assert list(found.columns()) == list(written.columns())
    for name, one in written.columns().items():
        other = found.columns()[name]
        assert one.dtype == other.dtype, name
        assert one.tobytes() == other.tobytes(), name
    assert [fact.relation for fact in asked.facts()] == [RELATIONS[row % 2] for row in range(7)]
    assert asked.keys()[1] == ("in", "New York", "France")
    assert asked.candidates()[1] == [f"wörd{token}" for token in written.candidates[1]]


@pytest.mark.parametrize(
    ("damage", "wrong"),
    [
        (lambda arrays: arrays.pop("better"), "'better' is missing"),
        (lambda arrays: arrays.pop("text_ends"), "'text_ends' is missing"),
        (lambda arrays: arrays.update(known=arrays["known"][:, :2]), "known has the shape"),
        (lambda arrays: arrays.update(relation=arrays["relation"][1:]), "relation has the shape"),
        (lambda arrays: arrays.update({"terms/x": arrays["gold"]}), "x has the shape"),
        (lambda arrays: arrays.update({k: v[:0] for k, v in arrays.items()}), "no predictions"),
    ],
)
def test_damaged_predictions_are_one_sentence(
    folder: Folder, facts: FactSet, damage: Any, wrong: str
) -> None:
    write_some(folder, facts, asked_back=True)
    arrays, about = read_arrays(folder.path / "predictions/test.safetensors")
    damage(arrays)
    folder.write_arrays("predictions/test.safetensors", arrays, about)
    with pytest.raises(RunError, match=rf"test\.safetensors is damaged: {wrong}"):
        load_asked(folder, "test")


def test_missing_predictions_are_one_sentence(folder: Folder, facts: FactSet) -> None:
    write_some(folder, facts, asked_back=True)
    with pytest.raises(RunError, match=r"cannot read .*dev\.safetensors"):
        load_asked(folder, "dev")


# ------------------------------------------------------------------------------------- facts


def test_facts_read_back_equal_with_labels_and_templates(folder: Folder, facts: FactSet) -> None:
    odd = replace(facts.relations[0].test[0], subject='Sao "T" \\ \u2028 \x85 é 京')
    first = replace(facts.relations[0], label="capital of", test=(odd, *facts.relations[0].test))
    bare = replace(facts.relations[2], train=(), dev=(), template="")
    wanted = replace(facts, relations=(first, facts.relations[1], bare))
    write_facts(folder, wanted)
    write_card(folder, wanted)
    found = load_facts(folder)
    assert found.relations == wanted.relations
    assert found.fingerprint() == wanted.fingerprint()


@pytest.mark.parametrize("line", ["{", '{"split": "test", "relation": "in"}', "7"])
def test_damaged_facts_are_one_sentence(folder: Folder, facts: FactSet, line: str) -> None:
    write_facts(folder, facts)
    write_card(folder, facts)
    with (folder.path / FACTS).open("a") as stream:
        stream.write(line + "\n")
    with pytest.raises(RunError, match=r"facts\.jsonl"):
        load_facts(folder)


# ------------------------------------------------------------------------------------ the card


@pytest.mark.parametrize(
    ("content", "wrong"),
    [
        ({}, "base_model is missing"),
        ([], "it is "),
        (None, "it is None"),
        ({"relations": {}}, "no relations"),
        ({"relations": []}, r"relations is \[\]"),
        ({"relations": {"in": {"label": ""}}}, r"relations\.in\.template is missing"),
        ({"relations": {"in": 7}}, r"relations\.in is 7"),
    ],
)
def test_a_damaged_card_is_named_with_what_is_wrong(
    folder: Folder, facts: FactSet, content: Any, wrong: str
) -> None:
    write_card(folder, facts)
    folder.write_json(CARD, {**load_card(folder), **content} if content else content)
    for read in (load_card, load_facts):
        with pytest.raises(RunError, match=rf"prompts\.json is damaged: {wrong}"):
            read(folder)


def test_a_weight_that_is_missing_is_one_sentence(folder: Folder, facts: FactSet) -> None:
    write_card(folder, facts)
    folder.write(MANIFEST, Manifest(command="train", details={"weights": {"in": 1}}).to_json())
    with pytest.raises(RunError, match=r"symprompt\.json is damaged: 'capital' is missing"):
        load_weights(folder)


def test_a_config_of_another_kind_is_one_sentence(folder: Folder) -> None:
    folder.write(CONFIG, b"sed = 1")
    with pytest.raises(RunError, match=r"holds no readable run: .*unknown key sed"):
        run_config(folder)
