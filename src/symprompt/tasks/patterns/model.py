"""A language model that answers through a pattern: learned vectors in, scores of answers out."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from symprompt.engine.batches import make_batches
from symprompt.files.progress import Tick, silent
from symprompt.models import Inputs, LanguageModel
from symprompt.prompts import BiLSTMEncoder, FreeVectors, MLPEncoder, PrefixEncoder, PromptEncoder
from symprompt.runs.environment import make_generator
from symprompt.tasks.patterns.config import EncoderKind
from symprompt.tasks.patterns.layout import VerbalLayout

_HEAD_SCALE = 0.02


def make_encoder(
    kind: EncoderKind, count: int, width: int, *, seed: int, task: str, lstm_hidden: int = 0
) -> PromptEncoder:
    """Make what gives the learned vectors, drawn from the seed and the task's name.

    Args:
        lstm_hidden: LSTM size per direction; 0 is the width, as in P-tuning's few-shot code.
    """
    parts = (seed, "pattern")
    if kind == "free":
        return FreeVectors((task,), count, width, seed=parts)
    if kind == "mlp":
        return MLPEncoder((task,), count, width, seed=parts)
    return BiLSTMEncoder((task,), count, width, seed=parts, lstm_hidden=lstm_hidden or width)


class ClassHead(nn.Module):
    """A layer with tanh and a linear one on a hidden state, as BERT's fine-tuning has; final."""

    def __init__(self, hidden: int, classes: int, *, seed: int, task: str) -> None:
        super().__init__()
        generator = make_generator(seed, "head", task)
        self.inner = nn.Parameter(torch.randn(hidden, hidden, generator=generator) * _HEAD_SCALE)
        self.inner_bias = nn.Parameter(torch.zeros(hidden))
        self.outer = nn.Parameter(torch.randn(classes, hidden, generator=generator) * _HEAD_SCALE)
        self.outer_bias = nn.Parameter(torch.zeros(classes))

    def forward(self, states: Tensor) -> Tensor:
        """Return scores [.., classes] of states [.., hidden]."""
        inner = functional.linear(states, self.inner, self.inner_bias).tanh()
        return functional.linear(inner, self.outer, self.outer_bias)


class VerbalModel:
    """Scores answers of tensorised examples; final.

    With an encoder its vectors stand in the pattern, with one of prefixes every layer reads its
    keys and values; with a head the head's classes are scored instead of words. The vocabulary
    product, the head and the encoder run in the weights' own precision whatever the body's.

    Args:
        backbone: the language model.
        extra: an encoder of vectors or of a prefix, a class head, or None for a manual pattern.
        half: run the body in bfloat16 (autocast), its weights staying as they are; None does so on
            a GPU where they are float32.
    """

    def __init__(
        self,
        backbone: LanguageModel,
        extra: PromptEncoder | ClassHead | None = None,
        *,
        half: bool | None = None,
    ) -> None:
        self.backbone = backbone
        exact = torch.float64 if backbone.dtype == torch.float64 else torch.float32
        self.extra = None if extra is None else extra.to(backbone.device, exact).eval()
        wide = backbone.dtype == torch.float32 and backbone.decoder is not None
        self.half = (wide and backbone.device.type == "cuda") if half is None else half

    def scores(self, layout: VerbalLayout, rows: Tensor, width: int) -> Tensor:
        """Return the answers' scores [b, c]: log-likelihoods, or a head's logits.

        Args:
            layout: the examples.
            rows: [b] which of them.
            width: no sentence of theirs is longer.
        """
        inputs = self.inputs(layout, rows, width)
        sentences = layout.ids.shape[1]
        first = torch.arange(len(rows), device=rows.device)[:, None] * sentences
        which = (first + layout.sentence[rows]).flatten()
        at = layout.at[rows].flatten()
        if isinstance(self.extra, ClassHead):
            return self._classes(self.extra, inputs, at, which, layout.answers)
        logits = self.token_logits(inputs, at, which)
        target = layout.target[rows]
        likelihoods = logits.log_softmax(-1).gather(1, target.flatten()[:, None]).view_as(target)
        weighted = likelihoods * layout.weight[rows].to(likelihoods.dtype)
        nothing = weighted.new_zeros(len(rows), layout.answers)
        return nothing.scatter_add(1, layout.slot[rows], weighted)

    def token_logits(self, inputs: Inputs, at: Tensor, which: Tensor) -> Tensor:
        """Return the logits at places of sentences, [n, v], in the body's precision."""
        with self._precision():
            return self.backbone.logits_at(inputs, at, rows=which)

    def loss(self, layout: VerbalLayout, rows: Tensor, width: int) -> Tensor:
        """Return the losses [b]: cross-entropy among the answers, or minus the only one's score."""
        scores = self.scores(layout, rows, width)
        if layout.answers == 1:
            return -scores[:, 0]
        return functional.cross_entropy(scores, layout.labels[rows], reduction="none")

    def inputs(
        self, layout: VerbalLayout, rows: Tensor, width: int, ids: Tensor | None = None
    ) -> Inputs:
        """Return what the model reads; ids [b, s, width] may take the place of the layout's."""
        tokens = (layout.ids[rows, :, :width] if ids is None else ids).flatten(0, 1)
        embeddings = self.backbone.embed(tokens)
        prefix = self.extra.prefix() if isinstance(self.extra, PrefixEncoder) else None
        if isinstance(self.extra, PromptEncoder) and prefix is None:
            places = layout.vectors[rows].flatten(0, 1)[:, :, None]
            size = (*places.shape[:2], embeddings.shape[2])
            vectors = self.extra()[0].to(embeddings.dtype).expand(size)
            embeddings = embeddings.scatter(1, places.expand(size), vectors)
        lengths = layout.lengths[rows].flatten()
        mask = torch.arange(width, device=rows.device) < lengths[:, None]
        return Inputs(embeddings, mask, prefix=prefix)

    def _classes(
        self, head: ClassHead, inputs: Inputs, at: Tensor, which: Tensor, answers: int
    ) -> Tensor:
        """Return [b, answers]: one state's classes, or one class of each choice's state."""
        with self._precision():
            hidden = self.backbone.states(inputs, grad_model=True)
        states = hidden.flatten(0, 1).index_select(0, which * hidden.shape[1] + at)
        scores: Tensor = head(states.to(head.outer.dtype))
        return scores.view(-1, answers)

    @contextmanager
    def _precision(self) -> Iterator[None]:
        """Run the body in half precision and the vocabulary product in the weights' own."""
        decoder = self.backbone.decoder
        if not self.half or decoder is None:
            yield
            return
        before = decoder.forward
        decoder.forward = lambda hidden: _whole(decoder, hidden)  # type: ignore[method-assign, assignment]
        try:
            # Every weight is cast once a pass, and a cache of casts would outlive a recorded pass.
            with torch.autocast(self.backbone.device.type, torch.bfloat16, cache_enabled=False):
                yield
        finally:
            decoder.forward = before  # type: ignore[method-assign]

    @contextmanager
    def training(self, *, dropout: bool) -> Iterator[None]:
        """Run with the prefix's dropout on, and with the language model's own if asked for."""
        inner: AbstractContextManager[None] = self.backbone.dropout() if dropout else nullcontext()
        if self.extra is not None:
            self.extra.train()
        try:
            with inner:
                yield
        finally:
            if self.extra is not None:
                self.extra.eval()


def _whole(decoder: nn.Linear, hidden: Tensor) -> Tensor:
    with torch.autocast(hidden.device.type, enabled=False):
        return functional.linear(hidden.to(decoder.weight.dtype), decoder.weight, decoder.bias)


def passes(layout: VerbalLayout, *, max_tokens: int, vocabulary: int) -> list[np.ndarray]:
    """Return the rows of each pass over a split: sorted by length, bounded in tokens and logits.

    Args:
        max_tokens: most tokens in one pass.
        vocabulary: how many logits one position has; a pass has no more than 256 of them for each
            of its tokens at most.
    """
    sentences, queries = int(layout.ids.shape[1]), int(layout.at.shape[1])
    most = max(1, 256 * max(max_tokens, vocabulary) // (queries * vocabulary))
    found = make_batches(
        layout.widths, max_tokens, width=lambda own: own, sequences=sentences, most=most
    )
    return [batch.rows for batch in found]


@torch.no_grad()
def score_split(
    model: VerbalModel, layout: VerbalLayout, *, max_tokens: int, tick: Tick = silent
) -> Tensor:
    """Return the answers' scores of every example of a split, [n, c] on the host."""
    found = torch.zeros(len(layout), layout.answers, dtype=torch.float64)
    size = model.backbone.vocabulary_size
    waiting: list[tuple[np.ndarray, Tensor]] = []
    done = 0
    for rows in passes(layout, max_tokens=max_tokens, vocabulary=size):
        width = layout.width_of(rows)
        place = torch.from_numpy(rows).to(layout.ids.device)
        waiting.append((rows, model.scores(layout, place, width)))
        done += len(rows)
        tick("predicting", done, len(layout), "")
    for rows, scores in waiting:
        found[rows] = scores.to("cpu", torch.float64)
    return found


_ARTICLES = frozenset({"a", "an", "the"})


@torch.no_grad()
def write_spans(model: VerbalModel, layout: VerbalLayout, *, max_tokens: int) -> list[list[int]]:
    """Return the tokens that the model writes in the place of every example's span."""
    found: list[list[int]] = [[] for _ in range(len(layout))]
    size = model.backbone.vocabulary_size
    for rows in passes(layout, max_tokens=max_tokens, vocabulary=size):
        place = torch.from_numpy(rows).to(layout.ids.device)
        width = layout.width_of(rows)
        written = _fill(model, layout, place, width)
        counts = (layout.weight[place] > 0).sum(1).tolist()
        for row, tokens, count in zip(rows, written.tolist(), counts, strict=True):
            found[row] = tokens[:count]
    return found


def _fill(model: VerbalModel, layout: VerbalLayout, rows: Tensor, width: int) -> Tensor:
    """Return [b, a] tokens, one for each place, those beyond an example's own without meaning."""
    causal = model.backbone.causal
    ids = layout.ids[rows, :1, :width].clone()
    at = layout.at[rows]
    batch, places = at.shape
    own = layout.weight[rows] > 0
    written = torch.zeros_like(at)
    left = own.clone()
    line = torch.arange(batch, device=rows.device)
    for turn in range(places):
        inputs = model.inputs(layout, rows, width, ids)
        which = line[:, None].expand(batch, places).flatten()
        logits = model.token_logits(inputs, at.flatten(), which)
        best, token = logits.log_softmax(-1).view(batch, places, -1).max(-1)
        if causal:
            place = torch.full_like(line, turn)
        else:
            place = best.masked_fill(~left, -torch.inf).argmax(1)
        chosen = left[line, place]
        written[line, place] = torch.where(chosen, token[line, place], written[line, place])
        left[line, place] = False
        to = (at[line, place] + int(causal)).clamp(max=width - 1)
        # What a causal model wrote last stands beyond its sentence and is not read again.
        ids[line, 0, to] = torch.where(chosen, token[line, place], ids[line, 0, to])
        if not bool(left.any()):
            break
    return written


def same_words(one: str, other: str) -> bool:
    """Return whether all words of one text are in the other; case, marks and articles aside."""
    first, second = _words(one), _words(other)
    if not first or not second:
        return False
    return first <= second or second <= first


def judge_spans(written: Sequence[str], wanted: Sequence[str]) -> npt.NDArray[np.int64]:
    """Return 1 where what was written is what was wanted, else 0."""
    pairs = zip(written, wanted, strict=True)
    return np.array([int(same_words(one, other)) for one, other in pairs], dtype=np.int64)


def _words(text: str) -> set[str]:
    words = set(re.findall(r"[^\W_]+", text.lower()))
    return words - _ARTICLES or words
