"""The flags of reproduce and sweep; apart, as their settings take long to import."""

from __future__ import annotations

from symprompt.config import Common, Several, settings
from symprompt.papers.settings import BearSettings, FactSettings, SweepSettings, TaskOptions


@settings
class DryRun:
    """Whether jobs are only listed."""

    dry_run: Common[bool] = False
    """Print the runs that would be made, with times and memory of finished ones like them; stop."""


@settings
class ReproduceFlags(DryRun, FactSettings):
    """Make every run behind SPE's and P-tuning's tables of facts, on your models, and the tables.

    Every method x model x seed, one worker process per device; then OUT/report.md, report.html,
    results.json (symprompt table prints it again) and figures. Stop it whenever you like: the same
    command goes on where it was and ends with the same tables. A run that fails is named in the
    tables, the others go on, and the exit code is 1. The papers' own figures stand in columns of
    their own.
    """


@settings
class BearFlags(DryRun, BearSettings):
    """Make BEAR's table on your models: whole sentences, P-tuning and SPE over its answer spaces.

    BEAR's protocol on all facts by each of the three templates, then on the test facts beside
    P-tuning and SPE, which learn from 40 % of the subjects; then OUT/report.md, report.html and
    results.json (symprompt table prints it again). Stop it whenever you like: the same command goes
    on where it was. A run that fails is named in the tables, the others go on, and the exit code is
    1. The figures of BEAR's authors stand in a column of their own.
    """


@settings
class LabelledFlags(DryRun, TaskOptions):
    """Make every run behind a paper's tables of labelled tasks, on your models, and the tables.

    ptuning: P-tuning's Tables 3 to 6 and Figure 1, SuperGLUE through patterns. ptuning-v2: P-tuning
    v2's Tables 1 to 4, Figure 1 and two ablations. Every task x method x model x seed; then
    OUT/report.md, report.html, results.json (symprompt table prints it again) and figures. Stop it
    whenever you like: the same command goes on where it was. A run that fails is named in the
    tables, the others go on, and the exit code is 1. A task whose files are not there reads
    "not measured". The papers' own figures stand in columns of their own.
    """

    from_results: Common[Several[str]] = ()
    """Make the tables from these stored results instead of runs: JSON files, or folders of them,
    such as experiments/results."""


@settings
class SweepFlags(DryRun, SweepSettings):
    """Train a recipe over a grid of settings and seeds, and choose the best setting by dev.

    symprompt sweep rte-pt2 --data $RTE --grid learning.rate=1e-3,1e-2 --seeds 11 12 13 trains every
    combination with every seed, then prints all settings with dev and, of the best alone, test;
    OUT/report.md, report.html and results.json hold the same. Keys are those of the recipe's
    tables. Stop it whenever you like: the same command goes on where it was. A run that fails is
    reported, the others go on, and the exit code is 1.
    """
