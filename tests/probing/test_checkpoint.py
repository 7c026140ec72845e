"""Training state to tensors and back: nothing the next epoch depends on is lost."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from symprompt.errors import RunError
from symprompt.facts import FactSet
from symprompt.models import LanguageModel
from symprompt.probing.config import RunConfig
from symprompt.probing.trainer import Trainer, load_state, state_note, state_tensors
from symprompt.runs.folder import STATE, Folder
from tiny.models import make_trainer, run_config

Scores = dict[str, np.ndarray]


def config_of(**training: Any) -> RunConfig:
    return run_config(method={"vectors": "separate"}, learning={"epochs": 4, **training})


def score(trainer: Trainer) -> Scores:
    """Dev scores that rise and fall, so that best epochs and early stops differ by relation."""
    waves = np.sin(np.arange(len(trainer.relations)) + 2.0 * trainer.epoch)
    return {part: waves + index for index, part in enumerate(trainer.parts)}


def parameters(trainer: Trainer) -> dict[str, torch.Tensor]:
    return {
        f"{part}/{name}": value.detach().clone()
        for part, encoder in trainer.method.encoders.items()
        for name, value in encoder.named_parameters()
    }


@pytest.mark.parametrize("training", [{}, {"patience": 1}, {"weight_decay": 0.1, "clip": 0.5}])
def test_a_trainer_put_into_a_stored_state_ends_like_the_one_that_went_on(
    bert: LanguageModel, facts: FactSet, tmp_path: Any, training: dict[str, Any]
) -> None:
    folder = Folder(tmp_path)
    config = config_of(**training)
    _, _, whole = make_trainer(config, bert, facts)
    states: list[int] = []

    def keep(trainer: Trainer) -> None:
        states.append(trainer.epoch)
        if trainer.epoch == 2:
            folder.write_tensors(STATE, state_tensors(trainer), state_note(trainer))

    whole.run(lambda: score(whole), checkpoint=keep, checkpoint_seconds=0)
    assert 2 in states
    _, _, resumed = make_trainer(config, bert, facts)
    load_state(resumed, *folder.read_tensors(STATE))
    assert resumed.epoch == 2
    resumed.run(lambda: score(resumed))
    assert resumed.history == whole.history
    for name, value in parameters(whole).items():
        assert torch.equal(parameters(resumed)[name], value), name
    for part, progress in whole.parts.items():
        for name in ("best", "epoch", "waited", "stopped"):
            mine, theirs = getattr(resumed.parts[part], name), getattr(progress, name)
            assert mine.dtype == theirs.dtype
            assert (mine == theirs).all(), name
        assert torch.equal(resumed.optimizers[part].steps, whole.optimizers[part].steps)


def test_writing_and_reading_the_state_changes_nothing_in_it(
    bert: LanguageModel, facts: FactSet, tmp_path: Any
) -> None:
    folder = Folder(tmp_path)
    _, _, trainer = make_trainer(config_of(epochs=1), bert, facts)
    trainer.run(lambda: score(trainer))
    folder.write_tensors(STATE, state_tensors(trainer), state_note(trainer))
    _, _, other = make_trainer(config_of(epochs=1), bert, facts)
    load_state(other, *folder.read_tensors(STATE))
    before, after = state_tensors(trainer), state_tensors(other)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert state_note(trainer) == state_note(other)


def test_the_state_of_other_relations_is_refused(bert: LanguageModel, facts: FactSet) -> None:
    _, _, one = make_trainer(config_of(), bert, facts)
    _, _, other = make_trainer(config_of(), bert, facts.select(["capital", "in"]))
    with pytest.raises(RunError, match="other relations"):
        load_state(other, state_tensors(one), state_note(one))


@pytest.mark.parametrize(
    "changed",
    [
        {"method": {"vectors": "shared"}},
        {"prompt": {"template": "<2> [X] <2> [Y] <2>"}},
        {"prompt": {"encoder": "free"}},
    ],
)
def test_the_state_of_another_shape_is_refused(
    bert: LanguageModel, facts: FactSet, changed: dict[str, Any]
) -> None:
    _, _, one = make_trainer(run_config(**changed), bert, facts)
    _, _, other = make_trainer(config_of(), bert, facts)
    with pytest.raises(RunError, match="does not fit this method"):
        load_state(other, state_tensors(one), state_note(one))


@pytest.mark.parametrize("note", [{}, [], {"relations": ["capital"]}, {"epoch": "one"}])
def test_a_damaged_note_is_one_sentence_that_names_the_file(
    bert: LanguageModel, facts: FactSet, note: Any
) -> None:
    _, _, trainer = make_trainer(config_of(), bert, facts)
    with pytest.raises(RunError, match=r"state\.safetensors is damaged: .*\.$"):
        load_state(trainer, state_tensors(trainer), note)


def test_the_time_spent_is_kept_with_the_state(bert: LanguageModel, facts: FactSet) -> None:
    _, _, trainer = make_trainer(config_of(), bert, facts)
    note = state_note(trainer, seconds=12.5)
    assert load_state(trainer, state_tensors(trainer), note) == 12.5
