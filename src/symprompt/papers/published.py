"""The papers' own figures, as printed; they stand in columns of their own and are never averaged.

[S] is SPE (Symmetrical Prompt Enhancement), [P] is P-tuning ("GPT Understands, Too"). They print
different figures for P-tuning itself and for BERT-large with manual prompts; each is cited.
"""

from __future__ import annotations

S1, S2 = "SPE, Table 1", "SPE, Table 2"
P1, P2 = "P-tuning, Table 1", "P-tuning, Table 2"

MODELS = ("BERT-base", "BERT-large", "RoBERTa-base")

Figures = tuple[float, float, float]

# SPE, Table 1: P@1, P@10, MRR on LAMA (34k); None where the paper prints a dash.
SPE_TABLE_1: dict[str, tuple[Figures | None, Figures | None, Figures | None]] = {
    "Manual": ((31.1, 59.5, 40.3), (28.9, 57.7, 38.7), None),
    "LPAQA": ((34.1, 62.0, 43.6), (39.4, 67.4, 49.1), (1.2, 9.1, 4.2)),
    "AutoPrompt": ((43.3, 73.9, 53.9), None, (40.0, 68.3, 49.9)),
    "OptiPrompt (manual)": ((48.6, 79.0, 58.9), (50.6, 79.2, 60.7), None),
    "SoftPrompt (mined)": ((48.8, 79.6, 59.4), (51.0, 81.4, 59.6), (40.6, 75.5, 53.0)),
    "P-tuning": ((48.2, 78.1, 58.6), (49.9, 80.6, 60.6), (43.5, 73.9, 53.8)),
    "SPE": ((50.3, 80.5, 60.9), (52.3, 82.2, 62.9), (46.4, 75.5, 56.1)),
}

# SPE, Table 2 (BERT-base): P@1, P@10, MRR by K; 0 is P-tuning.
SPE_TABLE_2: dict[int, Figures] = {
    0: (48.2, 78.1, 58.6),
    1: (48.7, 79.9, 59.5),
    5: (49.9, 79.9, 60.5),
    10: (49.9, 79.9, 60.7),
    15: (50.3, 80.5, 60.9),
}

# P-tuning, Table 1 (BERT-base, P17): P@1 by template; our templates have spaces before marks.
PTUNING_TABLE_1: dict[str, float] = {
    "[X] is located in [Y] .": 31.29,
    "[X] is located in which country or state ? [Y] .": 19.78,
    "[X] is located in which country ? [Y] .": 31.40,
    "[X] is located in which country ? In [Y] .": 51.08,
}

# P-tuning, Table 2, left: P@1 on LAMA-34k by method and model.
PTUNING_34K: dict[str, dict[str, float]] = {
    "Manual": {"BERT-base": 31.1, "BERT-large": 32.3, "E-BERT": 36.2},
    "LPAQA": {"BERT-base": 34.1, "BERT-large": 39.4},
    "AutoPrompt": {"BERT-base": 43.3},
    "P-tuning": {"BERT-base": 48.3, "BERT-large": 50.6},
}
MODELS_34K = ("BERT-base", "BERT-large", "E-BERT")

# P-tuning, Table 2, right: P@1 on LAMA-29k by model and method.
PTUNING_29K: dict[str, dict[str, float]] = {
    "BERT-base (109M)": {
        "Manual": 31.7,
        "FT": 51.6,
        "MP+FT": 52.1,
        "P-tuning": 52.3,
        "AutoPrompt": 45.2,
    },
    "BERT-large (335M)": {"Manual": 33.5, "FT": 54.0, "MP+FT": 55.0, "P-tuning": 54.6},
    "RoBERTa-base (125M)": {
        "Manual": 18.4,
        "FT": 49.2,
        "MP+FT": 50.0,
        "P-tuning": 49.3,
        "AutoPrompt": 40.0,
    },
    "RoBERTa-large (355M)": {"Manual": 22.1, "FT": 52.3, "MP+FT": 52.4, "P-tuning": 53.5},
    "GPT2-medium (345M)": {"Manual": 20.3, "FT": 41.9, "MP+FT": 38.2, "P-tuning": 46.5},
    "GPT2-xl (1.5B)": {"Manual": 22.8, "FT": 44.9, "MP+FT": 46.5, "P-tuning": 54.4},
    "MegatronLM (11B)": {"Manual": 23.1, "P-tuning": 64.2},
}
OUT_OF_MEMORY = ("MegatronLM (11B)", ("FT", "MP+FT"))
