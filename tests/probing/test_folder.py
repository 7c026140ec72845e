"""A run folder: whole files or none, no run overwritten, numbers read back bit for bit."""

from __future__ import annotations

import errno
import json
import os
import pickle
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from symprompt.config import incidental_keys
from symprompt.errors import RunError
from symprompt.facts import FactSet
from symprompt.probing.config import FactsConfig, LearningConfig, RunConfig
from symprompt.probing.folder import CARD, FACTS, PROMPTS, RunFolder
from symprompt.probing.predictions import Predictions
from symprompt.runs.folder import CONFIG, ENVIRONMENT, METRICS
from tiny.models import run_config

RELATIONS = ("capital", "in")


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path / "run")


def listing(folder: RunFolder) -> list[str]:
    return sorted(str(path.relative_to(folder.path)) for path in folder.path.rglob("*"))


# ------------------------------------------------------------------------------ writing a file


@pytest.mark.parametrize(
    "failure", [OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), KeyboardInterrupt()]
)
@pytest.mark.parametrize("moment", ["fsync", "replace"])
def test_a_write_that_fails_keeps_the_old_content_and_leaves_no_part(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch, moment: str, failure: BaseException
) -> None:
    folder.write("a.json", b"old")

    def fail(*_: Any) -> None:
        raise failure

    if moment == "fsync":
        monkeypatch.setattr(os, "fsync", fail)
    else:
        monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(RunError if isinstance(failure, OSError) else KeyboardInterrupt):
        folder.write("a.json", b"new and longer")
    assert (folder.path / "a.json").read_bytes() == b"old"
    assert listing(folder) == ["a.json"]


def test_a_full_disk_is_one_sentence_with_the_file_and_the_reason(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunError, match=r"^cannot write .*b\.json: No space left on device\.$"):
        folder.write("b.json", b"x")


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(RunError, match=r"^cannot write .*Not a directory\.$"):
        RunFolder(tmp_path / "file" / "run").start(RunConfig(), resume=False)


def test_read_only_place_is_one_sentence(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(RunError, match="Read-only file system"):
        folder.start(RunConfig(), resume=False)


def test_content_is_on_disk_before_it_takes_the_name(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    sync, move = os.fsync, Path.replace
    monkeypatch.setattr(os, "fsync", lambda number: (order.append("sync"), sync(number))[1])
    monkeypatch.setattr(
        Path, "replace", lambda self, to: (order.append("replace"), move(self, to))[1]
    )
    folder.write("a/b.json", b"x")
    assert order == ["sync", "replace"]
    assert listing(folder) == ["a", "a/b.json"]


# ------------------------------------------------------------------------------- starting a run


def test_a_fresh_folder_gets_the_config_and_nothing_else(folder: RunFolder) -> None:
    config = run_config(seed=7)
    assert folder.start(config, resume=False) is False
    assert listing(folder) == [CONFIG]
    assert folder.load_config() == config
    assert not folder.finished


@pytest.mark.parametrize("resume", [False, True])
def test_the_same_finished_run_is_recognised(folder: RunFolder, resume: bool) -> None:
    config = run_config()
    folder.start(config, resume=False)
    folder.write_json(METRICS, {})
    assert folder.start(config, resume=resume) is True


def test_an_unfinished_run_is_taken_up_only_when_asked(folder: RunFolder) -> None:
    config = run_config()
    folder.start(config, resume=False)
    with pytest.raises(RunError, match=r"unfinished run; go on with --resume"):
        folder.start(config, resume=False)
    assert folder.start(config, resume=True) is False


@pytest.mark.parametrize(
    ("changed", "key"),
    [
        ({"seed": 35}, "seed"),
        ({"dtype": "float64"}, "dtype"),
        ({"start_from": "elsewhere"}, "start_from"),
        ({"training": LearningConfig(rate=1.0)}, "learning.rate"),
        ({"facts": FactsConfig(relations=("P36",))}, "facts.relations"),
    ],
)
@pytest.mark.parametrize("finished", [False, True])
def test_a_changed_key_is_refused_by_name_and_nothing_is_written(
    folder: RunFolder, changed: dict[str, Any], key: str, finished: bool
) -> None:
    folder.start(RunConfig(), resume=False)
    if finished:
        folder.write_json(METRICS, {})
    before = {name: (folder.path / name).read_bytes() for name in listing(folder)}
    with pytest.raises(RunError, match=f"another {key} "):
        folder.start(replace(RunConfig(), **changed), resume=True)
    assert {name: (folder.path / name).read_bytes() for name in listing(folder)} == before


def test_incidental_keys_may_differ_between_the_halves_of_a_run(folder: RunFolder) -> None:
    folder.start(RunConfig(), resume=False)
    other = {
        "out": "elsewhere",
        "device": "cpu",
        "max_tokens": 77,
        "checkpoint_seconds": 1.5,
        "compile": "on",
        "keep_encoder": False,
    }
    tuning = replace(RunConfig().tuning, at_once=3)
    assert {*other, "tuning.at_once"} == set(incidental_keys(RunConfig))
    assert folder.start(replace(RunConfig(), **other, tuning=tuning), resume=True) is False


def test_a_folder_with_other_files_is_refused_and_left_alone(folder: RunFolder) -> None:
    folder.path.mkdir()
    (folder.path / "thesis.tex").write_text("years of work")
    with pytest.raises(RunError, match="exists and is not a run folder"):
        folder.start(RunConfig(), resume=True)
    assert listing(folder) == ["thesis.tex"]
    assert (folder.path / "thesis.tex").read_text() == "years of work"


def test_a_file_in_the_place_of_the_folder_is_refused_and_left_alone(folder: RunFolder) -> None:
    folder.path.write_text("a file")
    with pytest.raises(RunError, match="exists and is not a run folder"):
        folder.start(RunConfig(), resume=False)
    assert folder.path.read_text() == "a file"


@pytest.mark.parametrize("left", [None, CONFIG + ".part"])
def test_what_a_kill_in_the_first_moment_leaves_does_not_block_the_folder(
    folder: RunFolder, left: str | None
) -> None:
    folder.path.mkdir()
    if left:
        (folder.path / left).write_bytes(b"mod")
    assert folder.start(RunConfig(), resume=False) is False
    assert listing(folder) == [CONFIG]


def test_reading_wants_a_finished_run(folder: RunFolder) -> None:
    with pytest.raises(RunError, match=r"not a run folder \(no config.toml\)"):
        folder.require_finished()
    folder.start(RunConfig(), resume=False)
    with pytest.raises(RunError, match="finish it with train --resume"):
        folder.require_finished()
    folder.write_json(METRICS, {})
    folder.require_finished()


@pytest.mark.parametrize("text", ["seed = ", "sed = 1", "seed = 'x'", "\xff"])
def test_a_damaged_config_is_a_run_error(folder: RunFolder, text: str) -> None:
    folder.write(CONFIG, text.encode("latin-1"))
    with pytest.raises(RunError, match="holds no readable run"):
        folder.start(RunConfig(), resume=True)


# ----------------------------------------------------------------------------------- tensors


def test_tensors_and_their_note_read_back_equal(folder: RunFolder) -> None:
    tensors = {
        "a": torch.tensor([1.0, float("nan"), -0.0, float("inf")]),
        "b/c": torch.arange(6).reshape(2, 3).T,  # not contiguous
        "d": torch.tensor([True, False]),
        "e": torch.tensor(0.1, dtype=torch.float64, requires_grad=True),
    }
    note = {"relations": ["süd", "P36"], "epoch": 3, "loss": 0.1}
    folder.write_tensors(PROMPTS, tensors, note)
    found, about = folder.read_tensors(PROMPTS)
    assert about == note
    assert found.keys() == tensors.keys()
    for name, value in tensors.items():
        assert found[name].dtype == value.dtype
        assert torch.equal(found[name].nan_to_num(9), value.detach().nan_to_num(9))
    assert torch.signbit(found["a"][2])


@pytest.mark.parametrize("content", [b"", b"\x00" * 20, b"{}", None])
def test_damaged_tensors_are_a_run_error(folder: RunFolder, content: bytes | None) -> None:
    folder.write_tensors(PROMPTS, {"a": torch.ones(100)}, {})
    whole = (folder.path / PROMPTS).read_bytes()
    (folder.path / PROMPTS).write_bytes(whole[:-7] if content is None else content)
    with pytest.raises(RunError, match=r"cannot read .*prompts\.safetensors"):
        folder.read_tensors(PROMPTS)


def test_missing_tensors_are_a_run_error(folder: RunFolder) -> None:
    with pytest.raises(RunError, match=r"cannot read .*prompts\.safetensors"):
        folder.read_tensors(PROMPTS)


def test_nothing_is_unpickled(folder: RunFolder, tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "sprung",))

    folder.path.mkdir()
    (folder.path / PROMPTS).write_bytes(pickle.dumps(Trap()))
    torch.save({"a": Trap()}, folder.path / CARD)
    with pytest.raises(RunError):
        folder.read_tensors(PROMPTS)
    with pytest.raises(RunError):
        folder.read_json(CARD)
    (folder.path / PROMPTS).write_bytes((folder.path / CARD).read_bytes())
    with pytest.raises(RunError):
        folder.read_tensors(PROMPTS)
    assert not (tmp_path / "sprung").exists()


# ------------------------------------------------------------------------------- predictions


def make_predictions(*, asked_back: bool, facts: int = 7, k: int = 5) -> Predictions:
    """Random numbers of every size, among them awkward ones."""
    draw = np.random.default_rng(0)

    def scores(*shape: int) -> torch.Tensor:
        size = 10.0 ** draw.uniform(-44, 38, shape)
        return torch.from_numpy((-draw.random(shape) * size).astype(np.float32))

    def counts(*shape: int) -> torch.Tensor:
        return torch.from_numpy(draw.integers(0, 30000, shape))

    forward = scores(facts, k)
    forward[0] = torch.tensor([-0.0, -1 / 3, -1e-45, -3.4e38, -16777217.0])
    backward = scores(facts, k) if asked_back else torch.full((facts, k), torch.nan)
    return Predictions(
        relation=torch.arange(facts) % 2,
        gold=counts(facts),
        gold_score=scores(facts),
        better=counts(facts),
        equal=counts(facts),
        better_filtered=counts(facts),
        equal_filtered=counts(facts),
        candidates=counts(facts, k),
        forward=forward,
        backward=backward,
        known=counts(facts, k) % 2 == 0,
    )


def write_card(folder: RunFolder, facts: FactSet) -> None:
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


def write_some(folder: RunFolder, facts: FactSet, *, asked_back: bool) -> Predictions:
    chosen = facts.select(RELATIONS)
    write_card(folder, chosen)
    predictions = make_predictions(asked_back=asked_back)
    pairs = {name: iter(chosen[name].all()) for name in RELATIONS}
    listed = [next(pairs[RELATIONS[row % 2]]) for row in range(len(predictions))]
    text = {token: f"word{token}" for token in predictions.candidates.unique().tolist()}
    folder.write_predictions("test", predictions, listed, torch.tensor([0.8, 1.1]).double(), text)
    return predictions


@pytest.mark.parametrize("asked_back", [True, False])
def test_predictions_read_back_bit_for_bit(
    folder: RunFolder, facts: FactSet, asked_back: bool
) -> None:
    written = write_some(folder, facts, asked_back=asked_back)
    found, listed = folder.load_predictions("test")
    assert found.asked_back is asked_back
    for entry in fields(Predictions):
        one, other = getattr(written, entry.name), getattr(found, entry.name)
        assert one.dtype == other.dtype, entry.name
        assert one.numpy().tobytes() == other.numpy().tobytes(), entry.name
    assert [fact.relation for fact in listed] == [RELATIONS[row % 2] for row in range(7)]


def test_a_line_of_predictions_can_be_read_without_the_package(
    folder: RunFolder, facts: FactSet
) -> None:
    written = write_some(folder, facts, asked_back=True)
    lines = (folder.path / "predictions/test.jsonl").read_text().splitlines()
    row = json.loads(lines[1])
    assert (row["relation"], row["subject"], row["object"]) == ("in", "New York", "France")
    assert row["candidates"] == [f"word{token}" for token in written.candidates[1].tolist()]
    joint = written.forward[1] + torch.tensor(1.1) * written.backward[1]
    assert row["joint"] == pytest.approx(joint.tolist())
    assert row["rank"] == written.final(torch.tensor([0.8, 1.1])).realistic[1].item()


def test_scores_are_written_with_few_digits(folder: RunFolder, facts: FactSet) -> None:
    write_some(folder, facts, asked_back=True)
    first = (folder.path / "predictions/test.jsonl").read_text().splitlines()[0]
    assert "-0.33333334," in first
    assert "0.333333343" not in first


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[:-20],
        lambda text: text.replace('"better"', '"bitter"'),
        lambda text: text.replace('"relation": "in"', '"relation": "outside"'),
        lambda text: text.replace('"known": [', '"known": [1, '),
        lambda text: "[]\n" + text,
        lambda text: text.replace("-0.33333334", '"much"'),
    ],
)
def test_damaged_predictions_are_a_run_error(
    folder: RunFolder, facts: FactSet, damage: Any
) -> None:
    write_some(folder, facts, asked_back=True)
    path = folder.path / "predictions/test.jsonl"
    text = path.read_text()
    # Damage to one line of several, so that lengths differ between lines.
    head, _, tail = text.partition("\n")
    damaged = damage(head + "\n") + tail
    path.write_text(damaged if damaged != text else head + "\n" + damage(tail))
    assert path.read_text() != text
    with pytest.raises(RunError, match=r"test\.jsonl"):
        folder.load_predictions("test")


def test_missing_predictions_are_a_run_error(folder: RunFolder, facts: FactSet) -> None:
    write_some(folder, facts, asked_back=True)
    with pytest.raises(RunError, match=r"cannot read .*dev\.jsonl"):
        folder.load_predictions("dev")


# ------------------------------------------------------------------------------------- facts


def test_facts_read_back_equal_with_labels_and_templates(folder: RunFolder, facts: FactSet) -> None:
    odd = replace(facts.relations[0].test[0], subject='Sao "T" \\ \u2028 \x85 é 京')
    first = replace(facts.relations[0], label="capital of", test=(odd, *facts.relations[0].test))
    bare = replace(facts.relations[2], train=(), dev=(), template="")
    wanted = replace(facts, relations=(first, facts.relations[1], bare))
    folder.write_facts(wanted)
    write_card(folder, wanted)
    found = folder.load_facts()
    assert found.relations == wanted.relations
    assert found.fingerprint() == wanted.fingerprint()


@pytest.mark.parametrize("line", ["{", '{"split": "test", "relation": "in"}', "7"])
def test_damaged_facts_are_a_run_error(folder: RunFolder, facts: FactSet, line: str) -> None:
    folder.write_facts(facts)
    write_card(folder, facts)
    with (folder.path / FACTS).open("a") as stream:
        stream.write(line + "\n")
    with pytest.raises(RunError, match=r"facts\.jsonl"):
        folder.load_facts()


@pytest.mark.parametrize("content", [b"{", b"\xff\xfe", b""])
def test_damaged_json_is_a_run_error(folder: RunFolder, content: bytes) -> None:
    folder.write(METRICS, content)
    with pytest.raises(RunError, match=r"cannot read .*metrics\.json"):
        folder.read_json(METRICS)


# ------------------------------------------------------------------------------------ damage


def test_no_predictions_are_refused(folder: RunFolder, facts: FactSet) -> None:
    write_some(folder, facts, asked_back=True)
    (folder.path / "predictions/test.jsonl").write_text("")
    with pytest.raises(RunError, match=r"test\.jsonl is damaged: no predictions\.$"):
        folder.load_predictions("test")


@pytest.mark.parametrize(
    ("content", "missing"),
    [
        ({}, "base_model is missing"),
        ([], "it is not a table"),
        (None, "it is not a table"),
        ({"relations": {}}, "no relations"),
        ({"relations": []}, r"relations is \[\]"),
        ({"relations": {"in": {"label": ""}}}, "template is missing"),
        ({"relations": {"in": 7}}, "it is not a table"),
    ],
)
def test_a_damaged_card_is_named_with_what_is_wrong(
    folder: RunFolder, facts: FactSet, content: Any, missing: str
) -> None:
    write_some(folder, facts, asked_back=True)
    whole = folder.load_card()
    folder.write_json(CARD, whole | content if content else content)
    for read in (folder.load_card, folder.load_facts, lambda: folder.load_predictions("test")):
        with pytest.raises(RunError, match=rf"prompts\.json is damaged: {missing}"):
            read()


@pytest.mark.parametrize("content", [{}, [], 7, {"model": "m"}])
def test_damaged_metrics_and_environment_are_named(folder: RunFolder, content: Any) -> None:
    folder.write_json(METRICS, content)
    folder.write_json(ENVIRONMENT, content)
    for read in (folder.load_metrics, folder.load_weights):
        with pytest.raises(RunError, match=r"metrics\.json is damaged: "):
            read()
    with pytest.raises(RunError, match=r"environment\.json is damaged: "):
        folder.load_environment()
