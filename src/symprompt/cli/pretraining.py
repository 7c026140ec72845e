"""``symprompt pretrain``: a masked language model from text."""

from __future__ import annotations

import shlex
from contextlib import nullcontext

from symprompt.cli.flags import PretrainFlags
from symprompt.engine.processes import is_first_process
from symprompt.errors import ConfigError
from symprompt.files.progress import show_progress, silent
from symprompt.pretraining.config import PretrainConfig, load_pretrain_config
from symprompt.pretraining.folder import prepare_pretraining, refuse_contradiction
from symprompt.pretraining.parent import refuse_shape
from symprompt.pretraining.train import pretrain
from symprompt.report.figures import can_draw, save_loss_curve
from symprompt.report.printing import show
from symprompt.report.records import prepared_summary, pretrain_summary


def run_pretrain(flags: PretrainFlags, config: PretrainConfig) -> None:
    """Run ``symprompt pretrain CONFIG --text FILE [FILE ...] --out FOLDER [flags]``."""
    first = is_first_process()
    if config.model:
        refuse_shape(config, load_pretrain_config(flags.config))
    if config.prepared:
        refuse_contradiction(config, load_pretrain_config(flags.config))
    elif not flags.text:
        raise ConfigError("--text is missing; name the text files or folders to learn from.")
    if flags.prepare_only:
        if first:
            _prepare(flags, config)
        return
    with show_progress() if first else nullcontext(silent) as tick:
        run = pretrain(config, flags.text, resume=flags.resume, tick=tick)
    if not first:
        return
    show(pretrain_summary(run.training))
    picture = run.folder / "loss.png"
    if not can_draw():
        print("loss curve: none drawn, as matplotlib is not installed (pip install matplotlib).")
    elif error := save_loss_curve(run.training, picture):
        print(f"loss curve: none drawn, as {picture} cannot be written ({error}).")
    else:
        print(f"loss curve: {picture}")
    print(f"model folder: {run.folder}")
    example = '--template "The capital of [X] is [Y] ." --subject France'
    print(f"ask it: symprompt ask --model {shlex.quote(str(run.folder))} {example}")


def _prepare(flags: PretrainFlags, config: PretrainConfig) -> None:
    with show_progress() as tick:
        prepared = prepare_pretraining(config, flags.text, tick=tick)
    show(prepared_summary(prepared.about))
    print(f"prepared text: {prepared.folder}")
    print(f"use it: symprompt pretrain CONFIG --prepared {prepared.folder} --out FOLDER")
