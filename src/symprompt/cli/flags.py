"""The flags of every command, as dataclasses that tyro reads; the command line's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import tyro

from symprompt.config import flatten
from symprompt.errors import ConfigError
from symprompt.models import SHIPPED
from symprompt.papers.settings import ReproduceSettings
from symprompt.pretraining.config import PretrainConfig
from symprompt.probing.config import FactsConfig, RunConfig


@dataclass(frozen=True)
class TrainFlags:
    """Train a method on all relations in one run, evaluate it and write a run folder."""

    config: Annotated[RunConfig, tyro.conf.arg(name="")]
    resume: bool = False
    """Go on with an unfinished run; the numbers are those of an unbroken one."""


@dataclass(frozen=True)
class PretrainFlags:
    """Train a masked language model from scratch on running text; write a transformers folder.

    Every setting of the config is a flag: --optimizer.batch 64, or --batch 64 where only one table
    has that name. Several GPUs: torchrun --nproc-per-node 8 -m symprompt.cli pretrain CONFIG ...
    """

    config: Annotated[PretrainConfig, tyro.conf.arg(name="")]
    text: tuple[str, ...] = ()
    """Text files or folders: UTF-8 text, documents parted by blank lines, or JSON lines with a
    "text"; .gz, .xz, .bz2 too. de=FILE says that a file is in language de."""
    resume: bool = False
    """Go on with an unfinished run; the weights are those of an unbroken one."""
    prepare_only: bool = False
    """Learn the vocabulary and tokenise the text, write both to OUT and stop; runs take them with
    --prepared OUT, so that several of them tokenise once."""


@dataclass(frozen=True)
class AskFlags:
    """Ask a finished run for the object of a subject, or for the subject of an object."""

    run: tyro.conf.Positional[str]
    """Run folder."""
    relation: str
    """Relation to ask about, as the run names it."""
    subject: str | None = None
    """Rank objects for this subject: forward, backward and joint log-probability. Only the run's
    first K are asked back; those beyond follow in forward order."""
    object: str | None = None
    """Rank the known subjects for this object: the way back. Their score is the mean over a
    subject's tokens, also where the run sums them, so that long names do not lose by length."""
    top: int = 10
    """How many answers."""
    model: str = ""
    """Where the model is now, if it moved since the run was made."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:N or mps."""
    json: bool = False
    """Print JSON instead of a table."""


@dataclass(frozen=True)
class RerankFlags:
    """Ask back on top of any finished run: re-rank its stored candidates by an SPE run's way back.

    Both runs must be of the same model and facts. In one go: train CONFIG --rerank SPE_RUN.
    """

    run: tyro.conf.Positional[str]
    """Run folder of any method."""
    way_back: Annotated[str, tyro.conf.arg(name="with")]
    """Run folder of spe, whose way back is asked."""
    out: str
    """Run folder to write."""
    k: int = 0
    """Ask back this many of the stored candidates; 0 takes all."""
    choose_weight: Literal["", "fixed", "dev", "dev-relation", "dev-fit"] = ""
    """Where the re-ranking weight comes from; empty does as the spe run does."""
    model: str = ""
    """Where the model is now, if it moved since the runs were made."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:N or mps."""
    max_tokens: int = 0
    """Most tokens in one pass through the model; 0 chooses by device."""


@dataclass(frozen=True)
class PromptsFlags:
    """Show a run's prompts: the words nearest to each learned vector, and the vectors' norms."""

    run: tyro.conf.Positional[str]
    """Run folder."""
    relations: tuple[str, ...] = ()
    """Only these relations; empty takes all."""
    top: int = 5
    """How many words of each vector."""
    by: Literal["cosine", "euclidean"] = "cosine"
    """Nearness to the input embeddings: cosine (larger is nearer) or distance (smaller is)."""
    model: str = ""
    """Where the model is now, if it moved since the run was made."""
    device: str = "cpu"
    """auto, cpu, cuda, cuda:N or mps."""
    json: bool = False
    """Print JSON instead of a table."""


@dataclass(frozen=True)
class TableFlags:
    """Compare runs: P@1, P@10, MRR, with intervals and paired differences to the first run."""

    runs: tyro.conf.Positional[tuple[str, ...]]
    """Run folders; or results stored as JSON, by reproduce or in experiments/results."""
    by: Literal["run", "relation"] = "run"
    """relation adds a row for each relation."""
    split: str = ""
    """Which split: dev or test of facts; of a labelled task another one that it was asked about.
    Empty takes test, and of a labelled task what it reports."""
    ranks: Literal["realistic", "optimistic", "pessimistic"] = "realistic"
    """How ties count."""
    filtered: bool = False
    """Leave other true objects of the same subject out of the ranks."""
    forward: bool = False
    """Add a row with each asked-back run's forward order."""
    k: int = 0
    """Ask back this many of the stored candidates; 0 takes all."""
    weight: float | None = None
    """Re-rank with this weight instead of each run's own."""
    draws: int = 1000
    """Bootstrap draws."""
    markdown: bool = False
    """Print Markdown instead of a terminal table."""
    json: bool = False
    """Print JSON instead of a table."""


@dataclass(frozen=True)
class CheckFlags:
    """Say what was read, what was dropped and why, what leaks, and the majority baseline."""

    source: tyro.conf.Positional[str]
    """Folder or file of facts, or "world"."""
    facts: Annotated[FactsConfig, tyro.conf.arg(name="")] = field(default_factory=FactsConfig)
    model: str = SHIPPED
    """A model whose tokenizer says which objects are one token; "" keeps all."""
    json: bool = False
    """Print JSON instead of a table."""


@dataclass(frozen=True)
class VocabularyFlags:
    """Write the words that are one token of several models, to compare them on the same answers.

    Use the file as --vocabulary of train and data check: it restricts facts and answers.
    """

    models: tuple[str, ...]
    """Folders or hub names of two or more models, parted by commas or spaces."""
    out: str
    """File to write, one word a line."""
    data: str = ""
    """Folder or file of facts, or "world", whose facts left are counted and objects looked at."""
    json: bool = False
    """Print the counts as JSON instead of a table."""


@dataclass(frozen=True)
class DemoFlags:
    """Compare manual prompts, P-tuning and SPE on facts about the world, and draw the figures."""

    out: str = "demo"
    """Folder for the runs and figures; each model and setting gets one of its own in it."""
    model: str = SHIPPED
    """Folder or hub name of a masked language model; "shipped" is the one in the package."""


@dataclass(frozen=True)
class ReproduceFlags:
    """Make every run behind SPE's and P-tuning's tables, on your models, and write the tables.

    Every method x model x seed, one worker process per device; then OUT/report.md, report.html,
    results.json (symprompt table prints it again) and figures. Stop it whenever you like: the same
    command goes on where it was and ends with the same tables. A run that fails is named in the
    tables, the others go on, and the exit code is 1. The papers' own figures stand in columns of
    their own. Lists are parted by commas.

    Tables of labelled tasks: reproduce ptuning (SuperGLUE) and reproduce ptuning-v2; each has flags
    of its own, which reproduce ptuning-v2 --help tells.
    """

    paper: tyro.conf.Positional[Literal["spe"]]
    """Which paper's tables; P-tuning's of facts are among SPE's."""
    data: str
    """LAMA folder: P*/{train,dev,test}.jsonl."""
    models: str = SHIPPED
    """Folders, hub names or GGUF files; NAME=PLACE calls a model otherwise than its folder."""
    out: str = "reproduced"
    """Folder for runs, tables and figures; models, methods and seeds may be added to it later."""
    methods: str = ""
    """Only these methods, such as manual,ptuning,spe; empty takes all."""
    seeds: str = "34,35,36"
    """Seeds of the methods that draw random numbers; the others are run once."""
    relations: str = ""
    """Only these relations, such as P36,P1376; empty takes all."""
    limit: int = 0
    """Most facts of each relation in each split, for a trial; 0 takes all."""
    epochs: int = 0
    """Training epochs, for a trial; 0 leaves them to each method's config."""
    templates: str = ""
    """File or folder of manual templates; empty looks beside the data."""
    prompts: str = ""
    """Folders of written prompts; methods that need them say so in the tables when there are
    none."""
    vocabulary: str = "full"
    """Allowed answers: full (every token), objects, or the path of a word list."""
    pool: int = 30
    """Largest K of SPE's Table 2, asked apart from SPE's own 15; 0 leaves it out."""
    dtype: str = "auto"
    """auto (bfloat16 on CUDA, else float32), float32, bfloat16, float16 or float64."""
    devices: str = ""
    """Devices to work on, such as cuda:0,cuda:1 or cpu; empty takes every GPU, else the CPU."""
    jobs: int = 1
    """Workers on each device."""
    memory_gib: float = 0.0
    """Most memory to take on each GPU, in GiB; 0 sets no bound."""
    compile: Literal["auto", "on", "off", "max-autotune"] = "auto"
    """Compile layers and record training steps as CUDA graphs; auto does so on a GPU where it
    pays, off never."""
    draws: int = 10_000
    """Bootstrap draws behind intervals and differences."""
    dry_run: bool = False
    """Print the runs that would be made, and stop."""

    def settings(self) -> ReproduceSettings:
        """Return what reproduce is called with."""
        try:
            seeds = tuple(int(word) for word in _words(self.seeds))
        except ValueError:
            raise ConfigError(
                f"--seeds is {self.seeds!r}; give whole numbers parted by commas."
            ) from None
        return ReproduceSettings(
            data=self.data,
            out=self.out,
            models=_words(self.models),
            methods=_words(self.methods),
            seeds=seeds,
            relations=_words(self.relations),
            limit=self.limit,
            epochs=self.epochs,
            templates=self.templates,
            prompts=_words(self.prompts),
            vocabulary=self.vocabulary,
            pool=self.pool,
            dtype=self.dtype,
            devices=_words(self.devices),
            jobs=self.jobs,
            memory_gib=self.memory_gib,
            compile=self.compile,
            draws=self.draws,
        )


def _words(text: str) -> tuple[str, ...]:
    """Return the parts of a list with commas."""
    return tuple(word.strip() for word in text.split(",") if word.strip())


def full_names(arguments: Sequence[str], config: object) -> list[str]:
    """Put the table before every flag that has none: --batch becomes --optimizer.batch."""
    words = []
    for word in arguments:
        name, *value = word.split("=", 1) if word.startswith("--") else [word]
        bare = name.removeprefix("--").removeprefix("no-").replace("-", "_")
        found = [key for key in flatten(config) if key.endswith(f".{bare}")]
        if not name.startswith("--") or bare in flatten(config) or not found:
            words.append(word)
            continue
        if len(found) > 1:
            raise ConfigError(
                f"{name} may be {' or '.join('--' + key for key in found)}; say which."
            )
        table = found[0].split(".")[0]
        words.append("=".join([f"--{table}.{name.removeprefix('--')}", *value]))
    return words


def parse(
    kind: type[Any],
    arguments: Sequence[str],
    prog: str,
    default: Any = None,
    *,
    pairs: bool = False,
    prefixes: bool = False,
) -> Any:
    """Read flags; with ``pairs`` every switch has both forms, --x and --no-x.

    With ``prefixes`` a table's name stands before its flags, as several tables have the same key.
    """
    options: dict[str, Any] = {} if default is None else {"default": default}
    markers = () if pairs else (tyro.conf.FlagCreatePairsOff,)
    markers += () if prefixes else (tyro.conf.OmitArgPrefixes,)
    return tyro.cli(
        kind,
        args=list(arguments),
        prog=prog,
        config=markers,
        **options,
    )
