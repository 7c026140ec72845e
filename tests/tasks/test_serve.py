"""Prompts of several tasks served from one model: a mixed batch gives what each gives alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import symprompt
from symprompt.errors import ConfigError, DataError, RunError
from symprompt.models import LanguageModel
from symprompt.prompts.exchange import read_peft, write_peft
from symprompt.runs.folder import Folder, Manifest
from symprompt.tasks.data.load import load_examples
from symprompt.tasks.predict import StoredPrompt, predict_file
from symprompt.tasks.serve import Server
from tiny.labelled import write_toy
from tiny.tasks import KINDS, run_toy

LENGTHS = {"sequence": 2, "pair": 5, "tagging": 3, "words": 6, "roles": 7, "question": 4}


@pytest.fixture(scope="module")
def runs(
    family_folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """A run of each kind of task with a prefix of its own length, folders named by kind."""
    return make_runs(tmp_path_factory.mktemp("served"), family_folder("bert"), KINDS)


def make_runs(root: Path, model: Path, kinds: Sequence[str], **changes: Any) -> dict[str, Path]:
    for kind in kinds:
        data = write_toy(root / "data" / kind, kind)
        run_toy(
            data,
            model,
            root / kind,
            kind,
            prefix__length=LENGTHS[kind],
            learning__epochs=2,
            prefix__shift_positions=False,
            **changes,
        )
    return {kind: root / kind for kind in kinds}


def backbone_of(family_folder: Callable[[str], Path]) -> LanguageModel:
    return LanguageModel.load(str(family_folder("bert")), device="cpu", dtype="float32")


def test_a_mixed_batch_predicts_what_each_task_does_alone(
    runs: dict[str, Path], family_folder: Callable[[str], Path]
) -> None:
    serves_as_alone(runs, backbone_of(family_folder))


def test_a_model_with_attention_of_its_own_serves_too(
    family_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    runs = make_runs(tmp_path, family_folder("mpnet"), ("pair", "tagging"))
    serves_as_alone(runs, LanguageModel.load(str(family_folder("mpnet")), device="cpu"))


def test_tasks_with_and_without_segments_are_served_together(
    family_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    model = family_folder("bert")
    runs = make_runs(tmp_path, model, ("pair",))
    runs |= make_runs(tmp_path, model, ("question",), task__segments="off")
    assert [Folder(path).manifest.segments for path in runs.values()] == [True, False]
    serves_as_alone(runs, backbone_of(family_folder))


def serves_as_alone(runs: dict[str, Path], backbone: LanguageModel) -> None:
    server = Server(backbone, [StoredPrompt.load(path) for path in runs.values()])
    data = next(iter(runs.values())).parent / "data"
    examples = {
        kind: load_examples(data / kind / "test.jsonl", kind)  # type: ignore[arg-type]
        for kind in runs
    }
    found = server.answer(examples, max_tokens=200)
    for kind, path in runs.items():
        lines = (path / "predictions/test.jsonl").read_text().splitlines()
        stored = [json.loads(line) for line in lines]
        assert [row["prediction"] for row in found[kind]] == [row["prediction"] for row in stored]
        for key, digits in (("probability", 1e-5), ("null_score", 1e-3)):
            if key in stored[0]:
                theirs = [row[key] for row in stored]
                assert [row[key] for row in found[kind]] == pytest.approx(theirs, abs=digits)


PLAIN: dict[str, Callable[[dict[str, Any]], object]] = {
    "sequence": lambda row: row["text"],
    "pair": lambda row: (row["first"], row["second"]),
    "tagging": lambda row: row["words"],
    "words": lambda row: row["words"],
    "roles": lambda row: {"words": row["words"], "predicate": row["predicate"]},
    "question": lambda row: (row["question"], row["context"]),
}


def test_plain_values_are_answered_as_rows_of_a_file_are(
    runs: dict[str, Path], family_folder: Callable[[str], Path]
) -> None:
    server = Server(backbone_of(family_folder), [StoredPrompt.load(path) for path in runs.values()])
    data = next(iter(runs.values())).parent / "data"
    given, wanted = {}, {}
    for kind, plain in PLAIN.items():
        lines = (data / kind / "test.jsonl").read_text().splitlines()
        given[kind] = [plain(json.loads(line)) for line in lines]
        wanted[kind] = predict_file(runs[kind], data / kind / "test.jsonl", device="cpu").rows
    found = server.answer(given)
    for kind, path in runs.items():
        theirs = [row["prediction"] for row in wanted[kind]]
        assert [row["prediction"] for row in found[kind]] == theirs
        alone = symprompt.load(path)
        assert isinstance(alone, symprompt.TaskRun)
        own = alone.predict(given[kind], device="cpu")
        assert [row["prediction"] for row in own.rows] == theirs
        assert own.metrics == {}
    run = symprompt.TaskRun.load(runs["sequence"])
    (one,) = run.predict("Rome in Kenya", device="cpu").rows
    assert one["text"] == "Rome in Kenya"
    with pytest.raises(DataError, match="line 1: 'Rome' is not first and second; give a tuple"):
        server.answer({"pair": ["Rome"]})
    with pytest.raises(DataError, match="what was given holds no examples"):
        run.predict([])


def test_the_kind_of_a_finished_run_says_how_it_is_opened(tmp_path: Path) -> None:
    for command in ("train", "pretrain"):
        folder = Folder(tmp_path / command)
        folder.start(None, Manifest(command=command))
        folder.finish()
    assert isinstance(symprompt.load(tmp_path / "train"), symprompt.Run)
    with pytest.raises(RunError, match="give one made by train or rerank or tune"):
        symprompt.load(tmp_path / "pretrain")


def test_one_pass_mixes_tasks(
    runs: dict[str, Path],
    family_folder: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = Server(backbone_of(family_folder), [StoredPrompt.load(path) for path in runs.values()])
    data = next(iter(runs.values())).parent / "data"
    mixed: list[int] = []
    run_pass = Server._pass

    def count(self, asked, parts, width, found):  # type: ignore[no-untyped-def]
        mixed.append(len(parts))
        run_pass(self, asked, parts, width, found)

    monkeypatch.setattr(Server, "_pass", count)
    kinds = ("tagging", "question")
    server.answer({kind: load_examples(data / kind / "test.jsonl", kind) for kind in kinds})
    assert mixed == [2]


def test_a_task_without_examples_has_no_answers(
    runs: dict[str, Path], family_folder: Callable[[str], Path]
) -> None:
    prompts = [StoredPrompt.load(runs[kind]) for kind in ("tagging", "question")]
    server = Server(backbone_of(family_folder), prompts)
    assert server.answer({}) == {}
    assert server.answer({"tagging": []}) == {"tagging": []}
    data = runs["question"].parent / "data/question/test.jsonl"
    found = server.answer({"tagging": [], "question": load_examples(data, "question")})
    assert found["tagging"] == []
    assert len(found["question"]) == 24


def test_what_cannot_be_served_is_refused(
    runs: dict[str, Path], family_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    backbone = backbone_of(family_folder)
    prompt = StoredPrompt.load(runs["tagging"])
    with pytest.raises(ConfigError, match="one or more"):
        Server(backbone, [])
    with pytest.raises(ConfigError, match="same name"):
        Server(backbone, [prompt, prompt])
    with pytest.raises(ConfigError, match="no prompt of task 'sums'"):
        Server(backbone, [prompt]).answer({"sums": []})
    electra = LanguageModel.load(str(family_folder("electra")), device="cpu", dtype="float32")
    with pytest.raises(RunError, match="another model"):
        Server(electra, [prompt])
    data = runs["tagging"].parent / "data" / "tagging"
    bert = family_folder("bert")
    run_toy(data, bert, tmp_path / "pt", "tagging", method="pt", learning__epochs=1)
    with pytest.raises(RunError, match="trained by pt, which learns no prefix"):
        Server(backbone, [StoredPrompt.load(tmp_path / "pt")])
    run_toy(
        data,
        bert,
        tmp_path / "x",
        "tagging",
        learning__epochs=1,
        prefix__shift_positions=True,
        task__name="",
    )
    other = StoredPrompt.load(tmp_path / "x")
    other.card["task"] = "x"
    with pytest.raises(ConfigError, match="shift positions"):
        Server(backbone, [prompt, other])
    few = {"prefix__layers": "2", "prefix__shift_positions": False, "learning__epochs": 1}
    run_toy(data, bert, tmp_path / "few", "tagging", **few)
    some = StoredPrompt.load(tmp_path / "few")
    some.card["task"] = "some"
    with pytest.raises(ConfigError, match=r"in different layers \(2; all\)"):
        Server(backbone, [prompt, some])
    examples = load_examples(data / "test.jsonl", "tagging")
    lines = (tmp_path / "few/predictions/test.jsonl").read_text().splitlines()
    alone = [json.loads(line) for line in lines]
    found = Server(backbone, [some]).answer({"some": examples})["some"]
    assert [row["prediction"] for row in found] == [row["prediction"] for row in alone]


def test_a_stored_prefix_goes_to_peft_and_back(
    runs: dict[str, Path], family_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    backbone, data = backbone_of(family_folder), runs["pair"].parent / "data/pair"
    bert = family_folder("bert")
    run_toy(data, bert, tmp_path / "run", "pair", prefix__length=4, prefix__shift_positions=True)
    prefix = StoredPrompt.load(tmp_path / "run").prefix()
    write_peft(tmp_path / "peft", prefix, backbone)
    assert torch.equal(read_peft(tmp_path / "peft", backbone).prefix.states, prefix.states)
    run_toy(data, bert, tmp_path / "other", "pair", method="pt")
    with pytest.raises(RunError, match="trained by pt, which learns no prefix"):
        StoredPrompt.load(tmp_path / "other").prefix()
