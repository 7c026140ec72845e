"""The toy model: it learns what it reads, and is written whole or not at all."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from symprompt.backbone import Backbone
from symprompt.errors import RunError
from symprompt.facts import FactSet, world_facts
from symprompt.models import make_toy_model
from symprompt.models.toy import ToySize

SIZE = ToySize(hidden=32, layers=1, steps=200, batch=24, rate=5e-3)


@pytest.fixture(scope="module")
def some_facts() -> FactSet:
    """A few facts of two relations, one of them without a wording of its own."""
    facts = world_facts().select(["continent", "currency"])
    return replace(
        facts,
        relations=tuple(
            replace(
                relation, train=relation.train[:15], dev=relation.dev[:3], test=relation.test[:3]
            )
            for relation in facts.relations
        ),
    )


def test_the_toy_learns_its_sentences_and_loads_as_a_model(
    some_facts: FactSet, tmp_path: Path
) -> None:
    losses: list[float] = []
    make_toy_model(
        some_facts,
        tmp_path / "toy",
        size=SIZE,
        tick=lambda stage, done, total, note: losses.append(float(note.removeprefix("loss "))),
    )
    assert len(losses) == SIZE.steps
    assert sum(losses[-10:]) < 0.7 * sum(losses[:10])
    assert [path.name for path in tmp_path.iterdir()] == ["toy"]
    backbone = Backbone.load(str(tmp_path / "toy"), device="cpu")
    assert backbone.width == SIZE.hidden
    # Every word it read is one token.
    names = sorted({fact.object for relation in some_facts.relations for fact in relation.all()})
    words = [name for name in names if name.isalpha()]
    assert words
    assert None not in backbone.vocabulary.single_tokens(words)


def test_the_same_seed_makes_the_same_toy(some_facts: FactSet, tmp_path: Path) -> None:
    size = replace(SIZE, steps=3)
    for name, seed in (("one", 1), ("again", 1), ("other", 2)):
        make_toy_model(some_facts, tmp_path / name, seed=seed, size=size)
    one, again, other = (
        (tmp_path / name / "model.safetensors").read_bytes() for name in ("one", "again", "other")
    )
    assert one == again
    assert one != other


def test_a_kill_while_saving_leaves_no_half_a_model(
    some_facts: FactSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = replace(SIZE, steps=3)

    def kill(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("transformers.BertForMaskedLM.save_pretrained", kill)
        with pytest.raises(KeyboardInterrupt):
            make_toy_model(some_facts, tmp_path / "toy", size=size)
    assert not (tmp_path / "toy").exists()
    make_toy_model(some_facts, tmp_path / "toy", size=size)
    assert (tmp_path / "toy/model.safetensors").is_file()
    assert [path.name for path in tmp_path.iterdir()] == ["toy"]


def test_a_folder_that_holds_something_is_left_alone(some_facts: FactSet, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("words")
    with pytest.raises(RunError, match="delete it first"):
        make_toy_model(some_facts, tmp_path, size=SIZE)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
