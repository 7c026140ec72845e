"""Where the tasks' files are in one folder of data: folders of their names, or as packs have them.

A task that is not there is no mistake: most of these sets may not be passed on, and the tables say
"not measured". Files that are there and cannot be read are one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from symprompt.errors import DataError
from symprompt.papers.labelled.settings import PTUNING_V2, LabelledSettings
from symprompt.tasks.data.load import load_task
from symprompt.tasks.patterns.data import load_verbal
from symprompt.tasks.patterns.superglue import find_task

# Below the folder of data, the first that is there; tasks' own names come before these.
_PLACES: Mapping[str, tuple[str, ...]] = {
    "sst2": ("SST-2", "glue/sst2", "glue/SST-2", "glue/glue_sst2_alps_split"),
    "mnli": ("MNLI", "glue/mnli", "glue/MNLI"),
    "rte": ("RTE", "glue/rte", "glue/RTE", "glue/glue_rte", "SuperGLUE/RTE", "superglue/RTE"),
    "boolq": ("BoolQ", "SuperGLUE/BoolQ", "superglue/BoolQ", "boolq/superglue_boolq"),
    "cb": ("CB", "SuperGLUE/CB", "superglue/CB"),
    "wic": ("WiC", "SuperGLUE/WiC", "superglue/WiC"),
    "multirc": ("MultiRC", "SuperGLUE/MultiRC", "superglue/MultiRC"),
    "wsc": ("WSC", "SuperGLUE/WSC", "superglue/WSC"),
    "copa": ("COPA", "SuperGLUE/COPA", "superglue/COPA"),
    "conll2003": ("ner/conll2003",),
    "conll2004": ("ner/conll2004",),
    "ontonotes": ("ner/ontonotes", "conll2012", "srl/conll2012"),
    "wikigold": ("ner/wikigold", "ner/ner_wikigold_gum/wikigold"),
    "gum": ("ner/gum", "ner/ner_wikigold_gum/GUM/CONLL-format"),
    "squad": ("squad1.1", "squad/squad1.1"),
    "squad2": ("squad2.0", "squad/squad2.0", "squad/squad2"),
    "propbank-ewt": ("srl/propbank-ewt", "srl/srl_propbank_ewt"),
    "conll05": ("conll2005", "srl/conll05", "srl/conll2005"),
    "conll12": ("conll2012", "srl/conll12", "srl/conll2012"),
}
_FEWGLUE = ("FewGLUE_32dev", "fewglue/FewGLUE_32dev", "fewglue/fewglue/FewGLUE_32dev", "")
_FEW_FILE = "dev32.jsonl"


@dataclass(frozen=True)
class Found:
    """Where tasks are, and why others are not measured; final.

    Attributes:
        few: folders with 32 training and 32 dev examples (P-tuning alone).
    """

    full: dict[str, Path]
    few: dict[str, Path]
    missing: dict[str, str]


def find_tasks(settings: LabelledSettings) -> Found:
    """Look for the files of every task that the settings name, and read them once.

    Raises:
        DataError: there is no such folder, a place that was named holds no such task, or files
            that are there cannot be read.
    """
    data = Path(settings.data)
    if not data.is_dir():
        raise DataError(f"--data is {settings.data!r}, which is no folder; name the tasks' folder.")
    full: dict[str, Path] = {}
    few: dict[str, Path] = {}
    missing: dict[str, str] = {}
    for task, named in settings.places.items():
        if settings.paper == PTUNING_V2:
            where = _full_place(data, task, named)
            why = _why_not(task, where, data)
            if where is not None and not why:
                full[task] = where
            else:
                missing[task] = why
            continue
        where = _full_place(data, task, named)
        if where is not None:
            load_verbal(task, where)
            full[task] = where
        tree = next((data / name for name in _FEWGLUE if _is_few(data / name, task)), None)
        if tree is not None:
            load_verbal(task, tree)
            few[task] = tree
    return Found(full, few, missing)


def _full_place(data: Path, task: str, named: str) -> Path | None:
    """Return the folder with a task's whole training set, if it is there."""
    if named:
        place = data / named
        if not place.is_dir():
            raise DataError(f"--tasks says that {task} is in {place}, which is no folder.")
        return place
    for name in (task, *_PLACES[task]):
        place = data / name
        # Folders of packs may have a task's name and hold its folder: boolq/superglue_boolq.
        if _has_files(place) and not (place / _FEW_FILE).is_file():
            return place
    return next((data / name for name in (task, *_PLACES[task]) if _nested(data / name)), None)


def _has_files(folder: Path) -> bool:
    return folder.is_dir() and any(entry.is_file() for entry in folder.iterdir())


def _nested(folder: Path) -> bool:
    """Say whether a folder holds files deeper down, and none of 32 examples."""
    return (
        folder.is_dir()
        and any(entry.is_file() for entry in folder.rglob("*"))
        and not any(folder.rglob(_FEW_FILE))
    )


def _is_few(tree: Path, task: str) -> bool:
    return (tree / find_task(task).folder / _FEW_FILE).is_file()


def _why_not(task: str, where: Path | None, data: Path) -> str:
    """Return why a task of P-tuning v2 is not measured; empty if it can be."""
    if where is None:
        return f"no files of it in {data.name or data}"
    if load_task(task, where).splits.get("train"):
        return ""
    return f"{where.name} has no training examples"
