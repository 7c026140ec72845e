"""Mixtures: a prefix that tasks share, then each task from it; killed and resumed to the bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from symprompt.config import build
from symprompt.errors import ConfigError
from symprompt.files.atomic import read_tensors
from symprompt.runs.folder import Folder
from symprompt.tasks.config import TuneConfig
from symprompt.tasks.folder import CARD, Card
from symprompt.tasks.train import tune
from tiny.labelled import write_entities


def mixture_config(data: Path, model: Path, out: Path, **changes: Any) -> TuneConfig:
    return build(
        TuneConfig,
        {
            "method": "mpt2",
            "model": str(model),
            "data": str(data),
            "out": str(out),
            "device": "cpu",
            "task": {"max_length": 32, "stride": 4},
            "mixture": {"tasks": ["conll2003", "conll2004"], "epochs": 2},
            "prefix": {"length": 3},
            "learning": {"rate": 1e-2, "batch": 4, "epochs": 2},
            "checkpoint_seconds": 0.0,
        }
        | changes,
    )


@pytest.fixture
def bert(family_folder: Callable[[str], Path]) -> Path:
    return family_folder("bert")


def test_a_mixture_does_not_train_what_it_cannot_go_on_from(bert: Path, tmp_path: Path) -> None:
    data = write_entities(tmp_path / "data")
    prefix = {"length": 3, "encoder": "mlp"}
    config = mixture_config(data, bert, tmp_path / "run", prefix=prefix)
    stages: list[str] = []
    with pytest.raises(ConfigError, match=r"prefix\.encoder is 'mlp'.*and the method is 'mpt2'"):
        tune(config, tick=lambda stage, *_: stages.append(stage))
    assert not any("training" in stage for stage in stages)
    assert not (tmp_path / "run").exists()


def test_a_mixture_shares_a_prefix_and_then_parts(bert: Path, tmp_path: Path) -> None:
    data = write_entities(tmp_path / "data")
    run = tune(mixture_config(data, bert, tmp_path / "run"))
    assert set(run.metrics["tasks"]) == {"conll2003", "conll2004"}
    shared, _ = read_tensors(tmp_path / "run/shared/prompt.safetensors")
    assert {key.split(".")[1] for key in shared if key.startswith("head.")} == {
        "conll2003",
        "conll2004",
    }
    history = Folder(tmp_path / "run/shared").read_json("history.json")
    assert set(history["epochs"][0]["dev"]) == {"conll2003", "conll2004"}
    prefixes = []
    for name in ("conll2003", "conll2004"):
        folder = Folder(tmp_path / "run" / name)
        assert folder.load(CARD, Card)["method"] == "mpt2"
        prefixes.append(folder.read_tensors("prompt.safetensors")[0]["prompt.prefix"])
    # Each went on from the shared prefix, and away from it.
    assert not torch.equal(*prefixes)
    apart = (prefixes[0] - shared["prompt.prefix"]).abs().max()
    assert 0 < float(apart) < 1
    assert tune(mixture_config(data, bert, tmp_path / "run")).metrics == run.metrics


def test_one_task_of_a_mixture_can_be_asked_for(bert: Path, tmp_path: Path) -> None:
    data = write_entities(tmp_path / "data")
    config = mixture_config(
        data, bert, tmp_path / "run", task={"name": "conll2004", "max_length": 32, "stride": 4}
    )
    assert set(tune(config).metrics["tasks"]) == {"conll2004"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"mixture": {"tasks": ["conll2003", "conll2003=x"]}}, "twice"),
        ({"task": {"name": "rte"}}, "not one of mixture.tasks"),
    ],
)
def test_a_bad_mixture_is_refused(
    changes: dict[str, Any], words: str, bert: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=words):
        tune(mixture_config(tmp_path, bert, tmp_path / "run", **changes))
