"""What the command line says to Ctrl-C: how each command goes on, which not all do.

The command line: a table of commands, each of which builds one config and calls one function.
"""

from __future__ import annotations

import difflib
import io
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from transformers.utils import logging as transformers_logging

from symprompt import __version__
from symprompt.cli.data import print_json, run_data
from symprompt.cli.embeddings import run_embed, run_isotropy, run_senses, run_similarity
from symprompt.cli.flags import (
    AskFlags,
    DemoFlags,
    PretrainFlags,
    PromptsFlags,
    ReproduceFlags,
    RerankFlags,
    TableFlags,
    TrainFlags,
    full_names,
    parse,
)
from symprompt.cli.reproduce import LABELLED, go_on_with, run_labelled
from symprompt.cli.tasks import run_predict, run_tune, table_of_tasks
from symprompt.config import shipped_configs
from symprompt.config.loading import Command
from symprompt.engine.processes import is_first_process
from symprompt.errors import ConfigError, SympromptError
from symprompt.files.progress import silent
from symprompt.papers import reproduce
from symprompt.papers.plan import make_plan
from symprompt.papers.summary import show_plan, show_reproduction
from symprompt.pretraining.config import PretrainConfig, load_pretrain_config
from symprompt.pretraining.prepare import prepare_pretraining, refuse_contradiction
from symprompt.pretraining.train import pretrain
from symprompt.probing.ask import Run
from symprompt.probing.config import RunConfig, load_config
from symprompt.probing.demo import make_demo
from symprompt.probing.inspect import describe_prompts
from symprompt.probing.rerank import rerank_run
from symprompt.probing.train import train
from symprompt.report import comparison, load_scores, show, show_progress
from symprompt.report.answers import answer_table, prompts_table, run_summary
from symprompt.report.demo import show_demo
from symprompt.report.figures import can_draw, save_loss_curve
from symprompt.report.grid import Grids
from symprompt.report.pretraining import prepared_summary, pretrain_summary
from symprompt.report.stored import is_stored, load_stored

# Their runs refuse to go on unless they are told to.
_WITH_RESUME = (["train"], ["pretrain"], ["tune"])
# What these have made they find again.
_BY_THEMSELVES = (["embed"], ["senses", "train"], ["demo"], ["reproduce"])


def how_to_go_on(words: Sequence[str]) -> str:
    """Return what is said when a command is interrupted.

    Args:
        words: the command and what follows it.
    """
    names = (list(words[:1]), list(words[:2]))
    if any(name in _WITH_RESUME for name in names):
        return "interrupted; a run in training goes on with --resume."
    if any(name in _BY_THEMSELVES for name in names):
        return "interrupted; the same command goes on where it was."
    return "interrupted; this command does not go on: given again, it starts from the beginning."


def run_train(arguments: Sequence[str]) -> None:
    """Run ``symprompt train CONFIG [flags]``."""
    usage = "symprompt train CONFIG"
    names = _config_name(arguments, usage, "train")
    default = load_config(names[0]) if names else RunConfig()
    rest = arguments[len(names) :]
    # Pairs: a lone --no-drop-last would stand beside a text that says what --drop-last does.
    flags = parse(TrainFlags, rest, usage, TrainFlags(default), pairs=True)
    with show_progress() as tick:
        run = train(flags.config, resume=flags.resume, tick=tick)
    show(run_summary(run.metrics))
    print(f"run folder: {run.folder.path}")
    print(f"compare it: symprompt table {run.folder.path}")


def run_pretrain(arguments: Sequence[str]) -> None:
    """Run ``symprompt pretrain CONFIG --text FILE [FILE ...] --out FOLDER [flags]``."""
    usage = "symprompt pretrain CONFIG --text FILE [FILE ...] --out FOLDER"
    names = _config_name(arguments, usage, "pretrain")
    default = load_pretrain_config(names[0]) if names else PretrainConfig()
    rest = full_names(arguments[len(names) :], default)
    flags = parse(PretrainFlags, rest, usage, PretrainFlags(default), pairs=True, prefixes=True)
    first = is_first_process()
    if flags.config.prepared:
        refuse_contradiction(flags.config, default)
    elif not flags.text:
        raise ConfigError("--text is missing; name the text files or folders to learn from.")
    if flags.prepare_only:
        if first:
            _prepare_pretraining(flags)
        return
    with show_progress() if first else nullcontext(silent) as tick:
        try:
            run = pretrain(flags.config, flags.text, resume=flags.resume, tick=tick)
        except torch.OutOfMemoryError:
            now = flags.config.optimizer.micro_batch or flags.config.optimizer.batch
            raise SympromptError(
                f"the device ran out of memory; lower --micro-batch (now {now})."
            ) from None
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
    print(f"use it: symprompt train lama-spe --model {run.folder} --data DATA --out RUN")


def _prepare_pretraining(flags: PretrainFlags) -> None:
    with show_progress() as tick:
        prepared = prepare_pretraining(flags.config, flags.text, tick=tick)
    show(prepared_summary(prepared.about))
    print(f"prepared text: {prepared.folder}")
    print(f"use it: symprompt pretrain CONFIG --prepared {prepared.folder} --out FOLDER")


def run_ask(arguments: Sequence[str]) -> None:
    """Run ``symprompt ask RUN --relation NAME --subject|--object TEXT``."""
    flags = parse(AskFlags, arguments, "symprompt ask")
    run = Run.load(flags.run)
    with show_progress() as tick:
        answers = run.ask(
            flags.relation,
            subject=flags.subject,
            object=flags.object,
            top=flags.top,
            model=flags.model,
            device=flags.device,
            tick=tick,
        )
    plain = [asdict(answer) for answer in answers]
    if flags.json:
        print_json(plain)
    else:
        asked = f"{flags.subject} ?" if flags.subject is not None else f"? {flags.object}"
        show(answer_table(plain, f"{flags.relation}: {asked}"))


def run_rerank(arguments: Sequence[str]) -> None:
    """Run ``symprompt rerank RUN --with SPE_RUN --out FOLDER``."""
    flags = parse(RerankFlags, arguments, "symprompt rerank")
    with show_progress() as tick:
        run = rerank_run(
            flags.run,
            flags.way_back,
            flags.out,
            k=flags.k,
            choose_weight=flags.choose_weight,
            model=flags.model,
            device=flags.device,
            max_tokens=flags.max_tokens,
            tick=tick,
        )
    show(run_summary(run.metrics))
    print(f"run folder: {run.folder.path}")
    print(f"compare it: symprompt table {flags.run} {run.folder.path}")


def run_table(arguments: Sequence[str]) -> None:
    """Run ``symprompt table RUN [RUN ...]``."""
    flags = parse(TableFlags, arguments, "symprompt table")
    if not flags.runs:
        raise SympromptError("no run was named; give one or more run folders.")
    if any(map(is_stored, flags.runs)):
        _show_stored(flags)
        return
    tasks = table_of_tasks(flags.runs, flags.split)
    if tasks is not None:
        plain = TableFlags(flags.runs, split=flags.split, markdown=flags.markdown, json=flags.json)
        _refuse_flags(flags, plain, "is about runs on facts; leave it out for labelled tasks.")
        _show_tables(tasks, flags)
        return
    if flags.split not in ("", "dev", "test"):
        raise ConfigError(f"--split is {flags.split!r}; facts have the splits dev and test.")
    rows = []
    for path in flags.runs:
        options: dict[str, Any] = {
            "split": flags.split or "test",
            "kind": flags.ranks,
            "filtered": flags.filtered,
        }
        main = load_scores(path, **options, k=flags.k, weight=flags.weight)
        if flags.forward:
            before = load_scores(path, **options, forward=True)
            rows += [before] if before.name != main.name else []
        rows.append(main)
    found = comparison(rows, by_relation=flags.by == "relation", draws=flags.draws)
    if flags.json:
        print_json(found.to_dict())
    elif flags.markdown:
        print(found.to_markdown())
    else:
        show(found)


def _show_stored(flags: TableFlags) -> None:
    """Print results that were stored as JSON; what would need the runs is refused."""
    for path in flags.runs:
        if not is_stored(path):
            raise ConfigError(f"{path} is no JSON file; give stored results or run folders apart.")
    plain = TableFlags(flags.runs, markdown=flags.markdown, json=flags.json)
    _refuse_flags(flags, plain, "needs run folders; stored results are printed as they are.")
    for path in flags.runs:
        _show_tables(load_stored(path), flags)


def _refuse_flags(flags: TableFlags, plain: TableFlags, why: str) -> None:
    for name, value in asdict(flags).items():
        if value != getattr(plain, name):
            raise ConfigError(f"--{name} {why}")


def _show_tables(tables: Grids, flags: TableFlags) -> None:
    if flags.json:
        print_json(tables.values)
    elif flags.markdown:
        print(tables.to_markdown())
    else:
        show(tables.to_rich())


def run_reproduce(arguments: Sequence[str]) -> None:
    """Run ``symprompt reproduce PAPER --models A,B --data FOLDER``."""
    if arguments[:1] and arguments[0] in LABELLED:
        run_labelled(arguments)
        return
    if arguments[:1] and not arguments[0].startswith("-") and arguments[0] != "spe":
        raise SympromptError(
            f"the paper is {arguments[0]!r}; reproduce takes one of: spe, {', '.join(LABELLED)}."
        )
    flags = parse(ReproduceFlags, arguments, "symprompt reproduce")
    settings = flags.settings()
    if flags.dry_run:
        show_plan(make_plan(settings))
        return
    try:
        with show_progress() as tick:
            made = reproduce(settings, tick=tick)
    except KeyboardInterrupt:
        go_on_with(arguments)
    show_reproduction(made)
    if made.failed:
        raise SystemExit(1)


def run_prompts(arguments: Sequence[str]) -> None:
    """Run ``symprompt prompts show RUN``."""
    if arguments[:1] in (["-h"], ["--help"]):
        print("usage: symprompt prompts show RUN [flags]    (prompts show --help tells the flags)")
        return
    if arguments[:1] != ["show"]:
        got = arguments[0] if arguments else "nothing"
        raise SympromptError(
            f"prompts takes the command show, got {got}: symprompt prompts show RUN."
        )
    flags = parse(PromptsFlags, arguments[1:], "symprompt prompts show")
    views = describe_prompts(
        Run.load(flags.run),
        relations=flags.relations,
        top=flags.top,
        by=flags.by,
        model=flags.model,
        device=flags.device,
    )
    plain = [asdict(view) for view in views]
    if flags.json:
        print_json(plain)
    else:
        show(prompts_table(plain, flags.by))


def run_demo(arguments: Sequence[str]) -> None:
    """Run ``symprompt demo``."""
    flags = parse(DemoFlags, arguments, "symprompt demo")
    with show_progress() as tick:
        demo = make_demo(Path(flags.out), model=flags.model, tick=tick)
    show_demo(demo)


def run_configs(arguments: Sequence[str]) -> None:
    """Run ``symprompt configs [NAME]``: list what ships, or print one."""
    shipped = shipped_configs()
    if arguments[:1] in (["-h"], ["--help"]):
        print("usage: symprompt configs [NAME]\n\nList the configs that ship, or print one.")
        return
    if len(arguments) > 1:
        raise SympromptError(f"configs takes one name, got {len(arguments)}.")
    for name in arguments:
        if name not in shipped:
            near = difflib.get_close_matches(name, shipped, n=1)
            hint = f" (did you mean {near[0]}?)" if near else ""
            raise SympromptError(
                f"no config {name!r} ships{hint}; shipped are: {', '.join(shipped)}."
            )
        print(shipped[name].read_text(encoding="utf-8"), end="")
        return
    for name, path in shipped.items():
        first = path.read_text(encoding="utf-8").splitlines()[0].lstrip("# ")
        print(f"{name:<20} {first}")


COMMANDS: dict[str, tuple[Callable[[Sequence[str]], None], str]] = {
    "train": (run_train, "train a method on facts and write a run folder"),
    "pretrain": (run_pretrain, "train a masked language model on text from scratch"),
    "tune": (run_tune, "train a prompt, adapters or all weights on a labelled task"),
    "predict": (run_predict, "predict for a file with what tune has learned"),
    "ask": (run_ask, "ask a run for objects or subjects"),
    "table": (run_table, "compare runs"),
    "rerank": (run_rerank, "ask back on top of any run's candidates"),
    "prompts": (run_prompts, "prompts show: the words nearest to a run's learned vectors"),
    "data": (run_data, "data check: look at facts; data vocabulary: words that models share"),
    "embed": (run_embed, "write a contextual vector of every word of a text"),
    "similarity": (run_similarity, "compare word occurrences by cosine"),
    "isotropy": (run_isotropy, "say how alike all word vectors are, layer by layer; standardise"),
    "senses": (run_senses, "senses train, evaluate, tag, map: which meaning a word has where"),
    "reproduce": (run_reproduce, "make the papers' tables on your models, every method and seed"),
    "demo": (run_demo, "see it all at work on facts about the world, without a download"),
    "configs": (run_configs, "list the configs that ship, or print one"),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; a user's mistake ends in one sentence and exit code 2."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        # A terminal or pipe that cannot show a character gets its code, not a traceback.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    if not words or words[0] in ("-h", "--help"):
        print(_help())
        raise SystemExit(0 if words else 2)
    if words[0] == "--version":
        print(__version__)
        return
    transformers_logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        if words[0] not in COMMANDS:
            raise SympromptError(
                f"{words[0]!r} is no command; the commands are: {', '.join(COMMANDS)}."
            )
        COMMANDS[words[0]][0](words[1:])
    except SympromptError as error:
        _fail(str(error))
    except torch.OutOfMemoryError:
        _fail("the device ran out of memory; lower --max-tokens (now chosen by device) or --batch.")
    except KeyboardInterrupt:
        Console(stderr=True).print(how_to_go_on(words), soft_wrap=True)
        raise SystemExit(130) from None
    except BrokenPipeError:
        # The reader of our output has gone, as in `symprompt table RUN | head`.
        sys.stderr.close()


def _help() -> str:
    lines = [f"  {name:<10} {about}" for name, (_, about) in COMMANDS.items()]
    return (
        f"symprompt {__version__}: ask a frozen language model what it knows, both ways\n\n"
        "usage: symprompt COMMAND [flags]      (symprompt COMMAND --help teaches each)\n\n"
        + "\n".join(lines)
    )


def _fail(message: str) -> None:
    Console(stderr=True).print(
        f"symprompt: {message}", markup=False, highlight=False, soft_wrap=True
    )
    raise SystemExit(2)


def _config_name(arguments: Sequence[str], usage: str, command: Command) -> list[str]:
    """Return the config's name as a list of one; without one print what ships, for the help."""
    names = [word for word in arguments[:1] if not word.startswith("-")]
    if not names:
        listed = ", ".join(shipped_configs(command))
        print(f"usage: {usage} [flags]\n\nCONFIG is a TOML file or one of: {listed}\n")
        if not {"-h", "--help"} & set(arguments):
            raise SympromptError("no config was named; give one of the above, or a TOML file.")
    return names
