"""What the tables of labelled tasks are made from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from symprompt.errors import ConfigError
from symprompt.tasks.patterns.superglue import TASKS as PATTERN_TASKS

Paper = Literal["ptuning", "ptuning-v2"]
PTUNING: Paper = "ptuning"
PTUNING_V2: Paper = "ptuning-v2"

V2_METHODS: dict[str, str] = {
    "ft": "fine-tuning of every weight",
    "pt": "prompts at the input layer",
    "pt2": "P-tuning v2: a prefix at every layer",
    "mpt2": "multi-task P-tuning v2",
    "lora": "low-rank adapters",
    "pt2-mlp": "P-tuning v2 with reparameterised prefixes",
    "pt2-verbalizer": "P-tuning v2, words of a verbalizer instead of a head",
    "verbalizer": "prompts at the input layer, words of a verbalizer instead of a head",
}
PTUNING_METHODS: dict[str, str] = {
    "zero-shot": "a manual pattern, nothing trained",
    "cls": "fine-tuning with a head on [CLS]",
    "mp": "fine-tuning through a manual pattern",
    "ptuning": "P-tuning, vectors and model together",
    "pet": "every one of PET's patterns",
    "table6": "the patterns of Table 6, RTE",
    "frozen": "P-tuning, the vectors alone",
}
# The paper has no such row, so it is made only where asked for.
_NOT_BY_THEMSELVES = ("frozen",)

ENTITIES = ("conll2003", "ontonotes", "conll2004", "wikigold", "gum")
QUESTIONS = ("squad", "squad2")
ROLES = ("conll12", "conll05", "propbank-ewt")
CLASSES = ("sst2", "mnli", "rte", "boolq", "cb")
V2_TASKS = (*CLASSES, *ENTITIES, *QUESTIONS, *ROLES)

SEEDS = {PTUNING: (42, 43, 44, 45, 46), PTUNING_V2: (11, 12, 13)}


@dataclass(frozen=True)
class LabelledSettings:
    """Every task x method x model x seed of a paper, and the tables."""

    paper: Paper
    """Whose tables: ptuning or ptuning-v2."""
    data: str
    """Folder of the tasks' folders."""
    out: str = "reproduced"
    """Folder for the runs, tables and figures."""
    models: tuple[str, ...] = ("shipped",)
    """Models, each a folder, hub name or GGUF file, or NAME=PLACE to call it otherwise."""
    tasks: tuple[str, ...] = ()
    """Only these tasks; NAME=PLACE says where its files are. Empty takes all."""
    methods: tuple[str, ...] = ()
    """Only these methods; empty takes the paper's."""
    seeds: tuple[int, ...] = ()
    """Training seeds; empty takes 11, 12, 13 (ptuning-v2) or 42 to 46 (ptuning)."""
    epochs: int = 0
    """Training epochs, for a trial; 0 leaves them to the recipes."""
    limit: int = 0
    """Most examples of each split, for a trial; 0 takes all."""
    device: str = "auto"
    """As in a run's config."""
    dtype: str = "auto"
    """As in a run's config."""

    @property
    def known_tasks(self) -> tuple[str, ...]:
        """The paper's tasks, in the tables' order."""
        return V2_TASKS if self.paper == PTUNING_V2 else tuple(PATTERN_TASKS)

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
        return self.seeds or SEEDS[self.paper]

    @property
    def all_methods(self) -> tuple[str, ...]:
        """The methods to take, in the tables' order."""
        known = V2_METHODS if self.paper == PTUNING_V2 else PTUNING_METHODS
        if self.methods:
            return tuple(name for name in known if name in self.methods)
        return tuple(name for name in known if name not in _NOT_BY_THEMSELVES)


def _parted(text: str) -> tuple[str, str]:
    name, _, place = text.partition("=")
    return name, place


def check_labelled(settings: LabelledSettings) -> None:
    """Refuse values out of range, and tasks and methods that are not known.

    Raises:
        ConfigError: naming the flag, what was got and what is allowed.
    """
    if settings.paper not in SEEDS:
        raise ConfigError(f"paper is {settings.paper!r}; it is one of: {', '.join(SEEDS)}.")
    if not settings.data:
        raise ConfigError(
            "--data is missing; name the folder of the tasks' folders, or give --from-results."
        )
    if not settings.models:
        raise ConfigError("--models is empty; name at least one.")
    known = V2_METHODS if settings.paper == PTUNING_V2 else PTUNING_METHODS
    _check_known("method", settings.methods, tuple(known))
    _check_known("task", [_parted(text)[0] for text in settings.tasks], settings.known_tasks)
    if len(set(settings.seeds)) != len(settings.seeds):
        raise ConfigError(f"--seeds has one twice: {', '.join(map(str, settings.seeds))}.")
    for key in ("epochs", "limit"):
        if getattr(settings, key) < 0:
            raise ConfigError(f"--{key} is {getattr(settings, key)}; it must be at least 0.")


def _check_known(what: str, names: Sequence[str], known: Sequence[str]) -> None:
    for place, name in enumerate(names):
        if name not in known:
            raise ConfigError(f"{what} {name!r} is not known; known are: {', '.join(known)}.")
        if name in names[:place]:
            raise ConfigError(f"--{what}s has {name} twice; name it once.")
