"""The examples in docstrings of the public API run as printed, on a tiny model."""

from __future__ import annotations

import doctest
import inspect
from pathlib import Path
from typing import Any

import pytest

import symprompt
from symprompt.cli import main

# They take long, or need files of another program.
SKIPPED = {"pretrain", "reproduce", "prepare_pretraining", "read_peft", "write_peft"}
# Settings and plain values, which other examples show.
SHOWN_ELSEWHERE = {"Answer", "Relation", "RunConfig", "TuneConfig", "PretrainConfig"}
SHOWN_ELSEWHERE |= {"FactSettings", "TaskSettings", "SympromptError"}


def examples(name: str) -> list[doctest.DocTest]:
    """Return the examples of a public name and its methods, with all public names at hand."""
    known = {own: getattr(symprompt, own) for own in symprompt.__all__}
    value: Any = known[name]
    found = doctest.DocTestFinder(exclude_empty=True).find(value, name, module=False, globs=known)
    return [test for test in found if test.examples]


NAMES = [name for name in symprompt.__all__ if name not in SKIPPED and examples(name)]


def test_every_public_name_has_an_example_and_a_docstring() -> None:
    for name in symprompt.__all__:
        assert inspect.getdoc(getattr(symprompt, name)), name
        assert examples(name) or name in SKIPPED | SHOWN_ELSEWHERE, name


@pytest.mark.parametrize("name", NAMES)
def test_examples_run_as_printed(
    name: str, workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tests = examples(name)
    text = "".join(example.source for test in tests for example in test.examples)
    for method in ("ptuning", "spe"):
        if f"runs/{method}" in text:
            main(["train", f"lama-{method}", "--data", "lama", "--out", f"runs/{method}"])
    if "tickets" in text:
        main(["examples", "data"])
        (workplace / "tickets.csv").symlink_to(workplace / "data" / "tickets.csv")
    if "runs/tickets" in text:
        words = "tune my-labels --data tickets.csv --columns text=ticket label=team --max-length 40"
        main([*words.split(), "--stride", "4", "--epochs", "1", "--out", "runs/tickets"])
    capsys.readouterr()
    for test in tests:
        runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS, verbose=False)
        runner.run(test)
        assert runner.failures == 0, capsys.readouterr().out
