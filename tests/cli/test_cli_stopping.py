"""What is said to Ctrl-C, command by command."""

from __future__ import annotations

import pytest

from symprompt import cli
from symprompt.cli import how_to_go_on


@pytest.mark.parametrize("command", list(cli.COMMANDS))
def test_resume_is_named_only_where_it_is_a_flag(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        cli.main([*command.split(), "--help"])
    # A line of its own, not a word of the text above.
    flag = "\n  --resume" in capsys.readouterr().out
    assert ("--resume" in how_to_go_on([*command.split(), "more"])) == flag


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["senses", "train", "corpus"], "the same command goes on"),
        (["senses", "evaluate", "train"], "starts from the beginning"),
        (["isotropy", "text"], "starts from the beginning"),
        (["predict", "run", "file"], "starts from the beginning"),
        (["embed", "text"], "the same command goes on"),
        (["demo"], "the same command goes on"),
        (["reproduce", "spe"], "the same command goes on"),
        ([], "starts from the beginning"),
    ],
)
def test_commands_that_go_on_say_so(words: list[str], said: str) -> None:
    assert said in how_to_go_on(words)
