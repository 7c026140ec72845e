"""Score whole texts: the pseudo-log-likelihood of a masked model, the likelihood of a causal one.

A masked model is asked for one token after the other, each masked alone (Salazar et al., 2020) or
with those after it in the same word (PLL-word-l2r, Kauf and Ivanova, 2023). A causal model gives
the log-probability of every token, the first one after the token that begins a text. Words are the
tokenizer's own, punctuation apart. Batches are made by tokens, the head runs at the tokens asked
for alone, and on CUDA texts are packed into rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from symprompt.engine.batches import make_batches
from symprompt.errors import DataError
from symprompt.files.reading import shorten
from symprompt.models import Inputs, LanguageModel, pack
from symprompt.probing.queries import APART, tokens_of
from symprompt.prompts.layout import pad_rows

TextMasking = Literal["word", "one"]


@dataclass(frozen=True)
class TextScores:
    """How likely texts are; final.

    Attributes:
        total: [s] sums of log-likelihoods over the tokens that count, float64.
        counts: [s] how many these are.
        missed: [s] how many of them are not the model's first answer, float64.
    """

    total: Tensor
    counts: np.ndarray
    missed: Tensor

    @property
    def mean(self) -> Tensor:
        """[s] means over tokens, float64."""
        return self.total / torch.from_numpy(np.maximum(self.counts, 1)).to(self.total.device)


def fill_template(template: str, subject: str, answer: str) -> str:
    """Return the statement that a template makes, its first letter written large."""
    # In one go: a name may hold what looks like a blank.
    before, _, after = template.partition("[X]")
    text = before.replace("[Y]", answer) + subject + after.replace("[Y]", answer)
    return text[:1].upper() + text[1:]


@torch.no_grad()
def score_texts(
    backbone: LanguageModel,
    texts: Sequence[str],
    *,
    masking: TextMasking = "word",
    max_tokens: int = 0,
    given: Sequence[int] = (),
    cut: bool = False,
) -> TextScores:
    """Return how likely each text is.

    Args:
        masking: "word" masks a token with those after it in its word, "one" alone; a causal model
            masks nothing.
        max_tokens: most tokens in one pass; 0 chooses by device.
        given: each text's first characters that are read and not scored; none means all count. A
            token that ends among them is given.
        cut: leave the first given tokens out where a text is longer than the model takes.

    Raises:
        DataError: a text is longer than the model takes.
    """
    vocabulary, device = backbone.vocabulary, backbone.device
    prefix, suffix = vocabulary.beginning, vocabulary.suffix
    room = backbone.max_length - len(prefix) - len(suffix)
    read = vocabulary.encode_sentences(texts)
    framed, marks, firsts = [], [], []
    for number, (ids, words, ends) in enumerate(read):
        start = sum(end <= given[number] for end in ends) if given else 0
        left_out = min(max(0, len(ids) - room), start) if cut else 0
        framed.append([*prefix, *ids[left_out:], *suffix])
        # No word has the number -1, so that nothing but text is ever masked.
        marks.append([*[-1] * len(prefix), *words[left_out:], *[-1] * len(suffix)])
        firsts.append(len(prefix) + start - left_out)
    ids_table, lengths = pad_rows(framed, vocabulary.pad_id)
    words_table, _ = pad_rows(marks, -1)
    if int(lengths.max(initial=0)) > backbone.max_length:
        longest = texts[int(lengths.argmax())]
        raise DataError(
            f"the text {shorten(longest)} has {int(lengths.max())} tokens and the model takes "
            f"{backbone.max_length}; leave it out, or its relation with facts.relations."
        )
    table = torch.from_numpy(np.stack((ids_table, words_table))).to(device)
    # What begins a text is not scored; where nothing does, nothing precedes the first token.
    first = np.maximum(np.array(firsts, dtype=np.int64), 1 if vocabulary.causal else 0)
    counts = np.maximum(lengths - first - len(suffix), 0)
    total = torch.zeros(len(texts), dtype=torch.float64, device=device)
    found = TextScores(total, counts, torch.zeros_like(total))
    asking = _Asking(backbone, table[0], table[1], lengths, first, found, max_tokens, masking)
    if vocabulary.causal:
        asking.ask_causal()
    else:
        asking.ask_masked()
    return found


@dataclass(frozen=True)
class _Asking:
    """Texts that are asked, and what is found.

    Attributes:
        ids, words: [s, t] tokens and the words they are of.
        lengths, first: [s] tokens, and which is the first asked for.
    """

    backbone: LanguageModel
    ids: Tensor
    words: Tensor
    lengths: np.ndarray
    first: np.ndarray
    found: TextScores
    max_tokens: int
    masking: TextMasking

    def ask_masked(self) -> None:
        """Add up the log-likelihoods of every token, masked with the rest of its word."""
        backbone, device, lengths = self.backbone, self.backbone.device, self.lengths
        owner, offset = tokens_of(self.found.counts)
        place = offset + self.first[owner]
        mask = torch.tensor(backbone.vocabulary.mask_id, device=device)
        packs = int(lengths.max(initial=0)) <= backbone.longest_packed
        budget = self.max_tokens or backbone.token_budget()
        for part, width in make_batches(
            lengths[owner], budget, width=_as_they_are, apart=APART, packed=packs
        ):
            both = torch.from_numpy(np.stack((owner[part], place[part]))).to(device)
            sentence, at = both
            rows = self.ids[sentence, :width]
            target = rows.gather(1, at[:, None])
            hidden = torch.arange(width, device=device) == at[:, None]
            if self.masking == "word":
                own = self.words[sentence, :width]
                later = torch.arange(width, device=device) >= at[:, None]
                hidden = (own == own.gather(1, at[:, None])) & later
            rows = torch.where(hidden, mask, rows)
            sizes = lengths[owner[part]]
            if packs:
                length = torch.from_numpy(sizes).to(device)
                packing, which = pack(length, int(sizes.sum()), width)
                embeddings = backbone.embed(rows[which, packing.place])[None]
                at = packing.starts[:-1] + at
                inputs = Inputs(embeddings, None, packing=packing)
            else:
                inputs = Inputs(backbone.embed(rows), self._mask(sizes, width))
            self._add(sentence, backbone.logits_at(inputs, at), target)

    def ask_causal(self) -> None:
        """Add up the log-likelihoods of every token after those before it."""
        backbone, device, lengths = self.backbone, self.backbone.device, self.lengths
        # Every token is asked for, and the budget is meant for one in four.
        budget = max(1, (self.max_tokens or backbone.token_budget()) // 4)
        for part, width in make_batches(lengths, budget, width=_as_they_are, apart=APART):
            owner, offset = tokens_of(self.found.counts[part])
            places = np.stack((owner, offset + self.first[part][owner]))
            row, at = torch.from_numpy(places).to(device)
            sentence = torch.from_numpy(part).to(device)
            rows = self.ids[sentence, :width]
            inputs = Inputs(backbone.embed(rows), self._mask(lengths[part], width))
            logits = backbone.logits_at(inputs, at - 1, row)
            self._add(sentence[row], logits, rows[row, at][:, None])

    def _add(self, sentence: Tensor, logits: Tensor, target: Tensor) -> None:
        """Add the log-likelihoods [n] of tokens [n, 1] to their texts'."""
        best, wanted = logits.amax(1), logits.gather(1, target)[:, 0]
        value = wanted.double() - logits.logsumexp(1).double()
        self.found.total.index_add_(0, sentence, value)
        self.found.missed.index_add_(0, sentence, (wanted < best).double())

    def _mask(self, lengths: np.ndarray, width: int) -> Tensor | None:
        """Return which tokens are real [b, t]; None where all are."""
        if int(lengths.min()) == width:
            return None
        length = torch.from_numpy(lengths).to(self.backbone.device)
        return torch.arange(width, device=length.device) < length[:, None]


def _as_they_are(lengths: np.ndarray) -> np.ndarray:
    return lengths
