"""How each method is trained on each task: what differs from the task's shipped P-tuning v2 config.

The reference's settings are for models of 24 layers; those of ``TASKS`` are adapted to one of
8 x 512. The reference gives none for fine-tuning and for prompts at the input layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from symprompt.config import override
from symprompt.tasks.config import TuneConfig, load_tune_config
from symprompt.tasks.patterns.config import PatternRunConfig, load_pattern_config
from symprompt.tasks.patterns.published import PTUNING

Settings = dict[str, Any]
# Shipped configs that are not called after their task.
CONFIGS = {
    "propbank-ewt": "srl-pt2",
    "conll05": "srl-pt2",
    "conll12": "srl-pt2",
    "ontonotes": "conll2003-pt2",
    "wikigold": "conll2003-pt2",
    "gum": "conll2003-pt2",
}
MIXTURES = {"tagging": "ner-mpt2", "question": "squad-mpt2", "roles": "srl-mpt2"}
_PLAIN = {"learning.schedule": "linear", "prefix.dropout": 0.0}
METHODS: dict[str, Settings] = {
    "pt2": {},
    "pt2-mlp": {"method": "pt2", "prefix.encoder": "mlp"},
    "pt": {**_PLAIN, "prefix.length": 32, "learning.rate": 1e-2},
    "ft": {
        **_PLAIN,
        "learning.rate": 1e-4,
        "learning.weight_decay": 0.01,
        "learning.warmup": 0.06,
        "learning.dropout": 0.1,
    },
    "lora": {**_PLAIN, "learning.rate": 1e-3, "learning.dropout": 0.1},
}
# Prompts at the input take positions of the model; all methods read inputs of the same length.
SAME: dict[str, Settings] = {
    "squad": {"task.max_length": 224},
    "squad2": {"task.max_length": 224},
    "boolq": {"task.max_length": 224},
}
TASKS: dict[str, Settings] = {
    "rte:ft": {"learning.epochs": 10},
    "rte:lora": {"learning.epochs": 20},
    "boolq:pt2": {"learning.epochs": 10},
    "boolq:pt": {"learning.epochs": 6},
    "boolq:ft": {"learning.epochs": 5},
    "boolq:lora": {"learning.epochs": 8},
    "sst2:pt2": {"learning.epochs": 5},
    "sst2:pt": {"learning.epochs": 5},
    "sst2:ft": {"learning.epochs": 3},
    "sst2:lora": {"learning.epochs": 4},
    # The best of twelve settings on dev, trained for longer.
    "conll2003:pt2": {
        "prefix.length": 128,
        "learning.rate": 3e-2,
        "learning.batch": 32,
        "learning.epochs": 24,
        "learning.schedule": "linear",
    },
    "conll2003:ft": {"learning.epochs": 6, "learning.batch": 32},
    "conll2003:pt": {"learning.batch": 32, "learning.epochs": 12},
    "conll2003:lora": {"learning.epochs": 12, "learning.batch": 32},
    # The best of twelve settings on dev: the longer and the faster, the better.
    "conll2004:pt2": {"prefix.length": 128, "learning.rate": 1e-1, "learning.epochs": 80},
    "conll2004:ft": {"learning.epochs": 20},
    "conll2004:lora": {"learning.epochs": 20},
    "squad:pt2": {"prefix.length": 64, "learning.epochs": 4},
    "squad:ft": {"learning.epochs": 2},
    "squad:pt": {"learning.epochs": 3},
    "squad:lora": {"learning.epochs": 4},
    "propbank-ewt:pt2": {"learning.epochs": 8},
    "propbank-ewt:pt": {"learning.epochs": 6},
    "propbank-ewt:ft": {"learning.epochs": 4},
    "propbank-ewt:lora": {"learning.epochs": 6},
}
# Tasks without a recipe of their own are trained as one of their kind.
_LIKE = {
    "cb": "rte",
    "mnli": "sst2",
    "ontonotes": "conll2003",
    "wikigold": "conll2004",
    "gum": "conll2004",
    "squad2": "squad",
    "conll05": "propbank-ewt",
    "conll12": "propbank-ewt",
}


def recipe(task: str, method: str, changes: Mapping[str, Any]) -> TuneConfig:
    """Return the config of a method on a task, with changes under dotted keys.

    A reparameterised prefix is trained as a plain one is.
    """
    base = method.removesuffix("-mlp")
    own: Settings = {"method": method, "task.name": task} | SAME.get(task, {}) | METHODS[method]
    own |= TASKS.get(f"{task}:{base}") or TASKS.get(f"{_LIKE.get(task, '')}:{base}") or {}
    return override(load_tune_config(CONFIGS.get(task, f"{task}-pt2")), **own | dict(changes))


def mixture(kind: str, changes: Mapping[str, Any]) -> TuneConfig:
    """Return the config of multi-task P-tuning v2 on the tasks of a kind."""
    name = MIXTURES[kind].removesuffix("-mpt2")
    own = SAME.get(name, {}) | TASKS.get(f"{name}:mpt2", {})
    return override(load_tune_config(MIXTURES[kind]), **own | dict(changes))


def verbalized(task: str, method: Literal["pt", "pt2"]) -> PatternRunConfig:
    """Return the config of words that answer where a method has a head: same prompts and training.

    The pattern is P-tuning's. Of pt its vectors are as many as the method's; of pt2 it has words
    alone, and every layer reads the prefix. The rate falls linearly, whatever the method's does.
    """
    like = recipe(task, method, {})
    base = load_pattern_config("superglue-rte")
    text = PTUNING[task].text.replace("<1>", f"<{like.prefix.length}>") if method == "pt" else ""
    pattern = replace(
        base.pattern,
        task=task,
        method="ptuning" if method == "pt" else "pt2",
        template=text,
        encoder="free",
        train_model=False,
        prefix_length=like.prefix.length,
        prefix_encoder=like.prefix.encoder,
        prefix_dropout=like.prefix.dropout,
        max_length=like.task.max_length,
    )
    learning = replace(
        base.learning,
        rates=(1e-5,),
        prompt_rate=like.learning.rate,
        batches=(like.learning.batch,),
        epochs=like.learning.epochs,
        patience=0,
        model_dropout=False,
    )
    return replace(base, pattern=pattern, learning=learning)
