"""What stands on a page of the site or in the README: commands and Python, to be run as printed.

A block after a comment ``<!-- parsed: why -->`` is too long to run or needs data that is not here;
its commands go through the parser alone.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from symprompt.cli import COMMANDS, load_attribute
from symprompt.cli.parsing import parse

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(r"(<!-- parsed: [^\n]+ -->\n+)?^ *```([^\n]*)\n(.*?)^ *```", re.M | re.S)


@dataclass(frozen=True)
class Block:
    """A fenced block; final."""

    language: str
    text: str
    parsed: bool

    def commands(self) -> list[list[str]]:
        """Return the words of its commands, without the program's name."""
        found = []
        for line in self.text.replace("\\\n", " ").splitlines():
            if line.startswith(("symprompt ", "torchrun ")):
                words = shlex.split(line, comments=True)
                start = words.index("symprompt.cli") if words[0] == "torchrun" else 0
                found.append(words[start + 1 :])
        return found


def blocks(path: Path) -> list[Block]:
    """Return the fenced blocks of a page."""
    found = _BLOCK.findall(path.read_text(encoding="utf-8"))
    return [Block(language.strip(), text, bool(mark)) for mark, language, text in found]


def check_words(words: Sequence[str]) -> None:
    """Let the real parser read a command; it raises what it does not know."""
    name = next(" ".join(words[:n]) for n in (2, 1) if " ".join(words[:n]) in COMMANDS)
    command = COMMANDS[name]
    kinds = [load_attribute(kind) for kind in command.configs]
    parse(name, load_attribute(command.flags), words[len(name.split()) :], kinds)
