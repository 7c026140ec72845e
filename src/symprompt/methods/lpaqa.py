"""LPAQA (Jiang et al., 2020, "How Can We Know What Language Models Know?"): many written prompts.

Every relation has several prompts, mined and paraphrased. Their answers are combined as in the
paper's section 4: by the single prompt with the best training P@1 (top1), by the mean of their
log-probabilities (uniform), or by a mean whose weights make the training objects most likely
(optimised). The weighted sum of log-probabilities is normalised again; ``mixture`` = "probability"
averages probabilities instead, for which the weights need no more than each training object's
likelihood under each prompt.

Deviations from the paper and its authors' code. Softmaxes run over the model's whole vocabulary
(the code: a common vocabulary of 21,018 words). Weights for the mean of log-probabilities are
learned over the relation's training objects and one answer that stands for all other tokens, so
that a relation's table fits into memory; by Hoelder's inequality this is a lower bound of the
likelihood over the whole vocabulary, which itself may be no better than with equal weights.
The bound is loosest where prompts disagree about the other tokens, so it favours few prompts: on
three LAMA relations the weights came out close to those of top1.
The loss is convex, so weights come from full-batch steps that
end at a known distance from the best ones, instead of Adam at rate 0.1 for up to 500 epochs.
Facts weigh the same, whatever their object (the code can weigh rare objects more). Weights below
1e-4 are set to zero. There is no second feature from asking back. Ties in training P@1 go to the
prompt with the higher mean log-likelihood.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from symprompt.backbone import Backbone, Vocabulary
from symprompt.ensemble import EnsembleConfig
from symprompt.methods.asking import ask_object, chunks
from symprompt.methods.base import Method, Sentences, Vectors
from symprompt.methods.mixing import Mixer, log_loss, optimise_weights, probability_loss
from symprompt.prompts import EncodedFacts, Template, make_layout
from symprompt.ranking import ranks
from symprompt.runtime import Tick, silent

_FACTS_AT_ONCE = 2048
_LEAST_WEIGHT = 1e-4
# The most numbers in one relation's table of training answers, 512 MB in float32.
_MOST_NUMBERS = 1 << 27


class LPAQA(Method):
    """Ask through several written prompts and combine their answers; final.

    The weights are the method's one part, "weights" [relation, p, 1]; a relation with fewer than p
    prompts has zeros behind them.

    Args:
        prompts: each relation's templates, without vectors.
    """

    def __init__(
        self, backbone: Backbone, prompts: Sequence[Sequence[Template]], config: EnsembleConfig
    ) -> None:
        super().__init__(backbone, {})
        self.prompts = prompts
        self.config = config
        self._twins = _Twins(backbone)
        self._weights = torch.zeros(len(prompts), max(map(len, prompts)), 1, dtype=torch.float64)
        for row, own in zip(self._weights, prompts, strict=True):
            row[: len(own)] = 1 / len(own)

    @property
    def parts(self) -> tuple[str, ...]:
        """The weights."""
        return ("weights",)

    def vectors(self) -> dict[str, Tensor]:
        """Return the weights, [relation, p, 1]: those learned last, equal ones at first."""
        return {"weights": self._weights.to(self.backbone.device)}

    def sentences_per_fact(self, sentences: Sentences, rows: np.ndarray) -> np.ndarray:
        """Return how many prompts each row's relation has."""
        counts = np.array([len(own) for own in self.prompts])
        relations: np.ndarray = sentences.forth.relation.cpu().numpy()[rows]
        found: np.ndarray = counts[relations]
        return found

    def loss(self, sentences: Sentences, rows: np.ndarray, vectors: Vectors) -> Tensor:
        """Return minus the mixture's log-probability of the gold object, [b]."""
        gold = sentences.gold[torch.from_numpy(rows).to(self.backbone.device)]
        return -self._mix(sentences, rows, vectors).gather(1, gold[:, None])[:, 0]

    def scores(self, sentences: Sentences, rows: np.ndarray, vectors: Vectors) -> Tensor:
        """Return the mixture's log-probability of every token as the object, [b, v], float32."""
        return self._mix(sentences, rows, vectors).float()

    def _mix(self, sentences: Sentences, rows: np.ndarray, vectors: Vectors) -> Tensor:
        relation = sentences.forth.relation.cpu().numpy()[rows]
        weights = vectors["weights"][:, :, 0].double().cpu().numpy()[relation]
        # Heaviest first, so that rows with few prompts drop out early and one prompt is one pass.
        order = np.argsort(-weights, axis=1, kind="stable")
        mixer: Mixer | None = None
        for step in range(weights.shape[1]):
            choice = order[:, step]
            weight = weights[np.arange(len(rows)), choice]
            (here,) = np.nonzero(weight > 0)
            if not len(here):
                break
            found = self.ask(sentences, rows[here], choice[here])
            if mixer is None:
                mixer = Mixer((len(rows), found.shape[1]), self.config.mixture, like=found)
            places = torch.from_numpy(here).to(found.device)
            mixer.add(places, found, torch.from_numpy(weight[here]).to(found))
        assert mixer is not None
        return mixer.result()

    def ask(self, sentences: Sentences, rows: np.ndarray, choice: np.ndarray) -> Tensor:
        """Return the log-probabilities [b, v] of the objects, each row through one prompt.

        Args:
            choice: [b] which of its relation's prompts each row is asked through.
        """
        relation = sentences.forth.relation.cpu().numpy()[rows]
        pairs, which = np.unique(np.stack((relation, choice)), axis=1, return_inverse=True)
        templates = [self.prompts[row][place] for row, place in pairs.T.tolist()]
        which = which.reshape(-1)
        spaced = [template.space_before("subject") for template in templates]
        names = [
            " " * spaced[own] + sentences.subjects[row]
            for own, row in zip(which.tolist(), rows.tolist(), strict=True)
        ]
        vocabulary = self.backbone.vocabulary
        # The object is masked: any token can hold its place.
        objects = np.full(len(rows), vocabulary.mask_id)
        layout = make_layout(
            vocabulary,
            templates,
            EncodedFacts(which, vocabulary.encode(names), objects),
            max_length=self.backbone.max_length,
        ).to(self.backbone.device)
        found = torch.log_softmax(
            ask_object(self.backbone, layout, np.arange(len(rows)), None), dim=-1
        )
        glued = np.array([not template.space_before("object") for template in templates])[which]
        return self._twins.apply(found, glued) if glued.any() else found

    @torch.no_grad()
    def fit(
        self, sentences: Sentences, *, allowed: Tensor, max_tokens: int, tick: Tick = silent
    ) -> None:
        """Learn the weights from the training facts, one relation after the other."""
        relation = sentences.forth.relation.cpu().numpy()
        for row in range(len(self.prompts)):
            (rows,) = np.nonzero(relation == row)
            weights = self._fit_relation(sentences, rows, row, allowed[row], max_tokens)
            self._weights[row, :, 0] = 0
            self._weights[row, : len(weights), 0] = weights
            tick("weighing prompts", row + 1, len(self.prompts), "")

    def _fit_relation(
        self, sentences: Sentences, rows: np.ndarray, relation: int, allowed: Tensor, tokens: int
    ) -> Tensor:
        """Return one relation's weights, [p] float64 on the CPU."""
        count = len(self.prompts[relation])
        weights = torch.zeros(count, dtype=torch.float64)
        if self.config.combine == "uniform" and not 0 < self.config.most < count:
            return weights + 1 / count
        found = self._read(sentences, rows, relation, allowed, tokens)
        best = found.best()[: self.config.most or count]
        if self.config.combine == "top1":
            weights[best[0]] = 1
        elif self.config.combine == "uniform":
            weights[best] = 1 / len(best)
        else:
            weights[best] = prune(found.optimise(best))
        return weights

    def _read(
        self, sentences: Sentences, rows: np.ndarray, relation: int, allowed: Tensor, tokens: int
    ) -> _Answers:
        """Ask the training facts through every prompt and keep what the weights depend on."""
        count = len(self.prompts[relation])
        wants_table = self.config.combine == "optimised" and self.config.mixture == "log"
        if wants_table:
            rows = _at_most(rows, sentences.gold, count)
        rows = rows[np.argsort(sentences.forth.lengths[rows], kind="stable")]
        gold = sentences.gold[torch.from_numpy(rows).to(self.backbone.device)]
        objects, place = np.unique(gold.cpu().numpy(), return_inverse=True)
        answers = torch.from_numpy(objects).to(gold.device)
        shape = (len(rows), count)
        hits, likelihood = torch.zeros(shape), torch.zeros(shape, dtype=torch.float64)
        table = torch.zeros(*shape, len(answers) + 1) if wants_table else None
        for part in chunks(sentences.forth.lengths[rows], np.ones_like(rows), tokens):
            for start in range(part.start, part.stop, _FACTS_AT_ONCE):
                at = slice(start, min(part.stop, start + _FACTS_AT_ONCE))
                for prompt in range(count):
                    choice = np.full(at.stop - at.start, prompt)
                    scores = self.ask(sentences, rows[at], choice)
                    right = scores.gather(1, gold[at, None])[:, 0]
                    rank = ranks(scores.masked_fill(~allowed, -torch.inf), gold[at]).realistic
                    hits[at, prompt] = (rank <= 1).float().cpu()
                    likelihood[at, prompt] = right.double().cpu()
                    if table is not None:
                        table[at, prompt] = with_rest(scores[:, answers]).float().cpu()
        return _Answers(hits, likelihood, table, torch.from_numpy(place))


@dataclass(frozen=True, eq=False)
class _Answers:
    """One relation's training facts under its prompts: hits and gold log-likelihoods [n, p].

    table [n, p, c + 1] has the log-probabilities of the training objects and of all else.
    """

    hits: Tensor
    likelihood: Tensor
    table: Tensor | None
    gold: Tensor

    def best(self) -> list[int]:
        """Return the prompts by P@1, ties by mean log-likelihood, then as they stand."""
        first, then = self.hits.mean(0).tolist(), self.likelihood.mean(0).tolist()
        return sorted(range(len(first)), key=lambda prompt: (-first[prompt], -then[prompt]))

    def optimise(self, prompts: list[int]) -> Tensor:
        """Return the weights [len(prompts)] under which the gold objects are likeliest."""
        if self.table is None:
            likelihood = self.likelihood[:, prompts]
            evaluate = probability_loss(likelihood)
            return optimise_weights(evaluate, len(prompts), like=likelihood)
        table = self.table[:, prompts]
        evaluate = log_loss(table, self.gold)
        return optimise_weights(evaluate, len(prompts), like=table).double()


def with_rest(scores: Tensor) -> Tensor:
    """Return log-probabilities [b, c] and, last, the log of what they leave, [b, c + 1]."""
    rest = (1 - scores.double().exp().sum(1, keepdim=True)).clamp(min=1e-12).log()
    return torch.cat((scores, rest.to(scores)), dim=1)


def prune(weights: Tensor) -> Tensor:
    """Return the weights without those that hardly count, each of which would cost a pass."""
    kept = weights.masked_fill(weights < min(_LEAST_WEIGHT, 1 / len(weights)), 0.0)
    return kept / kept.sum()


def _at_most(rows: np.ndarray, gold: Tensor, prompts: int) -> np.ndarray:
    """Return rows, evenly left out where their table would be too large to keep."""
    answers = len(np.unique(gold.cpu().numpy()[rows])) + 1
    most = max(1, _MOST_NUMBERS // (answers * prompts))
    if len(rows) <= most:
        return rows
    return rows[np.linspace(0, len(rows) - 1, most).astype(np.int64)]


class _Twins:
    """Where a word at the very start of a sentence is another token than after a space; final.

    All prompts' answers are put in terms of the tokens after a space, so that they can be mixed.
    """

    def __init__(self, backbone: Backbone) -> None:
        self._backbone = backbone
        self._tokens: Tensor | None = None

    def apply(self, scores: Tensor, glued: np.ndarray) -> Tensor:
        """Return log-probabilities [b, v] with the marked rows put in terms of spaced tokens."""
        if self._tokens is None:
            self._tokens = find_twins(self._backbone.vocabulary, scores.shape[1])
        twins = self._tokens.to(scores.device)
        if torch.equal(twins, torch.arange(len(twins), device=twins.device)):
            return scores
        rows = torch.from_numpy(np.nonzero(glued)[0]).to(scores.device)
        # A token may stand for two words, or none: normalised again.
        return scores.index_copy(0, rows, torch.log_softmax(scores[rows][:, twins], dim=-1))


def find_twins(vocabulary: Vocabulary, size: int) -> Tensor:
    """Return, for each of ``size`` tokens, the token of the same word with no space before it.

    A token that is no word after a space, or whose word is several tokens without one, is its own.
    """
    texts = [vocabulary.text(token) for token in range(len(vocabulary))]
    spaced = vocabulary.single_tokens(texts)
    bare = vocabulary.single_tokens(texts, after_space=False)
    twins = torch.arange(size)
    for token, (own, twin) in enumerate(zip(spaced, bare, strict=True)):
        if own == token and twin is not None:
            twins[token] = twin
    return twins
