"""A search on tiny models, and the same search written as loops over full forwards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from symprompt.facts import Fact, FactSet
from symprompt.models import LanguageModel
from symprompt.probing.config import RunConfig
from symprompt.probing.evaluate import dev_scores
from symprompt.probing.methods.autoprompt import AutoPrompt, WordSearch
from symprompt.probing.prepare import make_method, prepare
from symprompt.probing.problem import Problem
from symprompt.prompts import Template
from symprompt.runs.environment import derive_seed
from tiny.models import overlay, run_config, run_training

TEMPLATE = "<1> [X] <2> [Y] <1> ."


def search_config(**sections: Any) -> RunConfig:
    """A small config of a search; keyword arguments are tables."""
    defaults: dict[str, Any] = {
        "dtype": "float64",
        "method": {"name": "autoprompt"},
        "prompt": {"template": TEMPLATE, "encoder": "free"},
        "learning": {"batch": 4, "epochs": 4, "select": "mrr"},
        "search": {"steps": 3, "candidates": 5},
    }
    return run_config(**overlay(defaults, sections))


@dataclass
class Searched:
    """One search, each epoch's words and, of a finished one, losses."""

    problem: Problem
    method: AutoPrompt
    searcher: WordSearch
    config: RunConfig
    tokens: list[Tensor] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)

    def score(self) -> dict[str, np.ndarray]:
        """Score dev as a run does; keep the words that were scored."""
        self.tokens.append(self.method.triggers.tokens.clone())
        return dev_scores(self.method, self.problem, self.config.learning.select)


def make_search(
    config: RunConfig, backbone: LanguageModel, facts: FactSet, *, max_tokens: int = 4096
) -> Searched:
    """Everything up to the first step."""
    config = replace(config, max_tokens=max_tokens)
    problem = prepare(config, backbone, facts)
    method = make_method(config, problem)
    assert isinstance(method, AutoPrompt)
    return Searched(problem, method, WordSearch(config, problem, method), config)


def search(
    config: RunConfig, backbone: LanguageModel, facts: FactSet, *, max_tokens: int = 4096
) -> Searched:
    made = make_search(config, backbone, facts, max_tokens=max_tokens)
    made.losses = [row["loss"] for row in run_training(made.searcher, made.score).history]
    return made


# ------------------------------------------------------------------------- the same, slowly


def slow_loss(
    backbone: LanguageModel, template: Template, fact: Fact, triggers: Sequence[int | Tensor]
) -> Tensor:
    """One fact's loss through a full forward; triggers are tokens or vectors."""
    vocabulary = backbone.vocabulary
    row: list[int | Tensor] = list(vocabulary.prefix)
    left, at, answer = list(triggers), -1, -1
    for piece in template.pieces:
        if piece.kind == "vectors":
            row += [left.pop(0) for _ in range(piece.count)]
        elif piece.kind == "words":
            row += vocabulary.encode_words([piece.text])[0]
        else:
            name = fact.subject if piece.kind == "subject" else fact.object
            encode = vocabulary.encode_words if piece.space else vocabulary.encode
            (ids,) = encode([name])
            if piece.kind == "subject":
                row += ids
            else:
                (answer,), at = ids, len(row)
                if vocabulary.mask_id is not None:
                    row.append(vocabulary.mask_id)
    row += vocabulary.suffix
    parts = [
        entry if isinstance(entry, Tensor) else backbone.embed(torch.tensor([entry]))[0]
        for entry in row
    ]
    logits = backbone.model(inputs_embeds=torch.stack(parts)[None]).logits[0]
    at -= vocabulary.mask_id is None
    return -torch.log_softmax(logits[at], 0)[answer]


def slow_gradient(
    backbone: LanguageModel,
    template: Template,
    facts: Sequence[Fact],
    tokens: Sequence[int],
    place: int,
) -> Tensor:
    """The gradient of the facts' mean loss with respect to the word at a place."""
    words = [backbone.embed(torch.tensor([token]))[0].detach() for token in tokens]
    words[place].requires_grad_()
    losses = [slow_loss(backbone, template, fact, words) for fact in facts]
    torch.stack(losses).mean().backward()
    assert words[place].grad is not None
    return words[place].grad


def slow_search(
    config: RunConfig, backbone: LanguageModel, name: str, problem: Problem, usable: Tensor
) -> list[list[int]]:
    """The words of one relation after every epoch, before the best is chosen."""
    relation = problem.facts[name]
    template = problem.templates[problem.relations.index(name)]
    mask = backbone.vocabulary.mask_id
    assert mask is not None
    tokens, found = [mask] * template.vectors, []
    for step in range(config.learning.epochs * config.search.steps):
        random = np.random.default_rng(derive_seed(config.seed, "search", name, step))
        size = min(config.learning.batch, len(relation.train))
        draws = [random.choice(len(relation.train), size, replace=False) for _ in range(2)]
        first, second = ([relation.train[index] for index in draw] for draw in draws)
        place = int(random.integers(template.vectors))
        gradient = slow_gradient(backbone, template, first, tokens, place)
        promise = {
            token: -float(gradient @ backbone.embed(torch.tensor([token]))[0])
            for token in range(len(usable))
            if usable[token] and token != tokens[place]
        }
        best = sorted(promise, key=lambda token: -promise[token])[: config.search.candidates]
        trials = [tokens, *([*tokens[:place], new, *tokens[place + 1 :]] for new in best)]
        with torch.no_grad():
            losses = [
                float(sum(slow_loss(backbone, template, fact, trial) for fact in second))
                for trial in trials
            ]
        if mask in tokens:
            losses[0] = float("inf")
        tokens = trials[int(np.argmin(losses))]
        if (step + 1) % config.search.steps == 0:
            found.append(tokens)
    return found
