"""Compare an epoch of P-tuning with the loop that is usual for it, on the same machine.

    python benchmarks/usual_loop.py [--model shipped] [--data world] [--relations capital continent]

The usual loop, re-created after public code for this task: one relation after the other, batches of
8 facts tokenised and put together example by example, torch's own LSTM and Adam, the model's logits
at every position, and for the dev score an argsort of all of them. Here: all relations in one
stacked batch, laid out once, the head at the asked position alone, ranks by counting. Both train
the same encoder on the same facts in float32 and score dev once an epoch; the first epoch is not
timed. Printed are the seconds of an epoch over all relations, and their ratio.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from symprompt.engine.loop import Loop
from symprompt.errors import SympromptError
from symprompt.facts import Fact
from symprompt.models import LanguageModel
from symprompt.probing.config import RunConfig, make_config
from symprompt.probing.evaluate import dev_scores
from symprompt.probing.prepare import load_config_facts, make_method, prepare
from symprompt.probing.problem import Problem
from symprompt.probing.train import PromptTraining

VECTORS = (3, 3, 3)
BATCH = 8


class UsualEncoder(nn.Module):
    """Base vectors through torch's BiLSTM and an MLP, for one relation."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.base = nn.Embedding(sum(VECTORS), width)
        self.lstm = nn.LSTM(width, width // 2, num_layers=2, bidirectional=True, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))

    def forward(self) -> Tensor:
        """Return the vectors, [n, width]."""
        vectors: Tensor = self.mlp(self.lstm(self.base.weight[None])[0])[0]
        return vectors


class UsualLoop:
    """One relation, trained and scored in the usual way."""

    def __init__(self, backbone: LanguageModel, rate: float) -> None:
        self.model = backbone.model
        self.tokenizer = backbone.vocabulary.tokenizer
        self.embeddings = backbone.model.get_input_embeddings()
        self.encoder = UsualEncoder(backbone.width).to(backbone.device)
        self.optimizer = torch.optim.Adam(self.encoder.parameters(), lr=rate)
        self.device = backbone.device

    def query(self, fact: Fact) -> list[int]:
        """Return [CLS] <3> subject <3> [MASK] <3> [SEP], -1 where a vector goes."""
        first, middle, last = ([-1] * count for count in VECTORS)
        subject = self.tokenizer(fact.subject, add_special_tokens=False)["input_ids"]
        return [
            self.tokenizer.cls_token_id,
            *first,
            *subject,
            *middle,
            self.tokenizer.mask_token_id,
            *last,
            self.tokenizer.sep_token_id,
        ]

    def logits(self, facts: Sequence[Fact]) -> tuple[Tensor, Tensor, Tensor]:
        """Return logits at every position, the masks' places, and the gold tokens."""
        rows = [torch.tensor(self.query(fact)) for fact in facts]
        pad = self.tokenizer.pad_token_id
        ids = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=pad).to(self.device)
        inputs = self.embeddings(ids.clamp(min=0)).clone()
        vectors = self.encoder()
        for row in range(len(facts)):
            for slot, place in enumerate((ids[row] == -1).nonzero()[:, 0].tolist()):
                inputs[row, place] = vectors[slot]
        logits = self.model(inputs_embeds=inputs, attention_mask=(ids != pad).long()).logits
        at = (ids == self.tokenizer.mask_token_id).nonzero()[:, 1]
        names = [fact.object for fact in facts]
        gold = self.tokenizer(names, add_special_tokens=False)["input_ids"]
        return logits, at, torch.tensor([token[0] for token in gold], device=self.device)

    def epoch(self, train: Sequence[Fact], dev: Sequence[Fact], order: np.ndarray) -> float:
        """Train on every batch, then return dev P@1."""
        # A last, smaller batch is left out unless it is the only one.
        for start in range(0, max(len(order) - BATCH + 1, 1), BATCH):
            facts = [train[row] for row in order[start : start + BATCH]]
            logits, at, gold = self.logits(facts)
            labels = torch.full(logits.shape[:2], -100, device=self.device)
            labels[torch.arange(len(facts)), at] = gold
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        hits = 0
        with torch.no_grad():
            for start in range(0, len(dev), BATCH):
                logits, at, gold = self.logits(dev[start : start + BATCH])
                ranked = torch.argsort(logits, dim=2, descending=True)
                for row in range(len(gold)):
                    hits += ranked[row, at[row]].tolist().index(int(gold[row])) == 0
        return hits / len(dev)


def time_usual(problem: Problem, config: RunConfig, epochs: int) -> float:
    """Return seconds per epoch of the usual loop over all relations."""
    seconds = 0.0
    random = np.random.default_rng(0)
    for name in problem.relations:
        train, dev = (
            [fact for fact in problem.facts.facts(split) if fact.relation == name]
            for split in ("train", "dev")
        )
        loop = UsualLoop(problem.backbone, config.learning.rate)
        for epoch in range(epochs + 1):
            begun = time.perf_counter()
            loop.epoch(train, dev, random.permutation(len(train)))
            seconds += (time.perf_counter() - begun) * (epoch > 0)
    return seconds / epochs


def time_stacked(problem: Problem, config: RunConfig, epochs: int) -> float:
    """Return seconds per epoch of the stacked training over all relations."""
    method = make_method(config, problem)
    ends: list[float] = []

    def score() -> dict[str, np.ndarray]:
        found = dev_scores(method, problem, config.learning.select)
        ends.append(time.perf_counter())
        return found

    trainer = PromptTraining(config, problem, method)
    trainer.scores = score  # type: ignore[method-assign]
    Loop(trainer).run()
    return (ends[-1] - ends[0]) / epochs


def main() -> None:
    """Measure both and print the ratio."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="shipped")
    parser.add_argument("--data", default="world")
    parser.add_argument("--relations", nargs="*", default=["capital", "continent", "language"])
    parser.add_argument("--train-limit", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=2, help="timed ones, after a first")
    parser.add_argument("--device", default="cpu")
    flags = parser.parse_args()
    if flags.epochs < 1:
        parser.error(f"--epochs is {flags.epochs}; it must be at least 1.")
    limits = {"train_limit": flags.train_limit, "dev_limit": flags.train_limit // 2}
    config = make_config(
        {
            "method": {"name": "ptuning"},
            "facts": {"relations": flags.relations, **limits},
            "learning": {"epochs": flags.epochs + 1, "batch": BATCH, "select": "p@1"},
        }
    )
    backbone = LanguageModel.load(flags.model, device=flags.device, dtype="float32")
    problem = prepare(config, backbone, load_config_facts(flags.data, config.facts))
    stacked = time_stacked(problem, config, flags.epochs)
    usual = time_usual(problem, config, flags.epochs)
    facts = {split: len(problem.facts.facts(split)) for split in ("train", "dev")}
    print(
        json.dumps(
            {
                "model": flags.model,
                "device": flags.device,
                "relations": len(problem.relations),
                "facts": facts,
                "usual_seconds": round(usual, 3),
                "stacked_seconds": round(stacked, 3),
                "ratio": round(usual / stacked, 2),
            }
        )
    )


if __name__ == "__main__":
    try:
        main()
    except SympromptError as error:
        raise SystemExit(f"usual_loop.py: {error}") from None
