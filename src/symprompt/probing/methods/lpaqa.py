"""LPAQA (Jiang et al., 2020, "How Can We Know What Language Models Know?"): many templates.

Every relation has several prompts, mined and paraphrased. Their answers are combined as in the
paper's section 4: by the single prompt with the best training P@1 (top1), by the mean of their
log-probabilities (uniform), or by a mean whose weights make the training objects most likely
(optimised). The weighted sum of log-probabilities is normalised again, as in the authors' code;
``mixture`` = "probability" averages probabilities instead.

Deviations from the paper and its authors' code. Softmaxes run over the model's whole vocabulary
(the code: a common vocabulary of 21,018 words); that takes no table of log-probabilities, because
a sum of logits is the product of a sum of states (``ReadOut``), in training as in asking. The loss
is convex, so weights come from full-batch steps that end within 0.001 of the smallest loss, instead
of Adam at rate 0.1 for up to 500 epochs. Facts weigh the same, whatever their object (the code can
weigh rare objects more). Weights below 1e-4 are set to zero. There is no second feature from a
subject prompt. Prompts that are the same tokens to the model count once. Ties in training P@1 go to
the prompt with the higher mean log-likelihood. The manual template is one of the prompts unless
``with_manual`` is false. For a causal model prompts are cut after the object, and those with
the subject behind it are left out.
"""

from __future__ import annotations

from functools import partial
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from symprompt.accel.compiling import Recorder
from symprompt.facts import Split
from symprompt.models import ReadOut
from symprompt.probing.config import RunConfig
from symprompt.probing.methods.base import Method, Vectors
from symprompt.probing.methods.ensemble import (
    Pairs,
    log_loss,
    mix_probabilities,
    optimise_weights,
    probability_loss,
)
from symprompt.probing.problem import Problem, Sentences
from symprompt.probing.queries import ranks
from symprompt.probing.train import FactTraining

_LEAST_WEIGHT = 1e-4


class LPAQA(Method):
    """Ask through several manual templates and combine their answers; final.

    The weights are the method's one part, "weights" [relation, p, 1]; a relation with fewer than p
    prompts has zeros behind them.
    """

    several_prompts: ClassVar[bool] = True

    def __init__(self, config: RunConfig, problem: Problem) -> None:
        super().__init__(config, problem)
        self.prompts = prompts = problem.prompts
        self.config = config.ensemble
        self.pairs = Pairs(self.backbone, prompts, max_tokens=problem.max_tokens)
        self.read = ReadOut(self.backbone)
        self.weights = torch.zeros(len(prompts), max(map(len, prompts)), 1, dtype=torch.float64)
        for row, own in zip(self.weights, prompts, strict=True):
            row[: len(own)] = 1 / len(own)

    def trainable(self, config: RunConfig, problem: Problem) -> WeightFit:
        """Return the fit of the weights."""
        return WeightFit(config, problem, self)

    @classmethod
    def needed_splits(cls, config: RunConfig) -> tuple[Split, ...]:
        """Return train too where weights are learned or templates chosen."""
        learns = config.ensemble.combine != "uniform" or config.ensemble.most > 0
        return ("train", "test") if learns else ("test",)

    @property
    def parts(self) -> tuple[str, ...]:
        """The weights."""
        return ("weights",)

    def vectors(self) -> dict[str, Tensor]:
        """Return the weights, [relation, p, 1]: those learned last, equal ones at first."""
        return {"weights": self.weights.to(self.backbone.device)}

    def loss(self, sentences: Sentences, rows: np.ndarray, vectors: Vectors) -> Tensor:
        """Return minus the mixture's log-probability of the gold object, [b]."""
        gold = sentences.gold[torch.from_numpy(rows).to(self.backbone.device)]
        return -self._mix(sentences, rows, vectors).gather(1, gold[:, None])[:, 0]

    def scores(self, sentences: Sentences, rows: np.ndarray, vectors: Vectors) -> Tensor:
        """Return the mixture's log-probability of every token as the object, [b, v], float32."""
        return self._mix(sentences, rows, vectors).float()

    @torch.no_grad()
    def _mix(self, sentences: Sentences, rows: np.ndarray, vectors: Vectors) -> Tensor:
        weights = vectors["weights"][:, :, 0]
        used = weights.cpu().numpy() > 0
        size = self.backbone.vocabulary_size if self.config.mixture != "log" else self.read.width
        most = max(1, self.pairs.most_numbers // (int(used.sum(1).max()) * size))
        found = []
        for start in range(0, len(rows), most):
            own = rows[start : start + most]
            every = self.pairs.of(sentences, own)
            every = every[:, used[every[3], every[2]]]
            states = self.pairs.ask(self.read, sentences, own[every[0]], every[1])
            index = torch.from_numpy(every).to(states.device)
            found.append(self._combine(states, index, weights, len(own)))
        return torch.cat(found)

    def _combine(self, states: Tensor, index: Tensor, weights: Tensor, size: int) -> Tensor:
        """Return the mixtures [size, v] of the states of pairs.

        Args:
            states: [m, width].
            index: [4, m], see ``Pairs.of``; rows are among ``size``.
            weights: [relation, p].
        """
        owner, prompts, place, relation = index
        weight = weights[relation, place].to(states)
        if self.config.mixture == "probability":
            logits = self.pairs.put_spaced(self.read.logits(states), prompts)
            return mix_probabilities(torch.log_softmax(logits, dim=-1), owner, weight, size)
        groups = self.pairs.glued[prompts].long()
        table = states.new_zeros(size, weights.shape[1], states.shape[1])
        table[owner, place] = states
        logits = states.new_zeros(size, self.backbone.vocabulary_size)
        for group in range(1 if self.pairs.twins is None else 2):
            share = states.new_zeros(size, weights.shape[1])
            share[owner, place] = weight * (groups == group)
            pooled = torch.bmm(share[:, None], table)[:, 0]
            logits = logits + self._in_terms(self.read.logits(pooled, share.sum(1)), group)
        return torch.log_softmax(logits, dim=-1)

    def _in_terms(self, logits: Tensor, group: int) -> Tensor:
        """Return logits of one group of prompts in terms of tokens after a space."""
        twins = self.pairs.twins
        return logits if group == 0 or twins is None else logits[:, twins]

    @torch.no_grad()
    def fit(self, sentences: Sentences, rows: np.ndarray, relation: int, allowed: Tensor) -> Tensor:
        """Return the weights of one relation from its training facts, [p] float64 on the CPU.

        Args:
            rows: the relation's facts.
            allowed: [relation, v] bool, the answers each relation may give.
        """
        config, count = self.config, len(self.prompts[relation])
        weights = torch.zeros(count, dtype=torch.float64)
        some = 0 < config.most < count
        if config.combine == "uniform" and not some:
            return weights + 1 / count
        if config.combine == "optimised" and config.mixture == "log" and not some:
            return prune(self._optimise(sentences, rows, relation, list(range(count))))
        best, likelihood = self.answers(sentences, rows, relation, allowed)
        best = best[: config.most or count]
        if config.combine == "top1":
            weights[best[0]] = 1
        elif config.combine == "uniform":
            weights[best] = 1 / len(best)
        elif config.mixture == "probability":
            likelihood = likelihood[:, best]
            evaluate = probability_loss(likelihood)
            weights[best] = prune(optimise_weights(evaluate, len(best), like=likelihood).cpu())
        else:
            weights[best] = prune(self._optimise(sentences, rows, relation, best))
        return weights

    def answers(
        self, sentences: Sentences, rows: np.ndarray, relation: int, allowed: Tensor
    ) -> tuple[list[int], Tensor]:
        """Ask a relation's facts through every prompt; return which prompts are the best.

        Args:
            rows: facts of the relation.
            allowed: [relation, v] bool, the answers each relation may give.

        Returns:
            The prompts by P@1, ties by mean log-likelihood, then as they stand; and the gold
            objects' log-likelihoods, [n, p].
        """
        count = len(self.prompts[relation])
        hits, likelihood = [], []
        most = max(1, self.pairs.most_numbers // (count * self.backbone.vocabulary_size))
        for start in range(0, len(rows), most):
            own = rows[start : start + most]
            owner, prompts, *_ = self.pairs.of(sentences, own)
            states = self.pairs.ask(self.read, sentences, own[owner], prompts)
            index = torch.from_numpy(np.stack((own[owner], prompts))).to(states.device)
            logits = self.pairs.put_spaced(self.read.logits(states), index[1])
            scores = torch.log_softmax(logits, dim=-1)
            gold = sentences.gold[index[0]]
            likelihood.append(scores.gather(1, gold[:, None]).reshape(-1, count).double())
            rank = ranks(sentences.permitted(scores, own[owner], allowed), gold).realistic
            hits.append((rank <= 1).reshape(-1, count))
        every = torch.cat(likelihood)
        first, then = torch.cat(hits).double().mean(0).tolist(), every.mean(0).tolist()
        best = sorted(range(count), key=lambda prompt: (-first[prompt], -then[prompt]))
        return best, every

    def _optimise(
        self, sentences: Sentences, rows: np.ndarray, relation: int, prompts: list[int]
    ) -> Tensor:
        """Return the weights [len(prompts)] of log-probabilities that make the facts likeliest."""
        most = max(1, self.pairs.most_numbers // (len(prompts) * self.read.width))
        if len(rows) > most:
            # Some are evenly left out where their table would be too large to keep.
            rows = rows[np.linspace(0, len(rows) - 1, most).astype(np.int64)]
        each = np.tile(self.pairs.first[relation] + np.array(prompts), len(rows))
        states = self.pairs.ask(self.read, sentences, np.repeat(rows, len(prompts)), each)
        gold = sentences.gold[torch.from_numpy(rows).to(states.device)]
        numbers = torch.from_numpy(each[: len(prompts)]).to(states.device)
        evaluate = log_loss(
            states.reshape(len(rows), len(prompts), -1),
            gold,
            partial(self._pool, self.pairs.glued[numbers]),
            rows=max(1, self.pairs.most_numbers // 4 // self.backbone.vocabulary_size),
        )
        return optimise_weights(evaluate, len(prompts), like=states).double().cpu()

    def _pool(self, glued: Tensor, states: Tensor, weights: Tensor) -> Tensor:
        """Return the logits [n, v] of weighted sums of states [n, p, width], one p for all."""
        logits = states.new_zeros(())
        for group in range(1 if self.pairs.twins is None else 2):
            own = weights * (glued == bool(group))
            pooled = torch.einsum("npd,p->nd", states, own)
            share = own.sum().expand(len(states))
            logits = logits + self._in_terms(self.read.logits(pooled, share), group)
        return logits


def prune(weights: Tensor) -> Tensor:
    """Return the weights without those that hardly count, each of which would cost a pass."""
    kept = weights.masked_fill(weights < min(_LEAST_WEIGHT, 1 / len(weights)), 0.0)
    return kept / kept.sum()


class WeightFit(FactTraining):
    """Fits a method's weights, a relation a step, without gradient steps or a choice by dev; final.

    The loss is convex, so dev chooses nothing, and weights of a mixture are finite.
    """

    stage = "weighing prompts"
    note = ""
    stopped = False
    steps = 0

    def __init__(self, config: RunConfig, problem: Problem, method: LPAQA) -> None:
        super().__init__(config, problem, method)
        self.recorder = Recorder(self.device, wanted=False)
        self.fitted = method
        self.steps = len(self.relations)

    def step(self, number: int) -> None:
        """Fit the weights of one relation."""
        weights = self.fitted.fit(self.sentences, self.rows[number], number, self.problem.allowed)
        self.fitted.weights[number, :, 0] = 0
        self.fitted.weights[number, : len(weights), 0] = weights

    def evaluates_after(self, done: int) -> bool:
        """Never."""
        return False

    def failure(self) -> str:
        """Return ""."""
        return ""

    def _changing(self) -> dict[str, Tensor]:
        return {"weights": self.fitted.weights}
