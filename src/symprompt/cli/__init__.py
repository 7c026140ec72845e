"""The command line."""

from symprompt.cli.commands import main as main

__all__ = ["main"]
