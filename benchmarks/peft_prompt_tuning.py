"""Compare an epoch of free prompt vectors with peft's prompt tuning, on the same machine.

    python benchmarks/peft_prompt_tuning.py [--model GPT2_FOLDER] [--data world] [--device cpu]

What peft can express: vectors before the sentence of a causal model, "<9> [X] [Y]", one prompt per
relation, so one relation after the other; it has no prompt tuning for masked models, no vectors
between the blanks, and the head runs at every position. Here: all relations in one stacked batch.
Both train 9 vectors a relation with Adam on the same facts, batches of 8, float32; the first
epoch is not timed. Printed are the seconds of an epoch over all relations, and their ratio. Without
--model it is a GPT-2 of 4 layers x 512 with random weights and the shipped model's vocabulary.
Needs the extra [peft].
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from peft import PromptTuningConfig, TaskType, get_peft_model
from torch import Tensor
from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel

from symprompt.engine.loop import Loop
from symprompt.errors import SympromptError
from symprompt.facts import Fact
from symprompt.models import LanguageModel, locate_model
from symprompt.probing.config import make_config
from symprompt.probing.prepare import load_config_facts, make_method, prepare
from symprompt.probing.problem import Problem
from symprompt.probing.train import PromptTraining

VECTORS, BATCH, IGNORED = 9, 8, -100


def write_random_model(folder: Path) -> str:
    """Write a small GPT-2 with random weights and the shipped model's tokenizer."""
    tokenizer = AutoTokenizer.from_pretrained(locate_model("shipped"))
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=len(tokenizer),
        n_positions=128,
        n_embd=512,
        n_layer=4,
        n_head=8,
        bos_token_id=tokenizer.cls_token_id,
        eos_token_id=tokenizer.sep_token_id,
    )
    GPT2LMHeadModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def peft_batch(backbone: LanguageModel, facts: list[Fact]) -> tuple[Tensor, Tensor, Tensor]:
    """Return ids, mask and labels of sentences "[X] [Y]", put together example by example."""
    vocabulary = backbone.vocabulary
    rows = [
        [*vocabulary.prefix, *vocabulary.encode([fact.subject])[0]]
        + vocabulary.encode_words([fact.object])[0]
        for fact in facts
    ]
    width = max(map(len, rows))
    ids = torch.tensor([row + [vocabulary.pad_id] * (width - len(row)) for row in rows])
    length = torch.tensor([len(row) for row in rows])[:, None]
    place = torch.arange(width)[None]
    labels = torch.where(place == length - 1, ids, IGNORED)
    device = backbone.device
    return ids.to(device), (place < length).long().to(device), labels.to(device)


def time_peft(model: str, problem: Problem, rate: float, epochs: int) -> float:
    """Return seconds per epoch of peft's prompt tuning, relation after relation."""
    seconds = 0.0
    random = np.random.default_rng(0)
    for name in problem.relations:
        base = GPT2LMHeadModel.from_pretrained(model).to(problem.backbone.device)
        tuned = get_peft_model(
            base, PromptTuningConfig(task_type=TaskType.CAUSAL_LM, num_virtual_tokens=VECTORS)
        )
        optimizer = torch.optim.Adam(
            [value for value in tuned.parameters() if value.requires_grad], lr=rate
        )
        facts = [fact for fact in problem.facts.facts("train") if fact.relation == name]
        for epoch in range(epochs + 1):
            begun = time.perf_counter()
            order = random.permutation(len(facts))
            for start in range(0, len(order), BATCH):
                batch = [facts[row] for row in order[start : start + BATCH]]
                ids, mask, labels = peft_batch(problem.backbone, batch)
                loss = tuned(input_ids=ids, attention_mask=mask, labels=labels).loss
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            if problem.backbone.device.type == "cuda":
                torch.cuda.synchronize()
            seconds += (time.perf_counter() - begun) * (epoch > 0)
    return seconds / epochs


def main() -> None:
    """Measure both and print the ratio."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="", help="folder of a GPT-2")
    parser.add_argument("--data", default="world")
    parser.add_argument("--relations", nargs="*", default=["capital", "continent", "language"])
    parser.add_argument("--train-limit", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=2, help="timed ones, after a first")
    parser.add_argument("--device", default="cpu")
    flags = parser.parse_args()
    if flags.epochs < 1:
        parser.error(f"--epochs is {flags.epochs}; it must be at least 1.")
    config = make_config(
        {
            "method": {"name": "optiprompt"},
            "prompt": {"template": f"<{VECTORS}> [X] [Y]", "encoder": "free"},
            "facts": {"relations": flags.relations, "train_limit": flags.train_limit},
            "learning": {"epochs": flags.epochs + 1, "batch": BATCH, "drop_last": False},
        }
    )
    with tempfile.TemporaryDirectory() as folder:
        model = flags.model or write_random_model(Path(folder))
        backbone = LanguageModel.load(model, device=flags.device, dtype="float32")
        problem = prepare(config, backbone, load_config_facts(flags.data, config.facts))
        method = make_method(config, problem)
        ends: list[float] = []

        def score() -> dict[str, np.ndarray]:
            ends.append(time.perf_counter())
            return {"forth": np.zeros(len(problem.relations))}

        trainer = PromptTraining(config, problem, method)
        trainer.scores = score  # type: ignore[method-assign]
        Loop(trainer).run()
        stacked = (ends[-1] - ends[0]) / flags.epochs
        peft = time_peft(model, problem, config.learning.rate, flags.epochs)
    found = {
        "model": flags.model or "GPT-2 4x512, random",
        "device": flags.device,
        "relations": len(problem.relations),
        "facts": len(problem.facts.facts("train")),
        "peft_seconds": round(peft, 3),
        "stacked_seconds": round(stacked, 3),
        "ratio": round(peft / stacked, 2),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    try:
        main()
    except SympromptError as error:
        raise SystemExit(f"peft_prompt_tuning.py: {error}") from None
