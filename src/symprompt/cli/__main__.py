"""Run the command line as a module, for torchrun."""

from symprompt.cli.commands import main

main()
