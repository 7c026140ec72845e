"""Tasks answered through patterns: P-tuning with verbalizers on SuperGLUE, and its baselines."""
