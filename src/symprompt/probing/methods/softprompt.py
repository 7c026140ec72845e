"""SoftPrompt (Qin and Eisner, 2021, "Learning How to Ask"): a mixture of soft prompts per relation.

Every relation has several prompts, manual templates whose words have become free vectors (section
2.2). The object's probability is the weighted mean of the prompts' (section 2.4):
p(y | x, r) = sum_t w_t p(y | t(x)), and all of it is trained to make the training objects likely.
With ``deep`` the prompt's hidden states are moved before every layer too, by changes that start at
zero (section 2.3).

As in the authors' code: Adam at 1e-3, batches of 32, at most 16 epochs, four without a better dev
P@1 end a relation; vectors start at the words' embeddings; the model's dropout is off; weights are
learned by EM. Its step for the vectors follows the gradient of the mixture's log-likelihood, which
is that of each prompt's own times its responsibility, so there is no E-step apart.

Deviations. Responsibilities for the weights are those each fact had in its last training step, not
from a pass over all facts with the vectors held still (Neal and Hinton's incremental EM), and the
weights are set once an epoch; ``weighing`` = "gradient" learns them by Adam instead. The vectors
themselves are the parameters, not a difference to the words' embeddings: without a penalty on it
that is the same. Changes after the last layer are left out, as nothing reads them. The number of
prompts is bounded by ``most``, chosen by P@1 on some training facts (the code takes all mined ones;
here paraphrased ones and the manual template may be among them). With ``prompt.start`` = "random"
vectors are drawn with mean and deviation of the embedding table, one mean and one deviation for
every dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from symprompt.errors import ConfigError
from symprompt.facts import FactSet
from symprompt.models import Inputs, LanguageModel
from symprompt.probing.config import RunConfig
from symprompt.probing.methods.base import Method, Vectors
from symprompt.probing.methods.ensemble import Pairs, mix_probabilities
from symprompt.probing.methods.lpaqa import LPAQA
from symprompt.probing.prepare import drop_unusable
from symprompt.probing.problem import (
    Problem,
    Prompts,
    Sentences,
    allowed_answers,
    longest_prompt,
    tensorise,
    words_to_vectors,
)
from symprompt.probing.queries import OBJECT_PART, exact_dtype
from symprompt.prompts import Question, SoftMixture
from symprompt.runs.environment import make_generator

_CHOOSE_BY = 64
"""How many training facts of a relation its prompts are chosen by."""
_FEWEST = {"cuda": 1024}
"""Widths with fewer sentences join the next wider one: a pass of its own would cost more."""


class SoftPrompt(Method):
    """Ask through several soft prompts whose probabilities are mixed; final.

    Parts: ``OBJECT_PART`` [relation, n, width], all prompts' vectors; "weights" [relation, p, 1];
    and for deep prompts "deep" [relation, (layers - 1) x n, hidden].

    Its templates are the manual ones, a vector for each token of their words.

    Raises:
        ConfigError: no template has a word to make a vector of.
        ModelError: the layers of the model cannot be found, where they are to be changed.
    """

    several_prompts: ClassVar[bool] = True

    def __init__(self, config: RunConfig, problem: Problem) -> None:
        backbone, vocabulary = problem.backbone, problem.backbone.vocabulary
        soft = [[words_to_vectors(vocabulary, own) for own in each] for each in problem.prompts]
        tokens = [[token for _, ids in own for token in ids] for own in soft]
        if not any(tokens):
            raise ConfigError(
                "the manual templates have no word, so softprompt has nothing to train; name "
                "others with --prompts."
            )
        deep = None
        if config.ensemble.deep and backbone.layers.count > 1:
            deep = (backbone.layers.count - 1, backbone.layers.width)
        self.mixture = SoftMixture(
            problem.relations,
            _start(config, backbone, problem.relations, tokens),
            [len(own) for own in soft],
            seed=(config.seed, OBJECT_PART),
            learn_weights=config.ensemble.weighing == "gradient",
            deep=deep,
        )
        self.mixture.to(device=backbone.device, dtype=exact_dtype(backbone))
        super().__init__(config, problem, {OBJECT_PART: self.mixture})
        templates = [[template for template, _ in own] for own in soft]
        self.pairs = Pairs(backbone, templates, max_tokens=problem.max_tokens)
        self._layers = deep[0] if deep else 0

    @classmethod
    @torch.no_grad()
    def choose_prompts(
        cls, config: RunConfig, backbone: LanguageModel, facts: FactSet, prompts: Prompts
    ) -> Prompts:
        """Return each relation's ``ensemble.most`` templates with the best P@1, best first.

        They are asked about some training facts; a relation without any keeps its first ones.
        """
        most = config.ensemble.most
        if not most:
            return prompts
        templates = tuple(longest_prompt(backbone.vocabulary, own) for own in prompts)
        usable = drop_unusable(
            config, backbone.vocabulary, facts, templates, max_length=backbone.max_length
        )
        listed = [
            relation.train[at]
            for relation in usable.relations
            for at in sorted(set(np.linspace(0, len(relation.train) - 1, _CHOOSE_BY, dtype=int)))
            if relation.train
        ]
        if not listed:
            return tuple(own[:most] for own in prompts)
        answers = {(fact.relation, fact.subject): [fact.object] for fact in listed}
        allowed, _, copies = allowed_answers(config, backbone, usable, templates)
        sentences = tensorise(
            backbone,
            templates,
            facts.names,
            listed,
            answers,
            swapped=False,
            several=True,
            copies=copies,
        )
        tokens = config.max_tokens or backbone.token_budget()
        problem = Problem(backbone, usable, templates, allowed, {}, tokens, prompts)
        asked = LPAQA(config, problem)
        chosen = []
        for relation, own in enumerate(prompts):
            (rows,) = np.nonzero(sentences.relations == relation)
            best = list(range(len(own)))
            if len(rows) and len(own) > most:
                best, _ = asked.answers(sentences, rows, relation, allowed)
            chosen.append(tuple(own[place] for place in best[:most]))
        return tuple(chosen)

    @property
    def parts(self) -> tuple[str, ...]:
        """The vectors, the weights, and the changes of the layers' inputs."""
        return (OBJECT_PART, "weights", "deep") if self._layers else (OBJECT_PART, "weights")

    def vectors(self) -> dict[str, Tensor]:
        """Return every part."""
        found = {OBJECT_PART: self.mixture(), "weights": self.mixture.weights()[:, :, None]}
        if self.mixture.changes is not None:
            found["deep"] = self.mixture.changes.flatten(1, 2)
        return found

    def sentences_per_fact(self, sentences: Sentences, rows: np.ndarray) -> np.ndarray:
        """Return how many prompts each row's relation has."""
        counts: np.ndarray = self.pairs.counts[sentences.relations[rows]]
        return counts

    def loss(self, sentences: Sentences, rows: np.ndarray, vectors: Vectors) -> Tensor:
        """Return minus the mixture's log-probability of the gold object, [b]."""
        every = self.pairs.of(sentences, rows)
        found: list[Tensor] = []
        places: list[Tensor] = []
        fewest = _FEWEST.get(self.backbone.device.type, 1)
        each = (rows[every[0]], every[1])
        for place, question in self.pairs.questions(sentences, *each, fewest=fewest):
            logits = self._logits(question, every[1], place, vectors)
            found.append(-functional.cross_entropy(logits, question.target, reduction="none"))
            places.append(place)
        order = torch.cat(places)
        owner, _, prompt, relation = torch.from_numpy(every).to(order.device)
        weights = vectors["weights"][relation, prompt, 0].clamp(min=1e-30)
        likelihood = torch.cat(found)
        table = likelihood.new_full((len(rows), vectors["weights"].shape[1]), -torch.inf)
        joint = likelihood + weights.log()[order].to(likelihood)
        table = table.index_put((owner[order], prompt[order]), joint)
        total = torch.logsumexp(table, dim=1)
        if torch.is_grad_enabled():
            # Each prompt's share in the likelihood of the rows is kept until the epoch ends.
            shares = (table - total[:, None]).detach().exp()
            kept = self.epoch_state.get("shares")
            if kept is None or len(kept) != len(sentences):
                size = (len(sentences), shares.shape[1])
                kept = torch.full(size, torch.nan, dtype=torch.float64, device=shares.device)
                self.epoch_state = {"shares": kept, "owners": sentences.object_prompt.relation}
            kept[torch.from_numpy(rows).to(shares.device)] = shares.double()
        return -total

    @torch.no_grad()
    def after_epoch(self) -> None:
        """Set the weights to the prompts' mean shares in the epoch's training facts (M-step)."""
        kept, self.epoch_state = self.epoch_state, {}
        if not kept or self.mixture.mix.requires_grad:
            return
        shares = kept["shares"]
        relations = len(self.mixture.mix)
        steps = torch.arange(relations, device=shares.device)
        # A product, not a sum by index: the same every time.
        seen = (kept["owners"][None, :] == steps[:, None]) & ~shares[:, 0].isnan()[None, :]
        mean = seen.double() @ shares.nan_to_num() / seen.sum(1, keepdim=True).clamp(min=1)
        self.mixture.set_weights(mean, seen.any(1))

    def _logits(
        self, question: Question, prompts: np.ndarray, place: Tensor, vectors: Vectors
    ) -> Tensor:
        """Return the logits [k, v] of a pass, in terms of tokens after a space."""
        inputs = question.inputs(self.backbone, vectors[OBJECT_PART])
        logits = self.backbone.logits_at(self._deepen(inputs, question, vectors), question.at)
        if self.pairs.twins is None:
            return logits
        numbers = torch.from_numpy(prompts).to(place.device)
        return self.pairs.put_spaced(logits, numbers[place])

    def _deepen(self, inputs: Inputs, question: Question, vectors: Vectors) -> Inputs:
        """Return the inputs with the changes that the layers' inputs get at the vectors' places."""
        if not self._layers:
            return inputs
        count = vectors[OBJECT_PART].shape[1]
        deep = vectors["deep"].reshape(-1, self._layers, count, self.backbone.layers.width)
        tables = [table.flatten(0, 1) for table in deep.unbind(1)]
        index = question.relation[:, None] * count + question.slots.clamp(min=0)
        is_slot = (question.slots >= 0)[:, :, None]

        def added(layer: int) -> Tensor:
            return functional.embedding(index, tables[layer - 1]) * is_slot

        return Inputs(inputs.embeddings, inputs.mask, added)

    def scores(self, sentences: Sentences, rows: np.ndarray, vectors: Vectors) -> Tensor:
        """Return the mixture's log-probability of every token as the object, [b, v], float32."""
        size = self.backbone.vocabulary_size
        most = max(1, self.pairs.most_numbers // (int(self.pairs.counts.max()) * size))
        parts = [rows[start : start + most] for start in range(0, len(rows), most)]
        return torch.cat([self._mixed(sentences, part, vectors) for part in parts]).float()

    def _mixed(self, sentences: Sentences, rows: np.ndarray, vectors: Vectors) -> Tensor:
        every = self.pairs.of(sentences, rows)
        owner, _, prompt, relation = torch.from_numpy(every).to(self.backbone.device)
        weights = vectors["weights"][relation, prompt, 0]
        found: Tensor | None = None
        for place, question in self.pairs.questions(sentences, rows[every[0]], every[1]):
            logits = self._logits(question, every[1], place, vectors)
            if found is None:
                found = logits.new_empty(len(owner), logits.shape[1])
            found[place] = torch.log_softmax(logits, dim=-1)
        assert found is not None
        return mix_probabilities(found, owner, weights, len(rows))


@torch.no_grad()
def _start(
    config: RunConfig,
    backbone: LanguageModel,
    relations: Sequence[str],
    tokens: Sequence[Sequence[int]],
) -> Tensor:
    """Return what the vectors start from, [relation, n, width]: words, or draws like words."""
    start = torch.zeros(len(relations), max(map(len, tokens)), backbone.width)
    every = torch.arange(backbone.vocabulary_size, device=backbone.device)
    table = backbone.embed(every).float().cpu()
    for row, (name, ids) in enumerate(zip(relations, tokens, strict=True)):
        if config.prompt.start == "manual":
            start[row, : len(ids)] = table[torch.tensor(ids, dtype=torch.long)]
        else:
            generator = make_generator(config.seed, OBJECT_PART, name)
            draw = torch.randn(len(ids), table.shape[1], generator=generator)
            start[row, : len(ids)] = table.mean() + table.std() * draw
    return start
