"""Whole runs on a tiny model: repeated, killed, resumed, trained further, asked."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
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
from symprompt.errors import ConfigError, DataError, RunError, TrainingError
from symprompt.probing.config import RunConfig
from symprompt.probing.folder import load_facts
from symprompt.probing.folder import run_config as stored_config
from symprompt.probing.results import measure, to_records
from symprompt.runs.folder import Folder
from tiny.models import make_facts, run_config
from tiny.runs import SEPARATE, Make, other_model, timeless, unfinish, write_csv

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


@pytest.fixture(scope="module")
def model(family_folder: Callable[[str], Path]) -> Path:
    return family_folder("bert")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("facts")
    return write_csv(make_facts().select(["capital", "in"]), folder / "facts.csv")


@pytest.fixture(scope="module")
def make(model: Path, data: Path) -> Make:
    """Configs of runs on the tiny model and facts; the run folder is the first argument."""

    def config(out: Path, **sections: Any) -> RunConfig:
        place = {"model": str(model), "data": str(data), "out": str(out), "dtype": "float32"}
        return run_config(**(place | sections))

    return config


@pytest.fixture(scope="module")
def finished(make: Make, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A finished SPE run with separate vectors; tests must not change its folder."""
    out = tmp_path_factory.mktemp("finished") / "run"
    return symprompt.train(make(out, method=SEPARATE))


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def assert_same_results(one: Path, other: Path) -> None:
    for name in RESULTS:
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
    assert timeless(one) == timeless(other)


# ------------------------------------------------------------------------------- a whole run


def test_a_run_leaves_all_its_files_and_no_other(finished: Run) -> None:
    assert files(finished.folder.path) == FILES


def test_stored_metrics_are_those_of_the_stored_predictions(finished: Run) -> None:
    metrics = finished.metrics
    names = list(metrics["weights"])
    assert names == ["capital", "in"]
    weights = np.array(list(metrics["weights"].values()))
    for split in ("dev", "test"):
        predictions, facts = finished.predictions(split)
        assert metrics[split] == measure(predictions, names, weights)
        stored = [record for record in finished.folder.manifest.records if record.split == split]
        assert stored == list(to_records({split: metrics[split]}))
        wanted = [
            fact
            for relation in load_facts(finished.folder).relations
            for fact in relation.split(split)
        ]
        assert facts == wanted


def test_every_read_fact_is_asked_or_counted_as_dropped(make: Make, tmp_path: Path) -> None:
    config = make(tmp_path / "run", learning={"epochs": 0})
    lines = Path(config.data).read_text() + "Oslo,in,Unheardof,test,[X] lies in [Y] .\n"
    (tmp_path / "more.csv").write_text(lines)
    more = make(tmp_path / "run", data=str(tmp_path / "more.csv"), learning={"epochs": 0})
    metrics = symprompt.train(more).metrics
    assert metrics["dropped"] == {"object is not one token of the model": 1}
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


@pytest.mark.parametrize("method", ["manual", "ptuning", "spe"])
def test_the_same_config_and_seed_give_the_same_bytes_in_another_folder(
    make: Make, tmp_path: Path, method: str
) -> None:
    torch.manual_seed(1)
    one = symprompt.train(make(tmp_path / "one", method={"name": method})).folder.path
    torch.manual_seed(2)  # No global random state is used.
    other = symprompt.train(make(tmp_path / "other", method={"name": method})).folder.path
    for name in set(RESULTS) & files(one):
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
    assert files(one) == files(other)
    assert timeless(one) == timeless(other)


def test_training_with_the_models_dropout_also_depends_on_the_seed_alone(
    make: Make, tmp_path: Path
) -> None:
    prompts = []
    for number in (1, 2):
        torch.manual_seed(number)
        run = symprompt.train(make(tmp_path / f"run{number}", learning={"model_dropout": True}))
        prompts.append((run.folder.path / "prompts.safetensors").read_bytes())
    assert prompts[0] == prompts[1]


def test_another_seed_gives_other_prompts(make: Make, finished: Run, tmp_path: Path) -> None:
    config = make(tmp_path / "run", seed=35, method=SEPARATE)
    other = symprompt.train(config).folder.path
    name = "prompts.safetensors"
    assert (other / name).read_bytes() != (finished.folder.path / name).read_bytes()


def test_progress_tells_of_training_and_both_splits_to_the_end(make: Make, tmp_path: Path) -> None:
    ticks: list[tuple[str, int, int]] = []
    symprompt.train(
        make(tmp_path / "run"),
        tick=lambda stage, done, total, _: ticks.append((stage, done, total)),
    )
    assert list(dict.fromkeys(stage for stage, _, _ in ticks)) == [
        "training",
        "asking dev",
        "asking test",
    ]
    last = {stage: (done, total) for stage, done, total in ticks}
    assert last["training"] == (6, 6)  # three epochs of two steps
    assert last["asking dev"] == (8, 8)
    assert last["asking test"] == (8, 8)


def test_the_run_records_method_parts_and_templates(make: Make, finished: Run) -> None:
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


def test_the_card_of_the_prompts_holds_their_numbers(finished: Run) -> None:
    card = finished.folder.read_json("prompts.json")
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


def test_fewer_answers_than_candidates_are_no_matter_where_nothing_is_asked_back(
    make: Make, tmp_path: Path
) -> None:
    config = make(
        tmp_path / "run", method={"name": "manual", "k": 50}, facts={"vocabulary": "objects"}
    )
    assert symprompt.train(config).predictions()[0].candidates.shape[1] == 5


def test_a_loss_that_is_not_finite_names_step_and_relation(make: Make, tmp_path: Path) -> None:
    with pytest.raises(
        TrainingError, match=r"relation (capital|in) is not finite at epoch \d, step"
    ):
        symprompt.train(make(tmp_path / "run", learning={"rate": 1e30}))
    assert not Folder(tmp_path / "run").finished


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
STALL = """
import pathlib, sys, time
import torch
torch.set_num_threads(1)
import symprompt

def stall(stage, done, total, note):
    if note == "epoch 4":
        pathlib.Path(sys.argv[2]).touch()
        time.sleep(600)

symprompt.train(symprompt.load_config(sys.argv[1]), tick=stall)
"""


@pytest.fixture(scope="module")
def unbroken(make: Make, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("unbroken") / "run"
    config = make(out, method=METHOD, learning=TRAINING, checkpoint_seconds=0.0)
    return symprompt.train(config).folder.path


def test_a_run_killed_in_training_ends_with_the_numbers_of_an_unbroken_one(
    make: Make, unbroken: Path, tmp_path: Path
) -> None:
    config = make(tmp_path / "run", method=METHOD, learning=TRAINING, checkpoint_seconds=0.0)
    (tmp_path / "config.toml").write_text(to_toml(config))
    marker = tmp_path / "in epoch 4"
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-c", STALL, str(tmp_path / "config.toml"), str(marker)], env=environment
    )
    try:
        end = time.monotonic() + 120
        while not marker.exists() and process.poll() is None and time.monotonic() < end:
            time.sleep(0.02)
        assert marker.exists()
    finally:
        process.kill()  # SIGKILL: no handler, no cleaning up
        process.wait()
    assert process.returncode == -9
    assert (tmp_path / "run/state.safetensors").exists()
    assert not Folder(tmp_path / "run").finished
    with pytest.raises(RunError, match="--resume"):
        symprompt.train(config)
    epochs: set[str] = set()
    run = symprompt.train(config, resume=True, tick=lambda *tick: epochs.add(tick[3]))
    assert epochs == {"epoch 4", "epoch 5", ""}  # the first three are not trained again
    assert_same_results(run.folder.path, unbroken)
    assert files(run.folder.path) == FILES


class Killed(BaseException):
    """Stands for a kill: nothing on the way catches it."""


@pytest.mark.parametrize(
    "moment",
    [("training", "epoch 1"), ("training", "epoch 5"), ("asking dev", ""), ("asking test", "")],
)
@pytest.mark.parametrize("seconds", [0.0, 1000.0])
def test_a_run_stopped_at_any_stage_resumes_to_the_same_numbers(
    make: Make, unbroken: Path, tmp_path: Path, moment: tuple[str, str], seconds: float
) -> None:
    config = make(tmp_path / "run", method=METHOD, learning=TRAINING, checkpoint_seconds=seconds)

    def kill(stage: str, done: int, total: int, note: str) -> None:
        if (stage, note) == moment:
            raise Killed

    with pytest.raises(Killed):
        symprompt.train(config, tick=kill)
    assert not Folder(tmp_path / "run").finished
    assert_same_results(symprompt.train(config, resume=True).folder.path, unbroken)


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
    assert stages == {"asking dev", "asking test"}
    assert_same_results(folder, unbroken)


def test_the_time_of_training_adds_up_over_the_processes(
    make: Make, unbroken: Path, tmp_path: Path
) -> None:
    config = make(tmp_path / "run", method=METHOD, learning=TRAINING, checkpoint_seconds=0.0)

    def kill(stage: str, done: int, total: int, note: str) -> None:
        if note == "epoch 3":
            raise Killed

    with pytest.raises(Killed):
        symprompt.train(config, tick=kill)
    folder = Folder(tmp_path / "run")
    tensors, note = folder.read_tensors("state.safetensors")
    assert 0 < note["seconds"] < 100
    folder.write_tensors("state.safetensors", tensors, note | {"seconds": 1000.0})
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


@pytest.mark.parametrize("note", [{}, [], {"relations": 7}])
def test_prompts_with_a_damaged_note_cannot_be_trained_further(
    make: Make, finished: Run, tmp_path: Path, note: Any
) -> None:
    shutil.copytree(finished.folder.path, tmp_path / "one")
    source = Folder(tmp_path / "one")
    source.write_tensors("encoder.safetensors", source.read_tensors("encoder.safetensors")[0], note)
    config = make(tmp_path / "two", start_from=str(source.path), method=SEPARATE)
    with pytest.raises(RunError, match=r"encoder\.safetensors is damaged"):
        symprompt.train(config)


def unfinished_copy(source: Path, folder: Path) -> Path:
    shutil.copytree(source, folder)
    unfinish(folder)
    return folder


def test_a_run_whose_facts_changed_since_is_refused(
    make: Make, unbroken: Path, data: Path, tmp_path: Path
) -> None:
    folder = unfinished_copy(unbroken, tmp_path / "run")
    shutil.copy(data, tmp_path / "facts.csv")
    config = make(folder, data=str(tmp_path / "facts.csv"), method=METHOD, learning=TRAINING)
    (folder / "config.toml").write_text(to_toml(config))
    text = (tmp_path / "facts.csv").read_text()
    (tmp_path / "facts.csv").write_text(text.replace("Oslo,in,Peru", "Oslo,in,Cuba"))
    before = {name: (folder / name).read_bytes() for name in files(folder)}
    with pytest.raises(RunError, match="begun with other data"):
        symprompt.train(config, resume=True)
    assert {name: (folder / name).read_bytes() for name in files(folder)} == before


def test_a_run_whose_model_changed_since_is_refused(
    make: Make, unbroken: Path, model: Path, tmp_path: Path
) -> None:
    folder = unfinished_copy(unbroken, tmp_path / "run")
    config = make(folder, model=str(tmp_path / "model"), method=METHOD, learning=TRAINING)
    (folder / "config.toml").write_text(to_toml(config))
    other_model(model, tmp_path / "model")
    with pytest.raises(RunError, match="begun with other model"):
        symprompt.train(config, resume=True)


def test_a_run_begun_in_another_dtype_is_refused(
    make: Make, unbroken: Path, tmp_path: Path
) -> None:
    folder = unfinished_copy(unbroken, tmp_path / "run")
    path = folder / "symprompt.json"
    path.write_text(path.read_text().replace('"dtype": "float32"', '"dtype": "bfloat16"'))
    config = make(folder, method=METHOD, learning=TRAINING)
    with pytest.raises(RunError, match="begun in bfloat16 and would go on in float32"):
        symprompt.train(config, resume=True)


# ---------------------------------------------------------------------------- training further


def test_training_goes_on_from_stored_prompts(make: Make, finished: Run, tmp_path: Path) -> None:
    config = make(tmp_path / "run", start_from=str(finished.folder.path), method=SEPARATE)
    further = symprompt.train(config)
    losses = further.folder.read_json("history.json")["epochs"]
    from_scratch = finished.folder.read_json("history.json")["epochs"]
    assert losses[0]["loss"] < from_scratch[0]["loss"]


def test_no_epochs_from_stored_prompts_keeps_them_and_their_answers(
    make: Make, finished: Run, tmp_path: Path
) -> None:
    config = make(
        tmp_path / "run",
        start_from=str(finished.folder.path),
        method=SEPARATE,
        learning={"epochs": 0},
    )
    run = symprompt.train(config)
    for name in ("prompts.safetensors", "encoder.safetensors", "predictions/test.safetensors"):
        theirs = (finished.folder.path / name).read_bytes()
        assert (run.folder.path / name).read_bytes() == theirs, name


def test_some_relations_of_a_run_can_be_trained_further(
    make: Make, finished: Run, tmp_path: Path
) -> None:
    config = make(
        tmp_path / "run",
        start_from=str(finished.folder.path),
        facts={"relations": ["in"]},
        method={"vectors": "separate"},
        learning={"epochs": 0},
    )
    run = symprompt.train(config)
    mine, _ = run.folder.read_tensors("prompts.safetensors")
    theirs, _ = finished.folder.read_tensors("prompts.safetensors")
    assert torch.equal(mine["forth"][0], theirs["forth"][1])


def test_a_run_that_kept_no_encoder_cannot_be_trained_further(make: Make, tmp_path: Path) -> None:
    first = symprompt.train(make(tmp_path / "one", keep_encoder=False, learning={"epochs": 0}))
    assert files(first.folder.path) == FILES - {"encoder.safetensors"}
    with pytest.raises(RunError, match="keeps no encoder"):
        symprompt.train(make(tmp_path / "two", start_from=str(tmp_path / "one")))
    assert not (tmp_path / "two").exists()


def test_prompts_of_another_model_cannot_be_trained_further(
    make: Make, finished: Run, model: Path, tmp_path: Path
) -> None:
    config = make(
        tmp_path / "run",
        model=str(other_model(model, tmp_path / "model")),
        start_from=str(finished.folder.path),
        method={"vectors": "separate"},
    )
    with pytest.raises(RunError, match="made by another model"):
        symprompt.train(config)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "changed",
    [
        {"prompt": {"encoder": "mlp"}},
        {"prompt": {"encoder": "free"}},
    ],
)
def test_prompts_of_another_shape_cannot_be_trained_further(
    make: Make, finished: Run, tmp_path: Path, changed: dict[str, Any]
) -> None:
    config = make(
        tmp_path / "run",
        start_from=str(finished.folder.path),
        method={"vectors": "separate"},
        **changed,
    )
    with pytest.raises(RunError, match="another method, template or encoder"):
        symprompt.train(config)


@pytest.mark.parametrize("template", ["<2> [X] <1> [Y] <1>", "<2> [X] <2> [Y] <1>"])
def test_prompts_of_another_template_cannot_be_trained_further(
    make: Make, finished: Run, tmp_path: Path, template: str
) -> None:
    config = make(
        tmp_path / "run",
        start_from=str(finished.folder.path),
        method=SEPARATE,
        prompt={"template": template},
    )
    with pytest.raises(RunError, match=r"another template for relation capital: '<2> \[X\] <1>"):
        symprompt.train(config)
    assert not (tmp_path / "run").exists()


def test_prompts_of_another_way_back_cannot_be_trained_further(
    make: Make, finished: Run, tmp_path: Path
) -> None:
    start = {"start_from": str(finished.folder.path), "learning": {"epochs": 0}}
    other = {**SEPARATE, "blanks": "kept"}
    with pytest.raises(RunError, match=r'method.blanks = "swapped", not "kept"'):
        symprompt.train(make(tmp_path / "run", method=other, **start))
    # P-tuning has no way back, so nothing of its prompts depends on the blanks.
    symprompt.train(make(tmp_path / "one", method={"name": "ptuning"}, learning={"epochs": 0}))
    start["start_from"] = str(tmp_path / "one")
    symprompt.train(make(tmp_path / "two", method={"blanks": "kept"}, **start))


def test_relations_without_stored_prompts_are_named(make: Make, tmp_path: Path) -> None:
    config = make(tmp_path / "one", facts={"relations": ["in"]}, learning={"epochs": 0})
    symprompt.train(config)
    with pytest.raises(RunError, match="no prompts for relation capital"):
        symprompt.train(make(tmp_path / "two", start_from=str(tmp_path / "one")))


def test_an_unfinished_run_is_not_trained_further(
    make: Make, unbroken: Path, tmp_path: Path
) -> None:
    folder = unfinished_copy(unbroken, tmp_path / "one")
    with pytest.raises(RunError, match="unfinished run"):
        symprompt.train(make(tmp_path / "two", method=METHOD, start_from=str(folder)))


def test_only_finished_runs_are_loaded(unbroken: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="not a run folder"):
        Run.load(tmp_path)
    with pytest.raises(RunError, match="unfinished"):
        Run.load(unfinished_copy(unbroken, tmp_path / "run"))
