"""Time pretraining steps against the arithmetic floor, on random tokens.

    python benchmarks/pretrain_speed.py [pretrain-medium] [--steps 60] [--micro-batch 512] [--json]
    python benchmarks/pretrain_speed.py --family mpnet [--layers 4]
    python benchmarks/pretrain_speed.py pretrain-tiny --device cpu --steps 5 --batch 16

The steps are those of ``symprompt pretrain``: batches made ahead by a thread, corrupted on the
device, passed forth and back, AdamW. With a family the model is one of its usual size (base) with
random weights, gone on from. The floor counts what must be computed: six operations for each weight
that multiplies a token, two where it is frozen, the two products of attention, and at the asked
positions alone the head and what the last layer does beyond keys and values; it is divided by the
rate of the largest matrix product measured in the same run.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
from measuring import product_rate, wait
from transformers import CONFIG_MAPPING, AutoModelForMaskedLM

from symprompt.engine.processes import join_group
from symprompt.models.trained import Trained
from symprompt.pretraining.config import PretrainConfig, WeightsConfig, load_pretrain_config
from symprompt.pretraining.corruption import count_positions
from symprompt.pretraining.parent import Lineage, Parent
from symprompt.pretraining.sequences import Batch, Feed
from symprompt.pretraining.tokenizer import Specials
from symprompt.pretraining.training import Pretraining

SPECIALS = Specials(cls=2, sep=3, pad=0, mask=4)


@dataclass(frozen=True)
class RandomSequences:
    """Full sequences of random tokens, made once and drawn from."""

    ids: np.ndarray

    def __len__(self) -> int:
        return len(self.ids)

    def order(self, epoch: int) -> np.ndarray:
        """Return the order of an epoch."""
        return np.random.default_rng(epoch).permutation(len(self.ids))

    def batch(self, indices: np.ndarray, epoch: int) -> Batch[np.ndarray]:
        """Return these sequences; every second token starts a word."""
        ids = self.ids[indices]
        special = np.zeros(ids.shape, bool)
        special[:, [0, -1]] = True
        starts = ~special & (ids % 2 == 0)
        starts[:, 1] = True
        return Batch(
            ids=ids,
            starts_word=starts,
            special=special,
            lengths=np.full(len(ids), ids.shape[1], np.int64),
            segments=np.zeros(ids.shape, np.uint8),
            is_next=np.ones(len(ids), bool),
        )


def make_sequences(config: PretrainConfig) -> RandomSequences:
    """Make a few batches' worth of random sequences."""
    random = np.random.default_rng(0)
    shape = (4 * config.learning.batch, config.corpus.length)
    ids = random.integers(5, config.vocabulary.size, shape).astype(np.uint16)
    ids[:, 0], ids[:, -1] = SPECIALS.cls, SPECIALS.sep
    return RandomSequences(ids)


@dataclass(frozen=True)
class Sizes:
    """What of a model decides how much is computed."""

    layers: int
    hidden: int
    inner: int
    embedding: int
    vocabulary: int


def sizes_of(model: Any) -> Sizes:
    """Return the sizes of a masked language model of transformers."""
    own = model.config
    vocabulary, embedding = model.get_input_embeddings().weight.shape
    inner = getattr(own, "intermediate_size", None) or own.hidden_dim
    return Sizes(own.num_hidden_layers, own.hidden_size, inner, embedding, vocabulary)


def step_operations(config: PretrainConfig, sizes: Sizes) -> float:
    """Return the floating-point operations that one step cannot do without.

    A product of a forward pass takes two operations for each weight and token; where it is trained
    as many again for the gradient of the weights, and as many for that of the states below, if
    something below is trained.
    """
    length, hidden, embedding = config.corpus.length, sizes.hidden, sizes.embedding
    trained = sizes.layers if config.weights.layers == -1 else config.weights.layers
    frozen = sizes.layers - trained
    whole = config.weights.layers == -1
    square, inner = hidden**2, 2 * hidden * sizes.inner
    asked = count_positions(length, config.corruption)
    states = {"mlm": asked, "mlm+nsp": asked + 1, "mlm+sbo": 3 * asked}[config.objective]
    # Every number below is operations per sequence, divided by two.
    # Scores and mixing each take hidden * length products a token, like so many weights.
    attention = 2 * hidden * length
    layer = length * (4 * square + inner + attention)
    # Of the last layer only keys and values are of every token.
    last = length * 2 * square + states * (2 * square + inner + attention)
    below, above = sizes.layers - 1, last
    total = float(length * hidden * embedding * (1 + 2 * whole) * (embedding != hidden))
    total += layer * (min(frozen, below) + 3 * max(0, below - frozen))
    total += above * (3 if trained else 1)
    if trained and not whole:
        # Nothing below the first trained layer asks for the gradient of the states it reads.
        total -= 2 * length * square + square * (states if trained == 1 else length)
    head, decoder = asked * hidden * embedding, asked * embedding * sizes.vocabulary
    total += head * (3 if trained else 2) + decoder * (3 if whole else 2)
    if config.objective == "mlm+sbo":
        own = (2 * hidden + 200) * hidden + hidden * embedding
        total += asked * own * 3 + decoder * (3 if whole else 2)
    return 2.0 * config.learning.batch * total


def random_parent(family: str, config: PretrainConfig) -> Parent:
    """Return a model of a family with random weights, of the sizes its config has by default."""
    own = CONFIG_MAPPING[family]()
    for key in own.to_dict():
        if "dropout" in key and isinstance(getattr(own, key), float):
            setattr(own, key, config.shape.dropout)
    model = AutoModelForMaskedLM.from_config(own)
    lineage = Lineage(family, "", fresh_head=False, positions=None, segments=None)
    return Parent(lineage, model, {}, cast(Any, None), "", Trained(None, 0))


def measure(config: PretrainConfig, mode: str | None, family: str) -> dict[str, float | str]:
    """Train for the config's steps; return what was measured.

    Args:
        mode: of torch.compile.
        family: of a model to go on from; "" makes the config's.
    """
    with join_group(config.device) as group:
        frequencies = torch.ones(config.vocabulary.size)
        frequencies[:5] = 0
        feed = Feed(make_sequences(config), config.learning.batch)
        parent = random_parent(family, config) if family else None
        training = Pretraining(
            config,
            feed,
            None,
            specials=SPECIALS,
            frequencies=frequencies / frequencies.sum(),
            group=group,
            parent=parent,
        )
        if mode is not None:
            training._compiled = torch.compile(
                training._losses, fullgraph=True, dynamic=False, mode=mode
            )
        steps, device = config.learning.steps, group.device
        warm = min(5, steps - 1)
        begun = first = steady = time.perf_counter()
        tokens = 0
        for number in range(steps):
            batch, size = feed.take(number, steps, device)
            with training.training():
                training.learn(number, batch)
            if number == 0:
                wait(device)
                first = time.perf_counter()
            if number + 1 == warm or steps == 1:
                wait(device)
                steady = time.perf_counter()
            elif number >= warm:
                tokens += size
        feed.close()
        loss, _, _ = training.read()
        wait(device)
        seconds = time.perf_counter() - steady
        rate = product_rate(device, training.dtype)
        timed = max(1, steps - warm)
        operations = step_operations(config, sizes_of(training.pretrainer.model))
        floor = operations / group.size / rate
        return {
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
            "dtype": str(training.dtype).removeprefix("torch."),
            "weights": training.optimizer.size,
            "tokens_per_second": tokens / seconds,
            "step_ms": 1000 * seconds / timed,
            "first_step_seconds": first - begun,
            "floor_ms": 1000 * floor,
            "product_tflops": rate / 1e12,
            "operations_per_token": operations / (config.learning.batch * config.corpus.length),
            "fraction_of_floor": floor * timed / seconds,
            "memory_gib": torch.cuda.max_memory_allocated(device) / 2**30
            if device.type == "cuda"
            else 0.0,
            "loss": sum(loss.values()),
        }


def main() -> None:
    """Read the flags, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config", nargs="?", default="pretrain-medium")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--micro-batch", type=int)
    parser.add_argument("--length", type=int)
    parser.add_argument("--corruption", help="kind of corruption")
    parser.add_argument("--compile", choices=["on", "off", "max-autotune"], default="on")
    parser.add_argument("--family", default="", help="go on from a random model, such as mpnet")
    parser.add_argument("--layers", type=int, default=-1, help="train its last layers alone")
    parser.add_argument("--mode", help="torch.compile mode, such as reduce-overhead")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", action="store_true")
    flags = parser.parse_args()
    config = load_pretrain_config(flags.config)
    given = {
        "steps": flags.steps,
        "batch": flags.batch,
        "micro_batch": flags.micro_batch,
    }
    config = replace(
        config,
        device=flags.device,
        dtype=flags.dtype,
        compile=flags.compile,
        model=flags.family,
        weights=WeightsConfig(layers=flags.layers),
        learning=replace(
            config.learning, **{key: value for key, value in given.items() if value is not None}
        ),
        corpus=replace(config.corpus, length=flags.length or config.corpus.length),
        corruption=replace(config.corruption, kind=flags.corruption or config.corruption.kind),
    )
    found = measure(config, flags.mode, flags.family)
    if flags.json:
        print(json.dumps(found))
        return
    for name, value in found.items():
        print(f"{name:<22} {value:,.3f}" if isinstance(value, float) else f"{name:<22} {value}")


if __name__ == "__main__":
    main()
