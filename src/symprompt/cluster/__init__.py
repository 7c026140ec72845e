"""Where jobs run: worker processes on this machine, or the nodes of a Ray cluster."""
