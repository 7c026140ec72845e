"""Tasks asked through patterns: P-tuning with verbalizers on SuperGLUE, and its baselines."""

from symprompt.tasks.patterns.config import (
    LearningConfig,
    PatternConfig,
    PatternRunConfig,
    is_pattern_config,
    load_pattern_config,
    make_pattern_config,
)
from symprompt.tasks.patterns.data import load_verbal
from symprompt.tasks.patterns.pattern import Pattern
from symprompt.tasks.patterns.prepare import VerbalProblem
from symprompt.tasks.patterns.published import (
    MANUAL,
    PTUNING,
    Worded,
    manual_patterns,
    reference_pattern,
)
from symprompt.tasks.patterns.superglue import (
    TASKS,
    VerbalData,
    VerbalExample,
    VerbalTask,
    find_task,
)
from symprompt.tasks.patterns.train import load_for_tuning, summarise_seeds, tune_pattern
from symprompt.tasks.patterns.tuner import Outcome, VerbalTuner, ask_zero_shot, tuning

__all__ = [
    "MANUAL",
    "PTUNING",
    "TASKS",
    "LearningConfig",
    "Outcome",
    "Pattern",
    "PatternConfig",
    "PatternRunConfig",
    "VerbalData",
    "VerbalExample",
    "VerbalProblem",
    "VerbalTask",
    "VerbalTuner",
    "Worded",
    "ask_zero_shot",
    "find_task",
    "is_pattern_config",
    "load_for_tuning",
    "load_pattern_config",
    "load_verbal",
    "make_pattern_config",
    "manual_patterns",
    "reference_pattern",
    "summarise_seeds",
    "tune_pattern",
    "tuning",
]
