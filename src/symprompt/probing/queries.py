"""The two queries every method is made of, which object and how likely is the subject, and ranks.

Shapes: b facts, v vocabulary, k candidates, m other true answers. Ties are counted, never hidden:
scores of a half-precision head tie at the top often enough to move P@1 by half a point, so such
scores are refused here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from symprompt.errors import SympromptError
from symprompt.models import LanguageModel
from symprompt.probing.results import Ranks
from symprompt.prompts import Layout, PackedQuestion, Question, packed_question
from symprompt.runs.environment import send

OBJECT_PART = "forth"
"""What the object prompt's vectors are stored under and their draws are seeded by."""

SUBJECT_PART = "back"
FURTHER_PARTS = ("second", "third")
"""The same for subject prompts with vectors of their own."""

APART = 0.25
"""Passes of one length need no padding; below this share of the budget they are too small."""

Masking = Literal["one", "chain", "whole"]

Average = Literal["log", "probability", "sum"]


def exact_dtype(backbone: LanguageModel) -> torch.dtype:
    """Return the dtype of what is learned and summed up: float32, or float64 as the model's."""
    return torch.float64 if backbone.dtype == torch.float64 else torch.float32


def object_logits(
    backbone: LanguageModel, layout: Layout, rows: np.ndarray, vectors: Tensor | None
) -> Tensor:
    """Return the logits [b, v] of the object blank, the subject in place (equation 5).

    A causal model's are its output just before the blank (P-tuning, section 4.1).
    """
    index = send(rows, backbone.device)
    return _token_logits(backbone, layout, rows, index, layout.object_at[index], vectors)


def subject_logits(
    backbone: LanguageModel,
    layout: Layout,
    rows: np.ndarray,
    offset: np.ndarray,
    vectors: Tensor | None,
    *,
    masking: Masking,
    objects: Tensor | None,
) -> Tensor:
    """Return the logits [b, v] of a token of each subject, the object in place.

    Where ``one_sentence`` asks for all of a subject's tokens they are [n, v], those of the first
    subject, then those of the second.

    Args:
        rows: [b] facts; one may stand several times.
        offset: [b] which token is queried, unless all are.
        masking, objects: see ``subject_likelihoods``.
    """
    index = send(rows, backbone.device)
    if one_sentence(backbone, masking):
        return _blank_logits(backbone, layout, rows, index, vectors, objects)
    until = subject_end(layout)[index] if masking == "chain" else None
    at = layout.subject_at[index] + send(offset, backbone.device)
    return _token_logits(backbone, layout, rows, index, at, vectors, objects, until)


def _token_logits(
    backbone: LanguageModel,
    layout: Layout,
    rows: np.ndarray,
    index: Tensor,
    at: Tensor,
    vectors: Tensor | None,
    objects: Tensor | None = None,
    until: Tensor | None = None,
) -> Tensor:
    """Return the logits [b, v] of one position in each of some rows.

    Args:
        rows, index: [b] facts, on the CPU and on the device.
        at: [b] positions.
        objects: [b] candidates that replace the true objects.
        until: [b] the last positions to be masked; None masks the queried ones alone.
    """
    mask_id, longest = backbone.vocabulary.mask_id, int(layout.lengths[rows].max())
    learning = torch.is_grad_enabled() and vectors is not None and vectors.requires_grad
    question: Question | PackedQuestion
    if mask_id is not None and longest <= backbone.longest_packed and not learning:
        question = packed_question(
            layout,
            index,
            at,
            tokens=int(layout.lengths[rows].sum()),
            longest=longest,
            mask_id=mask_id,
            objects=objects,
            until=until,
        )
    else:
        width = layout.width(rows)
        question = layout.question(
            index,
            at,
            width=width,
            mask_id=mask_id,
            objects=objects,
            until=until,
            padded=layout.is_padded(rows, width),
        )
    return backbone.logits_at(question.inputs(backbone, vectors), question.at)


def _blank_logits(
    backbone: LanguageModel,
    layout: Layout,
    rows: np.ndarray,
    index: Tensor,
    vectors: Tensor | None,
    objects: Tensor | None,
) -> Tensor:
    """Return the logits [n, v] of every subject token, one sentence a row.

    All tokens of a subject are masked. A causal model masks none: the subject stands last, and one
    pass gives the likelihood of each of its tokens given the object and those before (teacher
    forcing); our extension of SPE, which is about masked models.
    """
    owner, offset = (send(x, backbone.device) for x in tokens_of(layout.subject_lengths[rows]))
    first, last = layout.subject_at[index], subject_end(layout)[index]
    width = layout.width(rows)
    # Packed rows are read at one position a sentence, so these are padded.
    question = layout.question(
        index,
        last if backbone.causal else first,
        width=width,
        mask_id=backbone.vocabulary.mask_id,
        objects=objects,
        until=last,
        padded=layout.is_padded(rows, width),
    )
    at = first[owner] + offset - int(backbone.causal)
    return backbone.logits_at(question.inputs(backbone, vectors), at, owner)


@dataclass(frozen=True, eq=False)
class Queries:
    """Query sentences, one queried token each, whose cross-entropies add up to facts' losses.

    Attributes:
        part: whose vectors stand in the sentences.
        layout: the sentences.
        base: [n] int64 on the device, where each fact's blank begins.
        end: [n] the last token of each fact's blank, where all after the queried one are masked
            too; None masks the queried one alone.
        whole: whether those before the queried one are masked too.
        rows: [m] facts.
        offset: [m] which token of the blank is queried.
        share: [m] what the sentence counts in its fact's loss.
        owner: [m] index of the fact among those that were given.
    """

    part: str
    layout: Layout
    base: Tensor
    end: Tensor | None
    rows: np.ndarray
    offset: np.ndarray
    share: np.ndarray
    owner: np.ndarray
    whole: bool = False


def object_parts(count: int) -> tuple[str, ...]:
    """Return the names of so many object prompts: ``OBJECT_PART``, then "forth2", "forth3"."""
    return (OBJECT_PART, *(f"{OBJECT_PART}{number}" for number in range(2, count + 1)))


def object_queries(
    layout: Layout, rows: np.ndarray, *, part: str = OBJECT_PART, chain: bool = False
) -> Queries:
    """Return the query sentences of each object token (equation 5), for their mean.

    Args:
        part: whose vectors they have.
        chain: the tokens after the queried one are masked too.
    """
    owner, offset = tokens_of(layout.object_lengths[rows])
    share = 1.0 / layout.object_lengths[rows[owner]]
    end = layout.object_at + layout.object_length - 1 if chain else None
    return Queries(part, layout, layout.object_at, end, rows[owner], offset, share, owner)


def subject_queries(
    layout: Layout, rows: np.ndarray, *, part: str, weight: float, masking: Masking
) -> Queries:
    """Return the query sentences of each subject token, ``weight`` for the subject's mean.

    A subject masked whole has as many sentences as tokens here, all alike.
    """
    owner, offset = tokens_of(layout.subject_lengths[rows])
    share = weight / layout.subject_lengths[rows[owner]]
    end = None if masking == "one" else subject_end(layout)
    whole = masking == "whole"
    return Queries(part, layout, layout.subject_at, end, rows[owner], offset, share, owner, whole)


def subject_end(layout: Layout) -> Tensor:
    """Return the position of each subject's last token, [n]."""
    return layout.subject_at + layout.subject_length - 1


def tokens_of(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return, for every token of names with so many, the name's index and the token's place."""
    owner = np.repeat(np.arange(len(counts)), counts)
    return owner, np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)


@dataclass(frozen=True)
class TokenLikelihoods:
    """Log-likelihoods of subject tokens, flat, with the row each belongs to."""

    log_likelihood: Tensor
    owner: Tensor
    count: Tensor

    def average(self, how: Average) -> Tensor:
        """Return each row's score, [b]."""
        if how == "sum":
            return self.sum_log()
        return self.mean_log() if how == "log" else self.log_mean()

    def sum_log(self) -> Tensor:
        """Return each row's sum of log-likelihoods, [b]."""
        total = self.log_likelihood.new_zeros(len(self.count))
        return total.index_add(0, self.owner, self.log_likelihood)

    def mean_log(self) -> Tensor:
        """Return each row's mean of log-likelihoods, [b]."""
        return self.sum_log() / self.count

    def log_mean(self) -> Tensor:
        """Return the log of each row's mean likelihood, [b]."""
        total = torch.zeros(len(self.count), dtype=torch.float64, device=self.count.device)
        # float64 holds likelihoods down to e^-745, below anything a softmax here gives.
        total = total.index_add(0, self.owner, self.log_likelihood.double().exp())
        return (total / self.count).log().to(self.log_likelihood.dtype)


def subject_likelihoods(
    backbone: LanguageModel,
    layout: Layout,
    rows: np.ndarray,
    vectors: Tensor | None,
    *,
    masking: Masking,
    objects: Tensor | None = None,
) -> TokenLikelihoods:
    """Return how likely each subject token is, the object in place (equation 6).

    Args:
        layout: the facts in the subject prompt.
        rows: [b] fact indices; one may stand several times, with different objects.
        masking: "one" masks one token and leaves the subject's others visible, in as many
            sentences as the subject has tokens; "chain" masks those after it too, so that the
            likelihoods' product is the subject's by the chain rule; "whole" masks all of them in
            one sentence. A causal model masks none: each token follows from those before it.
        objects: [b] candidates that replace the true objects; ``asked_once`` is faster for many.
    """
    index = send(rows, backbone.device)
    every = tokens_of(layout.subject_lengths[rows])
    owner, offset = (send(own, backbone.device) for own in every)
    if not one_sentence(backbone, masking):
        rows, objects = rows[every[0]], None if objects is None else objects[owner]
    logits = subject_logits(
        backbone, layout, rows, every[1], vectors, masking=masking, objects=objects
    )
    each = index[owner]
    target = layout.ids[each, layout.subject_at[each] + offset]
    return TokenLikelihoods(
        log_likelihood=-functional.cross_entropy(logits, target, reduction="none"),
        owner=owner,
        count=layout.subject_length[index],
    )


def one_sentence(backbone: LanguageModel, masking: Masking) -> bool:
    """Return whether one sentence asks for all tokens of a subject."""
    return masking == "whole" or backbone.causal


def ranks(scores: Tensor, gold: Tensor, ignore: Tensor | None = None) -> Ranks[Tensor]:
    """Count, for every fact, the others that beat or tie with the true answer.

    Args:
        scores: ``[b, v]`` float32 or float64; ``-inf`` marks what is no candidate.
        gold: ``[b]`` int64, the true answer's id. A gold of ``-inf`` comes after all finite scores
            and ties with every other ``-inf``.
        ignore: ``[b, m]`` int64, padded with -1: other true answers, not counted (filtered ranks).
            The gold itself and repeated ids in a row change nothing.

    Raises:
        SympromptError: half-precision or NaN scores, a wrong shape, or an id out of range.

    Example:
        >>> ranks(torch.tensor([[0.5, 2.0, 0.5]]), torch.tensor([0])).realistic
        tensor([2.5000], dtype=torch.float64)
    """
    _check_scores(scores)
    _check_no_nan(scores)
    rows, width = scores.shape
    _check_ids("gold", gold, (rows,), 0, width)
    gold_score = scores.gather(1, gold[:, None])
    better = (scores > gold_score).sum(dim=1)
    equal = (scores == gold_score).sum(dim=1) - 1  # without the gold itself
    if ignore is None:
        return Ranks(better, equal)
    _check_ids("ignore", ignore, (rows, None), -1, width)
    ordered = ignore.sort(dim=1).values
    counted = (ordered >= 0) & (ordered != gold[:, None])
    counted[:, 1:] &= ordered[:, 1:] != ordered[:, :-1]
    ignored_score = scores.gather(1, ordered.clamp(min=0))
    better = better - ((ignored_score > gold_score) & counted).sum(dim=1)
    equal = equal - ((ignored_score == gold_score) & counted).sum(dim=1)
    return Ranks(better, equal)


def top_k(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return values and ids of the k best per row, best first, ties broken by the lower id.

    The answer is the same on every device; ``torch.topk`` alone leaves the order of ties open.

    Args:
        scores: ``[b, v]`` float32 or float64; ``-inf`` marks what is no candidate.
        k: how many, at most v.

    Returns:
        Values ``[b, k]`` and ids ``[b, k]`` int64 (equation 8 of the SPE paper); a row with fewer
        candidates ends with values of ``-inf`` and ids of -1.

    Raises:
        SympromptError: half-precision or NaN scores, or k out of range.
    """
    _check_scores(scores)
    width = scores.shape[1]
    if not 1 <= k <= width:
        raise SympromptError(f"k is {k}, allowed is 1 to {width}, the number of scores in a row.")
    values, ids = torch.topk(scores, k, dim=1)
    _check_no_nan(values)  # topk puts NaN first, so a look at its values is enough
    border = values[:, -1:]
    more_tied = (scores == border).sum(dim=1) > (values == border).sum(dim=1)
    crowded = (more_tied & (border[:, 0] > -torch.inf)).nonzero().squeeze(1)
    if crowded.numel():
        ids[crowded] = _best_ids_by_border(scores[crowded], border[crowded], k)
    ids = ids.sort(dim=1).values
    values = scores.gather(1, ids)
    # Adding zero turns -0.0 into 0.0: a sort by bits would tell the two apart.
    order = torch.sort(values + 0.0, stable=True, dim=1, descending=True).indices
    values, ids = values.gather(1, order), ids.gather(1, order)
    return values, ids.masked_fill(values == -torch.inf, -1)


def top_k_later(scores: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return what ``top_k`` returns, and whether the scores are sound, without waiting for a GPU.

    Args:
        scores: ``[b, v]``, float32 on a GPU.

    Returns:
        Values and ids; and whether no score of the batch's best is NaN, which is to be looked at
        once there is time to wait.
    """
    if not scores.is_cuda or scores.dtype != torch.float32:
        values, ids = top_k(scores, k)
        return values, ids, torch.ones(1, dtype=torch.bool, device=scores.device)
    values, ids = _best_by_keys(scores, k)
    return values, ids, ~torch.isnan(values).any()[None]


def _best_by_keys(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return ``top_k`` of float32 scores by whole numbers that never tie: the score, then the id.

    NaN comes first and stays NaN among the values.
    """
    # Bits of a float are in the order of its values, but for negative ones, whose order is turned.
    bits = (scores + 0.0).view(torch.int32).long()
    bits = torch.where(bits < 0, -0x80000000 - bits, bits)
    bits = torch.where(torch.isnan(scores), 0x7FFFFFFF, bits)
    width = scores.shape[1]
    keys = bits * width + torch.arange(width - 1, -1, -1, device=scores.device)
    best = torch.topk(keys, k, dim=1).values
    ids = (width - 1) - best.remainder(width)
    values = scores.gather(1, ids)
    return values, ids.masked_fill(values == -torch.inf, -1)


def _best_ids_by_border(scores: Tensor, border: Tensor, k: int) -> Tensor:
    """Return the ids above the border, filled up to k with the lowest ids on the border."""
    above = scores > border
    tied = scores == border
    room = k - above.sum(dim=1, keepdim=True)
    chosen = above | (tied & (tied.cumsum(dim=1) <= room))
    return chosen.nonzero()[:, 1].view(-1, k)


def _check_scores(scores: Tensor) -> None:
    if scores.dtype not in (torch.float32, torch.float64):
        raise SympromptError(
            f"scores has dtype {scores.dtype}, allowed are torch.float32 and torch.float64: "
            "coarser scores tie. Compute the last product and the softmax in float32."
        )
    if scores.ndim != 2:
        raise SympromptError(f"scores has shape {list(scores.shape)}, needed are two axes.")


def _check_no_nan(scores: Tensor) -> None:
    if bool(torch.isnan(scores).any()):
        raise SympromptError("scores holds NaN, which has no rank; check the model's output.")


def _check_ids(
    name: str, ids: Tensor, shape: tuple[int | None, ...], lowest: int, width: int
) -> None:
    fits = ids.ndim == len(shape) and all(
        wanted in (None, got) for wanted, got in zip(shape, ids.shape, strict=True)
    )
    if not fits or ids.dtype != torch.int64:
        wanted = ["any" if size is None else size for size in shape]
        raise SympromptError(
            f"{name} is {ids.dtype} of shape {list(ids.shape)}, needed is torch.int64 of {wanted}."
        )
    if ids.numel() == 0:
        return
    low, high = (int(bound) for bound in torch.aminmax(ids))
    if low < lowest or high >= width:
        raise SympromptError(
            f"{name} holds ids {low} to {high}, allowed are {lowest} to {width - 1}."
        )
