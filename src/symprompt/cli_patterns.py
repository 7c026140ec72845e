"""``symprompt tune`` with a pattern in its config: P-tuning with verbalizers, and baselines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro

from symprompt.flags import full_names, parse
from symprompt.report import show, show_progress
from symprompt.report.tasks import load_task_runs, pattern_notes
from symprompt.tasks.verbal import (
    PatternRunConfig,
    check_pattern_config,
    load_pattern_config,
    tune_pattern,
)
from symprompt.tasks.verbal.folder import PatternFolder


@dataclass(frozen=True)
class PatternFlags:
    """Answer a SuperGLUE task through a pattern, with learned vectors or without; write a run.

    Every setting of the config is a flag: --pattern.template pet-0, or --template pet-0 where only
    one table has that name.
    """

    config: Annotated[PatternRunConfig, tyro.conf.arg(name="")]
    resume: bool = False
    """Go on with an unfinished run, or add seeds to a finished one."""


def run_pattern(name: str, arguments: Sequence[str]) -> None:
    """Run ``symprompt tune CONFIG [flags]`` for a config that has a pattern."""
    usage = f"symprompt tune {name} --out RUN --model MODEL --data DATA"
    default = load_pattern_config(name)
    rest = full_names(arguments, default)
    flags = parse(PatternFlags, rest, usage, PatternFlags(default), pairs=True, prefixes=True)
    check_pattern_config(flags.config)
    with show_progress() as tick:
        tune_pattern(flags.config, resume=flags.resume, tick=tick)
    show(load_task_runs([flags.config.out]).to_rich())
    for note in pattern_notes(PatternFolder(flags.config.out).load_metrics()):
        print(note)
    print(f"run folder: {flags.config.out}")
    print(f"predict with it: symprompt predict {flags.config.out} FILE")
