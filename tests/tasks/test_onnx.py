"""A tuned model as ONNX: the same predictions in a fresh process without torch; what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

from symprompt.errors import ConfigError, ModelError, RunError
from symprompt.opening import export_run
from symprompt.tasks import onnx
from symprompt.tasks.predict import TaskRun
from symprompt.tasks.train import tune
from tiny.labelled import write_task, write_toy
from tiny.runs import Call
from tiny.tasks import pattern_config, run_toy

pytestmark = pytest.mark.skipif(
    any(find_spec(name) is None for name in ("onnx", "onnxruntime", "onnxscript")),
    reason="onnx, onnxruntime or onnxscript is not installed (extra onnx)",
)
PAIRS = [
    ["Paris lies in France", "Rome is old"],
    ["Tokyo", "The capital of Japan is Tokyo the old city in Japan"],
    ["the river", "s"],
]
TEXTS = [first for first, _ in PAIRS]


def make_run(root: Path, model: Path, kind: str, **changes: object) -> TaskRun:
    data = write_toy(root / "data", kind)
    return run_toy(data, model, root / "run", kind, learning__epochs=1, **changes)


def said_by_script(folder: Path, words: list[str]) -> list[dict[str, float]]:
    """Run the folder's own script, in a process that can import neither torch nor symprompt."""
    code = (
        "import runpy, sys\n"
        "for name in ('torch', 'transformers', 'symprompt'):\n    sys.modules[name] = None\n"
        "sys.argv = sys.argv[1:]\nrunpy.run_path(sys.argv[0], run_name='__main__')\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", code, str(folder / "predict.py"), *words],
        capture_output=True,
        text=True,
        check=True,
        cwd="/",
    )
    return [json.loads(line) for line in found.stdout.splitlines()]


def probabilities(run: TaskRun, texts: list[object]) -> np.ndarray:
    rows = run.predict(texts, device="cpu", probabilities=True).rows
    return np.array([list(row["probabilities"].values()) for row in rows])


CASES = [
    ("bert", "pt2", {}),
    ("bert", "pt2", {"prefix__shift_positions": True}),
    ("bert", "pt2", {"prefix__layers": "last:1"}),
    ("bert", "pt", {}),
    ("bert", "ft", {}),
    ("bert", "lora", {}),
    ("albert", "pt2", {}),
    ("mpnet", "pt2", {"task__segments": "off"}),
    ("modernbert", "pt2", {}),
]


@pytest.mark.parametrize(("family", "method", "changes"), CASES)
def test_the_graph_predicts_as_the_run_does(
    family: str,
    method: str,
    changes: dict[str, object],
    family_folder: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    run = make_run(tmp_path, family_folder(family), "pair", method=method, **changes)
    folder = export_run(run.folder.path, tmp_path / "out", to="onnx")
    about = json.loads((folder / "task.json").read_text())
    assert about["difference_from_torch"] <= 1e-4
    found = said_by_script(folder, [text for pair in PAIRS for text in pair])
    assert list(found[0]) == about["labels"] == list(run.stored.classes)
    ours = probabilities(run, list(PAIRS))
    # The script prints four places.
    assert np.abs(np.array([list(row.values()) for row in found]) - ours).max() < 1e-4
    assert np.ptp(ours, 0).max() > 1e-3


def test_one_text_and_the_command(
    family_folder: Callable[[str], Path], tmp_path: Path, call: Call
) -> None:
    run = make_run(tmp_path, family_folder("bert"), "sequence")
    folder = tmp_path / "out"
    said = call("export", run.folder.path, folder, "--to", "onnx")
    assert said.code == 0, said.err
    assert "model.onnx" in said.out
    assert "README.md" in said.out
    found = said_by_script(folder, TEXTS)
    ours = probabilities(run, list(TEXTS))
    assert np.abs(np.array([list(row.values()) for row in found]) - ours).max() < 1e-4
    card = (folder / "README.md").read_text()
    assert "python predict.py" in card
    assert "| test | accuracy |" in card
    for path in folder.iterdir():
        assert str(tmp_path).encode() not in path.read_bytes(), path.name
    # The folder is taken now.
    again = call("export", run.folder.path, folder, "--to", "onnx")
    assert again.code == 2
    assert "is there already" in again.err


def test_the_tokenizer_frames_as_training_did(
    family_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    from tokenizers import Tokenizer

    run = make_run(tmp_path, family_folder("roberta"), "pair", method="ft")
    folder = export_run(run.folder.path, tmp_path / "out", to="onnx")
    backbone = run.stored.prepare("", device="cpu", dtype="float32").tuned.backbone
    features = run.stored.tensorise(run.stored.read(list(PAIRS), ()), backbone)
    read = Tokenizer.from_file(str(folder / "tokenizer.json")).encode_batch(list(map(tuple, PAIRS)))
    assert [row.ids for row in read] == features.ids.tolist()
    assert [sum(row.attention_mask) for row in read] == features.lengths.tolist()
    for row, types, length in zip(read, features.types, features.lengths, strict=True):
        assert row.type_ids[:length] == types[:length].tolist()


def test_other_runs_are_refused(family_folder: Callable[[str], Path], tmp_path: Path) -> None:
    bert, data = family_folder("bert"), write_task(tmp_path / "RTE", "rte")
    runs = {
        "of kind tagging, which is decoded outside": make_run(tmp_path / "a", bert, "tagging"),
        "causal model; --to onnx takes encoders": make_run(
            tmp_path / "b", family_folder("gpt2"), "sequence"
        ),
        "answers through a pattern": tune(pattern_config(data, bert, tmp_path / "c", "zero-shot")),
    }
    for message, run in runs.items():
        with pytest.raises(RunError, match=message):
            export_run(run.folder.path, tmp_path / "out", to="onnx")
    assert not list(tmp_path.glob("out*"))


def test_a_missing_package_is_named(
    family_folder: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path, family_folder("bert"), "sequence")
    monkeypatch.setattr(onnx, "find_spec", lambda name: None if name == "onnxruntime" else True)
    with pytest.raises(ConfigError, match=r"needs onnxruntime; run: pip install 'symprompt\[onnx"):
        export_run(run.folder.path, tmp_path / "out", to="onnx")


def test_what_cannot_be_exported_or_differs_is_refused(
    family_folder: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path, family_folder("bert"), "sequence", method="ft")
    with monkeypatch.context() as patch:
        patch.setattr(onnx, "ALLOWED", -1.0)
        with pytest.raises(ModelError, match="scores otherwise than torch does"):
            export_run(run.folder.path, tmp_path / "out", to="onnx")

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("no such operator\nat length")

    monkeypatch.setattr(torch.onnx, "export", fail)
    with pytest.raises(ModelError, match=r"cannot write BertModel .* \(no such operator\); serve"):
        export_run(run.folder.path, tmp_path / "out", to="onnx")
    assert not list(tmp_path.glob("out*"))
