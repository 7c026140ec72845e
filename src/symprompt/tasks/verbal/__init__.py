"""Tasks asked through patterns: P-tuning with verbalizers on SuperGLUE, and its baselines."""
