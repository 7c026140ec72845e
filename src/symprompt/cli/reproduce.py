"""``symprompt reproduce`` for the papers about labelled tasks: P-tuning and P-tuning v2."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NoReturn

import tyro
from rich.console import Console

from symprompt.cli.flags import parse
from symprompt.errors import ConfigError
from symprompt.models import SHIPPED
from symprompt.papers.labelled import report_results, reproduce_labelled
from symprompt.papers.labelled.plan import make_labelled_plan
from symprompt.papers.labelled.settings import LabelledSettings
from symprompt.papers.summary import show_labelled, show_labelled_plan
from symprompt.report import show_progress

LABELLED = ("ptuning", "ptuning-v2")


@dataclass(frozen=True)
class LabelledFlags:
    """Make every run behind a paper's tables of labelled tasks, on your models, and the tables.

    ptuning: P-tuning's Tables 3 to 6 and Figure 1, SuperGLUE through patterns. ptuning-v2: P-tuning
    v2's Tables 1 to 4, Figure 1 and two ablations. Every task x method x model x seed, one after
    the other; then OUT/report.md, report.html, results.json (symprompt table prints it again) and
    figures. Stop it whenever you like: the same command goes on where it was. A run that fails is
    named in the tables, the others go on, and the exit code is 1; a task whose files are not there
    reads "not measured". The papers' own figures stand in columns of their own.
    """

    paper: tyro.conf.Positional[Literal["ptuning", "ptuning-v2"]]
    """Which paper's tables."""
    data: str = ""
    """Folder of the tasks' folders: rte, boolq, conll2003, squad, FewGLUE_32dev and so on."""
    models: tuple[str, ...] = ()
    """Folders, hub names or GGUF files; NAME=PLACE calls a model otherwise than its folder. The
    model of the package if there is none."""
    out: str = "reproduced"
    """Folder for runs, tables and figures; models, tasks, methods and seeds may be added later."""
    tasks: tuple[str, ...] = ()
    """Only these tasks, such as rte conll2003; NAME=PLACE says where in the data its files are."""
    methods: tuple[str, ...] = ()
    """Only these methods. ptuning-v2: ft pt pt2 mpt2 lora pt2-mlp pt2-verbalizer verbalizer;
    ptuning: zero-shot cls mp ptuning pet table6 frozen. Without it all but frozen."""
    seeds: tuple[str, ...] = ()
    """Training seeds; 11 12 13 (ptuning-v2) or 42 to 46 (ptuning) if there are none."""
    epochs: int = 0
    """Training epochs, for a trial; 0 leaves them to each task's recipe."""
    limit: int = 0
    """Most examples of each split, for a trial; 0 takes all."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:N or mps."""
    dtype: str = "auto"
    """Of the passes of ptuning-v2: auto (bfloat16 on CUDA, else float32), float32 or bfloat16."""
    from_results: tuple[str, ...] = ()
    """Make the tables from these stored results instead of runs: JSON files, or folders of them,
    such as experiments/results."""
    dry_run: bool = False
    """Print the runs that would be made, and stop."""

    def settings(self) -> LabelledSettings:
        """Return what reproduce is called with."""
        words = _split(self.seeds)
        try:
            seeds = tuple(map(int, words))
        except ValueError:
            raise ConfigError(f"--seeds is {' '.join(words)!r}; give whole numbers.") from None
        return LabelledSettings(
            paper=self.paper,
            data=self.data,
            out=self.out,
            models=_split(self.models) or (SHIPPED,),
            tasks=_split(self.tasks),
            methods=_split(self.methods),
            seeds=seeds,
            epochs=self.epochs,
            limit=self.limit,
            device=self.device,
            dtype=self.dtype,
        )


def run_labelled(arguments: Sequence[str]) -> None:
    """Run ``symprompt reproduce ptuning-v2 --models A B --data FOLDER``."""
    flags = parse(LabelledFlags, arguments, "symprompt reproduce")
    if flags.from_results:
        _refuse_others(flags)
        show_labelled(report_results(flags.paper, flags.from_results, flags.out))
        return
    settings = flags.settings()
    if flags.dry_run:
        show_labelled_plan(make_labelled_plan(settings))
        return
    try:
        with show_progress() as tick:
            made = reproduce_labelled(settings, tick=tick)
    except KeyboardInterrupt:
        go_on_with(arguments)
    show_labelled(made)
    if made.outcome.failed:
        raise SystemExit(1)


def _refuse_others(flags: LabelledFlags) -> None:
    """Refuse what concerns runs where there are none."""
    plain = LabelledFlags(flags.paper)
    for name in ("data", "models", "tasks", "methods", "seeds", "epochs", "limit", "dry_run"):
        if getattr(flags, name) != getattr(plain, name):
            shown = name.replace("_", "-")
            raise ConfigError(
                f"--{shown} is about runs, and --from-results makes none; leave one of them out."
            )


def go_on_with(arguments: Sequence[str]) -> NoReturn:
    """Say how to go on after an interrupt, and end with its exit code."""
    words = shlex.join(["symprompt", "reproduce", *arguments])
    Console(stderr=True).print(
        f"interrupted; go on with: {words}", markup=False, highlight=False, soft_wrap=True
    )
    raise SystemExit(130) from None


def _split(words: Sequence[str]) -> tuple[str, ...]:
    """Return the parts of a list, whether spaces part it or commas."""
    return tuple(part.strip() for word in words for part in word.split(",") if part.strip())
