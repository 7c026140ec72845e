"""The house: one of each, rooms without a second door. A second one of something fails here."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import symprompt

ROOT = Path(symprompt.__file__).parent
FILES = {str(path.relative_to(ROOT)): path for path in sorted(ROOT.rglob("*.py"))}

ONE_OF_EACH = [
    ("training loop", r"\bclass \w*Loop\b", {"engine/loop.py"}),
    ("optimiser of torch", r"\btorch\.optim\.(Adam|SGD)", {"engine/flat_adamw.py"}),
    ("CUDA graph recorder", r"\bCUDAGraph\(", {"accel/compiling.py"}),
    ("schedule of rates", r"\bdef rate_share\b", {"engine/loop.py"}),
    ("batching by a token budget", r"\bdef make_batches\b", {"engine/batches.py"}),
    # The second writes a model folder that appears whole or not at all, over two of the first.
    ("run folder", r"\bclass \w*Folders?\b", {"runs/folder.py", "pretraining/folder.py"}),
    ("manifest", r"\bclass Manifest\b", {"runs/folder.py"}),
    ("record of results", r"\bclass Record\b", {"runs/folder.py"}),
    ("executor of jobs", r"\bclass \w+Executor\b", {"cluster/executor.py", "cluster/nodes.py"}),
    ("reader of CSV", r"\bcsv\.(reader|DictReader)\(", {"files/reading.py"}),
    # Others are text: a model's card and a docstring.
    (
        "loader",
        r"from_pretrained\((?!\"FOLDER|folder\)|base, dtype|model, folder\))",
        {"models/loading.py"},
    ),
    ("bootstrap", r"\bdef paired_bootstrap\b", {"runs/statistics.py"}),
]


@pytest.mark.parametrize(
    ("what", "pattern", "homes"), ONE_OF_EACH, ids=[entry[0] for entry in ONE_OF_EACH]
)
def test_there_is_one_of_each(what: str, pattern: str, homes: set[str]) -> None:
    found = {name for name, path in FILES.items() if re.search(pattern, path.read_text("utf-8"))}
    assert found == homes, f"{what}: {sorted(found ^ homes)} is a second one, or the first is gone"


def test_few_modules_stand_in_the_root() -> None:
    assert len([name for name in FILES if "/" not in name]) <= 5


def test_no_public_name_hides_a_module() -> None:
    for module in pkgutil.walk_packages([str(ROOT)], "symprompt."):
        if not module.ispkg or ".shipped" in module.name:
            continue
        package = importlib.import_module(module.name)
        inner = {entry.name for entry in pkgutil.iter_modules(package.__path__)}
        for name in inner & set(getattr(package, "__all__", ())):
            assert not callable(getattr(package, name)), f"{module.name}.{name} hides a module"


def test_nothing_is_unpickled_and_no_remote_code_is_run() -> None:
    for name, path in FILES.items():
        text = path.read_text("utf-8")
        assert not re.search(r"\b(torch\.load|pickle|joblib)\b", text), name
        assert not re.search(r"trust_remote_code *= *True", text), name


def test_every_public_name_has_a_docstring() -> None:
    bare = [
        f"{name}:{node.lineno} {node.name}"
        for name, path in FILES.items()
        for node in ast.parse(path.read_text("utf-8")).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
        and not node.name.startswith("_")
        and not ast.get_docstring(node)
    ]
    assert not bare
