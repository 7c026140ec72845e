"""Several processes: together they are one."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from symprompt.engine.processes import ProcessGroup, is_first_process, join_group
from symprompt.errors import ConfigError
from symprompt.pretraining.train import pretrain
from tiny.text import flags_of, pretrain_config, write_text

CPU = torch.device("cpu")


def test_two_processes_are_one(tmp_path: Path) -> None:
    text = write_text(tmp_path / "text.txt")
    # Adam's first steps are as large for a gradient of rounding errors as for any other.
    config = pretrain_config(
        tmp_path / "two", learning={"steps": 11, "epsilon": 1e-3, "micro_batch": 3}
    )
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
        *("-m", "symprompt.cli", "pretrain", "pretrain-tiny", "--text", str(text)),
        *flags_of(config),
    ]
    done = subprocess.run(
        command,
        env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    # One of them speaks.
    assert done.stdout.count("model folder:") == 1
    assert done.stderr.count("training: 11/11") == 1
    one = pretrain(replace(config, out=str(tmp_path / "one")), [str(text)])
    two = load_file(tmp_path / "two/model.safetensors")
    for name, value in load_file(one.folder / "model.safetensors").items():
        torch.testing.assert_close(two[name], value, atol=2e-6, rtol=1e-4)
    assert "| device | 2 x cpu |" in (tmp_path / "two/README.md").read_text()
    assert {path.name for path in tmp_path.iterdir()} == {"one", "two", "text.txt"}


def test_the_processes_must_divide_the_batch() -> None:
    assert ProcessGroup(1, 2, CPU).share(8) == slice(4, 8)
    with pytest.raises(ConfigError, match=r"learning\.batch is 9 and there are 2 processes"):
        ProcessGroup(0, 2, CPU).share(9)


def test_one_process_is_a_group_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    with join_group("cpu") as group:
        value = torch.ones(3)
        group.add_up(value)
        group.wait()
        assert value.tolist() == [1, 1, 1]
        assert (group.any(True), group.any(False)) == (True, False)
        assert group.is_first
    assert is_first_process()
