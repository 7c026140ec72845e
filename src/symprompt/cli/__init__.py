"""The command line: a table of commands, each of which takes flags and calls one function."""

from __future__ import annotations

import gc
import io
import shlex
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from types import FrameType
from typing import Any, Literal

from symprompt import __version__
from symprompt.cli.parsing import parse
from symprompt.config import RUN, flat_fields, nearest
from symprompt.errors import STOPPING, SympromptError, escape, is_out_of_memory
from symprompt.files.hub import is_hub_name

# What lowers a command's need of memory, whichever of them it has.
_MEMORY = ("max_tokens", "micro_batch", "batch", "memory_gib", "train_limit", "limit", "most")


@dataclass(frozen=True)
class Command:
    """What a command is called with: names of modules and what is in them, loaded when needed.

    Attributes:
        about: what it does, in a few words.
        flags: the class of its flags.
        run: the function that gets them, and the config if it takes one.
        configs: the classes that a config of this command may be of; its tables tell which.
        goes_on: how the command goes on after it was interrupted.
    """

    about: str
    flags: str
    run: str
    configs: tuple[str, ...] = ()
    goes_on: Literal["never", "with --resume", "by itself", "with --out"] = "never"


COMMANDS: dict[str, Command] = {
    "train": Command(
        "train a method on facts and write a run folder",
        "symprompt.cli.flags:TrainFlags",
        "symprompt.cli.facts:run_train",
        ("symprompt.probing.config:RunConfig",),
        "with --resume",
    ),
    "pretrain": Command(
        "train a masked language model on text from scratch",
        "symprompt.cli.flags:PretrainFlags",
        "symprompt.cli.pretraining:run_pretrain",
        ("symprompt.pretraining.config:PretrainConfig",),
        "with --resume",
    ),
    "tune": Command(
        "train a prompt, adapters or all weights on a labelled task",
        "symprompt.cli.flags:TuneFlags",
        "symprompt.cli.tasks:run_tune",
        ("symprompt.tasks.config:TuneConfig", "symprompt.tasks.config:PatternRunConfig"),
        "with --resume",
    ),
    "predict": Command(
        "predict for a file with what tune has learned",
        "symprompt.cli.flags:PredictFlags",
        "symprompt.cli.tasks:run_predict",
        goes_on="with --out",
    ),
    "ask": Command(
        "ask a run, or any model by a template, for objects or subjects",
        "symprompt.cli.flags:AskFlags",
        "symprompt.cli.facts:run_ask",
        goes_on="with --out",
    ),
    "table": Command(
        "compare runs", "symprompt.cli.flags:TableFlags", "symprompt.cli.table:run_table"
    ),
    "diff": Command(
        "show what one run knows and another does not, fact by fact",
        "symprompt.cli.flags:DiffFlags",
        "symprompt.cli.table:run_diff",
    ),
    "runs": Command(
        "list the runs of a folder",
        "symprompt.cli.flags:RunsFlags",
        "symprompt.cli.table:run_runs",
    ),
    "runs upgrade": Command(
        "convert runs of earlier versions to the present format",
        "symprompt.cli.flags:UpgradeFlags",
        "symprompt.cli.exchange:run_upgrade",
        goes_on="by itself",
    ),
    "page": Command(
        "look at runs in a browser: ask, compare, every fact; or write them as one file",
        "symprompt.cli.flags:PageFlags",
        "symprompt.cli.page:run_page",
    ),
    "serve": Command(
        "answer questions and predict over HTTP, in batches, for this machine alone",
        "symprompt.cli.flags:ServeFlags",
        "symprompt.cli.page:run_serve",
    ),
    "rerank": Command(
        "re-rank any run's candidates by an SPE run's subject prompts",
        "symprompt.cli.flags:RerankFlags",
        "symprompt.cli.facts:run_rerank",
    ),
    "coherency": Command(
        "measure how often runs recover the subject from their own answer",
        "symprompt.cli.flags:CoherencyFlags",
        "symprompt.cli.facts:run_coherency",
        goes_on="by itself",
    ),
    "consistency": Command(
        "measure how often runs answer the same when asked in other words",
        "symprompt.cli.flags:ConsistencyFlags",
        "symprompt.cli.facts:run_consistency",
    ),
    "prompts show": Command(
        "show the words nearest to a run's learned vectors",
        "symprompt.cli.flags:PromptsFlags",
        "symprompt.cli.facts:run_prompts",
    ),
    "export": Command(
        "write what a run has learned for peft or onnx, or its tables as Parquet",
        "symprompt.cli.flags:ExportFlags",
        "symprompt.cli.exchange:run_export",
    ),
    "import": Command(
        "make a run of an exported folder",
        "symprompt.cli.flags:ImportFlags",
        "symprompt.cli.exchange:run_import",
    ),
    "push": Command(
        "put a run on the hub, for others to ask by its name",
        "symprompt.cli.flags:PushFlags",
        "symprompt.cli.exchange:run_push",
    ),
    "data check": Command(
        "look at facts: counts, what is dropped, what leaks",
        "symprompt.cli.flags:CheckFlags",
        "symprompt.cli.facts:run_check",
    ),
    "data export": Command(
        "write facts as a Parquet file",
        "symprompt.cli.flags:DataExportFlags",
        "symprompt.cli.exchange:run_data_export",
    ),
    "data vocabulary": Command(
        "write the words that are one token of several models",
        "symprompt.cli.flags:VocabularyFlags",
        "symprompt.cli.facts:run_vocabulary",
    ),
    "embed": Command(
        "write a contextual vector of every word of a text, or of every text",
        "symprompt.cli.flags:EmbedFlags",
        "symprompt.cli.embeddings:run_embed",
        goes_on="by itself",
    ),
    "similarity": Command(
        "compare words where they stand, or whole texts, by cosine",
        "symprompt.cli.flags:SimilarityFlags",
        "symprompt.cli.embeddings:run_similarity",
    ),
    "isotropy": Command(
        "measure how alike all vectors are, layer by layer; standardise",
        "symprompt.cli.flags:IsotropyFlags",
        "symprompt.cli.embeddings:run_isotropy",
    ),
    "senses train": Command(
        "make sense vectors from tagged text",
        "symprompt.cli.flags:SensesTrainFlags",
        "symprompt.cli.senses:run_train",
        goes_on="by itself",
    ),
    "senses evaluate": Command(
        "score sense vectors on the five standard test sets",
        "symprompt.cli.flags:SensesEvaluateFlags",
        "symprompt.cli.senses:run_evaluate",
    ),
    "senses tag": Command(
        "tag every content word of a text with its sense",
        "symprompt.cli.flags:SensesTagFlags",
        "symprompt.cli.senses:run_tag",
    ),
    "senses map": Command(
        "draw a word's occurrences in the plane",
        "symprompt.cli.flags:SensesMapFlags",
        "symprompt.cli.senses:run_map",
    ),
    "reproduce spe": Command(
        "make SPE's and P-tuning's tables of facts on your models",
        "symprompt.cli.paper_flags:ReproduceFlags",
        "symprompt.cli.reproduce:run_facts",
        goes_on="by itself",
    ),
    "reproduce bear": Command(
        "make BEAR's table, and learned prompts beside it, on your models",
        "symprompt.cli.paper_flags:BearFlags",
        "symprompt.cli.reproduce:run_facts",
        goes_on="by itself",
    ),
    "reproduce ptuning": Command(
        "make P-tuning's tables of SuperGLUE on your models",
        "symprompt.cli.paper_flags:LabelledFlags",
        "symprompt.cli.reproduce:run_ptuning",
        goes_on="by itself",
    ),
    "reproduce ptuning-v2": Command(
        "make P-tuning v2's tables of labelled tasks on your models",
        "symprompt.cli.paper_flags:LabelledFlags",
        "symprompt.cli.reproduce:run_ptuning_v2",
        goes_on="by itself",
    ),
    "sweep": Command(
        "train a recipe over a grid of settings and seeds; dev chooses the best",
        "symprompt.cli.paper_flags:SweepFlags",
        "symprompt.cli.reproduce:run_sweep",
        goes_on="by itself",
    ),
    "demo": Command(
        "see it all at work on facts about the world, without a download",
        "symprompt.cli.flags:DemoFlags",
        "symprompt.cli.facts:run_demo",
        goes_on="by itself",
    ),
    "configs": Command(
        "list the configs that ship, or print one",
        "symprompt.cli.flags:ConfigsFlags",
        "symprompt.cli.table:run_configs",
    ),
    "examples": Command(
        "write small files to try the commands on",
        "symprompt.cli.flags:ExamplesFlags",
        "symprompt.cli.table:run_examples",
    ),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; a user's mistake ends in one sentence and exit code 2."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    # Facts are millions of small objects that stay: to go through them as often as Python does by
    # itself takes a seventh of the time.
    gc.set_threshold(100_000, 50, 50)
    for stream in (sys.stdout, sys.stderr):
        # A terminal or pipe that cannot show a character gets its code, not a traceback.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        with _stopped_by_signals():
            _run(words)
    except SympromptError as error:
        _fail(str(error))
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        _fail(f"there is not enough memory; {_what_needs_less(words)}.")
    except KeyboardInterrupt:
        print(how_to_go_on(words), file=sys.stderr)
        raise SystemExit(130) from None
    except BrokenPipeError:
        # The reader of our output has gone, as in `symprompt table RUN | head`.
        sys.stderr.close()


def _run(words: list[str]) -> None:
    if not words or words[0] in ("-h", "--help"):
        print(_help(), flush=True)
        raise SystemExit(0 if words else 2)
    if words[0] == "--version":
        print(__version__)
        return
    name = _find(words)
    if name is None:
        print(_help(words[0]))
        return
    command = COMMANDS[name]
    kinds = [load_attribute(kind) for kind in command.configs]
    given = parse(name, load_attribute(command.flags), words[len(name.split()) :], kinds)
    run = load_attribute(command.run)
    if "transformers" in sys.modules:
        load_attribute("symprompt.models.loading:silence_transformers")()
    run(_located(given[0]), *given[1:])


def _located(flags: Any) -> Any:
    """Return a command's flags with run folders in the place of names of runs on the hub."""
    changes = {}
    for key, field in flat_fields(type(flags)).items():
        given = getattr(flags, key) if RUN in field.metadata else ()
        listed = (given,) if isinstance(given, str) else given
        if any(map(is_hub_name, listed)):
            locate = load_attribute("symprompt.opening:locate_run")
            load_attribute("symprompt.models.loading:silence_transformers")()
            found = tuple(str(locate(own)) if is_hub_name(own) else own for own in listed)
            changes[key] = found[0] if isinstance(given, str) else found
    return replace(flags, **changes)


def _find(words: Sequence[str]) -> str | None:
    """Return the command that the first words name; None asks for the help of a group.

    Raises:
        SympromptError: there is no such command.
    """
    for count in (2, 1):
        if " ".join(words[:count]) in COMMANDS:
            return " ".join(words[:count])
    group = [name.split()[1] for name in COMMANDS if name.split()[0] == words[0]]
    if not group:
        known = list(dict.fromkeys(name.split()[0] for name in COMMANDS))
        near = nearest(words[0], known)
        raise SympromptError(
            f"{words[0]!r} is no command{f' (did you mean {near}?)' if near else ''}; the commands "
            f"are: {', '.join(known)}."
        )
    if words[1:2] in (["-h"], ["--help"]):
        return None
    raise SympromptError(
        f"{words[0]} takes one of the commands {', '.join(group)}, got "
        f"{words[1] if len(words) > 1 else 'nothing'}: symprompt {words[0]} {group[0]} --help."
    )


def load_attribute(place: str) -> Any:
    """Import "module:attribute" and return the attribute."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


def how_to_go_on(words: Sequence[str]) -> str:
    """Return what is said when a command is interrupted.

    Args:
        words: the command and what follows it.
    """
    names = (" ".join(words[:2]), " ".join(words[:1]))
    given = shlex.join(["symprompt", *words])
    goes_on = next((COMMANDS[name].goes_on for name in names if name in COMMANDS), "never")
    if goes_on == "with --resume":
        return "interrupted; a run in training goes on with --resume."
    if goes_on == "by itself" or (goes_on == "with --out" and "--out" in given):
        return f"interrupted; the same command goes on where it was: {given}"
    return "interrupted; this command does not go on: given again, it starts from the beginning."


def _help(group: str = "") -> str:
    """Return the table of all commands, or of those of a group."""
    names = [name for name in COMMANDS if name.startswith(group)]
    width = max(map(len, names))
    lines = [f"  {name:<{width}}  {COMMANDS[name].about}" for name in names]
    usage = f"usage: symprompt {group or 'COMMAND'}{' COMMAND' if group else ''} [flags]"
    head = f"symprompt {__version__}: ask a frozen language model what it knows, both ways\n\n"
    return f"{'' if group else head}{usage}      (each has a --help of its own)\n\n" + "\n".join(
        lines
    )


def _what_needs_less(words: Sequence[str]) -> str:
    """Return which flags of a command lower its need of memory."""
    command = COMMANDS[_find(words) or ""]
    kinds = [load_attribute(kind) for kind in (command.flags, *command.configs)]
    names = [key.rpartition(".")[2] for kind in kinds for key in flat_fields(kind)]
    found = [f"--{name.replace('_', '-')}" for name in _MEMORY if name in names]
    return f"lower {' or '.join(found)}" if found else "give it less at a time"


@contextmanager
def _stopped_by_signals() -> Iterator[None]:
    """Take a termination and a lost terminal as Ctrl-C, but where they are shielded from."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    wanted = [number for number in STOPPING if signal.getsignal(number) is signal.SIG_DFL]
    if threading.current_thread() is not threading.main_thread():
        wanted = []
    for number in wanted:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number in wanted:
            signal.signal(number, signal.SIG_DFL)


def _fail(message: str) -> None:
    print(f"symprompt: {escape(message)}", file=sys.stderr)
    raise SystemExit(2)
