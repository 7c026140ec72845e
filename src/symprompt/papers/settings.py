"""What the papers' tables are made from: models, data, how much of it all, and where it runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from symprompt.cluster.machine import Machine
from symprompt.config import (
    Common,
    Compile,
    Count,
    Different,
    Positional,
    Positive,
    Seed,
    Several,
    settings,
)
from symprompt.errors import ConfigError, counted

TaskPaper = Literal["ptuning", "ptuning-v2"]
PTUNING_V2: TaskPaper = "ptuning-v2"

V2_METHODS = ("ft", "pt", "pt2", "mpt2", "lora", "pt2-mlp", "pt2-verbalizer", "verbalizer")
# P-tuning has no row "frozen", so it is made only where it is named.
PTUNING_METHODS = ("zero-shot", "cls", "mp", "ptuning", "pet", "table6", "frozen")
_NOT_BY_THEMSELVES = ("frozen",)

ENTITIES = ("conll2003", "ontonotes", "conll2004", "wikigold", "gum")
QUESTIONS = ("squad", "squad2")
ROLES = ("conll12", "conll05", "propbank-ewt")
CLASSES = ("sst2", "mnli", "rte", "boolq", "cb")
SUPERGLUE = ("boolq", "cb", "wic", "rte", "multirc", "wsc", "copa")
V2_TASKS = (*CLASSES, *ENTITIES, *QUESTIONS, *ROLES)
TASK_SEEDS: dict[TaskPaper, tuple[int, ...]] = {
    "ptuning": (42, 43, 44, 45, 46),
    PTUNING_V2: (11, 12, 13),
}


@settings
class Settings(Machine):
    """Every method x model x seed of a paper; the base of facts' and tasks' settings."""

    _KEPT: ClassVar[tuple[str, ...]] = ()
    """The settings that every run depends on; the others add runs."""
    data: Common[str] = ""
    """LAMA folder: P*/{train,dev,test}.jsonl; BEAR's; or the folder of the tasks' folders: rte,
    boolq, conll2003, squad, FewGLUE_32dev and so on."""
    models: Common[Several[str]] = ("shipped",)
    """Folders, hub names or GGUF files; NAME=PLACE calls a model otherwise than its folder."""
    out: Common[str] = "reproduced"
    """Folder for runs, tables and figures; models, methods and seeds may be added to it later."""
    methods: Common[Several[str]] = ()
    """Only these methods, such as manual ptuning spe; empty takes all of the paper's. ptuning-v2:
    ft pt pt2 mpt2 lora pt2-mlp pt2-verbalizer verbalizer; ptuning: zero-shot cls mp ptuning pet
    table6 frozen."""
    limit: Count = 0
    """Most facts of each relation, or examples, in each split, for a trial; 0 takes all."""
    epochs: Count = 0
    """Training epochs, for a trial; 0 leaves them to the recipes."""
    dtype: str = "auto"
    """auto (bfloat16 on CUDA, else float32), float32, bfloat16, float16 or float64."""

    def check(self) -> None:
        """Refuse settings that name nothing.

        Raises:
            ConfigError: naming the flag and what to do.
        """
        if not self.data:
            raise ConfigError(
                "--data is missing; name the LAMA folder (spe), BEAR's (bear) or the folder of the "
                "tasks' folders (ptuning, ptuning-v2, which also take --from-results)."
            )
        if not self.models:
            raise ConfigError("--models is empty; name at least one.")

    def kept(self) -> dict[str, Any]:
        """Return the settings that every run depends on, as plain values."""
        values = {key: getattr(self, key) for key in self._KEPT}
        return {key: list(own) if isinstance(own, tuple) else own for key, own in values.items()}

    def describe_trial(self, what: str) -> list[str]:
        """Return a sentence if this is a trial, not the papers' setting."""
        trial = [f"at most {self.limit} {what} in each split"] if self.limit else []
        trial += [counted(self.epochs, "training epoch")] if self.epochs else []
        return [f"A trial, not the papers' setting: {' and '.join(trial)}."] if trial else []


@settings
class FactSettings(Settings):
    """Every method x model x seed of SPE's and P-tuning's tables of facts."""

    _KEPT: ClassVar[tuple[str, ...]] = (
        *("data", "relations", "limit", "epochs", "templates", "prompts", "vocabulary", "dtype"),
    )
    seeds: Common[Different[Seed]] = (34, 35, 36)
    """Seeds of the methods that draw random numbers; the others are run once."""
    relations: Common[Several[str]] = ()
    """Only these relations, such as P36 P1376; empty takes all."""
    templates: str = ""
    """File or folder of manual templates; empty looks beside the data."""
    prompts: Several[str] = ()
    """Folders of mined prompts and paraphrases; the tables name the methods that need them."""
    vocabulary: str = "full"
    """Allowed answers: full (every token), objects, or the path of a word list."""
    pool: Count = 30
    """Largest K of SPE's Table 2, queried apart from SPE's own 15; 0 leaves it out."""
    compile: Compile = "auto"
    """Compile layers and record training steps as CUDA graphs; auto does so on a GPU where it
    pays, off never."""
    draws: Positive = 10_000
    """Bootstrap draws behind intervals and differences."""


@settings
class BearSettings(Settings):
    """BEAR's protocol, P-tuning and SPE, model by model."""

    _KEPT: ClassVar[tuple[str, ...]] = ("data", "relations", "limit", "epochs", "dtype")
    seeds: Common[Different[Seed]] = (34, 35, 36)
    """Seeds of P-tuning and SPE; whole sentences need none."""
    relations: Common[Several[str]] = ()
    """Only these relations, such as P36 P1376; empty takes all."""
    compile: Compile = "auto"
    """Compile layers and record training steps as CUDA graphs; auto does so on a GPU where it
    pays, off never."""
    draws: Positive = 10_000
    """Bootstrap draws behind intervals and differences."""

    def check(self) -> None:
        """Refuse settings that name nothing, and methods: the table has all of its own."""
        super().check()
        if self.methods:
            raise ConfigError("--methods is not for BEAR's table, which has four rows; drop it.")


@settings
class TaskOptions(Settings):
    """What either paper about labelled tasks takes."""

    tasks: Common[Several[str]] = ()
    """Only these tasks, such as rte conll2003; NAME=PLACE says where in the data its files are."""
    seeds: Common[Several[Seed]] = ()
    """Training seeds; 11 12 13 (ptuning-v2) or 42 to 46 (ptuning) if there are none."""


@settings
class TaskSettings(TaskOptions):
    """Every task x method x model x seed of a paper about labelled tasks."""

    _KEPT: ClassVar[tuple[str, ...]] = ("paper", "data", "epochs", "limit", "dtype")
    paper: TaskPaper = PTUNING_V2
    """Whose tables: ptuning or ptuning-v2."""

    def check(self) -> None:
        """Refuse tasks, methods and seeds that are not known or named twice."""
        super().check()
        _check_known("method", self.methods, self.known_methods)
        _check_known("task", [_parted(text)[0] for text in self.tasks], self.known_tasks)
        _check_known("seed", self.seeds, self.seeds)

    @property
    def known_tasks(self) -> tuple[str, ...]:
        """The paper's tasks, in the tables' order."""
        return V2_TASKS if self.paper == PTUNING_V2 else SUPERGLUE

    @property
    def known_methods(self) -> tuple[str, ...]:
        """The paper's methods and ours beside them, in the tables' order."""
        return V2_METHODS if self.paper == PTUNING_V2 else PTUNING_METHODS

    @property
    def places(self) -> dict[str, str]:
        """The tasks to take, and where the settings say that their files are (or "")."""
        named = dict(_parted(text) for text in self.tasks)
        return {
            task: named.get(task, "") for task in self.known_tasks if not named or task in named
        }

    @property
    def all_seeds(self) -> tuple[int, ...]:
        """The seeds to take."""
        return self.seeds or TASK_SEEDS[self.paper]

    @property
    def all_methods(self) -> tuple[str, ...]:
        """The methods to take, in the tables' order."""
        wanted = self.methods or [
            name for name in self.known_methods if name not in _NOT_BY_THEMSELVES
        ]
        return tuple(name for name in self.known_methods if name in wanted)


@settings
class SweepSettings(Machine):
    """A recipe, the values to try, and where."""

    recipe: Positional[str] = ""
    """A config of train or tune that ships, or a TOML file."""
    grid: Common[Several[str]] = ()
    """Values to try, KEY=VALUE,VALUE with dotted keys, such as learning.rate=1e-3,1e-2; every
    combination is trained."""
    seeds: Common[Several[Seed]] = ()
    """Training seeds; the recipe's own if there are none."""
    model: Common[str] = ""
    """Folder, hub name or GGUF file; the recipe's own if it is empty."""
    data: Common[str] = ""
    """Facts, or the task's folder; the recipe's own if it is empty."""
    set: Common[Several[str]] = ()
    """Other changes to the recipe, KEY=VALUE with dotted keys."""
    out: Common[str] = "sweep"
    """Folder for runs and the table; values and seeds may be added to it later."""


def _parted(text: str) -> tuple[str, str]:
    name, _, place = text.partition("=")
    return name, place


def _check_known(what: str, names: Sequence[Any], known: Sequence[Any]) -> None:
    for place, name in enumerate(names):
        if name not in known:
            raise ConfigError(f"{what} {name!r} is not known; known are: {', '.join(known)}.")
        if name in names[:place]:
            raise ConfigError(f"--{what}s has {name} twice; name it once.")
