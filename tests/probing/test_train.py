"""Whole runs on a tiny model: repeated, killed, resumed, trained further, asked."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import symprompt
from symprompt import Run
from symprompt.config import to_toml
from symprompt.engine.loop import Loop
from symprompt.errors import ConfigError, DataError, RunError
from symprompt.probing.config import RunConfig
from symprompt.probing.results import (
    load_asked,
    load_combination,
    load_facts,
    measure,
    to_records,
)
from symprompt.probing.results import run_config as stored_config
from symprompt.probing.train import PromptTraining
from symprompt.runs.folder import Folder
from tiny.models import make_facts, run_config
from tiny.runs import SEPARATE, Killed, Make, kill_at, other_model, timeless, unfinish, write_csv

FILES = {
    "config.toml",
    "encoder.safetensors",
    "facts.jsonl",
    "history.json",
    "predictions/dev.safetensors",
    "predictions/test.safetensors",
    "prompts.json",
    "prompts.safetensors",
    "symprompt.json",
}
# What two runs of the same config must share byte for byte.
RESULTS = (
    "encoder.safetensors",
    "facts.jsonl",
    "predictions/dev.safetensors",
    "predictions/test.safetensors",
    "prompts.json",
    "prompts.safetensors",
)


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def assert_same_results(one: Path, other: Path) -> None:
    assert files(one) == files(other)
    for name in set(RESULTS) & files(one):
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
    assert timeless(one) == timeless(other)


# ------------------------------------------------------------------------------- a whole run


def test_a_run_leaves_all_its_files_and_no_other(finished: Run) -> None:
    assert files(finished.folder.path) == FILES


def test_stored_metrics_are_those_of_the_stored_predictions(finished: Run) -> None:
    metrics = finished.metrics
    names = list(metrics["weights"]["subject"])
    assert names == ["capital", "in"]
    combination = load_combination(finished.folder)
    for split in ("dev", "test"):
        predictions, facts = finished.predictions(split)
        assert metrics[split] == measure(predictions, names, combination)
        stored = [record for record in finished.folder.manifest.records if record.split == split]
        assert stored == list(to_records({split: metrics[split]}))
        wanted = [
            fact
            for relation in load_facts(finished.folder).relations
            for fact in relation.split(split)
        ]
        assert facts == wanted


def test_every_read_fact_is_asked_or_counted_as_dropped(
    make: Make, data: Path, tmp_path: Path
) -> None:
    lines = data.read_text() + "Oslo,in,Unheardof,test,[X] lies in [Y] .\n"
    (tmp_path / "more.csv").write_text(lines)
    more = make(tmp_path / "run", data=str(tmp_path / "more.csv"), learning={"epochs": 0})
    metrics = symprompt.train(more).metrics
    assert metrics["dropped"] == {"object is not one token of the model": 1}
    report = symprompt.check(load_facts(Folder(tmp_path / "run")))
    assert metrics["leakage"] == {
        "test_pairs_in_train_or_dev": report.test_pairs_in_train_or_dev,
        "test_subjects_in_train": report.test_subjects_in_train,
        "test_inverses_in_train": report.test_inverses_in_train,
    }
    assert metrics["inverses"] == {
        row.name: row.inverses for row in report.relations if row.inverses
    }
    assert report.test_pairs_in_train_or_dev > 0
    assert metrics["dev"]["facts"] + metrics["test"]["facts"] == 8 + 8


def test_a_finished_run_is_returned_as_it_is(make: Make, finished: Run) -> None:
    folder = finished.folder.path
    before = {name: (folder / name).stat().st_mtime_ns for name in FILES}
    stages: list[str] = []
    again = symprompt.train(
        stored_config(finished.folder), tick=lambda stage, *_: stages.append(stage)
    )
    assert again.metrics == finished.metrics
    assert {name: (folder / name).stat().st_mtime_ns for name in FILES} == before
    assert stages == []


def test_a_finished_run_is_refused_when_its_data_or_word_list_changed(
    make: Make, data: Path, tmp_path: Path
) -> None:
    words = tmp_path / "words.txt"
    words.write_text("\n".join(sorted({fact.object for fact in make_facts().facts()})))
    own = Path(shutil.copy(data, tmp_path / "own.csv"))
    config = make(
        tmp_path / "run",
        data=str(own),
        method={"name": "manual"},
        prompt={"template": "manual"},
        facts={"vocabulary": str(words)},
    )
    symprompt.train(config)
    for path in (own, words):
        before = path.read_text()
        path.write_text("\n".join(before.splitlines()[:-1]))
        with pytest.raises(RunError, match="begun with other data than are there now"):
            symprompt.train(config)
        path.write_text(before)
    symprompt.train(config)


def test_progress_tells_of_training_and_both_splits_to_the_end(make: Make, tmp_path: Path) -> None:
    ticks: list[tuple[str, int, int]] = []
    run = symprompt.train(
        make(tmp_path / "run"),
        tick=lambda stage, done, total, _: ticks.append((stage, done, total)),
    )
    assert run.folder.manifest.acceleration.startswith("plain: rows are packed on CUDA alone")
    last = {stage: (done, total) for stage, done, total in ticks}
    asked = ["asking dev", "asking back dev", "asking test", "asking back test"]
    assert list(last) == ["acceleration", "training", *asked]
    # Three epochs of twelve facts in two steps, and eight facts in each split.
    assert list(last.values())[1:] == [(36, 36), *[(8, 8)] * 4]
    # Steps take unequal time, so facts are counted: the second step of an epoch has fewer.
    assert [done for stage, done, _ in ticks if stage == "training"][:4] == [0, 8, 12, 20]


def test_the_run_records_parts_templates_and_metrics(finished: Run) -> None:
    card = finished.folder.read_json("prompts.json")
    assert card["parts"] == ["forth", "back"]
    assert card["relations"]["capital"] == {
        "label": "",
        "template": "<2> [X] <1> [Y] <2>",
        "manual_template": "The capital of [X] is [Y] .",
    }
    manifest = finished.folder.manifest
    assert (manifest.command, manifest.method, manifest.seeds) == ("train", "spe", (34,))
    assert (manifest.dtype, manifest.device) == ("float32", "cpu")
    assert manifest.versions["torch"] == torch.__version__
    assert set(manifest.files) == FILES - {"config.toml", "symprompt.json"}
    assert set(card["metrics"]) == {"dev", "test"}
    for split, numbers in card["metrics"].items():
        assert set(numbers) == {"mean over relations", "mean over facts"}
        assert numbers == finished.metrics[split]["raw"]["realistic"]


def test_the_manifest_of_a_finished_run_is_written_last(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[str] = []
    write = Folder.write
    monkeypatch.setattr(
        Folder,
        "write",
        lambda self, name, content: (written.append(name), write(self, name, content))[1],
    )
    symprompt.train(make(tmp_path / "run", learning={"epochs": 0}))
    assert written[-2:] == ["prompts.json", "symprompt.json"]


@pytest.mark.parametrize("key", ["model", "data", "out"])
def test_what_a_run_cannot_do_without_is_named(make: Make, tmp_path: Path, key: str) -> None:
    config = replace(make(tmp_path / "run"), **{key: ""})
    with pytest.raises(ConfigError, match=f"^--{key} is missing"):
        symprompt.train(config)


def test_choosing_the_weight_on_dev_wants_dev_facts(
    make: Make, finished: Run, data: Path, tmp_path: Path
) -> None:
    rows = data.read_text().splitlines(keepends=True)
    (tmp_path / "test.csv").write_text("".join(rows[:1] + [row for row in rows if ",test," in row]))
    sections: dict[str, Any] = {
        "data": str(tmp_path / "test.csv"),
        "start_from": str(finished.folder.path),
        "learning": {"epochs": 0},
    }
    method = {**SEPARATE, "choose_weight": "dev"}
    with pytest.raises(DataError, match=r"choose_weight = \"dev\" needs dev facts"):
        symprompt.train(make(tmp_path / "run", **sections, method=method))
    assert not (tmp_path / "run").exists()
    # Stored prompts can be asked facts that come without training facts.
    method["choose_weight"] = "fixed"
    run = symprompt.train(make(tmp_path / "run", **sections, method=method))
    assert "dev" not in run.metrics
    theirs, _ = finished.predictions("test")
    assert np.array_equal(run.predictions("test")[0].object_score, theirs.object_score)


# ------------------------------------------------------------------------------------ resuming

METHOD = {"name": "spe", "vectors": "separate", "choose_weight": "dev-relation"}
TRAINING = {"epochs": 5, "patience": 2, "rate": 0.05}


@pytest.fixture(scope="module")
def unbroken(make: Make, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("unbroken") / "run"
    config = make(out, method=METHOD, learning=TRAINING, checkpoint_seconds=0.0)
    return symprompt.train(config).folder.path


@pytest.mark.parametrize("moment", ["training", "asking dev", "asking test"])
def test_a_run_stopped_at_any_stage_resumes_to_the_same_numbers(
    make: Make, unbroken: Path, tmp_path: Path, moment: str
) -> None:
    config = make(tmp_path / "run", method=METHOD, learning=TRAINING, checkpoint_seconds=1000.0)
    with pytest.raises(Killed):
        symprompt.train(config, tick=kill_at(moment))
    assert not Folder(tmp_path / "run").finished
    assert_same_results(symprompt.train(config, resume=True).folder.path, unbroken)


@pytest.mark.parametrize(
    ("method", "prompt"),
    [
        (METHOD, {"encoder": "bilstm"}),
        ({**METHOD, "vectors": "shared"}, {"encoder": "bilstm"}),
        ({"name": "ptuning"}, {"encoder": "mlp"}),
    ],
    ids=str,
)
def test_relations_in_groups_learn_what_they_learn_together(
    make: Make, tmp_path: Path, method: dict[str, Any], prompt: dict[str, Any]
) -> None:
    config = make(tmp_path / "whole", method=method, learning=TRAINING, prompt=prompt)
    whole = symprompt.train(config)
    grouped = replace(config, out=str(tmp_path / "groups"))
    grouped = replace(grouped, tuning=replace(grouped.tuning, at_once=1))
    groups = symprompt.train(grouped)
    assert files(groups.folder.path) == files(whole.folder.path)
    histories = [run.folder.read_json("history.json") for run in (whole, groups)]
    assert histories[0]["best_epoch"] == histories[1]["best_epoch"]
    for name in ("prompts.safetensors", "encoder.safetensors"):
        wanted, note = whole.folder.read_tensors(name)
        found, own_note = groups.folder.read_tensors(name)
        assert found.keys() == wanted.keys()
        assert own_note == note
        for key, value in wanted.items():
            # Adam's steps are as large for a gradient of rounding errors as for any other.
            torch.testing.assert_close(found[key], value, atol=2e-3, rtol=1e-2)
    for split in ("dev", "test"):
        wanted, found = (load_asked(run.folder, split).predictions for run in (whole, groups))
        np.testing.assert_array_equal(found.gold, wanted.gold)
        np.testing.assert_array_equal(found.better, wanted.better)
        np.testing.assert_allclose(found.gold_score, wanted.gold_score, atol=1e-3)
    # Killed in its second group, it goes on there.
    broken = replace(grouped, out=str(tmp_path / "broken"))
    with pytest.raises(Killed):
        symprompt.train(broken, tick=kill_in("relations 2-2 of 2"))
    assert (tmp_path / "broken/parts/0000.safetensors").is_file()
    assert_same_results(symprompt.train(broken, resume=True).folder.path, groups.folder.path)


def kill_in(which: str) -> Callable[..., None]:
    def tick(stage: str, done: int, _total: int, told: str) -> None:
        if stage == "training" and which in told and done:
            raise Killed

    return tick


def test_what_takes_all_relations_at_once_is_refused_in_groups(make: Make, tmp_path: Path) -> None:
    config = make(tmp_path / "run", tuning={"at_once": 1}, start_from=str(tmp_path))
    with pytest.raises(ConfigError, match=r"tuning.at_once is 1 of 2 relations, and start_from"):
        symprompt.train(config)
    assert not (tmp_path / "run").exists()


def test_a_run_killed_while_it_was_evaluated_is_not_trained_again(
    make: Make, unbroken: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(unbroken, folder)
    unfinish(folder)
    shutil.rmtree(folder / "predictions")
    stages: set[str] = set()
    config = make(folder, method=METHOD, learning=TRAINING, checkpoint_seconds=0.0)
    symprompt.train(config, resume=True, tick=lambda stage, *_: stages.add(stage))
    asked = {"asking dev", "asking back dev", "asking test", "asking back test"}
    assert stages == {"acceleration", *asked}
    assert_same_results(folder, unbroken)


def test_the_time_of_training_adds_up_over_the_processes(make: Make, tmp_path: Path) -> None:
    config = make(tmp_path / "run", method=METHOD, learning=TRAINING, checkpoint_seconds=0.0)
    with pytest.raises(Killed):
        symprompt.train(config, tick=kill_at("training", "epoch 3"))
    folder = Folder(tmp_path / "run")
    tensors, note = folder.read_tensors("state.safetensors")
    assert 0 < note["progress"]["seconds"] < 100
    note["progress"]["seconds"] = 1000.0
    folder.write_tensors("state.safetensors", tensors, note)
    run = symprompt.train(config, resume=True)
    assert 1000 < run.metrics["seconds"]["training"] < 1100
    assert run.metrics["seconds"]["training"] == folder.read_json("history.json")["seconds"]
    # Killed after training: the time is still known.
    unfinish(folder.path)
    again = symprompt.train(config, resume=True)
    assert again.metrics["seconds"]["training"] == run.metrics["seconds"]["training"]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("symprompt.json", "{}"),
        ("symprompt.json", "[]"),
        ("symprompt.json", '{"command": "train", "dtype": 1}'),
        ("history.json", "[]"),
        ("history.json", "{}"),
    ],
)
def test_a_damaged_file_of_a_run_taken_up_again_is_named(
    make: Make, unbroken: Path, tmp_path: Path, name: str, content: str
) -> None:
    folder = unfinished_copy(unbroken, tmp_path / "run")
    (folder / name).write_text(content)
    config = make(folder, method=METHOD, learning=TRAINING, checkpoint_seconds=0.0)
    with pytest.raises(RunError, match=rf"{name} is damaged: .*\.$"):
        symprompt.train(config, resume=True)


def unfinished_copy(source: Path, folder: Path) -> Path:
    unfinish(shutil.copytree(source, folder))
    return folder


@pytest.mark.parametrize("changed", ["data", "model", "dtype"])
def test_a_run_that_would_go_on_with_something_else_is_refused(
    make: Make, unbroken: Path, data: Path, model: Path, tmp_path: Path, changed: str
) -> None:
    folder = unfinished_copy(unbroken, tmp_path / "run")
    message = f"begun with other {changed}"
    sections: dict[str, Any] = {"method": METHOD, "learning": TRAINING}
    if changed == "data":
        text = data.read_text().replace("Oslo,in,Peru", "Oslo,in,Cuba")
        (tmp_path / "facts.csv").write_text(text)
        sections["data"] = str(tmp_path / "facts.csv")
    elif changed == "model":
        sections["model"] = str(other_model(model, tmp_path / "model"))
        message = "begun with other weights"
    else:
        path = folder / "symprompt.json"
        path.write_text(path.read_text().replace('"dtype": "float32"', '"dtype": "bfloat16"'))
        message = "begun in bfloat16 and would go on in float32"
    config = make(folder, **sections)
    (folder / "config.toml").write_text(to_toml(config))
    before = {name: (folder / name).read_bytes() for name in files(folder)}
    with pytest.raises(RunError, match=message):
        symprompt.train(config, resume=True)
    assert {name: (folder / name).read_bytes() for name in files(folder)} == before


# ---------------------------------------------------------------------------- training further


def further(make: Make, out: Path, source: Path, **sections: Any) -> RunConfig:
    table: dict[str, Any] = {"method": SEPARATE, "learning": {"epochs": 0}}
    return make(out, start_from=str(source), **(table | sections))


def test_training_goes_on_from_stored_prompts(make: Make, finished: Run, tmp_path: Path) -> None:
    config = further(make, tmp_path / "run", finished.folder.path, learning={})
    losses = [run.folder.read_json("history.json")["epochs"][0]["loss"]
              for run in (symprompt.train(config), finished)]  # fmt: skip
    assert losses[0] < losses[1]


def test_no_epochs_from_stored_prompts_keeps_them_and_their_answers(
    make: Make, finished: Run, tmp_path: Path
) -> None:
    run = symprompt.train(further(make, tmp_path / "run", finished.folder.path))
    for name in ("prompts.safetensors", "encoder.safetensors", "predictions/test.safetensors"):
        theirs = (finished.folder.path / name).read_bytes()
        assert (run.folder.path / name).read_bytes() == theirs, name


def test_some_relations_of_a_run_can_be_trained_further(
    make: Make, finished: Run, tmp_path: Path
) -> None:
    some = {"facts": {"relations": ["in"]}}
    run = symprompt.train(further(make, tmp_path / "run", finished.folder.path, **some))
    mine, theirs = (
        own.folder.read_tensors("prompts.safetensors")[0]["forth"] for own in (run, finished)
    )
    assert torch.equal(mine[0], theirs[1])
    # And not all relations of a run from one that has some.
    with pytest.raises(RunError, match="no prompts for relation capital"):
        symprompt.train(further(make, tmp_path / "two", run.folder.path))


def test_a_run_that_kept_no_encoder_cannot_be_trained_further(make: Make, tmp_path: Path) -> None:
    first = symprompt.train(make(tmp_path / "one", keep_encoder=False, learning={"epochs": 0}))
    assert files(first.folder.path) == FILES - {"encoder.safetensors"}
    with pytest.raises(RunError, match="keeps no encoder"):
        symprompt.train(make(tmp_path / "two", start_from=str(tmp_path / "one")))
    assert not (tmp_path / "two").exists()


OTHER_TEMPLATE = r"another template for relation capital: '<2> \[X\] <1>"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"prompt": {"encoder": "mlp"}}, "another method, template or encoder"),
        ({"prompt": {"encoder": "free"}}, "another method, template or encoder"),
        ({"prompt": {"template": "<2> [X] <1> [Y] <1>"}}, OTHER_TEMPLATE),
        ({"prompt": {"template": "<2> [X] <2> [Y] <1>"}}, OTHER_TEMPLATE),
        ({"method": SEPARATE | {"blanks": "kept"}}, r'method.blanks = "swapped", not "kept"'),
        ({"model": "other"}, "made by another model"),
    ],
)
def test_prompts_that_do_not_fit_cannot_be_trained_further(
    make: Make,
    finished: Run,
    model: Path,
    tmp_path: Path,
    changed: dict[str, Any],
    message: str,
) -> None:
    if "model" in changed:
        changed = {"model": str(other_model(model, tmp_path / "model"))}
    with pytest.raises(RunError, match=message):
        symprompt.train(further(make, tmp_path / "run", finished.folder.path, **changed))
    assert not (tmp_path / "run").exists()


def test_prompts_without_a_subject_prompt_depend_on_no_blanks(make: Make, tmp_path: Path) -> None:
    symprompt.train(make(tmp_path / "one", method={"name": "ptuning"}, learning={"epochs": 0}))
    method = {"method": {"blanks": "kept"}}
    symprompt.train(further(make, tmp_path / "two", tmp_path / "one", **method))


@pytest.mark.parametrize("note", [{}, [], {"relations": 7}])
def test_prompts_with_a_damaged_note_cannot_be_trained_further(
    make: Make, finished: Run, tmp_path: Path, note: Any
) -> None:
    source = Folder(shutil.copytree(finished.folder.path, tmp_path / "one"))
    source.write_tensors("encoder.safetensors", source.read_tensors("encoder.safetensors")[0], note)
    with pytest.raises(RunError, match=r"encoder\.safetensors is damaged"):
        symprompt.train(further(make, tmp_path / "two", source.path))


def test_only_finished_runs_are_loaded_and_trained_further(
    make: Make, unbroken: Path, tmp_path: Path
) -> None:
    with pytest.raises(RunError, match="not a run folder"):
        Run.load(tmp_path)
    folder = unfinished_copy(unbroken, tmp_path / "run")
    with pytest.raises(RunError, match="unfinished"):
        Run.load(folder)
    with pytest.raises(RunError, match="unfinished run"):
        symprompt.train(further(make, tmp_path / "two", folder, method=METHOD))


RECORDING = 100.0
"""Seconds that recording takes by the clock of this test."""


def test_what_every_process_recorded_adds_up(
    family_folder: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write_csv(make_facts().select(["capital", "in"]), tmp_path / "facts.csv")
    place = {"model": str(family_folder("bert")), "data": str(data), "out": str(tmp_path / "run")}
    more = {"learning": {"epochs": 4}, "dtype": "float32", "checkpoint_seconds": 0.0}
    config = run_config(**place, **more, method={"name": "ptuning"})
    count, begin = Loop._count_seconds, PromptTraining._begin

    def recorded(self: PromptTraining) -> object:
        if self._planned is None:
            self.recorder.seconds += RECORDING
        return begin(self)

    def counted(self: Loop) -> None:
        count(self)
        self.progress.seconds += self.trainable.recorder.seconds

    def kill(stage: str, done: int, total: int, note: str) -> None:
        if note == "epoch 3":
            raise Killed

    monkeypatch.setattr(PromptTraining, "_begin", recorded)
    monkeypatch.setattr(Loop, "_count_seconds", counted)
    with pytest.raises(Killed):
        symprompt.train(config, tick=kill)
    folder = Folder(config.out)
    progress = folder.read_tensors("state.safetensors")[1]["progress"]
    assert progress["recording"] == RECORDING
    assert RECORDING < progress["seconds"] < 2 * RECORDING
    run = symprompt.train(config, resume=True)
    assert run.metrics["seconds"]["recording"] == 2 * RECORDING
    assert 0 < run.metrics["seconds"]["training"] < RECORDING
    # Killed after training: both times are still known.
    unfinish(folder.path)
    again = symprompt.train(config, resume=True).metrics["seconds"]
    for stage in ("recording", "training"):
        assert again[stage] == run.metrics["seconds"][stage]
