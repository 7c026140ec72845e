"""What reproduce prints: the plan before, the files and failures after."""

from __future__ import annotations

from symprompt.papers.labelled import LabelledReport
from symprompt.papers.labelled.plan import LabelledPlan
from symprompt.papers.plan import Plan
from symprompt.papers.spe import Reproduction
from symprompt.report import figures


def show_plan(plan: Plan) -> None:
    """Print every run of a plan, whether it is there, and the rows that have none."""
    done = [run for run in plan.runs if run.folder.finished]
    print(f"{len(plan.runs)} runs, {len(done)} of them done, in {plan.settings.out}:")
    for run in plan.runs:
        state = "done" if run.folder.finished else "begun" if run.folder.has("config.toml") else ""
        print(f"  {run.name:<48} {state}".rstrip())
    for gap in plan.gaps:
        print(f"  {gap.model}/{gap.row}: {gap.why}")


def show_reproduction(made: Reproduction) -> None:
    """Print where the tables are, what failed, and how to look at the results again."""
    out = made.plan.settings.out
    counts = f"{len(made.outcome.made)} runs made, {len(made.outcome.skipped)} there from before"
    print(f"{counts}, {len(made.failed)} failed.")
    for run, why in made.failed.items():
        print(f"  {run} failed: {why}")
    for path in made.files:
        print(f"  {path}")
    if not made.drawn:
        print(f"no figures: {figures.NEED}.")
    print(f"print the results again: symprompt table {out}/results.json")


def show_labelled_plan(plan: LabelledPlan) -> None:
    """Print every run on labelled tasks, whether it is there, and what will not be measured."""
    done = [job for job in plan.jobs if job.finished]
    print(f"{len(plan.jobs)} runs, {len(done)} of them done, in {plan.settings.out}:")
    for job in plan.jobs:
        state = "done" if job.finished else "begun" if job.begun else ""
        print(f"  {job.name:<48} {state}".rstrip())
    for task, why in plan.missing.items():
        print(f"  {task}: not measured: {why}")


def show_labelled(made: LabelledReport) -> None:
    """Print where the tables are, what failed, and how to look at the results again."""
    outcome = made.outcome
    if outcome.made or outcome.skipped or outcome.failed:
        counts = f"{len(outcome.made)} runs made, {len(outcome.skipped)} there from before"
        print(f"{counts}, {len(outcome.failed)} failed.")
    for run, why in outcome.failed.items():
        print(f"  {run} failed: {why}")
    for path in made.files:
        print(f"  {path}")
    if not made.drawn:
        print(f"no figures: {figures.NEED}.")
    print(f"print the results again: symprompt table {made.out}/results.json")
