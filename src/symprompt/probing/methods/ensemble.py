"""Several manual templates of each relation: ask (fact, template) pairs, mix their answers.

Two ways to average: log-probabilities, whose weighted sum is normalised again, and probabilities.
In both the training loss is a convex function of weights that are not negative and sum to one, so
what is found is the best there is, up to a bound that is known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from symprompt.engine.batches import join_few, make_batches, multiples_of_8
from symprompt.errors import DataError
from symprompt.models import LanguageModel, ReadOut
from symprompt.probing.problem import Sentences
from symprompt.probing.queries import exact_dtype, tokens_of
from symprompt.prompts import Question, Template, make_frames

Evaluate = Callable[[Tensor], tuple[Tensor, Tensor]]
Project = Callable[[Tensor, Tensor], Tensor]

_MOST_NUMBERS = 1 << 26
_MOST_GPU_NUMBERS = 1 << 29
_STEPS = 300
# Probabilities are added up times e^60, so that float32 holds them down to e^-147.
_LIFT = 60.0


class Pairs:
    """Facts through the prompts of their relations; final.

    A prompt's number counts through all relations: those of relation r are ``first[r]`` and
    following, ``counts[r]`` of them.

    Args:
        prompts: each relation's templates.
        max_tokens: most tokens in one pass.
    """

    def __init__(
        self, backbone: LanguageModel, prompts: Sequence[Sequence[Template]], *, max_tokens: int
    ) -> None:
        self.backbone = backbone
        self.max_tokens = max_tokens
        self.frames = make_frames(backbone.vocabulary, prompts, backbone.device)
        self.counts = np.array([len(own) for own in prompts], dtype=np.int64)
        self.first = np.cumsum(self.counts) - self.counts
        glued = [not template.space_before("object") for own in prompts for template in own]
        # Each score's twin, [v]; None where all are their own.
        self.twins: Tensor | None = None
        size = backbone.vocabulary_size
        twins = [*backbone.vocabulary.twins, *range(len(backbone.vocabulary), size)]
        if any(glued) and twins != list(range(size)):
            self.twins = torch.tensor(twins, device=backbone.device)
        # Whether a prompt's answers are to be put in terms of tokens after a space.
        self.glued = torch.tensor(glued, device=backbone.device) & (self.twins is not None)

    @property
    def most_numbers(self) -> int:
        """How many numbers a table may hold: 256 MB of float32, or up to 2 GB on a GPU."""
        device = self.backbone.device
        if device.type != "cuda":
            return _MOST_NUMBERS
        memory: int = torch.cuda.get_device_properties(device).total_memory
        return min(_MOST_GPU_NUMBERS, memory // 64)

    def of(self, sentences: Sentences, rows: np.ndarray) -> np.ndarray:
        """Return every pair of the rows, [4, m].

        That is the row's place, the prompt's number, its place among its relation's, the relation.
        """
        relation = sentences.relations[rows]
        owner, place = tokens_of(self.counts[relation])
        return np.stack((owner, self.first[relation][owner] + place, place, relation[owner]))

    def questions(
        self, sentences: Sentences, rows: np.ndarray, prompts: np.ndarray, *, fewest: int = 1
    ) -> Iterator[tuple[Tensor, Question]]:
        """Yield passes: which pairs [k] of some [m], and the sentences that ask for their objects.

        Args:
            fewest: a width with fewer sentences joins the next wider one.

        Raises:
            DataError: a sentence is longer than the model takes.
        """
        names, limit = sentences.names, self.backbone.max_length
        if names is None:
            raise TypeError("these sentences were tensorised without their subjects' names")
        lengths = self.frames.pair_lengths(names, rows, prompts)
        if len(lengths) and int(lengths.max()) > limit:
            raise DataError(
                f"a fact needs {int(lengths.max())} tokens in its prompt and the model takes "
                f"{limit}; shorten the subject or leave the prompt out."
            )
        device, mask_id = self.backbone.device, self.backbone.vocabulary.mask_id
        every = torch.from_numpy(np.stack((rows, prompts))).to(device)
        widths = np.minimum(multiples_of_8(lengths), limit)
        order = np.argsort(widths, kind="stable")
        joined = join_few(widths[order], fewest)
        # Of one width each.
        for members, width in make_batches(
            joined, self.max_tokens, width=lambda own: own, apart=0.0
        ):
            place = torch.from_numpy(order[members]).to(device)
            row, prompt = every[:, place]
            gold = sentences.gold[row]
            question = self.frames.question(names, row, prompt, gold, width=width, mask_id=mask_id)
            yield place, question

    def ask(
        self, read: ReadOut, sentences: Sentences, rows: np.ndarray, prompts: np.ndarray
    ) -> Tensor:
        """Return the states [m, width] at the objects' places of (fact, prompt) pairs."""
        backbone, shape = self.backbone, (len(rows), read.width)
        found = torch.empty(shape, dtype=exact_dtype(backbone), device=backbone.device)
        for place, question in self.questions(sentences, rows, prompts):
            found[place] = read.states_at(question.inputs(backbone, None), question.at)
        return found

    def put_spaced(self, logits: Tensor, prompts: Tensor) -> Tensor:
        """Return logits [m, v] of pairs, each in terms of the tokens words have after a space."""
        if self.twins is None:
            return logits
        return torch.where(self.glued[prompts, None], logits[:, self.twins], logits)


def probability_loss(likelihood: Tensor) -> Evaluate:
    """Return weights -> (mean of -log of the mixed probability, its gradient).

    Args:
        likelihood: [n, p] log-probability of each fact's gold object under each prompt.
    """

    def evaluate(weights: Tensor) -> tuple[Tensor, Tensor]:
        mixed = torch.logsumexp(likelihood + weights.log(), dim=1)
        gradient = -(likelihood - mixed[:, None]).exp().mean(0)
        return -mixed.mean(), gradient

    return evaluate


def log_loss(states: Tensor, gold: Tensor, project: Project, *, rows: int = 1 << 30) -> Evaluate:
    """Return weights -> (mean of -log softmax of the mixed log-probabilities at gold, gradient).

    A sum of log-probabilities normalised again is a sum of logits normalised: what each prompt's
    own softmax divides by is the same for every token, and cancels.

    Args:
        states: [n, p, width], from which the logits follow linearly.
        gold: [n] the true tokens.
        project: (states [m, p, width], weights [p]) -> logits [m, v] of the weighted sum.
        rows: most facts whose logits are held at once.
    """

    def evaluate(weights: Tensor) -> tuple[Tensor, Tensor]:
        total, slope = weights.new_zeros(()), torch.zeros_like(weights)
        leaf = weights.detach().requires_grad_()
        for start in range(0, len(states), rows):
            here = slice(start, start + rows)
            with torch.enable_grad():
                logits = project(states[here], leaf)
                loss = functional.cross_entropy(logits, gold[here], reduction="sum")
                (gradient,) = torch.autograd.grad(loss, leaf)
            total, slope = total + loss.detach(), slope + gradient
        return total / len(states), slope / len(states)

    return evaluate


def optimise_weights(
    evaluate: Evaluate, count: int, *, like: Tensor, tolerance: float = 1e-3, steps: int = _STEPS
) -> Tensor:
    """Return the weights [count] that make a convex loss smallest, starting from equal ones.

    Exponentiated gradient with a step that grows and shrinks (mirror descent on the simplex): no
    step makes the loss larger. It ends when the loss is within ``tolerance`` of the smallest one,
    which the gradient bounds, or after ``steps``.

    Args:
        evaluate: weights -> (loss, gradient).
        like: a tensor of the device and dtype to work in.
    """
    weights = torch.full_like(like.new_empty(count), 1 / count)
    loss, gradient = evaluate(weights)
    rate = 1.0
    for _ in range(steps):
        if float(weights @ gradient - gradient.min()) <= tolerance:
            break
        while True:
            # The smallest weight stays above zero, whose logarithm would not be finite.
            moved = torch.softmax(weights.log() - rate * gradient, dim=0).clamp(min=1e-30)
            moved = moved / moved.sum()
            new_loss, new_gradient = evaluate(moved)
            divergence = (moved * (moved.log() - weights.log())).sum()
            if new_loss <= loss + gradient @ (moved - weights) + divergence / rate:
                break
            rate /= 2
            if rate < 1e-12:
                return weights
        if new_loss > loss:
            return weights
        weights, loss, gradient = moved, new_loss, new_gradient
        rate *= 2
    return weights


def mix_probabilities(scores: Tensor, owner: Tensor, weights: Tensor, size: int) -> Tensor:
    """Return the log of weighted sums of probabilities, [size, v].

    Args:
        scores: [m, v] log-probabilities.
        owner: [m] which sum each belongs to.
        weights: [m].
    """
    # A product instead of adding row by row, whose order would not be the same every time.
    which = scores.new_zeros(size, len(scores))
    which[owner, torch.arange(len(scores), device=scores.device)] = weights.to(scores)
    total = which @ (scores + _LIFT).exp()
    return total.clamp(min=torch.finfo(total.dtype).tiny).log() - _LIFT
