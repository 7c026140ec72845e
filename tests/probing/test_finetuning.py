"""Whole fine-tuning runs on a tiny model: files, stacks, kills, questions."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import symprompt
from symprompt import Run, cli
from symprompt.errors import ModelError, RunError
from symprompt.models import LanguageModel
from symprompt.probing.config import RunConfig
from symprompt.probing.results import load_asked, load_card
from symprompt.runs.folder import Folder
from tiny.models import make_facts, run_config
from tiny.runs import Make, accept_files, timeless, write_csv

FILES = {
    "config.toml",
    "facts.jsonl",
    "history.json",
    "predictions/dev.safetensors",
    "predictions/test.safetensors",
    "prompts.json",
    "symprompt.json",
}
RESULTS = (
    "facts.jsonl",
    "predictions/dev.safetensors",
    "predictions/test.safetensors",
    "prompts.json",
)


@pytest.fixture(scope="module")
def make(family_folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Configs of fine-tuning runs; the run folder is the first argument."""
    data = write_csv(make_facts(), tmp_path_factory.mktemp("facts") / "facts.csv")

    def config(out: Path, **sections: Any) -> RunConfig:
        tables: dict[str, Any] = {
            "model": str(family_folder("bert")),
            "data": str(data),
            "out": str(out),
            "method": {"name": "finetune"},
            "prompt": {"template": "manual"},
            "learning": {"epochs": 3, "rate": 5e-3},
            "tuning": {"at_once": 1},
        }
        for key, value in sections.items():
            tables[key] = {**tables.get(key, {}), **value} if isinstance(value, dict) else value
        return run_config(**tables)

    return config


@pytest.fixture(scope="module")
def finished(make: Make, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A finished run of three stacks, weights stored; tests must not change its folder."""
    out = tmp_path_factory.mktemp("finished") / "run"
    return symprompt.train(make(out, tuning={"save_weights": True}))


@pytest.fixture(scope="module")
def adapted(make: Make, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A finished run with adapters; tests must not change its folder."""
    out = tmp_path_factory.mktemp("adapted") / "run"
    return symprompt.train(make(out, tuning={"tune": "lora"}))


@pytest.fixture(scope="module")
def unbroken(make: Make, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of three stacks, weights not stored."""
    return symprompt.train(make(tmp_path_factory.mktemp("unbroken") / "run")).folder.path


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def assert_same_results(one: Path, other: Path) -> None:
    for name in RESULTS:
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
    assert timeless(one) == timeless(other)


# ---------------------------------------------------------------------------------- a whole run


def test_a_run_leaves_its_files_and_weights_only_if_asked(finished: Run, unbroken: Path) -> None:
    assert files(unbroken) == FILES
    assert not (unbroken / "parts").exists()
    weights = {f"weights/000{place}/model.safetensors" for place in range(3)}
    assert files(finished.folder.path) == FILES | weights
    assert_same_results(finished.folder.path, unbroken)


def test_metrics_history_and_card_tell_of_every_relation(finished: Run) -> None:
    metrics, folder = finished.metrics, finished.folder
    assert metrics["method"] == "finetune"
    assert metrics["weights"] is None
    assert set(metrics["seconds"]) == {"training", "asking dev", "asking test"}
    assert set(metrics["test"]["relations"]) == {"capital", "in", "near"}
    history = folder.read_json("history.json")
    assert len(history["best_epoch"]["forth"]) == 3
    assert [entry["relations"] for entry in history["epochs"]] == [
        [name] for name in ("capital", "in", "near") for _ in range(3)
    ]
    assert load_card(folder)["parts"] == []
    predictions, facts = finished.predictions("test")
    names = list(load_card(folder)["relations"])
    assert [names[index] for index in predictions.relation] == [fact.relation for fact in facts]


def test_the_size_of_a_stack_changes_rounding_alone(
    make: Make, unbroken: Path, tmp_path: Path
) -> None:
    run = symprompt.train(make(tmp_path / "run", tuning={"at_once": 0}))
    assert "relations" not in run.folder.read_json("history.json")["epochs"][0]
    for split in ("dev", "test"):
        one, _ = run.predictions(split)  # type: ignore[arg-type]
        other, _ = Run.load(unbroken).predictions(split)  # type: ignore[arg-type]
        assert np.array_equal(one.relation, other.relation)
        np.testing.assert_allclose(one.gold_score, other.gold_score, rtol=1e-3, atol=1e-3)


def test_without_epochs_the_numbers_are_those_of_manual_prompts(make: Make, tmp_path: Path) -> None:
    tuned = symprompt.train(make(tmp_path / "tuned", learning={"epochs": 0}))
    manual = symprompt.train(make(tmp_path / "manual", method={"name": "manual"}))
    assert tuned.metrics["test"] == manual.metrics["test"]


def test_the_model_is_loaded_in_float32_and_half_precision_is_refused(
    make: Make, finished: Run, family_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    assert finished.metrics["dtype"] == "float32"
    half = LanguageModel.load(str(family_folder("bert")), device="cpu", dtype="bfloat16")
    with pytest.raises(ModelError, match="float32 to fine-tune"):
        symprompt.train(make(tmp_path / "run"), backbone=half)
    assert not (tmp_path / "run").exists()


def test_a_causal_model_is_tuned_and_asked(
    make: Make, family_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    run = symprompt.train(
        make(
            tmp_path / "run",
            model=str(family_folder("gpt2")),
            prompt={"template": "[X] [Y]"},
            tuning={"at_once": 2, "save_weights": True},
        )
    )
    predictions, facts = run.predictions("test")
    answers = run.ask(facts[-1].relation, subject=facts[-1].subject, top=5, device="cpu")
    assert [answer.text for answer in answers] == load_asked(run.folder, "test").candidates()[-1]
    assert np.isfinite(predictions.gold_score).all()


# ------------------------------------------------------------------------------------ resuming


class Killed(BaseException):
    """Stands for a kill: nothing on the way catches it."""


@pytest.mark.parametrize(
    ("tune", "stage", "stack"),
    [
        ("full", "training", 1),
        ("full", "asking test", 3),
        ("lora", "training", 3),
        ("lora", "asking dev", 2),
    ],
)
def test_a_run_stopped_at_any_stage_resumes_to_the_same_numbers(
    make: Make, finished: Run, adapted: Run, tmp_path: Path, tune: str, stage: str, stack: int
) -> None:
    whole = (finished if tune == "full" else adapted).folder.path
    config = make(tmp_path / "run", tuning={"tune": tune, "save_weights": tune == "full"})

    def kill(now: str, done: int, total: int, note: str) -> None:
        if now == stage and f"relations {stack}-{stack} " in note:
            raise Killed

    with pytest.raises(Killed):
        symprompt.train(config, tick=kill)
    assert not Folder(tmp_path / "run").finished
    resumed = symprompt.train(config, resume=True).folder.path
    assert_same_results(resumed, whole)
    assert files(resumed) == files(whole)
    for name in files(whole):
        if name.endswith(".safetensors"):
            assert (whole / name).read_bytes() == (resumed / name).read_bytes()


def stop_after_one(config: RunConfig) -> Path:
    """Run the first stack only; give its file."""

    def kill(now: str, done: int, total: int, note: str) -> None:
        if "relations 2-" in note:
            raise Killed

    with pytest.raises(Killed):
        symprompt.train(config, tick=kill)
    return Path(config.out) / "parts/0000.safetensors"


def test_another_size_of_stack_may_go_on_with_what_is_done(
    make: Make, unbroken: Path, tmp_path: Path
) -> None:
    stop_after_one(make(tmp_path / "run"))
    config = make(tmp_path / "run", tuning={"at_once": 2})
    run = symprompt.train(config, resume=True)
    one, _ = run.predictions("test")
    other, _ = Run.load(unbroken).predictions("test")
    np.testing.assert_allclose(one.gold_score, other.gold_score, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("damage", ["bytes", "note", "columns"])
def test_a_damaged_stack_is_named(make: Make, tmp_path: Path, damage: str) -> None:
    config = make(tmp_path / "run")
    stored = stop_after_one(config)
    if damage == "bytes":
        stored.write_bytes(b"nothing")
    else:
        tensors = load_file(stored)
        about = {"about": json.dumps({"relations": ["near"]})}
        if damage == "columns":
            del tensors["test/known"]
        save_file(tensors, stored, metadata=about)
    with pytest.raises(RunError, match=r"parts.0000\.safetensors"):
        symprompt.train(config, resume=True)


# -------------------------------------------------------------------------------------- asking


def test_a_run_with_weights_answers_as_it_did(finished: Run) -> None:
    predictions, facts = finished.predictions("test")
    candidates = load_asked(finished.folder, "test").candidates()
    for row in (0, 5, len(facts) - 1):
        answers = finished.ask(facts[row].relation, subject=facts[row].subject, top=5, device="cpu")
        assert [answer.text for answer in answers] == candidates[row]
        np.testing.assert_allclose(
            [answer.object_score for answer in answers], predictions.object_score[row], rtol=1e-4
        )


def test_adapters_are_always_stored_and_answer_as_they_did(adapted: Run) -> None:
    run = adapted
    weights = {
        f"weights/000{place}/{name}"
        for place in range(3)
        for name in ("adapter_model.safetensors", "adapter_config.json")
    }
    assert files(run.folder.path) == FILES | weights
    _, facts = run.predictions("test")
    answers = run.ask(facts[0].relation, subject=facts[0].subject, top=5, device="cpu")
    assert [answer.text for answer in answers] == load_asked(run.folder, "test").candidates()[0]


def test_stored_adapters_can_be_loaded_by_the_peft_library(
    adapted: Run, family_folder: Callable[[str], Path]
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import peft
    run = adapted
    backbone = LanguageModel.load(str(family_folder("bert")), device="cpu", dtype="float32")
    model = backbone.model
    model.base_model._forward_hooks.clear()
    tokenizer = backbone.vocabulary.tokenizer
    adapted = peft.PeftModel.from_pretrained(model, run.folder.path / "weights/0001").eval()
    predictions, facts = run.predictions("test")
    row = next(index for index, fact in enumerate(facts) if fact.relation == "in")
    text = f"{facts[row].subject} lies in {tokenizer.mask_token} ."
    ids = torch.tensor([tokenizer(text)["input_ids"]])
    at = int((ids[0] == tokenizer.mask_token_id).nonzero())
    with torch.no_grad():
        logits = adapted(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0, at]
    scores = logits.log_softmax(0)[torch.from_numpy(predictions.candidates[row])].numpy()
    np.testing.assert_allclose(scores, predictions.object_score[row], rtol=1e-4, atol=1e-4)


def test_a_run_without_weights_says_so_before_it_loads_the_model(
    unbroken: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(RunError, match=r"weights were not stored.*--save-weights"):
        Run.load(unbroken).ask("in", subject="New York", model="no such model")
    with pytest.raises(SystemExit):
        cli.main(["ask", str(unbroken), "--relation", "in", "--subject", "New York"])
    assert "--save-weights" in capsys.readouterr().err


def test_a_run_has_no_way_back(finished: Run) -> None:
    with pytest.raises(symprompt.SympromptError, match="learned no subject prompt"):
        finished.ask("in", object="France")


def test_weights_that_do_not_fit_are_refused(finished: Run, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished.folder.path, folder)
    stored = folder / "weights/0001/model.safetensors"
    tensors = load_file(stored)
    name = min(tensors)
    del tensors[name]
    save_file(tensors, stored, metadata={"about": "{}"})
    accept_files(folder)
    with pytest.raises(RunError, match=f"0001/model.safetensors is damaged: {name}"):
        Run.load(folder).ask("in", subject="New York", device="cpu")
