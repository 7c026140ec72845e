"""Run the command line as a module, for torchrun."""

from symprompt.cli import main

main()
