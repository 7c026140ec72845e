"""A built wheel holds what the package needs, and works where nothing else of the project is."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DEMO = """
import sys
from functools import partial
import symprompt
from symprompt.probing import demo
assert symprompt.__file__.startswith(sys.argv[1]), symprompt.__file__
size = demo.DemoSize(relations=("capital",), train_limit=4, dev_limit=2, test_limit=2, epochs=1)
demo.DemoSize = lambda: size
from symprompt.cli import main
sys.exit(main(["demo", "--out", "demo"]))
"""


def run(*command: str, **options: str) -> str:
    """Run a command and return what it prints; it must succeed."""
    environment = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PATH": os.environ["PATH"]}
    # Where the tests' own environment keeps its packages, if not in its site-packages.
    environment["PYTHONPATH"] = os.environ.get("PYTHONPATH", "")
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment | {"COLUMNS": "120"}, **options
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build a wheel from a copy of the sources."""
    folder = tmp_path_factory.mktemp("wheel")
    (folder / "tree").mkdir()
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", folder / "tree/src", ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / "tree")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input")
    offline = ("--no-deps", "--no-index", "--no-build-isolation")
    run(*pip, "wheel", *offline, "--wheel-dir", str(folder), str(folder / "tree"))
    (found,) = folder.glob("*.whl")
    return found


def test_a_wheel_holds_every_module_config_and_the_shipped_model(wheel: Path) -> None:
    held = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("symprompt/")}
    source = ROOT / "src"
    wanted = {
        str(path.relative_to(source))
        for path in (source / "symprompt").rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    assert held == wanted
    for name in ("py.typed", "configs/lama-spe.toml", "models/shipped/model.safetensors"):
        assert f"symprompt/{name}" in held


def test_an_installed_wheel_runs_the_demo(wheel: Path, tmp_path: Path) -> None:
    target = tmp_path / "installed"
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--no-deps")
    run(*pip, "--no-index", "--no-compile", "--target", str(target), str(wheel))
    # Before any editable install of the tests' own environment.
    start = f"import sys; sys.path.insert(0, {str(target)!r})\n"
    shown = run(sys.executable, "-c", start + DEMO, str(target), cwd=str(tmp_path))
    assert "P@1" in shown
    assert {path.name for path in (tmp_path / "demo").iterdir()}
