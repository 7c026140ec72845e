"""Kill -9 in the middle of a training, then --resume: the numbers of an unbroken run.

Every command trains through the same loop, so one test covers all: golden runs are made with a kill
in between, and must give what the unbroken ones gave.
"""

from __future__ import annotations

import io
import json
import os
import signal
import sys
import warnings
from contextlib import redirect_stderr
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from symprompt.engine.loop import Loop

sys.path.insert(0, str(Path(__file__).parents[1] / "golden"))
from agreeing import differences
from flows import FLOWS, Flow, Inputs, make
from freeze import MACHINE, load, this_machine


@pytest.fixture(scope="session")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Inputs:
    """The flows' inputs, each made once."""
    return Inputs(tmp_path_factory.mktemp("inputs"))


def with_flags(flow: Flow, *flags: str) -> Flow:
    """Return a flow whose first command, which trains, has more flags."""
    first, *rest = flow.commands
    return replace(flow, commands=((*first, "--checkpoint-seconds", "0", *flags), *rest))


def run_and_kill(flow: Flow, inputs: Inputs, folder: Path, steps: int) -> int:
    """Run a flow in another process that kills itself after so many steps; return its end.

    The last checkpoint is then the one before the last step.
    """
    # Made here, so that both processes have them.
    for word in flow.commands[0]:
        inputs.fill(word)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:
        show, left = Loop._show, [steps]

        def killing(self: Loop) -> None:
            show(self)
            left[0] -= bool(self.progress.done)
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)

        Loop._show = killing  # type: ignore[method-assign]
        try:
            with redirect_stderr(io.StringIO()):
                make(replace(flow, commands=flow.commands[:1]), inputs, folder)
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.skipif(torch.cuda.is_available(), reason="a process that used CUDA cannot be forked")
@pytest.mark.parametrize(
    ("name", "steps"),
    [
        ("spe", 4),
        ("ptuning", 4),
        ("optiprompt", 3),
        ("softprompt", 5),
        ("autoprompt", 4),
        ("lpaqa", 2),
        ("causal-spe", 2),
        ("tune-tagging-pt2", 5),
        ("tune-sequence-ft", 2),
        ("tune-question-lora", 7),
        ("tune-relations-ft", 3),
        ("tune-mpt2", 3),
        ("tune-mpt2", 9),
        ("pattern-ptuning", 2),
        ("pattern-cls", 3),
        ("pretrain-mlm", 5),
        ("pretrain-mlm-nsp", 11),
    ],
)
def test_a_killed_run_goes_on_with_the_same_numbers(
    name: str, steps: int, inputs: Inputs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("symprompt.engine.loop.TELL_SECONDS", 0.0)
    flow = FLOWS[name]
    assert run_and_kill(with_flags(flow), inputs, tmp_path, steps) == -signal.SIGKILL
    assert list(tmp_path.rglob("state.safetensors"))
    assert list(tmp_path.rglob("progress.json"))
    found = json.loads(json.dumps(make(with_flags(flow, "--resume"), inputs, tmp_path)))
    assert not list(tmp_path.rglob("state.safetensors"))
    assert not list(tmp_path.rglob("progress.json"))
    unbroken = load(name)
    if json.loads(MACHINE.read_text()) != this_machine():
        place = tmp_path / "unbroken"
        place.mkdir()
        unbroken = json.loads(json.dumps(make(with_flags(flow), inputs, place)))
    assert not differences(unbroken, found, exact=True)
