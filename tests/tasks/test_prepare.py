"""Inputs stay within what was trained of a model: positions are a limit, segments a choice."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from symprompt.embeddings import embed
from symprompt.errors import ConfigError, DataError
from symprompt.models import LanguageModel
from symprompt.models.trained import KEY
from symprompt.runs.folder import Folder
from symprompt.tasks.config import TaskConfig
from symprompt.tasks.data.examples import LabelSet, TaskData, TextExample
from symprompt.tasks.features import takes_types
from symprompt.tasks.patterns.data import VerbalData, VerbalExample
from symprompt.tasks.patterns.model import VerbalProblem
from symprompt.tasks.predict import CARD, TaskRun
from symprompt.tasks.prepare import tensorise_task
from symprompt.tasks.train import Session, tune
from tiny.labelled import write_toy
from tiny.models import save_family
from tiny.tasks import make_problem, run_toy, toy_config

POSITIONS = 24


def record(folder: Path, positions: int = POSITIONS, segments: int = 1) -> Path:
    """Write into a model's config what was trained of it."""
    config = json.loads((folder / "config.json").read_text())
    config[KEY] = {"positions": positions, "segments": segments, "objectives": ["mlm"]}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT of 48 positions and two segments, of which 24 and one are trained."""
    return record(save_family("bert", tmp_path_factory.mktemp("trained") / "model"))


@pytest.fixture(scope="module")
def partly(place: Path) -> LanguageModel:
    return LanguageModel.load(str(place), device="cpu", dtype="float64")


def pairs(count: int = 6) -> TaskData:
    """Pairs whose second text is about 40 tokens long."""
    examples = [
        TextExample(str(number), ("Rome is old", "Paris is a river " * 10), "ab"[number % 2])
        for number in range(count)
    ]
    return TaskData("pair", "toy", {"train": examples, "dev": examples}, LabelSet(("a", "b")))


def test_loading_reports_what_is_untrained_once(place: Path) -> None:
    said = []
    model = LanguageModel.load(str(place), device="cpu", tick=lambda *given: said.append(given))
    note = "positions 24 to 47, segment 1 (by the model's record); inputs end after 24 tokens, "
    assert said == [
        ("untrained", 0, 0, note + "one segment is used (in tune: unless --segments on)")
    ]
    assert model.max_length == POSITIONS
    assert model.positions == 48
    assert model.reads_types


def test_a_model_of_which_nothing_is_known_is_used_whole_and_says_nothing(
    load_family: Callable[..., LanguageModel],
) -> None:
    for name in ("bert", "roberta", "modernbert", "gpt2", "llama"):
        model = load_family(name)
        assert model.untrained == ""
        assert model.max_length == model.positions


@pytest.mark.parametrize(
    ("method", "changes", "room"),
    [
        ("ft", {}, POSITIONS),
        ("pt2", {}, POSITIONS),
        ("pt", {}, POSITIONS - 4),
        ("pt2", {"prefix__shift_positions": True}, POSITIONS - 4),
    ],
)
def test_windows_and_prompts_stay_within_trained_positions(
    method: str, changes: dict[str, object], room: int, place: Path, tmp_path: Path
) -> None:
    data = write_toy(tmp_path / "data", "sequence")
    long = json.dumps({"text": "in the " * 40, "label": "land"}) + "\n"
    with (data / "dev.jsonl").open("a") as stream:
        stream.write(long)
    config = toy_config(
        data, place, tmp_path / "run", "sequence", method=method, learning__epochs=1, **changes
    )
    session = Session()
    tune(config, session=session)
    (task,) = session._tasks.values()
    assert task.max_length == room
    assert task.inputs["dev"].ids.shape[1] == room
    assert Folder(tmp_path / "run").manifest.positions == POSITIONS


def test_a_prompt_that_leaves_no_trained_position_is_refused(place: Path, tmp_path: Path) -> None:
    data = write_toy(tmp_path / "data", "sequence")
    with pytest.raises(DataError, match="takes 20 of the model's 24 trained positions, which"):
        run_toy(data, place, tmp_path / "run", "sequence", method="pt", prefix__length=20)
    assert not (tmp_path / "run").exists()


def test_which_models_take_segments(
    load_family: Callable[..., LanguageModel], partly: LanguageModel
) -> None:
    for name, expected in (("bert", True), ("distilbert", False), ("gpt2", False)):
        backbone = load_family(name)
        assert [takes_types(backbone, w) for w in ("auto", "on", "off")] == [
            expected,
            expected,
            False,
        ]
    assert not takes_types(partly)
    assert takes_types(partly, "on")


def test_segments_are_made_if_they_were_trained_or_are_asked_for(partly: LanguageModel) -> None:
    for wanted, expected in (("auto", False), ("off", False), ("on", True)):
        task = TaskConfig(segments=wanted, stride=4)
        made = tensorise_task(pairs(), task, partly, POSITIONS)
        types = made.inputs["train"].types
        assert made.segments == (types is not None) == expected
        if types is not None:
            assert types.max() == 1


def test_segments_of_a_model_without_them_are_refused(
    load_family: Callable[..., LanguageModel],
) -> None:
    with pytest.raises(ConfigError, match=r'task.segments is "on" and .* has one segment'):
        tensorise_task(pairs(), TaskConfig(segments="on"), load_family("distilbert"), 32)


@pytest.mark.parametrize("segments", ["auto", "on"])
def test_a_run_states_what_it_used_and_predicts_with_it(
    segments: str, place: Path, tmp_path: Path
) -> None:
    data = write_toy(tmp_path / "data", "pair")
    out = tmp_path / "run"
    run_toy(data, place, out, "pair", task__segments=segments, learning__epochs=1)
    assert Folder(out).manifest.segments == (segments == "on")
    stored = [
        json.loads(line) for line in (out / "predictions/test.jsonl").read_text().splitlines()
    ]
    found = TaskRun.load(out).predict(data / "test.jsonl", device="cpu")
    scores = [row["probability"] for row in found.rows]
    assert scores == pytest.approx([row["probability"] for row in stored], abs=2e-6)
    # A run of the time before the choice had segments.
    card = json.loads((out / CARD).read_text())
    old = tmp_path / "old"
    shutil.copytree(out, old)
    del card["features"]["segments"]
    (old / CARD).write_text(json.dumps(card))
    manifest = json.loads((old / "symprompt.json").read_text())
    manifest["files"].pop(CARD)
    (old / "symprompt.json").write_text(json.dumps(manifest))
    again = TaskRun.load(old).predict(data / "test.jsonl", device="cpu")
    same = [row["probability"] for row in again.rows] == scores
    assert same == (segments == "on")


@pytest.mark.parametrize("method", ["ptuning", "pt2", "cls"])
def test_the_mask_of_a_pattern_stays_within_trained_positions(
    method: str, partly: LanguageModel
) -> None:
    plain = make_problem(partly)
    long = [
        VerbalExample(str(number), {"premise": "the river " * 30, "hypothesis": "Rome"}, number % 2)
        for number in range(4)
    ]
    data = VerbalData(plain.task, dict.fromkeys(("train", "dev", "val"), long))
    template = f"{'<1> ' * (method == 'ptuning')}{{hypothesis}} : {{premise}} [MASK] ."
    config = make_problem(partly, method=method, template=template).config
    for split, layout in VerbalProblem(partly, data, config).layouts.items():
        assert int(layout.at.max()) < POSITIONS, split
        assert int(layout.lengths.max()) == POSITIONS
        assert layout.cut[0] == 4
    # A run that states no limit was made with all there are.
    whole = VerbalProblem(partly, data, config, positions=partly.positions)
    assert int(whole.layouts["val"].lengths.max()) == 48


def test_word_vectors_are_read_in_windows_of_trained_positions(partly: LanguageModel) -> None:
    text = "the river is old in Peru . " * 8
    seen = []
    handle = partly.model.base_model.register_forward_pre_hook(
        lambda _, __, given: seen.append(given["inputs_embeds"].shape[1]), with_kwargs=True
    )
    found = embed([text], model=partly)
    handle.remove()
    assert len(found.vectors) == 56
    assert max(seen) == POSITIONS
    assert torch.isfinite(torch.from_numpy(found.vectors)).all()
    with pytest.raises(DataError, match="a window has 23 tokens; allowed are 1 to 22"):
        embed([text], model=partly, window=23)
