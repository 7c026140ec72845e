"""The search for words: all relations and all candidates in the same passes.

A step changes one relation's prompt by that relation's facts and random numbers alone, so
searching R relations stacked equals searching each alone, up to the order of summation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from symprompt.engine.batches import make_batches
from symprompt.probing.config import LearningConfig
from symprompt.probing.methods.autoprompt import AutoPrompt, first_order
from symprompt.probing.methods.base import Sentences
from symprompt.probing.queries import OBJECT_PART
from symprompt.probing.training import DevScores, FactTraining
from symprompt.runs.environment import derive_seed


@dataclass(frozen=True)
class _Draw:
    """What one step takes at random: per relation facts for the gradient and for the trials.

    Attributes:
        place: [relation] which word is to be replaced.
        active: [relation] bool; the others have stopped.
    """

    gradient: list[np.ndarray]
    trials: list[np.ndarray]
    place: Tensor
    active: Tensor


class WordSearch(FactTraining):
    """Searches the words of stacked relations' prompts; final.

    Args:
        method: whose words.
        sentences, relations, config, scores, seed: see ``FactTraining``.
        max_tokens: most tokens in one pass for the gradient.
    """

    stage = "searching"

    def __init__(
        self,
        method: AutoPrompt,
        sentences: Sentences,
        relations: Sequence[str],
        config: LearningConfig,
        scores: DevScores,
        *,
        seed: int,
        max_tokens: int,
        score_start: bool = False,
    ) -> None:
        super().__init__(
            method,
            sentences,
            relations,
            config,
            scores,
            seed=seed,
            max_tokens=max_tokens,
            score_start=score_start,
        )
        self.words = method
        self.epoch_steps = method.config.steps
        every = torch.arange(method.backbone.vocabulary_size, device=self.device)
        # As the model reads them: Gemma's kind multiplies the rows of its table.
        exact = method.vectors()[OBJECT_PART].dtype
        self._embeddings = method.backbone.embed(every).detach().to(exact)
        self._losses = torch.zeros(
            self.epoch_steps, len(self.relations), dtype=exact, device=self.device
        )

    def step(self, number: int) -> None:
        """Try candidates at one place of each prompt, and take the best where it is better."""
        self.epoch, place = divmod(number, self.epoch_steps)
        draw = self._draw(number)
        tokens = self.words.triggers.tokens
        found = self.candidates(draw.gradient, draw.place)
        trials = tokens[:, None, :].repeat(1, 1 + found.shape[1], 1)
        at = draw.place[:, None, None].expand(-1, found.shape[1], 1)
        trials[:, 1:].scatter_(2, at, found[:, :, None])
        losses = self.trial_means(draw.trials, trials)
        least, best = losses[:, 1:].min(1)
        # As the authors' code has it, a prompt that holds a mask is worth nothing.
        taken = ((least < losses[:, 0]) | self.words.unfilled()) & draw.active
        choice = torch.where(taken, best + 1, torch.zeros_like(best))
        tokens.copy_(trials[torch.arange(len(trials), device=self.device), choice])
        self._losses[place] = torch.where(taken, least, losses[:, 0])

    def _mean_loss(self) -> float:
        return float(self._losses[:, self._running()].mean())

    def _take(self, scores: Mapping[str, np.ndarray], epoch: int) -> None:
        """Take dev scores; a prompt that is not all words yet loses to every one that is."""
        unfilled = self.words.unfilled().cpu().numpy()
        worst = {part: np.where(unfilled, -np.inf, value) for part, value in scores.items()}
        super()._take(worst, epoch)

    def _draw(self, step: int) -> _Draw:
        """Draw each running relation's facts and place from its own random numbers."""
        gradient, trials = [], []
        place = np.zeros(len(self.relations), dtype=np.int64)
        running = self._running()
        for index in running:
            name, rows = self.relations[index], self.rows[index]
            random = np.random.default_rng(derive_seed(self.seed, "search", name, step))
            size = min(self.config.batch, len(rows))
            gradient.append(random.choice(rows, size, replace=False))
            trials.append(random.choice(rows, size, replace=False))
            place[index] = random.integers(self.words.counts[index])
        active = np.zeros(len(self.relations), dtype=bool)
        active[running] = True
        on_device = (torch.from_numpy(value).to(self.device) for value in (place, active))
        return _Draw(gradient, trials, *on_device)

    def candidates(self, batches: Sequence[np.ndarray], place: Tensor) -> Tensor:
        """Return the words that promise the lowest loss at each relation's place, [r, c].

        Args:
            batches: facts of some relations; those of the others are not to be used.
            place: [relation].
        """
        tokens = self.words.triggers.tokens
        vectors = self.words.vectors()[OBJECT_PART].detach().requires_grad_()
        losses = torch.zeros(len(self.relations), device=self.device)
        self._mean_losses(batches, {OBJECT_PART: vectors}, losses)
        assert vectors.grad is not None
        each = torch.arange(len(place), device=self.device)
        scores = first_order(vectors.grad[each, place], self._embeddings)
        scores = scores.masked_fill(~self.words.usable, -torch.inf)
        # The word that stands there would be tried in vain.
        scores[each, tokens[each, place]] = -torch.inf
        return scores.topk(self.words.config.candidates).indices

    @torch.no_grad()
    def trial_means(self, batches: Sequence[np.ndarray], tokens: Tensor) -> Tensor:
        """Return the mean loss of each relation's batch with each of its trial prompts, [r, c].

        Args:
            batches: facts of some relations; the means of the others are zero.
            tokens: [relation, c, n].
        """
        rows = np.concatenate(batches)
        place = np.concatenate([np.arange(len(batch)) for batch in batches])
        lengths = self.sentences.object_prompt.lengths[rows]
        passes = list(make_batches(lengths, self.words.max_tokens, sequences=tokens.shape[1]))
        order = np.concatenate([batch.rows for batch in passes])
        found = torch.cat(
            [self.words.trial_losses(self.sentences, rows[batch.rows], tokens) for batch in passes]
        )
        rows, place = rows[order], place[order]
        # A table that is summed along an axis: adding by index has no fixed order on a GPU.
        table = found.new_zeros(len(tokens), max(map(len, batches)), tokens.shape[1])
        owner, column = (torch.from_numpy(x).to(self.device) for x in (self.owner[rows], place))
        table[owner, column] = found
        count = np.ones(len(tokens))
        count[[self.owner[batch[0]] for batch in batches]] = [len(batch) for batch in batches]
        return table.sum(1) / torch.from_numpy(count).to(table)[:, None]

    def failure(self) -> str:
        """Return what to say if a loss of the epoch is not finite."""
        bad = torch.nonzero(~torch.isfinite(self._losses))
        if not len(bad):
            return ""
        step, relation = bad[0].tolist()
        return (
            f"the loss of relation {self.relations[relation]} is not finite at epoch "
            f"{self.epoch + 1}, step {step + 1} of the search; use dtype float32."
        )

    def _changing(self) -> dict[str, Tensor]:
        return {**super()._changing(), "losses": self._losses}
