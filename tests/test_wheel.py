"""sdist and wheel hold what the package needs and no more; the wheel works by itself."""

from __future__ import annotations

import email
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import symprompt

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


BESIDE = ("pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff")
BESIDE += ("constraints.txt", "CONTRIBUTING.md", "Makefile")
WHEEL_MIB = 40


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build an sdist from a copy of the sources, tests, documentation and experiments beside."""
    folder = tmp_path_factory.mktemp("sdist")
    ignored = shutil.ignore_patterns(
        "__pycache__", "*.egg-info", "build", "_build", "*.safetensors"
    )
    for name in ("docs", "tests", "examples", "experiments", "benchmarks"):
        shutil.copytree(ROOT / name, folder / "tree" / name, ignore=ignored)
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", folder / "tree/src", ignore=ignored)
    for name in BESIDE:
        shutil.copy(ROOT / name, folder / "tree")
    build = f"import setuptools.build_meta as b; b.build_sdist({str(folder)!r})"
    run(sys.executable, "-c", build, cwd=str(folder / "tree"))
    (found,) = folder.glob("*.tar.gz")
    return found


@pytest.fixture(scope="module")
def wheel(sdist: Path) -> Path:
    """Build a wheel from the sdist, as installers do."""
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input")
    offline = ("--no-deps", "--no-index", "--no-build-isolation")
    run(*pip, "wheel", *offline, "--wheel-dir", str(sdist.parent), str(sdist))
    (found,) = sdist.parent.glob("*.whl")
    return found


def sources() -> set[str]:
    """The files of the package."""
    return {
        str(path.relative_to(ROOT / "src"))
        for path in (ROOT / "src/symprompt").rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }


def test_an_sdist_holds_the_sources_and_no_tests_or_data(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {own.name.partition("/")[2] for own in archive.getmembers() if own.isfile()}
    names = {name for name in names if ".egg-info/" not in name} - {"PKG-INFO", "setup.cfg"}
    held = {f"src/{name}" for name in sources()}
    assert names == held | set(BESIDE) - {"CONTRIBUTING.md", "Makefile"}


def test_twine_finds_nothing_to_mend(sdist: Path, wheel: Path) -> None:
    pytest.importorskip("twine")
    shown = run(sys.executable, "-m", "twine", "check", "--strict", str(sdist), str(wheel))
    assert shown.count("PASSED") == 2


def test_the_wheel_says_what_it_is_and_is_small(wheel: Path) -> None:
    assert wheel.stat().st_size < WHEEL_MIB * 2**20
    archive = zipfile.ZipFile(wheel)
    (about,) = (name for name in archive.namelist() if name.endswith("METADATA"))
    stated = email.message_from_bytes(archive.read(about))
    assert stated["Version"] == symprompt.__version__
    assert stated["Requires-Python"] == ">=3.11"
    for version in ("3.11", "3.12", "3.13"):
        assert f"Programming Language :: Python :: {version}" in stated.get_all("Classifier", [])
    (scripts,) = (name for name in archive.namelist() if name.endswith("entry_points.txt"))
    assert "symprompt = symprompt.cli:main" in archive.read(scripts).decode()


def test_versions_agree() -> None:
    stated = symprompt.__version__
    assert f"\nversion: {stated}\n" in (ROOT / "CITATION.cff").read_text()
    first = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert first is not None
    assert first[1] in ("Unreleased", stated)


def test_a_wheel_holds_every_module_config_and_the_shipped_model(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    held = {name for name in names if name.startswith("symprompt/")}
    assert held == sources()
    assert all(".dist-info/" in name for name in set(names) - held)
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
