"""Training steps: the optimisers, stacked per relation and flat."""
