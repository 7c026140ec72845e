"""One tag for every word of a sentence: entities, the roles of a predicate's arguments, any tags.

Tags of spans are in IOB2; others, such as parts of speech, are classes of words. The head scores
every token by itself (equation 11.14 of the chapter on masked language models, Jurafsky and
Martin), or the whole sequence: a conditional random field (Lafferty et al., 2001) adds a learned
score for every two neighbouring tags. All of it is vectorised over the batch; only the steps along
the sequence are a loop.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from symprompt.errors import DataError
from symprompt.files.reading import shorten
from symprompt.tasks.config import HeadConfig
from symprompt.tasks.data.examples import (
    NO_LABEL,
    OUTSIDE,
    LabelSet,
    Read,
    TaggedExample,
    spans_of,
    to_iob2,
)
from symprompt.tasks.data.sentences import read_words
from symprompt.tasks.features import Batch, Features, Sheet, tensorise_sentences
from symprompt.tasks.kinds.base import Head, Kind, Target, take_at
from symprompt.tasks.kinds.metrics import accuracy, macro_f1, set_scores

PREDICATE = "V"
FORBIDDEN = -1e4
"""Score of what the grammar does not allow: far below any other, and still a number."""

Words = tuple[str, ...]
_MOST = 50
"""So many tags may be any column's."""


class Tags(Kind[TaggedExample, Words]):
    """The tag of every word, in IOB2: of entities, or of its role to one predicate.

    Targets: words, as ``tensorise_sentences`` gives them; labels [n, t], -100 where there is none.
    """

    predicted = "tags"
    settings: ClassVar[tuple[str, ...]] = (
        "task.label_all_tokens",
        "head.decoder",
        "head.constrain",
        "head.combine",
    )
    per_token = True

    def __init__(self, *, roles: bool = False) -> None:
        self.roles = roles
        self.read = partial(read_words, roles=roles)
        self.inputs = ("words", "predicate") if roles else ("words",)

    def label_set(self, train: Read) -> LabelSet:
        """Return O, and B- and I- of every type of the training examples."""
        labels = LabelSet.of_tags([label for entry in train.examples for label in entry.labels])
        if len(labels) < 2:
            raise train.wrong(
                "training needs tags of at least one type, but only O occurs; correct the file."
            )
        return labels

    def tensorise(
        self, examples: Sequence[TaggedExample], sheet: Sheet, target: Target
    ) -> Features:
        """Return sentences as rows with the tag of each word at its tokens."""
        predicates = [x.words[x.predicate] for x in examples if x.predicate is not None]
        features = tensorise_sentences(
            [entry.words for entry in examples], sheet, predicates if self.roles else None
        )
        labels = _token_labels(examples, target, features, self.later(target.labels))
        return replace(features, targets={**features.targets, "labels": labels})

    def later(self, labels: LabelSet) -> list[int]:
        """Return the label of a word's other tokens for each label of its first one.

        Those of a word that starts a phrase are inside it.
        """
        return [
            labels.index.get("I-" + tag[2:], at) if tag[:2] == "B-" else at
            for at, tag in enumerate(labels.names)
        ]

    def sequence(self, tags: Sequence[str]) -> Words:
        """Return the best tags of a sentence's words as a sequence that is allowed.

        A stray I-X starts a phrase, as conlleval reads it.
        """
        return to_iob2(tags)

    def head(
        self, width: int, target: Target, *, causal: bool, generator: torch.Generator | None = None
    ) -> Head:
        """Return a head on every token, or a chain over the words."""
        names = target.labels.names
        return TagHead(width, names, target.head, generator, every_token=target.every_token)

    def kept(self, scores: Tensor) -> Tensor:
        """Return the best tags [b, t], which is all that decoding reads."""
        return scores.argmax(-1)

    def decode(
        self,
        scores: NDArray[Any],
        features: Features,
        examples: Sequence[TaggedExample],
        target: Target,
        *,
        threshold: float | None = None,
    ) -> list[Words]:
        """Return a tag for each word of each example, as a sequence that is allowed.

        Args:
            scores: the best tags [n, t].
        """
        answers = (features.notes["first"] & features.notes["own"])[:, : scores.shape[1]]
        tags = (target.labels.names[place] for place in scores[answers].tolist())
        return [self.sequence(list(islice(tags, len(entry.words)))) for entry in examples]

    def measure(
        self, examples: Sequence[TaggedExample], predictions: Sequence[Words]
    ) -> dict[str, float]:
        """Return F1, precision and recall of entities, or of arguments with predicates left out.

        Of entities also the share of right tags. ``f1_with_predicates`` counts the predicates' own
        spans too, which are given away by the question; some published figures do.
        """
        gold = [entry.tags or () for entry in examples]
        if self.roles:
            found = span_scores(gold, predictions, without=(PREDICATE,))
            return {**found, "f1_with_predicates": span_scores(gold, predictions)["f1"]}
        found = span_scores(gold, predictions)
        return {**found, "word_accuracy": accuracy([*chain(*gold)], [*chain(*predictions)])}

    def row(self, example: TaggedExample, prediction: Words) -> dict[str, Any]:
        """Return the tags."""
        known = {} if example.tags is None else {"gold": list(example.tags)}
        return {"id": example.id, "prediction": list(prediction), **known}


class WordTags(Tags):
    """The tag of every word, a class of its own, such as its part of speech; final."""

    metric = "accuracy"
    settings = ("task.label_all_tokens", "head.decoder", "head.combine")
    rare = True

    def __init__(self) -> None:
        super().__init__()
        self.read = partial(read_words, spans=False)

    def label_set(self, train: Read) -> LabelSet:
        """Return the tags of the training examples, sorted."""
        tags = [tag for entry in train.examples for tag in entry.labels]
        labels = LabelSet(tuple(sorted(set(tags))))
        advice = (
            "name the column of tags with --columns tags=pos, or tag_column=1 for a file with a "
            "word to a line."
        )
        if len(labels) < 2:
            raise train.wrong(
                "training needs at least two different tags, but only "
                f"{', '.join(labels.names) or 'nothing'} occurs; {advice}"
            )
        if len(labels) > max(_MOST, len(tags) // 2):
            raise train.wrong(
                f"{len(tags)} words have {len(labels)} different tags, such as "
                f"{shorten(tags[0])}, so these are hardly tags; {advice}"
            )
        return labels

    def later(self, labels: LabelSet) -> list[int]:
        """Return the label of a word's other tokens: that of its first one."""
        return list(range(len(labels)))

    def sequence(self, tags: Sequence[str]) -> Words:
        """Return the best tags as they are."""
        return tuple(tags)

    def measure(
        self, examples: Sequence[TaggedExample], predictions: Sequence[Words]
    ) -> dict[str, float]:
        """Return the share of words with the right tag, and the mean F1 over tags."""
        gold = [entry.tags or () for entry in examples]
        check_aligned(gold, predictions)
        wanted, found = [*chain(*gold)], [*chain(*predictions)]
        return {"accuracy": accuracy(wanted, found), "macro_f1": macro_f1(wanted, found)}


def _token_labels(
    examples: Sequence[TaggedExample], target: Target, features: Features, inside: Sequence[int]
) -> NDArray[np.int32]:
    """Return the label of every token that this row answers for [n, t].

    Args:
        inside: the label of a word's other tokens for each label of its first one.
    """
    words, own, first = (features.notes[name] for name in ("words", "own", "first"))
    find = target.labels.index.get
    flat = [find(tag, NO_LABEL) for x in examples for tag in x.tags or [""] * len(x.words)]
    begin = np.cumsum([0, *(len(entry.words) for entry in examples)])[:-1]
    place = begin[features.example][:, None] + words
    found = np.array([*flat, NO_LABEL], np.int32)[np.where(words >= 0, place, -1)]
    later = np.full_like(found, NO_LABEL)
    if target.every_token:
        # The last entry is NO_LABEL's.
        later = np.array([*inside, NO_LABEL], np.int32)[np.where(found < 0, len(inside), found)]
    labels: NDArray[np.int32] = np.where(own, np.where(first, found, later), NO_LABEL)
    return labels.astype(np.int32)


class TagHead(Head):
    """One tag for each word: each token by itself, or the best of whole sequences; final.

    Args:
        names: the tags, in the order of the scores.
        config: decoder "crf" learns a score for every two neighbouring tags; constrain never gives
            what IOB2 has not, I-X after anything but B-X and I-X; combine "mean" reads a word off
            the normalised product of its tokens' distributions. A CRF reads first tokens.
        every_token: the chain runs over all tokens of words, not over their first ones.
    """

    def __init__(
        self,
        width: int,
        names: Sequence[str],
        config: HeadConfig,
        generator: torch.Generator | None = None,
        *,
        every_token: bool = False,
    ) -> None:
        super().__init__(width, len(names), config, generator)
        self.crf, self.constrain = config.decoder == "crf", config.constrain
        self.combine = config.combine
        self.every_token = every_token and config.combine == "first"
        count = len(names)
        # From zero on the field is the softmax of every token by itself.
        if self.crf:
            self.transitions = nn.Parameter(torch.zeros(count, count))
            self.first = nn.Parameter(torch.zeros(count))
            self.last = nn.Parameter(torch.zeros(count))
        pairs, begin = (
            grammar(names) if self.constrain else (torch.zeros(count, count), torch.zeros(count))
        )
        self.register_buffer("_pairs", pairs, persistent=False)
        self.register_buffer("_begin", begin, persistent=False)

    def loss(self, states: Tensor, batch: Batch) -> Tensor:
        """Return each row's mean cross-entropy, or its negative log-likelihood by word [b]."""
        labels = batch.targets["labels"]
        known = labels != NO_LABEL
        count = known.sum(1)
        logits = self.logits(states)
        if not self.crf:
            losses = nn.functional.cross_entropy(
                logits.transpose(1, 2), labels, reduction="none", ignore_index=NO_LABEL
            )
            return losses.sum(1) / count.clamp(min=1)
        places, mask = packed(known)
        emissions = take_at(logits, places)
        tags = labels.gather(1, places).clamp(min=0)
        first, between, last = self._field()
        right = path_score(emissions, tags, mask, first, between, last)
        total = log_partition(emissions, mask, first, between, last)
        # A row without a label has an empty chain, whose partition is none of a sequence.
        return torch.where(count > 0, (total - right) / count.clamp(min=1), 0.0)

    def scores(self, states: Tensor, batch: Batch) -> Tensor:
        """Return log-probabilities [b, t, tags]; those of a chain are 0 on the best one, else -inf.

        A word's are at its first token.
        """
        logits = self.logits(states)
        if not self.crf:
            logits = torch.log_softmax(logits, -1)
        if self.combine == "mean":
            logits = torch.log_softmax(joined(logits, batch.targets["words"]), -1)
        if not self.crf and not self.constrain:
            return logits
        words = batch.targets["words"]
        inside = words >= 0
        if not self.every_token:
            inside &= words != nn.functional.pad(words[:, :-1], (1, 0), value=-1)
        places, mask = packed(inside)
        best = best_path(take_at(logits, places), mask, *self._field())
        found = torch.full_like(logits, -torch.inf)
        # Columns beyond a chain all stand for its row's first token; they must not overwrite it.
        target = torch.where(mask, places, logits.shape[1])
        spread = torch.cat((found, found[:, :1]), 1)
        rows = torch.arange(len(logits), device=logits.device)[:, None]
        spread[rows, target, best] = 0.0
        return spread[:, :-1]

    def _field(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the scores of the first tag, of two neighbours and of the last tag."""
        pairs, begin = self.get_buffer("_pairs"), self.get_buffer("_begin")
        if not self.crf:
            return begin, pairs, torch.zeros_like(begin)
        return self.first + begin, self.transitions + pairs, self.last


def grammar(names: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Return the scores that IOB2 gives two neighbours [tags, tags] and a first tag [tags].

    0 is allowed; a type goes on only after itself.
    """
    pairs = torch.zeros(len(names), len(names))
    begin = torch.zeros(len(names))
    for after, tag in enumerate(names):
        if tag[:2] != "I-":
            continue
        begin[after] = FORBIDDEN
        for before, other in enumerate(names):
            if other == OUTSIDE or other[2:] != tag[2:]:
                pairs[before, after] = FORBIDDEN
    return pairs, begin


def packed(chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Return the chosen places of each row moved to the left [b, t], and which columns hold one."""
    rows, width = chosen.shape
    order = chosen.long().cumsum(1) - 1
    places = torch.zeros(rows, width + 1, dtype=torch.long, device=chosen.device)
    columns = torch.arange(width, device=chosen.device).expand(rows, -1)
    places.scatter_(1, torch.where(chosen, order, width), columns)
    count = chosen.sum(1, keepdim=True)
    mask = torch.arange(width, device=chosen.device) < count
    return torch.where(mask, places[:, :width], 0), mask


def joined(logits: Tensor, words: Tensor) -> Tensor:
    """Return the sum over the tokens of each token's word [b, t, tags].

    Args:
        words: each token's word within its row, below t; -1 for none [b, t].
    """
    known = words >= 0
    target = torch.where(known, words, 0)[..., None].expand_as(logits)
    total = torch.zeros_like(logits).scatter_add(1, target, logits * known[..., None])
    return torch.where(known[..., None], total.gather(1, target), logits)


def path_score(
    emissions: Tensor, tags: Tensor, mask: Tensor, first: Tensor, between: Tensor, last: Tensor
) -> Tensor:
    """Return the score of one sequence of tags for each row [b].

    Args:
        emissions: scores of tags [b, n, tags].
        tags: the sequence [b, n].
        mask: true on each row's own part, which comes first [b, n].
        first, between, last: scores of a first tag, of two neighbours (the earlier one first) and
            of a last tag.
    """
    own = emissions.gather(2, tags[..., None]).squeeze(2)
    rows, count = len(tags), len(first)
    # Gathered row by row: the gradient is then a sum over rows, not a sort of places.
    pairs = tags[:, :-1] * count + tags[:, 1:]
    steps = between.flatten().expand(rows, -1).gather(1, pairs) * mask[:, 1:]
    end = tags.gather(1, (mask.sum(1, keepdim=True) - 1).clamp(min=0))
    outer = first.expand(rows, -1).gather(1, tags[:, :1]) + last.expand(rows, -1).gather(1, end)
    return (own * mask).sum(1) + steps.sum(1) + outer.squeeze(1)


def log_partition(
    emissions: Tensor, mask: Tensor, first: Tensor, between: Tensor, last: Tensor
) -> Tensor:
    """Return the log of the sum of exp(score) over all sequences of tags of each row [b]."""
    total = first + emissions[:, 0]
    for place in range(1, emissions.shape[1]):
        after = torch.logsumexp(total[:, :, None] + between, 1) + emissions[:, place]
        total = torch.where(mask[:, place, None], after, total)
    return torch.logsumexp(total + last, 1)


def best_path(
    emissions: Tensor, mask: Tensor, first: Tensor, between: Tensor, last: Tensor
) -> Tensor:
    """Return the best sequence of tags of each row (Viterbi) [b, n]; ties take the earlier tag."""
    total = first + emissions[:, 0]
    stay = torch.arange(emissions.shape[2], device=emissions.device).expand_as(total)
    came: list[Tensor] = []
    for place in range(1, emissions.shape[1]):
        after, source = (total[:, :, None] + between).max(1)
        here = mask[:, place, None]
        total = torch.where(here, after + emissions[:, place], total)
        came.append(torch.where(here, source, stay))
    tag = (total + last).argmax(1)
    path = [tag]
    for source in reversed(came):
        tag = source.gather(1, tag[:, None]).squeeze(1)
        path.append(tag)
    return torch.stack(path[::-1], 1)


def check_aligned(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> None:
    """Refuse predictions with another number of tags than there are words."""
    for left, other in zip(gold, predicted, strict=True):
        if len(left) != len(other):
            raise DataError(
                f"got {len(other)} predicted tag(s) for {len(left)} word(s), so they are not "
                "aligned; every word needs one."
            )


def span_scores(
    gold: Sequence[Sequence[str]],
    predicted: Sequence[Sequence[str]],
    *,
    without: Collection[str] = (),
) -> dict[str, float]:
    """Return precision, recall and F1 of phrases: type, first and last word must all be right."""
    check_aligned(gold, predicted)
    wanted, found = (
        [{span for span in spans_of(tags) if span[0] not in without} for tags in own]
        for own in (gold, predicted)
    )
    return set_scores(wanted, found)
