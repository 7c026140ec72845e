"""``symprompt reproduce``: the papers' tables."""

from __future__ import annotations

from dataclasses import asdict
from typing import Literal

from symprompt.cli.flags import LabelledFlags, ReproduceFlags
from symprompt.errors import ConfigError
from symprompt.papers import reproduce
from symprompt.papers.labelled import report_results, reproduce_labelled
from symprompt.papers.labelled.plan import make_labelled_plan
from symprompt.papers.labelled.settings import LabelledSettings
from symprompt.papers.plan import make_plan
from symprompt.papers.settings import ReproduceSettings
from symprompt.papers.summary import (
    show_labelled,
    show_labelled_plan,
    show_plan,
    show_reproduction,
)
from symprompt.report import show_progress


def run_spe(flags: ReproduceFlags) -> None:
    """Run ``symprompt reproduce spe --models A,B --data FOLDER``."""
    values = asdict(flags)
    del values["dry_run"]
    settings = ReproduceSettings(**values)
    if flags.dry_run:
        show_plan(make_plan(settings))
        return
    with show_progress() as tick:
        made = reproduce(settings, tick=tick)
    show_reproduction(made)
    if made.failed:
        raise SystemExit(1)


def run_ptuning(flags: LabelledFlags) -> None:
    """Run ``symprompt reproduce ptuning --models A B --data FOLDER``."""
    _run_labelled(flags, "ptuning")


def run_ptuning_v2(flags: LabelledFlags) -> None:
    """Run ``symprompt reproduce ptuning-v2 --models A B --data FOLDER``."""
    _run_labelled(flags, "ptuning-v2")


def _run_labelled(flags: LabelledFlags, paper: Literal["ptuning", "ptuning-v2"]) -> None:
    if flags.from_results:
        _refuse_others(flags)
        show_labelled(report_results(paper, flags.from_results, flags.out))
        return
    values = asdict(flags)
    del values["dry_run"], values["from_results"]
    settings = LabelledSettings(paper, **values)
    if flags.dry_run:
        show_labelled_plan(make_labelled_plan(settings))
        return
    with show_progress() as tick:
        made = reproduce_labelled(settings, tick=tick)
    show_labelled(made)
    if made.outcome.failed:
        raise SystemExit(1)


def _refuse_others(flags: LabelledFlags) -> None:
    """Refuse what concerns runs where there are none."""
    plain = LabelledFlags()
    for name in ("data", "models", "tasks", "methods", "seeds", "epochs", "limit", "dry_run"):
        if getattr(flags, name) != getattr(plain, name):
            shown = name.replace("_", "-")
            raise ConfigError(
                f"--{shown} is about runs, and --from-results makes none; leave one of them out."
            )
