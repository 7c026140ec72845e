"""A worker: what it tells, which model it keeps, and asking again with borrowed prompts."""

from __future__ import annotations

import io
import json
import queue
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import symprompt
from symprompt.config import to_toml
from symprompt.papers import worker
from symprompt.papers.worker import Worker, bound_memory, serve
from symprompt.probing.config import RunConfig
from symprompt.probing.results import load_asked, load_metrics
from symprompt.runs.folder import Folder
from tiny.models import make_facts, run_config
from tiny.runs import write_csv

Told = list[Mapping[str, Any]]


@pytest.fixture
def make(family_folder: Callable[[str], Path], tmp_path: Path) -> Callable[..., RunConfig]:
    data = write_csv(make_facts().select(["capital", "in"]), tmp_path / "facts.csv")
    place = {"model": str(family_folder("bert")), "data": str(data), "dtype": "float32"}

    def config(name: str, **sections: Any) -> RunConfig:
        return run_config(**place, out=str(tmp_path / name), **sections)

    return config


def test_a_worker_tells_of_progress_and_the_end(make: Callable[..., RunConfig]) -> None:
    told: Told = []
    Worker("cpu", told.append).make("toy/spe", make("spe"), "")
    assert Folder(make("spe").out).finished
    assert any(answer.get("note", "").startswith("training ") for answer in told)
    assert (told[-1]["job"], told[-1]["kind"]) == ("toy/spe", "done")
    assert told[-1]["about"]["device"] == "cpu"


def test_borrowed_prompts_answer_as_the_run_that_learned_them_would(
    make: Callable[..., RunConfig],
) -> None:
    told: Told = []
    hand = Worker("cpu", told.append)
    hand.make("five", make("five", method={"k": 5}), "")
    hand.make("nine", make("nine", method={"k": 9, "choose_weight": "fixed"}), make("five").out)
    direct = symprompt.train(make("direct", method={"k": 9}))
    again = load_asked(Folder(make("nine").out), "test").predictions
    wanted, _ = direct.predictions("test")
    assert (again.candidates == wanted.candidates).all()
    np.testing.assert_allclose(again.subject_score, wanted.subject_score, rtol=1e-5)


def test_the_model_is_kept_until_its_weights_change(
    make: Callable[..., RunConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    loads = []
    load = worker.LanguageModel.load

    def counted(*arguments: Any, **options: Any) -> Any:
        loads.append(arguments)
        return load(*arguments, **options)

    monkeypatch.setattr(worker.LanguageModel, "load", counted)
    hand = Worker("cpu", lambda answer: None)
    for number in range(2):
        hand.make("m", make(f"manual-{number}", method={"name": "manual"}), "")
    assert len(loads) == 1
    assert hand._backbone is not None
    with torch.no_grad():
        next(iter(hand._backbone.model.parameters()))[0] += 1
    hand.make("m", make("manual-2", method={"name": "manual"}), "")
    assert len(loads) == 2
    runs = [Folder(make(f"manual-{number}").out) for number in (0, 2)]
    assert load_metrics(runs[0])["test"] == load_metrics(runs[1])["test"]


def test_fine_tuning_gets_a_model_in_float32(
    make: Callable[..., RunConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    load = worker.LanguageModel.load

    def seen(path: str, *, device: str, dtype: str) -> Any:
        asked.append(dtype)
        return load(path, device=device, dtype="float32")

    monkeypatch.setattr(worker.LanguageModel, "load", seen)
    hand = Worker("cpu", lambda answer: None)
    for method in ("ptuning", "finetune"):
        hand.load(replace(make(method, method={"name": method}), dtype="auto"))
    assert asked == ["auto", "float32"]


class Ended(BaseException):
    """The process would have ended here."""


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """What would end the process raises instead."""

    def end(code: int) -> None:
        raise Ended(code)

    monkeypatch.setattr(worker.os, "_exit", end)


def test_errors_are_told_and_only_odd_ones_end_the_worker(
    make: Callable[..., RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: None
) -> None:
    told: Told = []
    inbox: queue.Queue[str] = queue.Queue()
    configs = [replace(make("bad"), data="/no/such"), make("odd"), make("full")]
    for number, config in enumerate(configs):
        path = tmp_path / f"{number}.toml"
        path.write_text(to_toml(config))
        order = {"name": str(number), "command": "train", "config": str(path), "source": ""}
        inbox.put(json.dumps(order))
    kinds: list[BaseException] = [RuntimeError("odd\nthing"), torch.OutOfMemoryError()]

    def train(config: RunConfig, **_: Any) -> Any:
        if config.data == "/no/such":
            return symprompt.train(config)
        raise kinds.pop(0)

    hand = Worker("cpu", told.append)
    monkeypatch.setattr(worker, "train", train)
    for _ in range(2):
        with pytest.raises(Ended):
            serve(hand, inbox)
    assert [answer["job"] for answer in told if answer["kind"] == "failed"] == ["0", "1", "2"]
    assert "/no/such does not exist" in told[0]["note"]
    assert told[1]["note"] == "RuntimeError: odd"
    assert "not enough memory; raise --memory-gib" in told[2]["note"]


def test_the_end_of_the_input_ends_the_worker(ends: None) -> None:
    inbox: queue.Queue[str] = queue.Queue()
    with pytest.raises(Ended):
        worker.listen(io.StringIO("one\ntwo\n"), inbox)
    assert [inbox.get(), inbox.get()] == ["one\n", "two\n"]


def test_memory_is_bounded_on_gpus_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    shares: list[tuple[float, str]] = []
    total = type("Properties", (), {"total_memory": 80 << 30})
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda place: total)
    monkeypatch.setattr(
        torch.cuda,
        "set_per_process_memory_fraction",
        lambda share, place: shares.append((share, str(place))),
    )
    bound_memory("cpu", 20.0)
    bound_memory("cuda:1", 0.0)
    bound_memory("cuda:1", 20.0)
    bound_memory("cuda:1", 200.0)
    assert shares == [(0.25, "cuda:1"), (1.0, "cuda:1")]
