"""Time training steps and asking back against the arithmetic floor.

    python benchmarks/fact_steps.py --model $MODEL --data $DATA [--relations P36 P30] [--device cpu]

The floor counts what must be computed: with P weights in the layers of a frozen body but its last,
2P floating-point operations a token forward and 4P with activation gradients, and the last layer
and the vocabulary product at the asked positions alone, over real tokens (no padding), divided by
the rate of the largest matrix product measured in the same run. The vocabulary product runs in
float32 and counts at the same rate; the prompt encoder and the optimiser are not counted. Steps
follow each other as in training, where nothing waits between them. Asking back must read a sentence
once, however many facts share it; ``--masking`` says what is masked of a subject.
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
from symprompt.probing.asked_once import AskedBack, token_views
from symprompt.probing.config import make_config
from symprompt.probing.methods.base import Method
from symprompt.probing.prepare import make_method, prepare
from symprompt.probing.problem import Problem
from symprompt.probing.queries import Masking, tokens_of
from symprompt.probing.train import PromptTraining
from symprompt.prompts import Layout


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
    parser.add_argument("--masking", choices=["one", "chain", "whole"], default="one")
    flags = parser.parse_args()
    path = random_base(flags.model) if flags.random_base else flags.model
    backbone = LanguageModel.load(path, device=flags.device, dtype=flags.dtype)
    if flags.compile:
        backbone.compile_layers()
    facts = load_facts(flags.data, relations=flags.relations)
    rate = product_rate(backbone.device, backbone.dtype)
    print(json.dumps({"product TFLOP/s": round(rate / 1e12, 2), "body": body_weights(backbone)}))
    for name in ("ptuning", "spe"):
        case = Case(name, backbone, facts, masking=flags.masking)
        if case.seconds:
            print(json.dumps({"recording graphs, s": round(case.seconds, 2)}))
        seconds = steady_seconds(case.step, backbone.device, flags.steps)
        floor = step_operations(case.problem, case.rows, back=name == "spe") / rate
        _report(f"{name} step, {len(case.rows)} facts", seconds, floor, backbone)
        if name == "spe":
            ask, queries = asking_back(case.problem, case.method, flags.facts, flags.masking)
            seconds = median_seconds(ask, backbone.device, 1)
            floor = operations(backbone, queries.tokens, queries.sentences) / rate
            _report(f"ask back, {queries}, masking {flags.masking}", seconds, floor, backbone)


class Case:
    """One method on all relations, ready to take training steps.

    Attributes:
        rows: the facts of one step.
        seconds: time spent on recording.
    """

    def __init__(
        self,
        name: str,
        backbone: LanguageModel,
        facts: FactSet,
        *,
        masking: Masking = "one",
        capture: bool | None = None,
    ) -> None:
        method = {"name": name, "vectors": "separate", "average": "sum", "masking": masking}
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
    problem: Problem, method: Method, facts: int, masking: Masking
) -> tuple[Callable[[int], None], Queries]:
    """Return a function that scores the subjects of some test facts, and what it reads.

    Their candidates are objects of their relation's training facts, often ones more often.
    """
    sentences, generator = problem.sentences["test"], np.random.default_rng(0)
    layout, gold = sentences.subject_prompt, problem.sentences["train"].gold.cpu().numpy()
    rows = np.arange(0, len(layout), max(1, len(layout) // facts))
    candidates = np.empty((len(rows), 15), np.int64)
    trained = problem.sentences["train"].subject_prompt.relations
    for relation in np.unique(layout.relations[rows]):
        own, counts = np.unique(gold[trained == relation], return_counts=True)
        here = layout.relations[rows] == relation
        # The largest of logarithms with Gumbel noise are a draw without replacement.
        noise = np.log(counts) + generator.gumbel(size=(int(here.sum()), len(own)))
        chosen = own[np.argsort(-noise, axis=1)[:, :15]]
        candidates[here] = np.pad(chosen, ((0, 0), (0, 15 - chosen.shape[1])), constant_values=-1)
    given = torch.from_numpy(candidates).to(problem.backbone.device)
    with torch.no_grad():
        vectors = method.vectors()

    def ask(_turn: int) -> None:
        with torch.no_grad():
            method.subject_scores(
                sentences, rows, given, vectors, max_tokens=problem.backbone.token_budget()
            )

    lengths = read_lengths(layout, rows, candidates, masking)
    return ask, Queries(len(rows), len(lengths), float(lengths.sum()))


def read_lengths(
    layout: Layout, rows: np.ndarray, candidates: np.ndarray, masking: Masking
) -> np.ndarray:
    """Return the tokens of every sentence that must be read, each counted once."""
    fact, rank = np.nonzero(candidates >= 0)
    counts = layout.subject_lengths[rows]
    tokens = AskedBack.fetch(layout, rows, torch.from_numpy(candidates)).tokens
    views = token_views(tokens, counts, layout.relations[rows], masking=masking)
    owner, offset = tokens_of(counts[fact])
    keys = np.stack([views[fact[owner], offset], candidates[fact, rank][owner]])
    _, first = np.unique(keys, axis=1, return_index=True)
    found: np.ndarray = layout.lengths[rows[fact[owner[first]]]]
    return found


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
