"""Passes of fixed shapes give the same training as passes as they come."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from symprompt.facts import FactSet
from symprompt.models import LanguageModel
from symprompt.probing.recorded import CapturedSteps, room_for
from tiny.models import make_trainer, run_config, run_training

CASES: dict[str, dict[str, Any]] = {
    "ptuning": {"method": {"name": "ptuning"}},
    "spe shared": {"method": {"name": "spe"}, "learning": {"clip": 0.05}},
    "spe separate": {"method": {"name": "spe", "vectors": "separate", "train_weight": 0.3}},
    "spe free": {"prompt": {"encoder": "free"}, "method": {"name": "spe"}},
}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("max_tokens", [40, 4096])
@pytest.mark.parametrize("name", list(CASES))
def test_fixed_shapes_train_as_passes_that_come_as_they_are(
    name: str,
    max_tokens: int,
    packed: bool,
    bert: LanguageModel,
    facts: FactSet,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(bert.__dict__, "longest_packed", 128 * packed)
    case = CASES[name]
    training = {"epochs": 3, "rate": 0.03, "schedule": "linear", **case.get("learning", {})}
    config = run_config(**{**case, "learning": training, "dtype": "float64"})
    found = {}
    for capture in (False, True):
        _, method, trainer = make_trainer(
            config, bert, facts, max_tokens=max_tokens, capture=capture
        )
        assert (trainer.captured is not None) == capture
        history = run_training(trainer).history
        found[capture] = (method.vectors(), [entry["loss"] for entry in history])
    for part, value in found[False][0].items():
        torch.testing.assert_close(value, found[True][0][part], rtol=0, atol=1e-9)
    assert found[False][1] == pytest.approx(found[True][1], rel=1e-5)


# The compiler has advice on float32 products, which is no error of ours.
@pytest.mark.filterwarnings("default")
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(("dtype", "allowed"), [("float32", 0.02), ("bfloat16", 0.25)])
@pytest.mark.parametrize(
    ("name", "max_tokens"), [*((name, 4096) for name in CASES), ("spe separate", 40)]
)
def test_recorded_graphs_train_as_kernels_launched_one_by_one(
    name: str,
    max_tokens: int,
    dtype: str,
    allowed: float,
    family_folder: Callable[[str], Path],
    facts: FactSet,
) -> None:
    case = CASES[name]
    training = {"epochs": 3, "rate": 1e-3, "schedule": "linear", **case.get("learning", {})}
    config = run_config(**{**case, "learning": training})
    backbone = LanguageModel.load(str(family_folder("bert")), device="cuda", dtype=dtype)
    assert (backbone.longest_packed > 0) == (dtype == "bfloat16")
    found = {}
    for capture in (False, True):
        _, method, trainer = make_trainer(
            config, backbone, facts, max_tokens=max_tokens, capture=capture
        )
        start = {part: value.detach().clone() for part, value in method.vectors().items()}
        run_training(trainer)
        assert (trainer.captured is not None) == capture, trainer.recorder.reason
        moved = {part: value.detach() - start[part] for part, value in method.vectors().items()}
        found[capture] = moved
    for part, value in found[False].items():
        assert float((value - found[True][part]).norm()) < allowed * float(value.norm())


def test_a_pass_holds_no_more_tokens_than_allowed(bert: LanguageModel, facts: FactSet) -> None:
    config = run_config(method={"name": "spe"}, dtype="float64")
    for most in (40, 100, 4096):
        _, _, trainer = make_trainer(config, bert, facts, max_tokens=most, capture=True)
        assert trainer.captured is not None
        epoch = trainer.captured.plan(trainer.plan())
        longest = int(trainer.sentences.object_prompt.lengths.max())
        for passes in epoch.steps:
            for entry in passes:
                assert entry.shape.tokens <= max(most, -(-longest // 8) * 8)


def test_every_sentence_of_an_epoch_stands_in_one_pass(bert: LanguageModel, facts: FactSet) -> None:
    config = run_config(method={"name": "spe", "train_weight": 0.5}, dtype="float64")
    _, _, trainer = make_trainer(config, bert, facts, max_tokens=100, capture=True)
    assert trainer.captured is not None
    plan = trainer.plan()
    epoch = trainer.captured.plan(plan)
    facts_read = sum(len(batch) for batches in plan for batch in batches)
    tokens = sum(
        int(trainer.sentences.subject_prompt.subject_lengths[batch].sum())
        for batches in plan
        for batch in batches
    )
    assert int((epoch.share > 0).sum()) == facts_read + tokens
    relations = sum(len(batches) for batches in plan)
    # Each relation's batch weighs 1 forth and 0.5 back, whatever its size.
    assert float(epoch.share.sum()) == pytest.approx(1.5 * relations)


def test_masking_the_subject_whole_is_not_recorded(bert: LanguageModel, facts: FactSet) -> None:
    config = run_config(method={"name": "spe", "masking": "whole"}, dtype="float64")
    _, method, trainer = make_trainer(config, bert, facts, max_tokens=100)
    assert method.queries(trainer.sentences, np.arange(2)) is None
    steps = CapturedSteps(
        method, trainer.sentences, trainer.optimizers, trainer.recorder, max_tokens=100
    )
    with pytest.raises(TypeError, match="gives no questions"):
        steps.plan(trainer.plan())


@pytest.mark.parametrize("sentences", [1, 15, 16, 17, 100, 328, 1000, 1230])
def test_rooms_are_few_and_not_much_larger_than_needed(sentences: int) -> None:
    room = room_for(sentences)
    assert sentences <= room
    assert room < sentences + max(16, sentences / 8 + 1)
    assert len({room_for(value) for value in range(1, sentences + 1)}) <= 8 * sentences.bit_length()
