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
import time

import numpy as np
import torch
from measuring import body_weights, median_seconds, product_rate, steady_seconds
from transformers import AutoTokenizer, BertConfig, BertForMaskedLM

from symprompt.facts import load_facts
from symprompt.models import LanguageModel
from symprompt.probing.config import make_config
from symprompt.probing.methods.base import Method
from symprompt.probing.prepare import Problem, make_method, prepare
from symprompt.probing.trainer import Trainer


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
    layout = problem.sentences["train"].forth
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
        config = make_config({"method": {"name": name, "vectors": "separate", "average": "sum"}})
        problem = prepare(config, backbone, facts)
        method = make_method(config, problem)
        trainer = Trainer(
            method,
            problem.sentences["train"],
            problem.relations,
            config.training,
            seed=0,
            max_tokens=backbone.token_budget(training=True),
        )
        plan = trainer._plan()
        # Relations with few facts have none left in later steps.
        sizes = [sum(map(len, batches)) for batches in plan]
        whole = [turn for turn, size in enumerate(sizes) if size == max(sizes)]
        active, rates = (
            torch.from_numpy(part).to(backbone.device) for part in trainer._rates(plan)
        )
        losses = torch.zeros(len(problem.relations), device=backbone.device)
        begun = time.perf_counter()
        epoch = trainer._record(plan)
        if epoch:
            print(json.dumps({"recording graphs, s": round(time.perf_counter() - begun, 2)}))

        def step(
            turn: int, trainer: Trainer = trainer, plan: list[list[np.ndarray]] = plan
        ) -> None:
            turn = whole[turn % len(whole)]  # noqa: B023
            on = dict.fromkeys(trainer.optimizers, active[turn])  # noqa: B023
            if trainer.captured and epoch:  # noqa: B023
                trainer.captured.step(epoch, turn, on, rates[turn], losses)  # noqa: B023
                return
            trainer._backward(plan[turn], losses)  # noqa: B023
            for optimizer in trainer.optimizers.values():
                optimizer.step(active[turn], rates[turn])  # noqa: B023

        seconds = steady_seconds(step, backbone.device, flags.steps)
        rows = np.concatenate(plan[whole[0]])
        floor = step_operations(problem, rows, back=name == "spe") / rate
        _report(f"{name} step, {len(rows)} facts", seconds, floor, backbone)
        if name == "spe":
            _ask_back(problem, method, flags.facts, rate)


def _ask_back(problem: Problem, method: Method, facts: int, rate: float) -> None:
    layout = problem.sentences["test"].forth
    rows = np.arange(0, len(layout), max(1, len(layout) // facts))
    with torch.no_grad():
        vectors = method.vectors()
    candidates = torch.randint(
        0, len(problem.backbone.vocabulary), (len(rows), 15), device=problem.backbone.device
    )

    def ask(_turn: int) -> None:
        with torch.no_grad():
            method.subject_scores(
                problem.sentences["test"],
                rows[np.argsort(layout.lengths[rows])],
                candidates,
                vectors,
                max_tokens=problem.backbone.token_budget(),
            )

    seconds = median_seconds(ask, problem.backbone.device, 1)
    sentences = int(15 * layout.subject_lengths[rows].sum())
    tokens = float(15 * (layout.subject_lengths[rows] * layout.lengths[rows]).sum())
    floor = operations(problem.backbone, tokens, sentences) / rate
    _report(
        f"ask back, {len(rows)} facts x 15, {sentences} sentences", seconds, floor, problem.backbone
    )


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
