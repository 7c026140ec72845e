"""Shared fixtures: checkpoints of every family, written once a session."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

# Said before transformers is imported: no test may reach the network.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_OFFLINE"] = "1"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest
import torch
from huggingface_hub import constants
from hypothesis import HealthCheck, settings

from symprompt.facts import FactSet
from symprompt.models import LanguageModel
from tiny.hub import Hub, serving
from tiny.models import CAUSAL_FAMILIES, FAMILIES, make_facts, save_family, save_knowing_bert
from tiny.runs import Call, Said

# The models are so small that threads only wait for each other.
torch.set_num_threads(1)

# A shell makes background jobs deaf to interruptions, nohup to hang-ups; some tests send both.
for number, usual in [(signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)]:
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, usual)

# How fast examples are drawn says something about the machine's other jobs, not about the code.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")


@pytest.fixture(scope="session")
def family_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A function that writes a family's tiny checkpoint once and gives its folder."""
    written: dict[str, Path] = {}

    def folder(name: str) -> Path:
        if name not in written:
            written[name] = save_family(name, tmp_path_factory.mktemp(name))
        return written[name]

    return folder


@pytest.fixture(scope="session")
def load_family(family_folder: Callable[[str], Path]) -> Callable[..., LanguageModel]:
    """A function that loads a family's backbone, once for each dtype."""
    loaded: dict[tuple[str, str], LanguageModel] = {}

    def load(name: str, dtype: str = "float64") -> LanguageModel:
        if (name, dtype) not in loaded:
            loaded[name, dtype] = LanguageModel.load(
                str(family_folder(name)), device="cpu", dtype=dtype
            )
        return loaded[name, dtype]

    return load


@pytest.fixture(params=list(FAMILIES))
def family(request: pytest.FixtureRequest) -> str:
    """Every family's name in turn."""
    return str(request.param)


@pytest.fixture
def backbone(load_family: Callable[..., LanguageModel], family: str) -> LanguageModel:
    """Every family's backbone in turn, in float64."""
    return load_family(family)


@pytest.fixture(params=list(CAUSAL_FAMILIES))
def causal_family(request: pytest.FixtureRequest) -> str:
    """Every causal family's name in turn."""
    return str(request.param)


@pytest.fixture
def causal(load_family: Callable[..., LanguageModel], causal_family: str) -> LanguageModel:
    """Every causal family's backbone in turn, in float64."""
    return load_family(causal_family)


@pytest.fixture(scope="session")
def gpt2(load_family: Callable[..., LanguageModel]) -> LanguageModel:
    """The tiny GPT-2 in float64, for what does not depend on the causal family."""
    return load_family("gpt2")


@pytest.fixture(scope="session")
def bert(load_family: Callable[..., LanguageModel]) -> LanguageModel:
    """The tiny BERT in float64, for what does not depend on the family."""
    return load_family("bert")


@pytest.fixture(scope="session")
def facts() -> FactSet:
    """Three small relations of different sizes."""
    return make_facts()


@pytest.fixture(scope="session")
def knowing_bert(tmp_path_factory: pytest.TempPathFactory) -> LanguageModel:
    """A tiny BERT that was trained on made-up facts, frozen."""
    folder = save_knowing_bert(tmp_path_factory.mktemp("knowing"))
    return LanguageModel.load(str(folder), device="cpu", dtype="float32")


@pytest.fixture
def plain_wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is printed has 200 columns and no colours."""
    monkeypatch.setenv("COLUMNS", "200")
    for name in ("FORCE_COLOR", "CLICOLOR_FORCE", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], plain_wide_terminal: None) -> Call:
    """A function that runs one command and tells its exit code and what it printed."""
    # Imported here: other tests run without what only the command line needs.
    from symprompt import cli

    def run(*words: object) -> Said:
        capsys.readouterr()
        code = 0
        try:
            cli.main([str(word) for word in words])
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        return Said(code, *capsys.readouterr())

    return run


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    """A stand-in for the hub, which huggingface's library asks in this process; no token is set."""
    with serving(Hub()) as own:
        home = tmp_path / "hf-home"
        changes = {
            "ENDPOINT": own.address,
            "HUGGINGFACE_CO_URL_TEMPLATE": own.address + "/{repo_id}/resolve/{revision}/{filename}",
            "HF_HUB_OFFLINE": False,
            "HF_HUB_CACHE": str(home / "hub"),
            "HF_ASSETS_CACHE": str(home / "assets"),
            "HF_TOKEN_PATH": str(home / "token"),
            "AGENT_HARNESSES_PATH": str(home / "agents.json"),
            # Its own storage protocol, compiled, is not stood in for.
            "HF_HUB_DISABLE_XET": True,
        }
        for name, value in changes.items():
            monkeypatch.setattr(constants, name, value, raising=False)
        monkeypatch.delenv("HF_TOKEN", raising=False)
        yield own
