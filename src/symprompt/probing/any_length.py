"""Ask for objects of any length: every token of every candidate, each sentence read once.

A masked model gives a name's pseudo-log-likelihood (Salazar et al., 2020): one token after the
other is masked and asked for. With the other tokens of its word in sight the rest of a long word is
too easy, so that rare names of many tokens score above common ones; therefore the tokens after the
one asked for may be masked too, up to the end of the word (PLL-word-l2r, Kauf and Ivanova, 2023).
The words of a name give each other away the same way ("[MASK] York"), so they may also be masked up
to the end of the name, which is the chain rule within the name. A causal model gives the likelihood
by the chain rule.

Many candidates share sentences: all names of one token are read off one mask, and of all words of
two tokens the first is asked by the same two masks. Each distinct sentence is run once per fact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from symprompt.engine.batches import make_batches, multiples_of_8
from symprompt.models import LanguageModel
from symprompt.probing.queries import TokenLikelihoods
from symprompt.prompts import Layout, NameTable

ObjectMasking = Literal["name", "word", "one"]
ObjectAverage = Literal["mean", "sum"]
Asking = Callable[[Layout, Tensor, np.ndarray | None], Tensor]
"""Gives the logits [n, v] at positions [n] of a layout's sentences; [n] says of which sentence each
is, None that each sentence is read once."""


@dataclass(frozen=True)
class Tables:
    """What to run for each relation, each row pointing at a range of rows of the next table.

    Attributes:
        first, count: [relation] each relation's rows of the first table.
        blank, places_from, places: [f] first table: what fills the blank, and its range of places.
        offset, tokens_from, tokens: [q] second table: the position in the object, and the range.
        target, name: [a] third table: the token, and the name it is of.
    """

    first: np.ndarray
    count: np.ndarray
    blank: np.ndarray
    places_from: np.ndarray
    places: np.ndarray
    offset: np.ndarray
    tokens_from: np.ndarray
    tokens: np.ndarray
    target: np.ndarray
    name: np.ndarray


@dataclass(frozen=True)
class Spelling:
    """What to run and where to look for the likelihoods of the names that relations may answer.

    Attributes:
        names: the answers.
        allowed: [relation, n] bool on the device.
        blanks: [p, t] int64 on the device, distinct fillings of the blank, masks included.
        blank_lengths: [p] how many tokens each filling has.
        tables: what to run for each relation.
        own: [n, t] the filling that asks for each token of each name, to train.
        one_mask: whether no filling masks more than the token that is asked for.
        to_end: whether fillings mask it and all that follows it in the name.
        average: how a name's score follows from its tokens'.
        max_tokens: most tokens in one pass.
    """

    names: NameTable
    allowed: Tensor
    blanks: Tensor
    blank_lengths: np.ndarray
    tables: Tables
    own: np.ndarray
    one_mask: bool
    to_end: bool
    average: ObjectAverage
    max_tokens: int

    def take(self, relations: Sequence[int]) -> Spelling:
        """Return the spelling of some relations alone; one may stand several times."""
        rows = np.asarray(relations, dtype=np.int64)
        tables = replace(self.tables, first=self.tables.first[rows], count=self.tables.count[rows])
        allowed = self.allowed[torch.from_numpy(rows).to(self.allowed.device)]
        return replace(self, allowed=allowed, tables=tables)


_Ask = tuple[tuple[int, ...], int, int]
"""One token of one name: what fills the blank, where to look, and for which token."""


def make_spelling(
    names: NameTable,
    allowed: Tensor,
    *,
    mask_id: int | None,
    masking: ObjectMasking,
    average: ObjectAverage,
    max_tokens: int,
) -> Spelling:
    """Tensorise the queries for the names that each relation may answer with.

    Args:
        allowed: [relation, n] bool on the device, which names each relation may answer with.
        mask_id: the mask token; None for a causal model.
        masking: "name" also masks what follows in the name, "word" what follows in the same word,
            "one" nothing else.
        average: "mean" of the tokens' log-likelihoods, or their "sum".
        max_tokens: most tokens in one pass.
    """
    asks = [list(_asks(names, name, mask_id, masking)) for name in range(len(names))]
    numbers: dict[tuple[int, ...], int] = {}
    own = np.zeros_like(names.words)
    for name, entries in enumerate(asks):
        for step, (blank, _, _) in enumerate(entries):
            own[name, step] = numbers.setdefault(blank, len(numbers))
    lengths = np.array([len(blank) for blank in numbers], dtype=np.int64)
    table = np.zeros((len(numbers), max(1, int(lengths.max(initial=1)))), dtype=np.int64)
    for row, blank in enumerate(numbers):
        table[row, : len(blank)] = blank
    members = [np.flatnonzero(row).tolist() for row in allowed.cpu().numpy()]
    columns = _tables(members, asks, numbers)
    return Spelling(
        names,
        allowed,
        torch.from_numpy(table).to(allowed.device),
        lengths,
        Tables(*(np.array(column, dtype=np.int64) for column in columns)),
        own,
        all(blank.count(mask_id) == 1 for blank in numbers) if mask_id is not None else True,
        masking == "name" and mask_id is not None,
        average,
        max_tokens,
    )


def _asks(
    names: NameTable, name: int, mask_id: int | None, masking: ObjectMasking
) -> Iterator[_Ask]:
    """Yield the query of each token of a name."""
    length = int(names.lengths[name])
    tokens = tuple(names.tokens[name, :length].tolist())
    words = names.words[name, :length].tolist()
    for step, token in enumerate(tokens):
        if mask_id is None:
            # One sentence holds all but the last token, and every output is about the next one.
            yield tokens[:-1], step, token
            continue
        last = length - 1 if masking == "name" else step
        while masking == "word" and last + 1 < length and words[last + 1] == words[step]:
            last += 1
        hidden = (mask_id,) * (last + 1 - step)
        yield (*tokens[:step], *hidden, *tokens[last + 1 :]), step, token


def _tables(
    relations: Sequence[Sequence[int]],
    asks: Sequence[Sequence[_Ask]],
    numbers: dict[tuple[int, ...], int],
) -> tuple[list[int], ...]:
    """Return the columns of a spelling's tables, from ``first`` to ``name``."""
    columns: tuple[list[int], ...] = tuple([] for _ in range(10))
    first, count, blank, places_from, places, offset, tokens_from, tokens, target, name = columns
    for members in relations:
        grouped: dict[tuple[int, ...], dict[int, list[tuple[int, int]]]] = {}
        for own in members:
            for filling, place, token in asks[own]:
                grouped.setdefault(filling, {}).setdefault(place, []).append((token, own))
        first.append(len(blank))
        count.append(len(grouped))
        # Short sentences first, so that passes hold sentences of one length.
        for filling in sorted(grouped, key=lambda entry: (len(entry), numbers[entry])):
            blank.append(numbers[filling])
            places_from.append(len(offset))
            places.append(len(grouped[filling]))
            for place, entries in grouped[filling].items():
                offset.append(place)
                tokens_from.append(len(target))
                tokens.append(len(entries))
                target += [token for token, _ in entries]
                name += [own for _, own in entries]
    return columns


def ask_backbone(backbone: LanguageModel, vectors: Tensor | None) -> Asking:
    """Return what asks a model, learned vectors [relation, n, width] in place."""

    def ask(layout: Layout, at: Tensor, of: np.ndarray | None) -> Tensor:
        sentence = None if of is None else torch.from_numpy(of).to(backbone.device)
        return backbone.logits_at(layout.sentences(at).inputs(backbone, vectors), at, sentence)

    return ask


def score_names(
    ask: Asking, layout: Layout, rows: np.ndarray, spelling: Spelling, *, causal: bool
) -> Tensor:
    """Return the log-likelihood of every name as the object, [b, n] float32; -inf if not allowed.

    All sentences of all facts are asked in passes of at most ``spelling.max_tokens`` tokens.
    """
    tables = spelling.tables
    relation = layout.relations[rows]
    sentence, fact = _ranges(tables.first[relation], tables.count[relation])
    lengths = layout.lengths[rows[fact]] - layout.object_lengths[rows[fact]]
    lengths = lengths + spelling.blank_lengths[tables.blank[sentence]]
    count = len(spelling.names)
    # Sums of few numbers, but in an order that a GPU does not fix: float64 makes it immaterial.
    device = layout.ids.device
    total = torch.zeros(len(rows) * count, dtype=torch.float64, device=device)
    # Of one width each.
    for part, _ in make_batches(multiples_of_8(lengths), spelling.max_tokens, apart=0.0):
        value, name, owner = _look_up(
            ask, layout, rows[fact[part]], spelling, sentence[part], causal=causal
        )
        total.index_add_(0, name + torch.from_numpy(fact[part]).to(name)[owner] * count, value)
    scores = total.reshape(len(rows), count)
    if spelling.average == "mean":
        scores = scores / spelling.names.length
    index = torch.from_numpy(rows).to(device)
    allowed = spelling.allowed[layout.relation[index]]
    return scores.float().masked_fill(~allowed, -torch.inf)


def _look_up(
    ask: Asking,
    layout: Layout,
    rows: np.ndarray,
    spelling: Spelling,
    sentence: np.ndarray,
    *,
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Run one pass; return log-likelihoods [a] float64, the names and the sentences they are of.

    Args:
        rows: [m] facts.
        sentence: [m] rows of the spelling's first table.
    """
    device, tables = layout.ids.device, spelling.tables
    blank = tables.blank[sentence]
    filled = layout.filled(
        rows, spelling.blanks[torch.from_numpy(blank).to(device)], spelling.blank_lengths[blank]
    )
    place, owner = _ranges(tables.places_from[sentence], tables.places[sentence])
    token, place_of = _ranges(tables.tokens_from[place], tables.tokens[place])
    of_place = torch.from_numpy(owner).to(device)
    offset = torch.from_numpy(tables.offset[place]).to(device)
    at = filled.object_at[of_place] + offset - int(causal)
    logits = ask(filled, at, owner)
    index = torch.from_numpy(place_of).to(device)
    target = torch.from_numpy(tables.target[token]).to(device)
    value = logits[index, target].double() - logits.logsumexp(1).double()[index]
    return value, torch.from_numpy(tables.name[token]).to(device), of_place[index]


def name_likelihoods(
    ask: Asking,
    layout: Layout,
    rows: np.ndarray,
    spelling: Spelling,
    gold: Tensor,
    *,
    causal: bool,
) -> TokenLikelihoods:
    """Return how likely each token of the true objects is, as candidates are asked, to train.

    Args:
        gold: [n] the facts' objects, as ids of names.
    """
    device = layout.ids.device
    index = torch.from_numpy(rows).to(device)
    counts = layout.object_lengths[rows]
    step, fact = _ranges(np.zeros_like(counts), counts)
    owner, offset = torch.from_numpy(fact).to(device), torch.from_numpy(step).to(device)
    target = layout.ids[index[owner], layout.object_at[index[owner]] + offset]
    if causal:
        # The true objects' tokens; what is beyond an object's length means nothing.
        steps = torch.arange(int(counts.max(initial=1)), device=device)
        places = (layout.object_at[index][:, None] + steps[None, :]).clamp(
            max=layout.ids.shape[1] - 1
        )
        whole = layout.filled(rows, layout.ids[index].gather(1, places), counts)
        at = whole.object_at[owner] + offset - 1
        logits = ask(whole, at, fact)
    else:
        blank = spelling.own[gold.cpu().numpy()[rows[fact]], step]
        fillings = spelling.blanks[torch.from_numpy(blank).to(device)]
        filled = layout.filled(rows[fact], fillings, spelling.blank_lengths[blank])
        at = filled.object_at + offset
        logits = ask(filled, at, None)
    return TokenLikelihoods(
        log_likelihood=-functional.cross_entropy(logits, target, reduction="none"),
        owner=owner,
        count=layout.object_length[index],
    )


def _ranges(start: np.ndarray, count: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers of all ranges, one range after the other, and which each is of."""
    owner = np.repeat(np.arange(len(count)), count)
    return np.arange(len(owner)) - (np.cumsum(count) - count - start)[owner], owner
