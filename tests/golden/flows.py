"""Every flow of the package as a tiny run: the table that golden runs are made and checked from.

A flow is a name, command lines and what is kept of them. In a command line @NAME stands for one of
the inputs below, which are made by code with fixed seeds; all else is written to the folder that
the commands run in.
"""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import extract

from symprompt import cli
from tiny.labelled import write_entities, write_spans, write_task, write_toy
from tiny.models import (
    CAUSAL_TEMPLATE,
    WORLD_WORDS,
    make_facts,
    make_model,
    make_wordpiece,
    names_facts,
    save_family,
)
from tiny.runs import write_csv, write_lama, write_prompts
from tiny.tasks import KINDS
from tiny.text import flags_of, pretrain_config, write_text
from tiny.wordnet import write_semcor, write_test_set, write_wordnet

# ------------------------------------------------------------------------------ inputs

SIZES = {"train": 48, "dev": 6, "test": 6}
TUNE = """
[task]
max_length = 32
stride = 4
[prefix]
length = 3
[lora]
rank = 2
[learning]
rate = 1e-2
batch = 4
epochs = 8
"""
PATTERN = """
seeds = [1]
[pattern]
max_length = 40
prefix_length = 3
lstm_hidden = 4
[learning]
steps = 3
evaluate_every = 1
batches = [2]
rates = [1e-2]
prompt_rate = 1e-2
"""


def _worldly(path: Path) -> Path:
    """Write a random BERT that has the words of the labelled toys."""
    tokenizer = make_wordpiece(words=WORLD_WORDS)
    make_model("bert", tokenizer).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def _text(path: Path) -> Path:
    lines = [f"The old river bank of {name} .\n\nThe capital {name} Bank" for name in "abcdef"]
    path.write_text("\n\n".join(lines))
    return path


def _other_text(path: Path) -> Path:
    path.write_text("the old river\n\nThe capital of Peru is Lima .\n")
    return path


def _written(text: str) -> Callable[[Path], Path]:
    def write(path: Path) -> Path:
        path.write_text(text)
        return path

    return write


def _tasks(path: Path) -> Path:
    for name, task in {"RTE": "rte", "COPA": "copa", "WSC": "wsc", "MultiRC": "multirc"}.items():
        write_task(path / name, task)
    return path


def _toy(kind: str) -> Callable[[Path], Path]:
    return lambda path: write_toy(path, kind, sizes=SIZES)


def _test_sets(path: Path) -> Path:
    return write_test_set(path, "semeval2007")


INPUTS: dict[str, Callable[[Path], Path]] = {
    "bert": lambda path: save_family("bert", path),
    "worldly": _worldly,
    "gpt2": lambda path: save_family("gpt2", path),
    "facts": lambda path: write_csv(make_facts().select(["capital", "in"]), path),
    "names": lambda path: write_csv(names_facts(), path),
    "prompts": write_prompts,
    "lama": write_lama,
    "tune": _written(TUNE),
    "pattern": _written(PATTERN),
    **{kind: _toy(kind) for kind in KINDS},
    "spans": lambda path: write_spans(path, sizes=SIZES),
    "relations": lambda path: write_spans(path, relations=True, sizes=SIZES),
    "entities": write_entities,
    "superglue": _tasks,
    "colours": lambda path: write_text(path, documents=60),
    "text": _text,
    "other": _other_text,
    "wordnet": write_wordnet,
    "semcor": write_semcor,
    "sets": _test_sets,
}
_ENDINGS = {"facts": ".csv", "names": ".csv", "tune": ".toml", "pattern": ".toml"}
_ENDINGS |= {"colours": ".txt", "text": ".txt", "other": ".txt"}


class Inputs:
    """The flows' inputs in one folder, each made when it is first asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._made: dict[str, Path] = {}

    def __getitem__(self, name: str) -> Path:
        if name not in self._made:
            path = self.folder / (name + _ENDINGS.get(name, ""))
            with redirect_stderr(io.StringIO()):
                self._made[name] = INPUTS[name](path)
        return self._made[name]

    def fill(self, word: str) -> str:
        """Return a word of a command line with inputs' paths in the place of their names."""
        return re.sub(r"@(\w+)", lambda found: str(self[found[1]]), word)


# ------------------------------------------------------------------------------ flows

Words = tuple[str, ...]


@dataclass(frozen=True)
class Flow:
    """Command lines, and what is kept of the folder they ran in and of what each printed."""

    commands: tuple[Words, ...]
    keep: Callable[[Path, Sequence[str]], dict[str, Any]]


def make(flow: Flow, inputs: Inputs, folder: Path) -> dict[str, Any]:
    """Run a flow with one thread in an empty folder; return what is kept of it."""
    commands = [[inputs.fill(word) for word in words] for words in flow.commands]
    threads, given = torch.get_num_threads(), os.environ.get("OMP_NUM_THREADS")
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"  # for the processes that a command starts
    said = []
    try:
        with chdir(folder):
            for words in commands:
                out, err = io.StringIO(), io.StringIO()
                try:
                    with redirect_stdout(out), redirect_stderr(err):
                        cli.main(words)
                except SystemExit as end:
                    if end.code:
                        raise RuntimeError(f"{' '.join(words)}: {err.getvalue()}") from end
                said.append(out.getvalue())
            return flow.keep(folder, said)
    finally:
        torch.set_num_threads(threads)
        if given is None:
            del os.environ["OMP_NUM_THREADS"]
        else:
            os.environ["OMP_NUM_THREADS"] = given


def _words(first: Sequence[str], flags: Mapping[str, object]) -> Words:
    """Return a command line; flags have values, several values, or none (None)."""
    found = list(first)
    for name, value in flags.items():
        values = value if isinstance(value, tuple) else () if value is None else (value,)
        found += [f"--{name.replace('_', '-')}", *map(str, values)]
    return tuple(found)


def _train(config: str, out: str = "run", **flags: object) -> Words:
    base = {"model": "@bert", "data": "@facts", "out": out, "device": "cpu", "dtype": "float32"}
    base |= {"epochs": 3, "batch": 4, "rate": 0.01, "k": 5, "seed": 5, "vocabulary": "objects"}
    return _words(("train", config), base | {"no-drop-last": None} | flags)


def _facts(*commands: Words, out: str = "run") -> Flow:
    return Flow(commands, lambda folder, _: extract.facts_run(folder / out))


_SHORT = {"template": "<2> [X] <1> [Y] <2>"}
_PROMPTS = {"prompts": "@prompts"}
_CAUSAL = {"model": "@gpt2", "template": CAUSAL_TEMPLATE}
_SPE = _train("lama-spe", "spe", **_SHORT, choose_weight="fixed", weight=1.7)

TRAIN = {
    "spe": _facts(_train("lama-spe-paper", **_SHORT, weight=2.5)),
    "spe-full-vocabulary": _facts(_train("lama-spe-paper", vocabulary="full", **_SHORT)),
    "spe-separate-dev-fit": _facts(_train("lama-spe", **_SHORT)),
    "spe-whole-masking": _facts(_train("lama-spe", masking="whole", choose_weight="dev", **_SHORT)),
    "spe-chain": _facts(_train("lama-spe", masking="chain", choose_weight="dev", **_SHORT)),
    "spe-any-length": _facts(
        _train("lama-spe", data="@names", objects="any-length", k=3, **_SHORT, encoder="mlp")
    ),
    "spe-kept-probability": _facts(
        _train("lama-spe", blanks="kept", average="probability", choose_weight="dev-relation")
    ),
    "ptuning": _facts(_train("lama-ptuning", **_SHORT)),
    "ptuning-any-length": _facts(
        _train("lama-ptuning", data="@names", objects="any-length", k=3, object_masking="word")
    ),
    "optiprompt": _facts(_train("lama-optiprompt", template="[X] <3> [Y] .")),
    "optiprompt-manual": _facts(_train("lama-optiprompt-manual")),
    "lpaqa": _facts(_train("lama-lpaqa", **_PROMPTS)),
    "lpaqa-top1": _facts(_train("lama-lpaqa-top1", **_PROMPTS)),
    "autoprompt": _facts(_train("lama-autoprompt", template="[X] <2> [Y] .", steps=2)),
    "softprompt": _facts(_train("lama-softprompt", **_PROMPTS)),
    "softprompt-shallow": _facts(_train("lama-softprompt-shallow", **_PROMPTS)),
    "finetune": _facts(_train("lama-ft", rate=0.001)),
    "finetune-lora": _facts(_train("lama-ft-lora", lora_rank=2)),
    "finetune-manual": _facts(_train("lama-mp-ft", rate=0.001)),
    "manual": _facts(_train("lama-manual")),
    "majority": _facts(_train("lama-majority")),
    "causal-manual": _facts(_train("lama-manual", model="@gpt2")),
    "causal-ptuning": _facts(_train("lama-ptuning-gpt", **_CAUSAL)),
    "causal-spe": _facts(_train("lama-spe-gpt", **_CAUSAL)),
    "rerank": _facts(
        _train("lama-manual", "first"),
        _SPE,
        _words(("rerank", "first"), {"with": "spe", "out": "run", "device": "cpu"}),
    ),
    "rerank-dev-fit": _facts(
        _train("lama-ptuning", "first", **_SHORT),
        _SPE,
        _words(
            ("rerank", "first"),
            {"with": "spe", "out": "run", "device": "cpu", "choose-weight": "dev-fit", "k": 3},
        ),
    ),
}


def _ask(**flags: str) -> Words:
    return _words(("ask", "spe"), {**flags, "top": 6, "device": "cpu", "json": None})


def _keep_answers(_: Path, said: Sequence[str]) -> dict[str, Any]:
    asked = ("object of France", "object of New York", "subject of Rome", "subject of Spain")
    return {name: extract.answers(text) for name, text in zip(asked, said[1:], strict=True)}


ASK = {
    "ask": Flow(
        (
            _SPE,
            _ask(relation="capital", subject="France"),
            _ask(relation="in", subject="New York"),
            _ask(relation="capital", object="Rome"),
            _ask(relation="in", object="Spain"),
        ),
        _keep_answers,
    )
}


def _tune(kind: str, method: str, **flags: object) -> Words:
    base = {"model": "@worldly", "data": f"@{kind}", "out": "run", "device": "cpu"}
    base |= {"task.kind": kind, "method": method}
    if kind in ("spans", "relations"):
        # A low threshold on dev lets spans be found by what little was learned.
        base |= {"span.length": 3, "span.hidden": 16, "task.choose-threshold": None}
    if kind == "relations":
        base |= {"learning.choose": "span_f1"}
    return _words(("tune", "@tune"), base | {key.replace("__", "."): v for key, v in flags.items()})


def _task(*commands: Words) -> Flow:
    return Flow(commands, lambda folder, _: extract.task_run(folder / "run"))


_METHODS = dict.fromkeys((*KINDS, "spans", "relations"), ("pt2", "ft"))
_METHODS |= dict.fromkeys(("sequence", "tagging", "question"), ("pt2", "ft", "pt", "lora"))
TASKS = {
    f"tune-{kind}-{method}": _task(_tune(kind, method))
    for kind, methods in _METHODS.items()
    for method in methods
}
TASKS |= {
    f"tune-crf-{method}": _task(_tune("tagging", method, head__decoder="crf"))
    for method in ("pt2", "ft")
}
TASKS |= {
    "tune-words-crf": _task(_tune("words", "pt2", head__decoder="crf")),
    "tune-pt2-mlp": _task(_tune("pair", "pt2", prefix__encoder="mlp", prefix__hidden=8)),
    "tune-spans-nested": _task(
        _tune("spans", "pt2", span__overlaps="nested", span__summary="attention")
    ),
    "tune-causal-pt2": _task(_tune("tagging", "pt2", model="@gpt2")),
    "tune-mpt2": Flow(
        (
            _words(
                ("tune", "@tune"),
                {"model": "@bert", "data": "@entities", "out": "run", "device": "cpu"}
                | {"method": "mpt2", "mixture.tasks": ("conll2003", "conll2004")}
                | {"mixture.epochs": 2},
            ),
        ),
        lambda folder, _: extract.mixture_run(folder / "run"),
    ),
}


def _predict(file: str) -> Words:
    return _words(("predict", "run", file), {"device": "cpu", "json": None})


def _predicted(kind: str, method: str) -> Flow:
    commands = (_tune(kind, method), _predict(f"@{kind}/test.jsonl"))
    return Flow(commands, lambda _, said: extract.predictions(said[-1]))


PREDICT = {
    f"predict-{kind}-{method}": _predicted(kind, method)
    for kind, method in (("sequence", "pt2"), ("tagging", "lora"), ("question", "ft"))
}

_FOLDERS = {"rte": "RTE", "copa": "COPA", "wsc": "WSC", "multirc": "MultiRC"}
_MANUAL, _VECTORS = "{hypothesis} {premise} [MASK]", "{hypothesis} <1> {premise} <1> [MASK]"
_ONE, _SEVERAL = ("Kenya", "Japan"), ("New York", "Rome")


def _pattern(method: str, task: str = "rte", **flags: object) -> Flow:
    base = {"model": "@bert", "data": "@superglue", "out": "run", "device": "cpu"}
    base |= {"pattern.task": task, "pattern.method": method}
    base |= {f"pattern.{key.replace('_', '-')}": value for key, value in flags.items()}
    if "model" in flags:
        base["model"] = base.pop("pattern.model")
    commands = (
        _words(("tune", "@pattern"), base),
        _predict(f"@superglue/{_FOLDERS[task]}/val.jsonl"),
    )
    return Flow(commands, lambda folder, said: extract.pattern_run(folder / "run", said[-1]))


PATTERNS = {
    "pattern-ptuning": _pattern("ptuning", template=_VECTORS, words=_ONE),
    "pattern-ptuning-several-tokens": _pattern("ptuning", template=_VECTORS, words=_SEVERAL),
    "pattern-ptuning-one-at-a-time": _pattern(
        "ptuning", template=_VECTORS, words=_SEVERAL, spans="one", average="mean"
    ),
    "pattern-manual": _pattern("mp", template=_MANUAL, words=_ONE),
    "pattern-manual-several-tokens": _pattern("mp", template=_MANUAL, words=_SEVERAL),
    "pattern-zero-shot": _pattern("zero-shot", template=_MANUAL, words=_ONE),
    "pattern-cls": _pattern("cls"),
    "pattern-pt2": _pattern("pt2", template=_MANUAL, words=_ONE),
    "pattern-causal-ptuning": _pattern("ptuning", model="@gpt2", template=_VECTORS, words=_ONE),
    "pattern-causal-several-tokens": _pattern(
        "mp", model="@gpt2", template=_MANUAL, words=_SEVERAL
    ),
    "pattern-copa": _pattern("ptuning", "copa", template="{premise} <1> [MASK]"),
    "pattern-wsc": _pattern("mp", "wsc", template="{text} [MASK]"),
    "pattern-multirc": _pattern("mp", "multirc", template="{question} {answer} [MASK]", words=_ONE),
}


def _pretrain(**changes: Any) -> Flow:
    config = pretrain_config("model", shape={"layers": 2}, **changes)
    words = ("pretrain", "pretrain-tiny", *flags_of(config), "--text", "@colours")
    return Flow((words,), lambda folder, _: extract.pretrained(folder / "model"))


PRETRAIN = {
    "pretrain-mlm": _pretrain(),
    "pretrain-words": _pretrain(corruption={"kind": "words"}),
    "pretrain-mlm-nsp": _pretrain(objective="mlm+nsp", corpus={"packing": "pairs"}),
    "pretrain-mlm-sbo": _pretrain(objective="mlm+sbo", corruption={"kind": "spans"}),
}

_ON_BERT = ("--model", "@bert", "--device", "cpu")
_MARKED = ("the old [bank]", "the river [bank]", "the [capital]")
_ISOTROPY = ("isotropy", "@text", "--measure", "@other", "--out", "isotropy", *_ON_BERT, "--json")
_WORDNET = ("--wordnet", "@wordnet", "--device", "cpu", "--json")


def _keep_senses(folder: Path, said: Sequence[str]) -> dict[str, Any]:
    return {
        "trained": extract.sense_vectors(folder / "senses"),
        "fitted": extract.printed(said[1]),
        "nearest": extract.printed(said[2]),
        "tagged": extract.tagged(said[3]),
    }


EMBEDDINGS = {
    "embed": Flow(
        (("embed", "@text", "--out", "vectors", *_ON_BERT, "--dtype", "float32"),),
        lambda folder, _: extract.embedded(folder / "vectors"),
    ),
    "embed-layers": Flow(
        (
            (
                "embed",
                "@text",
                "--out",
                "vectors",
                *_ON_BERT,
                "--layers",
                "mean-last-2",
                "--pool",
                "first",
                "--by",
                "line",
            ),
        ),
        lambda folder, _: extract.embedded(folder / "vectors"),
    ),
    "similarity": Flow(
        (
            ("similarity", *_MARKED, *_ON_BERT, "--json"),
            _ISOTROPY,
            (
                "similarity",
                *_MARKED,
                *_ON_BERT,
                "--json",
                "--standardise",
                "isotropy/standardiser-last.safetensors",
            ),
        ),
        lambda _, said: {
            "plain": extract.printed(said[0]),
            "standardised": extract.printed(said[2]),
        },
    ),
    "isotropy": Flow((_ISOTROPY,), lambda _, said: extract.printed(said[0])),
    "senses": Flow(
        (
            (
                "senses",
                "train",
                "@semcor",
                "--out",
                "senses",
                *_ON_BERT,
                "--layers",
                "sum-last-2",
                "--wordnet",
                "@wordnet",
            ),
            ("senses", "evaluate", "senses", "--data", "@sets", "--draws", "50", *_WORDNET),
            (
                "senses",
                "evaluate",
                "senses",
                "--data",
                "@sets",
                "--draws",
                "50",
                *_WORDNET,
                "--rule",
                "nearest",
                "--coverage",
                "relations",
            ),
            ("senses", "tag", "senses", "the old river bank lies located .", *_WORDNET),
        ),
        _keep_senses,
    ),
}

REPRODUCE = {
    "reproduce-spe": Flow(
        (
            _words(
                ("reproduce", "spe"),
                {"models": "toy=@bert", "data": "@lama", "out": "out", "methods": "ptuning,spe"}
                | {"relations": "P17,P36", "seeds": "34", "epochs": 1, "pool": 0, "draws": 50}
                | {"devices": "cpu", "jobs": 1},
            ),
        ),
        lambda folder, _: extract.reproduced(folder / "out"),
    ),
}

FLOWS: dict[str, Flow] = {
    **TRAIN,
    **ASK,
    **TASKS,
    **PREDICT,
    **PATTERNS,
    **PRETRAIN,
    **EMBEDDINGS,
    **REPRODUCE,
}
