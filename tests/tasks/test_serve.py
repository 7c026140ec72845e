"""Prompts of several tasks served from one model: a mixed batch gives what each gives alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import symprompt
from symprompt.errors import ConfigError, DataError, RunError, SympromptError
from symprompt.models import LanguageModel
from symprompt.runs.folder import Folder, Manifest
from symprompt.tasks.data.load import load_examples
from symprompt.tasks.predict import StoredPrompt
from symprompt.tasks.serve import Server
from tiny.labelled import read_lines, write_toy
from tiny.tasks import KINDS, run_toy

LENGTHS = {"sequence": 2, "pair": 5, "tagging": 3, "words": 6, "roles": 7, "question": 4}


@pytest.fixture(scope="module")
def runs(
    family_folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """A run of each kind of task with a prefix of its own length."""
    root = tmp_path_factory.mktemp("served")
    return {kind: make_run(root, family_folder("bert"), kind) for kind in KINDS}


def make_run(root: Path, model: Path, kind: str, **changes: Any) -> Path:
    data = write_toy(root / "data" / kind, kind)
    changes |= {"prefix__length": LENGTHS[kind], "prefix__shift_positions": False}
    return run_toy(data, model, root / kind, kind, learning__epochs=2, **changes).folder.path


def data_of(run: Path) -> Path:
    return run.parent / "data" / run.name / "test.jsonl"


@pytest.fixture(scope="module")
def served(runs: dict[str, Path], family_folder: Callable[[str], Path]) -> Server:
    """What answers for all of them."""
    backbone = LanguageModel.load(str(family_folder("bert")), device="cpu", dtype="float32")
    return Server(backbone, [StoredPrompt.load(path) for path in runs.values()])


@pytest.mark.parametrize(
    ("family", "kinds"),
    [
        ("bert", {kind: {} for kind in KINDS}),
        # Attention of its own.
        ("mpnet", {"pair": {}, "tagging": {}}),
        # With segments and without them.
        ("bert", {"pair": {}, "question": {"task__segments": "off"}}),
        ("bert", {"tagging": {"prefix__layers": "2"}, "words": {"prefix__layers": "last:1"}}),
    ],
)
def test_a_mixed_batch_predicts_what_each_task_does_alone(
    family: str,
    kinds: dict[str, dict[str, Any]],
    family_folder: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    model = family_folder(family)
    runs = {kind: make_run(tmp_path, model, kind, **own) for kind, own in kinds.items()}
    if "question" in runs and len(runs) == 2:
        assert [Folder(path).manifest.segments for path in runs.values()] == [True, False]
    backbone = LanguageModel.load(str(model), device="cpu", dtype="float32")
    server = Server(backbone, [StoredPrompt.load(path) for path in runs.values()])
    examples = {kind: load_examples(data_of(path), kind) for kind, path in runs.items()}
    found = server.answer(examples, max_tokens=200)
    for kind, path in runs.items():
        stored = read_lines(path / "predictions/test.jsonl")
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
    runs: dict[str, Path], served: Server
) -> None:
    rows = {kind: read_lines(data_of(path)) for kind, path in runs.items()}
    given = {kind: [plain(row) for row in rows[kind]] for kind, plain in PLAIN.items()}
    found = served.answer(given)
    for kind, path in runs.items():
        stored = read_lines(path / "predictions/test.jsonl")
        theirs = [row["prediction"] for row in stored]
        assert [row["prediction"] for row in found[kind]] == theirs
        alone = symprompt.load(path)
        own = alone.predict(given[kind], device="cpu")
        assert [row["prediction"] for row in own.rows] == theirs
        assert own.metrics == {}
    run = symprompt.TaskRun.load(runs["sequence"])
    (one,) = run.predict("Rome in Kenya", device="cpu").rows
    assert one["text"] == "Rome in Kenya"
    with pytest.raises(DataError, match="line 1: 'Rome' is not first and second; give a tuple"):
        served.answer({"pair": ["Rome"]})
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
    runs: dict[str, Path], served: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    mixed: list[int] = []
    run_pass = Server._pass

    def count(self, asked, parts, width, found):
        mixed.append(len(parts))
        run_pass(self, asked, parts, width, found)

    monkeypatch.setattr(Server, "_pass", count)
    kinds = ("tagging", "question")
    served.answer({kind: load_examples(data_of(runs[kind]), kind) for kind in kinds})
    assert mixed == [2]


def test_a_task_without_examples_has_no_answers(runs: dict[str, Path], served: Server) -> None:
    assert served.answer({}) == {}
    questions = load_examples(data_of(runs["question"]), "question")
    found = served.answer({"tagging": [], "question": questions})
    assert found["tagging"] == []
    assert len(found["question"]) == 24
    with pytest.raises(ConfigError, match="no prompt of task 'sums'"):
        served.answer({"sums": []})


def test_what_cannot_be_served_is_refused(runs: dict[str, Path], served: Server) -> None:
    prompt, other = StoredPrompt.load(runs["tagging"]), {"task": "other"}

    def changed(card: dict[str, str], tensors: Any = prompt.tensors, **prefix: Any) -> StoredPrompt:
        config = replace(prompt.config, prefix=replace(prompt.config.prefix, **prefix))
        return replace(prompt, card={**prompt.card, **card}, config=config, tensors=tensors)

    last = {**prompt.tensors, "prompt.prefix": prompt.tensors["prompt.prefix"][1:]}
    refused: list[tuple[list[StoredPrompt], type[SympromptError], str]] = [
        ([], ConfigError, "one or more"),
        ([prompt, prompt], ConfigError, "same name"),
        ([prompt, changed(other, shift_positions=True)], ConfigError, "shift positions"),
        ([prompt, changed(other, last, layers="2")], ConfigError, r"different layers \(2; all\)"),
        ([changed({"method": "pt"}, {})], RunError, "trained by pt, which learns no prefix"),
        ([changed({"base_model_fingerprint": "x"})], RunError, "another model"),
    ]
    for prompts, error, message in refused:
        with pytest.raises(error, match=message):
            Server(served.backbone, prompts)
