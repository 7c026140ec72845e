"""One run folder and its records, and the environment a run states."""
