"""Time training steps and asking back against the arithmetic floor.

    python benchmarks/fact_steps.py --model $MODEL --data $DATA [--relations P36 P30] [--device cpu]

The floor counts what must be computed: with P weights in the layers of a frozen body but its last,
2P floating-point operations a token forward and 4P with activation gradients, and the last layer
and the vocabulary product at the asked positions alone, over real tokens (no padding), divided by
the rate of the largest matrix product measured in the same run. The vocabulary product runs in
float32 and counts at the same rate; the prompt encoder and the optimiser are not counted. Steps
follow each other as in training, where nothing waits between them.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from measuring import body_weights, median_seconds, product_rate, steady_seconds
from transformers import AutoTokenizer, BertConfig, BertForMaskedLM

from symprompt.facts import FactSet, load_facts
from symprompt.models import LanguageModel
from symprompt.probing.config import make_config
from symprompt.probing.methods.base import Method
from symprompt.probing.prepare import make_method, prepare
from symprompt.probing.problem import Problem
from symprompt.probing.train import PromptTraining


def random_base(path: str) -> str:
    """Write a random model as large as BERT-base, cased, and return its folder."""
    folder = tempfile.mkdtemp()
    AutoTokenizer.from_pretrained(path).save_pretrained(folder)
    torch.manual_seed(0)
    BertForMaskedLM(BertConfig(vocab_size=28_996)).save_pretrained(folder)
    return folder


def operations(backbone: LanguageModel, tokens: float, asked: float) -> float:
    """Return the operations of a pass forward, which asks for so many of its tokens."""
    body, config = body_weights(backbone), backbone.model.config
    last = body / config.num_hidden_layers
    head = config.hidden_size * backbone.vocabulary_size
    return 2 * float((body - last) * tokens + (last + head) * asked)


def step_operations(problem: Problem, rows: np.ndarray, *, back: bool) -> float:
    """Return the operations of one training step over these rows, forward and gradient."""
    layout = problem.sentences["train"].object_prompt
    lengths, subjects = layout.lengths[rows], layout.subject_lengths[rows]
    tokens = lengths.sum() + (lengths * subjects).sum() * back
    return 2 * operations(problem.backbone, tokens, len(rows) + subjects.sum() * back)


def main() -> None:
    """Measure and print one line of JSON a stage."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--relations", nargs="*", default=[])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--compile", action="store_true", help="compile the model's layers")
    parser.add_argument(
        "--random-base",
        action="store_true",
        help="a random BERT of 12 layers, width 768 and 28,996 words, with the model's tokenizer",
    )
    parser.add_argument("--facts", type=int, default=2048, help="test facts to ask back")
    flags = parser.parse_args()
    path = random_base(flags.model) if flags.random_base else flags.model
    backbone = LanguageModel.load(path, device=flags.device, dtype=flags.dtype)
    if flags.compile:
        backbone.compile_layers()
    facts = load_facts(flags.data, relations=flags.relations)
    rate = product_rate(backbone.device, backbone.dtype)
    print(json.dumps({"product TFLOP/s": round(rate / 1e12, 2), "body": body_weights(backbone)}))
    for name in ("ptuning", "spe"):
        case = Case(name, backbone, facts)
        if case.seconds:
            print(json.dumps({"recording graphs, s": round(case.seconds, 2)}))
        seconds = steady_seconds(case.step, backbone.device, flags.steps)
        floor = step_operations(case.problem, case.rows, back=name == "spe") / rate
        _report(f"{name} step, {len(case.rows)} facts", seconds, floor, backbone)
        if name == "spe":
            ask, queries = asking_back(case.problem, case.method, flags.facts)
            seconds = median_seconds(ask, backbone.device, 1)
            floor = operations(backbone, queries.tokens, queries.sentences) / rate
            _report(f"ask back, {queries}", seconds, floor, backbone)


class Case:
    """One method on all relations, ready to take training steps.

    Attributes:
        rows: the facts of one step.
        seconds: time spent on recording.
    """

    def __init__(
        self, name: str, backbone: LanguageModel, facts: FactSet, *, capture: bool | None = None
    ) -> None:
        method = {"name": name, "vectors": "separate", "average": "sum"}
        config = make_config({"method": method, "seed": 0})
        self.problem = prepare(config, backbone, facts)
        self.method = make_method(config, self.problem)
        self.trainer = trainer = PromptTraining(config, self.problem, self.method, capture=capture)
        self._plan = plan = trainer.plan()
        # Relations with few facts have none left in later steps.
        sizes = [sum(map(len, batches)) for batches in plan]
        self._whole = [turn for turn, size in enumerate(sizes) if size == max(sizes)]
        self.rows = np.concatenate(plan[self._whole[0]])
        self._active, self._rates = (
            torch.from_numpy(part).to(backbone.device) for part in trainer.rates(plan)
        )
        self._losses = torch.zeros(len(self.problem.relations), device=backbone.device)
        self._epoch = trainer.captured.plan(plan) if trainer.captured else None
        if trainer.recorder.reason:
            self._epoch = None
        self.seconds = trainer.recorder.seconds

    def step(self, turn: int) -> None:
        """Take one training step of as many facts as any."""
        turn = self._whole[turn % len(self._whole)]
        trainer, active, rate = self.trainer, self._active[turn], self._rates[turn]
        if trainer.captured and self._epoch:
            moving = dict.fromkeys(trainer.optimizers, active)
            trainer.captured.step(self._epoch, turn, moving, rate, self._losses)
            return
        trainer._backward(self._plan[turn], self._losses)
        for optimizer in trainer.optimizers.values():
            optimizer.step(active, rate)


class Queries(NamedTuple):
    """What asking back reads: facts, sentences, tokens."""

    facts: int
    sentences: int
    tokens: float

    def __str__(self) -> str:
        return f"{self.facts} facts x 15, {self.sentences} sentences"


def asking_back(
    problem: Problem, method: Method, facts: int
) -> tuple[Callable[[int], None], Queries]:
    """Return a function that scores the subjects of some test facts, and what it reads."""
    layout = problem.sentences["test"].object_prompt
    rows = np.arange(0, len(layout), max(1, len(layout) // facts))
    with torch.no_grad():
        vectors = method.vectors()
    generator = torch.Generator().manual_seed(0)
    candidates = torch.randint(
        0, len(problem.backbone.vocabulary), (len(rows), 15), generator=generator
    ).to(problem.backbone.device)

    def ask(_turn: int) -> None:
        with torch.no_grad():
            method.subject_scores(
                problem.sentences["test"],
                rows[np.argsort(layout.lengths[rows])],
                candidates,
                vectors,
                max_tokens=problem.backbone.token_budget(),
            )

    sentences = int(15 * layout.subject_lengths[rows].sum())
    tokens = float(15 * (layout.subject_lengths[rows] * layout.lengths[rows]).sum())
    return ask, Queries(len(rows), sentences, tokens)


def _report(stage: str, seconds: float, floor: float, backbone: LanguageModel) -> None:
    line: dict[str, object] = {
        "stage": stage,
        "seconds": round(seconds, 5),
        "floor": round(floor, 5),
        "times the floor": round(seconds / floor, 2),
        "share of the product": round(floor / seconds, 3),
    }
    if backbone.device.type == "cuda":
        line["peak GiB"] = round(torch.cuda.max_memory_allocated() / 2**30, 2)
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
