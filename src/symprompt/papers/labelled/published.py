"""What the P-tuning and P-tuning v2 papers print of labelled tasks, as printed; never averaged in.

[P] is P-tuning ("GPT Understands, Too"), [V] is P-tuning v2. None stands where a paper prints a
dash or nothing. Both papers choose epochs and settings on the dev sets they report; ours do not.
"""

from __future__ import annotations

from collections.abc import Mapping

Printed = Mapping[str, tuple[float | None, ...]]

# ---------------------------------------------------------------- P-tuning v2, Tables 1 to 4

V2_SIZES = {
    "BERT-large": "335M",
    "RoBERTa-large": "355M",
    "GLM-xlarge": "2B",
    "GLM-xxlarge": "10B",
    "DeBERTa-xlarge": "750M",
}
V2_METHODS = ("ft", "pt", "pt2", "mpt2")

V2_TABLE_1_MODELS = ("BERT-large", "RoBERTa-large", "GLM-xlarge", "GLM-xxlarge")
# Accuracy on dev: task -> method -> one figure for each of the models above.
V2_TABLE_1: Mapping[str, Printed] = {
    "sst2": {
        "ft": (93.2, 96.4, None, None),
        "pt": (92.4, 95.3, None, None),
        "pt2": (93.6, 96.3, None, None),
    },
    "mnli": {
        "ft": (86.6, 90.2, None, None),
        "pt": (75.6, 83.8, None, None),
        "pt2": (85.8, 90.4, None, None),
    },
    "rte": {
        "ft": (70.4, 86.6, 90.3, 93.1),
        "pt": (53.5, 58.8, 85.6, 89.9),
        "pt2": (78.3, 88.4, 90.3, 93.1),
    },
    "boolq": {
        "ft": (77.7, 86.9, 88.3, 88.7),
        "pt": (67.2, 62.3, 79.7, 88.8),
        "pt2": (75.8, 84.8, 87.0, 88.8),
    },
    "cb": {
        "ft": (94.6, 98.2, 96.4, 98.7),
        "pt": (80.4, 71.4, 76.4, 98.2),
        "pt2": (94.6, 100.0, 96.4, 96.4),
    },
}

V2_HARD_MODELS = ("BERT-large", "RoBERTa-large", "DeBERTa-xlarge")
# Micro F1 on test.
V2_TABLE_2: Mapping[str, Printed] = {
    "conll2003": {
        "ft": (92.8, 92.6, 93.1),
        "pt": (81.9, 86.1, 90.2),
        "pt2": (90.2, 92.4, 93.1),
        "mpt2": (91.0, 92.8, 93.1),
    },
    "ontonotes": {
        "ft": (89.2, 89.8, 90.4),
        "pt": (74.6, 80.8, 85.1),
        "pt2": (86.4, 89.4, 90.4),
        "mpt2": (86.3, 89.8, 90.5),
    },
    "conll2004": {
        "ft": (85.6, 88.8, 89.1),
        "pt": (73.6, 76.2, 82.4),
        "pt2": (84.5, 87.3, 86.5),
        "mpt2": (86.6, 90.6, 90.1),
    },
}
# Exact match and F1 on dev.
V2_TABLE_3: Mapping[str, Mapping[str, Printed]] = {
    "squad": {
        "em": {
            "ft": (84.2, 88.9, 90.1),
            "pt": (1.0, 1.2, 2.4),
            "pt2": (77.8, 88.1, 90.4),
            "mpt2": (82.3, 88.0, 89.6),
        },
        "f1": {
            "ft": (91.1, 94.6, 95.5),
            "pt": (8.5, 12.0, 19.0),
            "pt2": (86.0, 94.1, 95.7),
            "mpt2": (89.6, 94.1, 95.4),
        },
    },
    "squad2": {
        "em": {
            "ft": (78.7, 86.5, 88.3),
            "pt": (50.2, 50.2, 50.2),
            "pt2": (69.7, 82.1, 88.4),
            "mpt2": (72.7, 83.4, 88.1),
        },
        "f1": {
            "ft": (81.9, 89.4, 91.1),
            "pt": (50.2, 50.2, 50.2),
            "pt2": (73.5, 85.5, 91.1),
            "mpt2": (75.9, 86.7, 90.8),
        },
    },
}
# F1; CoNLL-2005 has two test sets.
V2_TABLE_4: Mapping[tuple[str, str], Printed] = {
    ("conll12", "test"): {
        "ft": (84.9, 86.5, 86.5),
        "pt": (64.5, 67.2, 74.1),
        "pt2": (82.5, 83.8, 83.9),
        "mpt2": (85.1, 86.2, 87.1),
    },
    ("conll05", "test"): {
        "ft": (88.5, 90.2, 91.2),
        "pt": (76.0, 76.8, 82.3),
        "pt2": (86.3, 88.3, 90.6),
        "mpt2": (88.5, 90.0, 91.1),
    },
    ("conll05", "test-brown"): {
        "ft": (82.7, 85.6, 86.9),
        "pt": (70.0, 70.7, 77.7),
        "pt2": (80.7, 84.2, 86.3),
        "mpt2": (83.1, 85.7, 87.3),
    },
}

# ---------------------------------------------------------------- P-tuning, Tables 3 to 6

# The columns of Tables 3 to 5: task and metric.
P_COLUMNS = (
    ("boolq", "accuracy"),
    ("cb", "accuracy"),
    ("cb", "macro_f1"),
    ("wic", "accuracy"),
    ("rte", "accuracy"),
    ("multirc", "em"),
    ("multirc", "f1a"),
    ("wsc", "accuracy"),
    ("copa", "accuracy"),
)
P_FULL_MODELS = ("BERT-base-cased", "GPT2-base", "BERT-large-cased", "GPT2-medium")
P_FULL_TABLES = ("Table 3", "Table 3", "Table 4", "Table 4")
# Tables 3 and 4: model -> method -> the columns above, then the average. Table 4 prints the heads
# of CB's two columns in the other order; its figures show that accuracy comes first there too,
# as they are multiples of 1/56, and CB's dev set has 56 examples.
P_FULL: Mapping[str, Mapping[str, tuple[float, ...]]] = {
    "BERT-base-cased": {
        "cls": (72.9, 85.1, 73.9, 71.1, 68.4, 16.2, 66.3, 63.5, 67.0, 66.2),
        "zero-shot": (59.1, 41.1, 19.4, 49.8, 54.5, 0.4, 0.9, 62.5, 65.0, 46.0),
        "mp": (73.7, 87.5, 90.8, 67.9, 70.4, 13.7, 62.5, 60.6, 70.0, 67.1),
        "ptuning": (73.9, 89.2, 92.1, 68.8, 71.1, 14.8, 63.3, 63.5, 72.0, 68.4),
    },
    "GPT2-base": {
        "cls": (71.2, 78.6, 55.8, 65.5, 67.8, 17.4, 65.8, 63.0, 64.4, 63.0),
        "zero-shot": (61.3, 44.6, 33.3, 54.1, 49.5, 2.2, 23.8, 62.5, 58.0, 48.2),
        "mp": (74.8, 87.5, 88.1, 68.0, 70.0, 23.5, 69.7, 66.3, 78.0, 70.2),
        "ptuning": (75.0, 91.1, 93.2, 68.3, 70.8, 23.5, 69.8, 63.5, 76.0, 70.4),
    },
    "BERT-large-cased": {
        "cls": (77.7, 94.6, 93.7, 74.9, 75.8, 24.7, 70.5, 68.3, 69.0, 72.5),
        "zero-shot": (49.7, 50.0, 34.2, 50.0, 49.9, 0.6, 6.5, 61.5, 58.0, 45.0),
        "mp": (77.2, 91.1, 93.5, 70.5, 73.6, 17.7, 67.0, 80.8, 75.0, 73.1),
        "ptuning": (77.8, 96.4, 97.4, 72.7, 75.5, 17.1, 65.6, 81.7, 76.0, 74.6),
    },
    "GPT2-medium": {
        "cls": (71.0, 73.2, 51.2, 65.2, 72.2, 19.2, 65.8, 62.5, 66.0, 63.1),
        "zero-shot": (56.3, 44.6, 26.6, 54.1, 51.3, 2.2, 32.5, 63.5, 53.0, 47.3),
        "mp": (78.3, 96.4, 97.4, 70.4, 72.6, 32.1, 74.4, 73.0, 80.0, 74.9),
        "ptuning": (78.9, 98.2, 98.7, 69.4, 75.5, 29.3, 74.2, 74.0, 81.0, 75.6),
    },
}
# Table 5, chosen on 32 dev examples (albert-xxlarge-v2): figures, and PET's deviations.
P_FEW: Mapping[str, tuple[float, ...]] = {
    "pet-mean": (73.2, 82.9, 74.8, 51.8, 62.1, 33.6, 74.5, 79.8, 85.3),
    "pet-best": (75.1, 86.9, 83.5, 52.6, 65.7, 35.2, 75.0, 80.4, 83.3),
    "ptuning": (77.8, 92.9, 92.3, 56.3, 76.5, 36.1, 75.0, 84.6, 87.0),
}
P_FEW_DEVIATION: Mapping[str, tuple[float, ...]] = {
    "pet-mean": (3.1, 4.3, 9.2, 2.7, 5.3, 3.2, 1.2, 3.5, 5.1),
}
# Table 5, chosen on the full dev set: others' systems, cited by the paper.
P_FEW_FULL_DEV: Mapping[str, tuple[float | None, ...]] = {
    "GPT-3": (77.5, 82.1, 57.2, 55.3, 72.9, 32.5, 74.8, 75.0, 92.0),
    "PET (ensemble, distilled)": (79.4, 85.1, 59.4, 52.4, 69.8, 37.9, 77.3, 80.1, 95.0),
    "iPET": (80.6, 92.9, 92.4, 52.2, 74.0, 33.0, 74.0, None, None),
}
# Table 6: RTE with albert-xxlarge-v2: pattern -> accuracy on dev and on dev32.
P_PATTERNS: Mapping[str, tuple[str, float, float]] = {
    "agree-1": ("Does [PRE] agree with [HYP]? [MASK].", 57.16, 53.12),
    "agree-2": ("Does [HYP] agree with [PRE]? [MASK].", 51.38, 50.00),
    "named": ("Premise: [PRE] Hypothesis: [HYP] Answer: [MASK].", 68.59, 55.20),
    "truth": ("[PRE] question: [HYP]. true or false? answer: [MASK].", 70.15, 53.12),
    "ptuning": ("P-tuning", 76.45, 56.25),
}
