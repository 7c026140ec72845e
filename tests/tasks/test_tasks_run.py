"""Runs on labelled tasks: they learn, are resumed to the bit, and refuse what is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from symprompt.errors import ConfigError, DataError, RunError, TrainingError
from symprompt.files.atomic import read_tensors
from symprompt.models import LanguageModel
from symprompt.tasks.config import TaskConfig, TuneConfig, load_tune_config
from symprompt.tasks.folder import CARD, Card, load_metrics
from symprompt.tasks.predict import predict_file
from symprompt.tasks.prepare import Session, read_task
from symprompt.tasks.train import tune
from tiny.labelled import write_toy
from tiny.tasks import KINDS, run_toy, toy_config

MAIN = {"sequence": "accuracy", "pair": "accuracy", "question": "f1"}


@pytest.fixture(scope="module")
def bert(knowing_bert: LanguageModel) -> Path:
    return Path(knowing_bert.source)


@pytest.fixture(scope="module")
def tagged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy(tmp_path_factory.mktemp("tagged"), "tagging")


@pytest.mark.parametrize("kind", KINDS)
def test_p_tuning_v2_learns_every_kind_of_task(kind: str, bert: Path, tmp_path: Path) -> None:
    # What [CLS] says takes more examples to learn than what a word is.
    train, epochs, least = (192, 20, 70) if kind in ("sequence", "pair") else (96, 12, 80)
    data = write_toy(tmp_path / "data", kind, sizes={"train": train, "dev": 16, "test": 48})
    run = run_toy(data, bert, tmp_path / "run", kind, learning__epochs=epochs)
    history = run.folder.read_json("history.json")["epochs"]
    assert history[-1]["loss"] < 0.5 * history[0]["loss"]
    assert run.metrics["splits"]["test"][MAIN.get(kind, "f1")] > least
    assert run.metrics["reported"] == "test"
    assert run.metrics["chosen_on"] == "dev"
    rows = (run.folder.path / "predictions/test.jsonl").read_text().splitlines()
    assert len(rows) == 48
    assert {"id", "prediction", "gold"} <= set(json.loads(rows[0]))


@pytest.mark.parametrize("method", ["ft", "pt", "lora"])
def test_other_methods_learn_to_tag(method: str, bert: Path, tagged: Path, tmp_path: Path) -> None:
    rate = 3e-3 if method == "ft" else 2e-2
    run = run_toy(
        tagged,
        bert,
        tmp_path / "run",
        "tagging",
        method=method,
        learning__rate=rate,
        learning__epochs=12,
    )
    assert run.metrics["splits"]["test"]["f1"] > 70
    assert run.metrics["method"] == method


def test_a_run_folder_says_how_it_was_made(bert: Path, tagged: Path, tmp_path: Path) -> None:
    run = run_toy(tagged, bert, tmp_path / "run", "tagging", learning__epochs=1)
    card, metrics = run.folder.load(CARD, Card), load_metrics(run.folder)
    assert card["labels"] == ["O", "B-LAND", "I-LAND", "B-TONGUE", "I-TONGUE"]
    assert card["file"] == "prompt.safetensors"
    assert run.folder.manifest.acceleration.startswith("plain: rows are packed on CUDA alone")
    assert {"symprompt", "torch", "transformers"} <= set(metrics["versions"])
    assert metrics["trainable_parameters"] < metrics["model_parameters"]
    assert metrics["counts"] == {"train": 96, "dev": 16, "test": 24}
    assert metrics["device"] == "cpu"
    tensors, _ = read_tensors(run.folder.path / "prompt.safetensors")
    assert set(tensors) == {"prompt.prefix", "head.output.weight", "head.output.bias"}
    assert not run.folder.has("state.safetensors")


def test_a_finished_run_is_read_back(bert: Path, tagged: Path, tmp_path: Path) -> None:
    config = toy_config(tagged, bert, tmp_path / "run", "tagging", learning__epochs=1)
    first = tune(config)
    assert tune(config).metrics == first.metrics
    with pytest.raises(RunError, match=r"another learning\.epochs"):
        tune(replace(config, learning=replace(config.learning, epochs=2)))


def test_runs_of_one_session_share_model_and_data(bert: Path, tagged: Path, tmp_path: Path) -> None:
    session = Session()
    config = toy_config(tagged, bert, tmp_path / "a", "tagging", learning__epochs=1)
    one = tune(config, session=session)
    backbone = session.backbone(config)
    laid = session.task(config, backbone)
    again = tune(replace(config, out=str(tmp_path / "b")), session=session)
    assert session.task(config, backbone) is laid
    assert session.backbone(config) is backbone
    assert again.metrics["splits"] == one.metrics["splits"]


def test_a_loss_that_is_not_finite_stops_with_a_sentence(
    bert: Path, tagged: Path, tmp_path: Path
) -> None:
    with pytest.raises(TrainingError, match="not finite at epoch 1, step"):
        run_toy(
            tagged,
            bert,
            tmp_path / "run",
            "tagging",
            learning__rate=1e30,
            learning__clip=0.0,
            learning__schedule="constant",
        )


def test_early_stopping_keeps_the_best_epoch(bert: Path, tagged: Path, tmp_path: Path) -> None:
    run = run_toy(
        tagged,
        bert,
        tmp_path / "run",
        "tagging",
        learning__epochs=40,
        learning__patience=2,
        learning__rate=1e-7,
    )
    history = run.folder.read_json("history.json")
    assert len(history["epochs"]) < 40
    assert history["best_epoch"] == len(history["epochs"]) - 2


def test_training_goes_on_from_another_run(bert: Path, tagged: Path, tmp_path: Path) -> None:
    first = run_toy(tagged, bert, tmp_path / "a", "tagging", learning__epochs=8)
    second = run_toy(
        tagged, bert, tmp_path / "b", "tagging", learning__epochs=1, start_from=str(tmp_path / "a")
    )
    losses = [run.folder.read_json("history.json")["epochs"][0]["loss"] for run in (first, second)]
    assert losses[1] < losses[0]
    with pytest.raises(RunError, match="trained by pt2, not by pt"):
        run_toy(
            tagged, bert, tmp_path / "c", "tagging", method="pt", start_from=str(tmp_path / "a")
        )


def test_the_part_held_out_chooses_where_there_is_no_test_split(bert: Path, tmp_path: Path) -> None:
    data = write_toy(tmp_path / "data", "sequence", sizes={"train": 40, "dev": 10})
    run = run_toy(data, bert, tmp_path / "run", "sequence", learning__epochs=1)
    assert run.metrics["chosen_on"] == "held-out"
    assert run.metrics["reported"] == "dev"
    assert run.metrics["counts"] == {"train": 36, "dev": 10, "held-out": 4}
    as_paper = run_toy(
        data, bert, tmp_path / "paper", "sequence", learning__epochs=1, task__held_out=0.0
    )
    assert as_paper.metrics["chosen_on"] == as_paper.metrics["reported"] == "dev"


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"data": "nowhere"}, DataError, "nowhere"),
        ({"task__columns": ["tags"]}, ConfigError, "role=column"),
        ({"task__columns": ["tags=missing"]}, DataError, "missing"),
        ({"learning__choose": "bleu"}, ConfigError, "measures: f1"),
        ({"prefix__length": 60, "method": "pt"}, DataError, r"prefix\.length"),
        ({"method": "mpt2"}, ConfigError, r"mixture\.tasks"),
        ({"out": ""}, ConfigError, "--out"),
    ],
)
def test_bad_input_is_one_sentence(
    changes: dict[str, Any],
    error: type[Exception],
    words: str,
    bert: Path,
    tagged: Path,
    tmp_path: Path,
) -> None:
    rest = {key: value for key, value in changes.items() if key not in ("data", "out")}
    own = {key: changes[key] for key in ("data", "out") if key in changes}

    def run() -> None:
        tune(replace(toy_config(tagged, bert, tmp_path / "run", "tagging", **rest), **own))

    with pytest.raises(error, match=words):
        run()
    # Nothing is left behind that a mended command would stumble over.
    assert not (tmp_path / "run").exists()


def test_a_set_without_its_training_file_says_what_is_missing(tmp_path: Path) -> None:
    answer = {"text": "Rome", "answer_start": 0}
    asked = {"id": "1", "question": "Where?", "answers": [answer], "is_impossible": False}
    paragraphs = [{"context": "Rome it is.", "qas": [asked]}]
    (tmp_path / "dev-v2.0.json").write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
    message = "squad2 has no training examples, only 1 of dev; put its training file into"
    with pytest.raises(DataError, match=message):
        read_task(TaskConfig(name="squad2"), str(tmp_path))


def test_a_label_that_training_lacks_is_refused(bert: Path, tmp_path: Path) -> None:
    data = write_toy(tmp_path / "data", "sequence")
    with (data / "dev.jsonl").open("a") as stream:
        stream.write(json.dumps({"text": "the", "label": "river"}) + "\n")
    with pytest.raises(DataError, match="river"):
        run_toy(data, bert, tmp_path / "run", "sequence")


def test_predictions_for_a_file_are_those_of_the_run(
    bert: Path, tagged: Path, tmp_path: Path
) -> None:
    for method in ("pt2", "pt", "lora", "ft"):
        out = tmp_path / method
        run = run_toy(tagged, bert, out, "tagging", method=method, learning__epochs=2)
        found = predict_file(
            out, tagged / "test.jsonl", device="cpu", out=str(tmp_path / "p.jsonl")
        )
        lines = (out / "predictions/test.jsonl").read_text().splitlines()
        stored = [json.loads(row) for row in lines]
        assert [row["prediction"] for row in found.rows] == [row["prediction"] for row in stored]
        assert found.metrics == run.metrics["splits"]["test"]
        assert len((tmp_path / "p.jsonl").read_text().splitlines()) == 24


def test_a_prompt_for_another_model_is_refused(
    bert: Path, tagged: Path, tmp_path: Path, family_folder: Callable[[str], Path]
) -> None:
    run_toy(tagged, bert, tmp_path / "run", "tagging", learning__epochs=1)
    other = str(family_folder("electra"))
    with pytest.raises(RunError, match="learned for another model"):
        predict_file(tmp_path / "run", tagged / "test.jsonl", model=other, device="cpu")


@pytest.mark.parametrize("name", ["card.json", "prompt.safetensors"])
def test_a_damaged_prompt_is_refused(name: str, bert: Path, tagged: Path, tmp_path: Path) -> None:
    run_toy(tagged, bert, tmp_path / "run", "tagging", learning__epochs=1)
    (tmp_path / "run" / name).write_text("{}")
    with pytest.raises(RunError, match=name):
        predict_file(tmp_path / "run", tagged / "test.jsonl", device="cpu")


def test_a_config_reads_back_from_a_run(bert: Path, tagged: Path, tmp_path: Path) -> None:
    config: TuneConfig = toy_config(tagged, bert, tmp_path / "run", "tagging", learning__epochs=1)
    assert load_tune_config(str(tune(config).folder.path / "config.toml")) == config


def test_settings_of_spans_that_are_the_defaults_do_no_harm(bert: Path, tmp_path: Path) -> None:
    data = write_toy(tmp_path / "data", "tagging")
    config = toy_config(data, bert, tmp_path / "run", "tagging", span__length=8, learning__epochs=1)
    tune(config)
