"""The trained model that a run goes on from: loaded, given what it lacks, or refused.

An encoder without a masked-LM head gets one with fresh weights. Where the run's sequences are
longer than the positions that were trained, these rows are repeated; where pairs need a second
segment and one was trained, the second begins as a copy of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import BertForPreTraining, PreTrainedModel, PreTrainedTokenizerFast
from transformers.utils.hub import cached_file

from symprompt.config import flatten
from symprompt.errors import ConfigError, ModelError
from symprompt.files.progress import Tick, silent
from symprompt.models.layers import ALL, trained_parameters
from symprompt.models.loading import find_model, fingerprint, load_vocabulary, load_with_head
from symprompt.models.trained import Trained, find_positions, find_segments, find_trained
from symprompt.pretraining.config import PretrainConfig
from symprompt.pretraining.encoding import FAMILIES
from symprompt.pretraining.tokenizer import find_specials
from symprompt.runs.environment import derive_seed

HEADS_FILE = "heads.safetensors"
"""Beside the model: what was trained with it but is no part of a masked language model."""

_CLASSIFIERS = ("class", "cls", "pooler", "qa", "seq")


@dataclass(frozen=True)
class Lineage:
    """Where a model comes from, as it is recorded; final.

    Attributes:
        name: the parent's folder or hub name.
        fingerprint: of its config, weights and tokenizer.
        fresh_head: whether it had no masked-LM head.
        positions, segments: trained rows of its tables before, and rows after; none where they
            stayed as they were.
    """

    name: str
    fingerprint: str
    fresh_head: bool
    positions: tuple[int, int] | None
    segments: tuple[int, int] | None

    def __str__(self) -> str:
        changes = [
            "it had no masked-LM head, so that was made" * self.fresh_head,
            *(
                f"its trained {what} were {before} and are {after} now, their rows repeated"
                for what, rows in (("positions", self.positions), ("segments", self.segments))
                if rows is not None
                for before, after in [rows]
            ),
        ]
        told = "; ".join(filter(None, changes))
        return f"{self.name} ({self.fingerprint})" + (f"; {told}" if told else "")


@dataclass(frozen=True, eq=False)
class Parent:
    """A trained model, ready to be trained on; final.

    Attributes:
        model: in float32, on the CPU; dropout is the run's, its config states its own.
        heads: weights of other heads that were trained with it, named as in ``Pretrainer``.
        tokenizer: its own.
        place: the folder of its tokenizer.
        trained: which of its positions and segments were trained.
    """

    lineage: Lineage
    model: PreTrainedModel
    heads: dict[str, Tensor]
    tokenizer: PreTrainedTokenizerFast
    place: str
    trained: Trained


def load_parent(config: PretrainConfig, tick: Tick = silent) -> Parent:
    """Load the model that ``config.model`` names, and give it what the run needs.

    Args:
        tick: told what of the model was never trained.

    Raises:
        ConfigError: it is the run's own folder, has too few layers, or new rows of a table would
            stay untrained.
        ModelError: there is no such model, it is of another architecture, its weights are not
            safetensors or damaged, its tokenizer is missing, has no mask token or does not fit, or
            its layers have no weights of their own.
    """
    name = config.model
    if config.out and Path(name).resolve() == Path(config.out).resolve():
        raise ConfigError(f"model and out are both {name}; choose another --out.")
    source = find_model(name)
    family = source.config.model_type
    if source.causal or family not in FAMILIES:
        raise ModelError(
            f"{name} is a {family} model, and pretraining goes on with masked language models of "
            f"these kinds alone: {', '.join(FAMILIES)}."
        )
    tokenizer = load_vocabulary(name, source).tokenizer
    find_specials(tokenizer)
    with_next = config.objective == "mlm+nsp" and family == "bert"
    own = _dropouts(source.config)
    # Read when a model is made; the config that is saved with it keeps its own.
    _set(source.config, dict.fromkeys(own, config.shape.dropout))
    model, made = load_with_head(
        source,
        kind=BertForPreTraining if with_next else None,
        seed=derive_seed(config.seed, "weights"),
    )
    trained_parameters(model, config.weights.layers)
    trained, note = find_trained(model.base_model, model.config)
    if note:
        tick("untrained", 0, 0, note.partition(";")[0])
    model, changed = _enlarge(model, config, trained)
    _set(model.config, own)
    folder, heads = Path(source.place), {}
    if not folder.is_dir():
        folder = Path(str(cached_file(source.place, "config.json"))).parent
    elif (folder / HEADS_FILE).is_file():
        heads = load_file(folder / HEADS_FILE)
    lineage = Lineage(
        name=folder.resolve().name if Path(name).exists() else name,
        fingerprint=fingerprint(source),
        fresh_head=any(not _is_of_next(key) for key in made),
        positions=changed.get("positions"),
        segments=changed.get("segments"),
    )
    # A whole path: "shipped" would be the model in the package.
    return Parent(lineage, model, heads, tokenizer, str(folder.resolve()), trained)


def _is_of_next(name: str) -> bool:
    return ".pooler." in name or "seq_relationship" in name


def _dropouts(config: Any) -> dict[str, float]:
    """Return the shares that a config drops while training; heads of classifiers have others."""
    return {
        key: value
        for key, value in config.to_dict().items()
        if "dropout" in key and isinstance(value, float) and not key.startswith(_CLASSIFIERS)
    }


def _set(config: Any, values: Mapping[str, float]) -> None:
    for key, value in values.items():
        setattr(config, key, value)


def _enlarge(
    model: Any, config: PretrainConfig, trained: Trained
) -> tuple[Any, dict[str, tuple[int, int]]]:
    """Return a model with as many positions and segments as a run needs, and what was changed.

    Rows that were never trained are made anew like those that are missing.

    Raises:
        ConfigError: the new rows would not be trained.
    """
    length, own = config.corpus.length, model.config
    _, first = find_positions(model.base_model)
    pairs = config.corpus.packing == "pairs" and find_segments(model.base_model) is not None
    changed: dict[str, tuple[int, int]] = {}
    if trained.positions is not None and length > trained.positions:
        changed["positions"] = max(trained.positions, 1), length
    if pairs and trained.segments < 2:
        changed["segments"] = 1, 2
    if changed and config.weights.layers != ALL:
        what, (before, after) = next(iter(changed.items()))
        raise ConfigError(
            f"the run needs {after} {what} and the model has {before} that are trained, and "
            f"weights.layers is {config.weights.layers}, so that the new ones would not be "
            "learned; leave weights.layers at -1."
        )
    if not changed and length <= own.max_position_embeddings:
        return model, changed
    if getattr(own, "relative_attention", False) and own.max_relative_positions < 1:
        # DeBERTa's relative positions are as many as the others unless this is said.
        own.max_relative_positions = own.max_position_embeddings
    own.max_position_embeddings = max(int(own.max_position_embeddings), length + first)
    if "segments" in changed:
        own.type_vocab_size = max(2, own.type_vocab_size)
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        larger = type(model)(own)
    weights = model.state_dict()
    for key, value in larger.state_dict().items():
        if key.endswith("position_embeddings.weight") and "positions" in changed:
            weights[key] = _repeat(weights[key], len(value), first, changed["positions"][0])
        elif key.endswith("token_type_embeddings.weight") and "segments" in changed:
            weights[key] = _repeat(weights[key], len(value), 0, 1)
    larger.load_state_dict(weights)
    return larger, changed


def _repeat(rows: Tensor, size: int, first: int, count: int) -> Tensor:
    """Return a table of a size: ``first`` rows once, then ``count`` rows again and again."""
    again = torch.arange(size - first) % count + first
    return rows[torch.cat([torch.arange(first), again])]


def refuse_shape(config: PretrainConfig, default: PretrainConfig) -> None:
    """Refuse a shape or a vocabulary, changed from the default's, beside a model that has its own.

    Raises:
        ConfigError: naming the key.
    """
    before = flatten(default)
    for key, value in flatten(config).items():
        own = key.startswith(("shape.", "vocabulary.")) and key != "shape.dropout"
        if own and value != before[key]:
            what = key.partition(".")[0]
            more = "; --weights.layers trains its last layers" * (key == "shape.layers")
            raise ConfigError(
                f"{key} is {value!r}, and --model has a {what} of its own; leave the flag "
                f"out{more}."
            )
