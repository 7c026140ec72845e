"""Prefixes, adapters and prompts of tune for peft: a fresh process without symprompt predicts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard

import symprompt
from symprompt.errors import SympromptError
from symprompt.tasks.predict import TaskRun
from symprompt.tasks.train import tune
from tiny.hub import Hub
from tiny.labelled import write_task, write_toy
from tiny.runs import Call
from tiny.tasks import pattern_config, run_toy

RUNS: dict[str, dict[str, Any]] = {
    "bert-pt2": {"prefix__shift_positions": True},
    "gpt2-pt2": {"prefix__shift_positions": True, "prefix__encoder": "mlp"},
    "bert-lora": {"method": "lora", "head__kind": "mlp"},
    "mpnet-lora": {"method": "lora"},
    "gpt2-lora": {"method": "lora"},
    "roberta-pt": {"method": "pt"},
    "bert-pt": {"method": "pt"},
}
TEXTS = ["Paris is old .", "the river lies in France , and New York"]
SCRIPT = """
import contextlib, io, json, os, sys, warnings
warnings.simplefilter("ignore")
sys.modules["symprompt"] = None
texts, folders = json.load(sys.stdin)
found = []
for where in folders:
    os.chdir(where)
    code = open("README.md", encoding="utf-8").read().split("```python\\n")[1].split("```")[0]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code.replace("['A text.', 'Another.']", repr(texts)), globals())
    labels, rounded = eval("[" + printed.getvalue().replace("] [", "], [") + "]")
    assert abs(torch.tensor(rounded) - shares).max() < 6e-5
    found.append([labels, shares.tolist()])
print(json.dumps(found))
"""


def test_peft_alone_predicts_what_predict_does(
    family_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    data = write_toy(tmp_path / "data", "sequence")
    for name, changes in RUNS.items():
        model = family_folder(name.partition("-")[0])
        run_toy(data, model, tmp_path / name, "sequence", learning__epochs=1, **changes)
        symprompt.export_run(tmp_path / name, tmp_path / f"{name}-peft")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        input=json.dumps([TEXTS, [str(tmp_path / f"{name}-peft") for name in RUNS]]),
        capture_output=True,
        text=True,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    for name, (labels, shares) in zip(RUNS, found, strict=True):
        rows = TaskRun.load(tmp_path / name).predict(TEXTS, probabilities=True, device="cpu").rows
        for row, own in zip(rows, shares, strict=True):
            wanted = [row["probabilities"][label] for label in labels]
            assert own == pytest.approx(wanted, abs=1e-5), name


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("bert", {}, "positions that begin at 0, and peft's begin after the prefix"),
        ("mpnet", {"prefix__shift_positions": True}, "reads no cache of past keys and values"),
        ("bert", {"method": "ft"}, "made by ft, which changed weights of the model"),
    ],
)
def test_what_peft_cannot_express_is_refused(
    family_folder: Callable[[str], Path],
    tmp_path: Path,
    call: Call,
    family: str,
    changes: dict[str, Any],
    message: str,
) -> None:
    data = write_toy(tmp_path / "data", "sequence")
    changes = {"learning__epochs": 1, **changes}
    if "method" not in changes:
        changes.setdefault("prefix__shift_positions", False)
    run_toy(data, family_folder(family), tmp_path / "run", "sequence", **changes)
    said = call("export", tmp_path / "run", "--to", "peft", tmp_path / "out")
    assert said.code == 2
    assert message in said.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["bert-pt2", "gpt2-lora", "bert-pt"])
def test_an_exported_run_is_the_same_run_when_it_is_imported(
    family_folder: Callable[[str], Path], tmp_path: Path, call: Call, name: str
) -> None:
    data, model = write_toy(tmp_path / "data", "sequence"), family_folder(name.partition("-")[0])
    run_toy(data, model, tmp_path / "run", "sequence", learning__epochs=1, **RUNS[name])
    symprompt.export_run(tmp_path / "run", tmp_path / "out")
    said = call("import", tmp_path / "out", "--out", tmp_path / "back")
    assert said.code == 0, said.err
    one, other = (TaskRun.load(tmp_path / own) for own in ("run", "back"))
    options: dict[str, Any] = {"probabilities": True, "device": "cpu"}
    assert other.predict(TEXTS, **options).rows == one.predict(TEXTS, **options).rows
    assert other.metrics["splits"] == one.metrics["splits"]
    assert call("table", tmp_path / "run", tmp_path / "back").code == 0
    with pytest.raises(SympromptError, match="is there already"):
        symprompt.export_run(tmp_path / "run", tmp_path / "out")
    (tmp_path / "out" / "head.safetensors").unlink()
    with pytest.raises(SympromptError, match="cannot read"):
        symprompt.import_run(tmp_path / "out", tmp_path / "again")
    assert not (tmp_path / "again").exists()


@pytest.mark.parametrize("kind", ["ft", "pattern"])
def test_what_peft_cannot_express_is_on_the_hub_as_a_run(
    kind: str,
    family_folder: Callable[[str], Path],
    tmp_path: Path,
    call: Call,
    hub: Hub,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HF_TOKEN", hub.writer)
    model, own = family_folder("bert"), tmp_path / "run"
    given: list[Any] = list(TEXTS)
    if kind == "ft":
        data, why = write_toy(tmp_path / "data", "sequence"), "was made by ft, which changed"
        run = run_toy(data, model, own, "sequence", learning__epochs=1, method="ft")
    else:
        data, why = write_task(tmp_path / "data", "rte"), "answers through a pattern"
        run = tune(pattern_config(data, model, own, "mp"))
        given = [(text, "Rome") for text in TEXTS]
    said = call("push", own, "me/toy")
    assert said.code == 0, said.err
    assert f"the run itself, for symprompt alone: run {why}" in said.out
    assert "symprompt predict me/toy FILE" in said.out
    repo = hub.repos["me/toy"]
    files = repo.commits[repo.branches["main"]]
    assert not [name for name, own in files.items() if str(tmp_path).encode() in own]
    card = ModelCard(files["README.md"].decode()).data
    assert card.library_name == "symprompt"
    stored = [round(record.value, 2) for record in run.folder.manifest.records]
    assert sorted(listed.metric_value for listed in card.eval_results) == sorted(stored)
    options: dict[str, Any] = {"probabilities": True, "device": "cpu"}
    wanted = run.predict(given, **options).rows
    fetched = symprompt.load("me/toy")
    assert isinstance(fetched, TaskRun)
    assert fetched.predict(given, model=str(model), **options).rows == wanted
    # With its model named once, it need not be named again.
    said = call("import", "me/toy", "--out", tmp_path / "back", "--model", model)
    assert said.code == 0, said.err
    assert TaskRun.load(tmp_path / "back").predict(given, **options).rows == wanted
    assert call("table", own, "me/toy").code == 0
