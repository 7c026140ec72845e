"""Examples of each kind as rows of tokens."""
