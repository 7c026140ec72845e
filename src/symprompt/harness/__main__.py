"""``python -m symprompt.harness``: see the package."""

from symprompt.harness import main

main()
