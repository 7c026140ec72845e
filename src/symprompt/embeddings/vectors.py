"""Contextual vectors from a model's hidden states: of each word of a text, or of the whole text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from symprompt.engine.batches import make_batches
from symprompt.errors import ConfigError, DataError, ModelError
from symprompt.files.progress import Tick, silent
from symprompt.files.reading import shorten
from symprompt.files.text import file_digest, find_files, gather, read_documents
from symprompt.models import SHIPPED, Inputs, LanguageModel, Vocabulary
from symprompt.runs.environment import send

Ints = npt.NDArray[np.int64]
Pool = Literal["first", "mean", "text-mean", "text-cls", "text-last"]
By = Literal["document", "line"]
_LAYERS = re.compile(r"last|all|(?P<how>mean|sum)-last-(?P<count>[1-9]\d?)|(?P<number>\d{1,3})")
_CPU_TOKENS = 4096
_GPU_TOKENS = 1 << 16
# Characters that are tensorised together: enough to sort by length, little enough to hold, and on
# a CPU some twenty seconds of work, as often as progress is reported and kept.
_CPU_CHUNK = 1 << 17
_GPU_CHUNK = 1 << 21
# Runs of letters and digits, held together by a hyphen, an apostrophe or a point between two of
# them (don't, well-known, U.S, 3.5); every other sign that is no space is a word of its own.
_WORD = re.compile(r"\w+(?:[-'’.,]\w+)*|[^\w\s]")


@dataclass(frozen=True)
class Text:
    """A text and where its words stand in it.

    Attributes:
        text: the text as it is read by the model.
        starts: [words], the first character of each word.
        ends: [words], the character after each word; words do not overlap and stand in order.
        label: what is to be kept with the text, such as its language.
    """

    text: str
    starts: Ints
    ends: Ints
    label: str = ""

    def __len__(self) -> int:
        return len(self.starts)

    @classmethod
    def running(cls, text: str, label: str = "") -> Text:
        """Find the words of running text."""
        places = [match.span() for match in _WORD.finditer(text)]
        starts, ends = np.array(places, dtype=np.int64).reshape(-1, 2).T
        return cls(text, starts, ends, label)

    @classmethod
    def of_words(cls, words: Sequence[str], label: str = "") -> Text:
        """Put words that are known already into one text, a space between them.

        Raises:
            DataError: a word is empty.
        """
        if not all(words):
            raise DataError("a word is empty; give words of one character or more.")
        sizes = np.array([len(word) for word in words], dtype=np.int64)
        ends = np.cumsum(sizes + 1) - 1
        return cls(" ".join(words), ends - sizes, ends, label)

    @classmethod
    def marked(cls, text: str) -> Text:
        """Read a text in which one word, its only one then, stands in brackets: the [die] is cast.

        Raises:
            DataError: none or several are marked, or what is marked is no single word.
        """
        before, opened, rest = text.partition("[")
        word, closed, after = rest.partition("]")
        if not opened or not closed or "[" in after or not word.strip():
            raise DataError(
                f"{text!r} does not mark one word; put it in brackets: the [die] is cast."
            )
        found = cls.running(before + word + after)
        first = len(before) + len(word) - len(word.lstrip())
        at = np.flatnonzero((found.starts <= first) & (found.ends > first))
        if len(at) != 1 or found.words()[int(at[0])] != word.strip():
            raise DataError(f"{word!r} in {text!r} is no single word; mark one word only.")
        return replace(found, starts=found.starts[at], ends=found.ends[at])

    def whole(self) -> Text:
        """Return the text as one word, whose vector is that of the text."""
        return replace(self, starts=np.zeros(1, np.int64), ends=np.full(1, len(self.text)))

    def words(self) -> list[str]:
        """Return the words as they are written."""
        pairs = zip(self.starts.tolist(), self.ends.tolist(), strict=True)
        return [self.text[start:end] for start, end in pairs]


@dataclass(frozen=True)
class Tokens:
    """A text's tokens without special ones, and which of them each word is made of.

    Attributes:
        ids: [tokens].
        first: [words], the first token of each word.
        last: [words], the token after each word's last; equal to first for a word that the
            tokenizer leaves out.
    """

    ids: Ints
    first: Ints
    last: Ints


def tokenise(vocabulary: Vocabulary, texts: Sequence[Text]) -> Iterator[Tokens]:
    """Yield each text's tokens, aligned with its words by their characters in the text.

    A token that reaches over two words belongs to both.

    Raises:
        ModelError: the tokenizer gives no character offsets.
    """
    if not getattr(vocabulary.tokenizer, "is_fast", False):
        raise ModelError(
            "the model's tokenizer gives no character offsets of its tokens, so words have no "
            "vectors; save the model with a tokenizer.json."
        )
    encoded = vocabulary.tokenizer(
        [text.text for text in texts],
        add_special_tokens=False,
        return_offsets_mapping=True,
        return_attention_mask=False,
        verbose=False,
    )
    for text, ids, places in zip(
        texts, encoded["input_ids"], encoded["offset_mapping"], strict=True
    ):
        begins, stops = np.array(places, dtype=np.int64).reshape(-1, 2).T
        # Tokens of no extent (a lone word-start mark) must not break the order that is searched.
        begins, stops = np.maximum.accumulate(begins), np.maximum.accumulate(stops)
        first = np.searchsorted(stops, text.starts, side="right")
        last = np.maximum(first, np.searchsorted(begins, text.ends, side="left"))
        yield Tokens(np.array(ids, dtype=np.int64), first, last)


def make_windows(tokens: Tokens, size: int, *, causal: bool = False) -> tuple[Ints, Ints, Ints]:
    """Cut tokens into windows of at most ``size`` that overlap by half.

    A word is taken from the window in which the nearer of its two edges is farthest; an edge at
    which the text itself begins or ends cuts nothing off. A causal model sees the left side alone.

    Args:
        tokens: of one text.
        size: most tokens of a window.
        causal: whether only what comes before a word is its context.

    Returns:
        [windows], the first token of each; [windows], the token after each; [words], the window in
        which a word has most context.
    """
    count = len(tokens.ids)
    if count <= size:
        whole = np.zeros(1, dtype=np.int64)
        return whole, whole + count, np.zeros(len(tokens.first), dtype=np.int64)
    starts = np.append(np.arange(0, count - size, max(1, size // 2)), count - size)
    ends = starts + size
    far = np.int64(count + 1)
    left = tokens.first[:, None] - starts
    right = ends - tokens.last[:, None]
    inside = (left >= 0) & (right >= 0)
    left = np.where((starts == 0) & (left >= 0), far, left)
    right = np.where(((ends == count) | causal) & (right >= 0), far, right)
    # A word longer than a window's half may lie in none as a whole: the least cut one is taken.
    context = np.where(inside, far, 0) + np.minimum(left, right)
    return starts, ends, context.argmax(axis=1)


@dataclass(frozen=True)
class Choice:
    """What has a vector, a word or a whole text, which layers are combined and how its tokens are.

    Attributes:
        layers: last, mean-last-N, sum-last-N, a layer's number (0 is the embeddings), or all: every
            layer by itself.
        pool: of a word its first sub-token (first) or the mean of all of them (mean). Of a whole
            text the mean of its tokens (text-mean; [CLS] and [SEP] are counted, as sentence
            encoders are trained; what a causal model begins with is not), the token that a masked
            model begins with (text-cls), or the last one of a causal model (text-last). The vector
            of a text longer than a window is the mean of its windows'.
        window: tokens of a window of long texts; 0 takes as many as the model reads.
        max_tokens: most tokens in one pass; 0 chooses by device.
    """

    layers: str = "last"
    pool: Pool = "mean"
    window: int = 0
    max_tokens: int = 0

    def __post_init__(self) -> None:
        if not _LAYERS.fullmatch(self.layers):
            raise ConfigError(
                f"layers is {self.layers!r}; use last, mean-last-4, sum-last-4 (or another number "
                "than 4), or the number of one layer (0 is the embeddings)."
            )
        if self.pool not in get_args(Pool):
            raise ConfigError(
                f"pool is {self.pool!r}; use first or mean for words, text-mean, text-cls or "
                "text-last for whole texts."
            )

    @property
    def of_texts(self) -> bool:
        """Whether a vector is of a whole text, not of a word."""
        return self.pool.startswith("text-")

    def read(self, text: str) -> Text:
        """Return a text to be compared: with the one word that it marks, or to be taken whole.

        Raises:
            DataError: not one word is marked, though words have the vectors.
        """
        return Text.running(text).whole() if self.of_texts else Text.marked(text)

    def _parse(self) -> re.Match[str]:
        return cast(re.Match[str], _LAYERS.fullmatch(self.layers))

    def check(self, backbone: LanguageModel) -> None:
        """Refuse layers that a model does not have, and a token that says nothing in it.

        Raises:
            ConfigError: it has fewer layers, no [CLS], or reads on after the last token.
        """
        most, found = layer_count(backbone), self._parse()
        asked = int(found["count"] or found["number"] or 0)
        if asked > most:
            raise ConfigError(
                f"layers is {self.layers!r}, but the model has {most} layers; give at most {most}."
            )
        if self.pool == "text-cls" and (backbone.causal or not backbone.vocabulary.prefix):
            other = "text-last or text-mean" if backbone.causal else "text-mean"
            raise ConfigError(
                f"pool is text-cls, but {backbone.source} has no [CLS] token that reads the text; "
                f"use {other}."
            )
        if self.pool == "text-last" and not backbone.causal:
            raise ConfigError(
                f"pool is text-last, but {backbone.source} is a masked model, whose last token is "
                "no summary; use text-mean or text-cls."
            )

    def combine(self, states: Sequence[Tensor]) -> Tensor:
        """Return [b, t, h] in float32 (or float64), [b, t, layers, h] for all.

        Args:
            states: of the embeddings and of each layer, [b, t, h] each.
        """
        wide = torch.promote_types(states[-1].dtype, torch.float32)
        found = self._parse()
        if self.layers == "all":
            return torch.stack([state.to(wide) for state in states], dim=2)
        if found["how"] is None:
            return states[-1 if found["number"] is None else int(found["number"])].to(wide)
        count = int(found["count"])
        total = sum((state.to(wide) for state in states[-count:-1]), states[-1].to(wide))
        return total / count if found["how"] == "mean" else total


def layer_count(backbone: LanguageModel) -> int:
    """Return how many layers a model has, the embeddings not counted."""
    return int(backbone.model.config.get_text_config().num_hidden_layers)


@dataclass(frozen=True)
class WordVectors:
    """The words of some texts and their vectors, row by row; a text's, if it was taken as a whole.

    Attributes:
        texts: the texts, in the order they were given; with one word each if taken as a whole.
        vectors: [words, h] (or [words, layers, h]).
        tokens: [words], how many sub-tokens each has; 0 for one the tokenizer left out, whose
            vector is zero.
    """

    texts: tuple[Text, ...]
    vectors: npt.NDArray[np.floating]
    tokens: Ints

    def words(self) -> list[str]:
        """Return every row's word as it is written."""
        return [word for text in self.texts for word in text.words()]


def embed_chunks(
    backbone: LanguageModel,
    texts: Iterable[Text],
    choice: Choice,
    *,
    dtype: npt.DTypeLike = np.float32,
    chunk: int = 0,
    total: int = 0,
    tick: Tick = silent,
) -> Iterator[WordVectors]:
    """Yield the vectors of every word, or of every text, in order, some texts at a time.

    Args:
        backbone: the model, masked or causal.
        texts: read as they are needed.
        choice: layers and pooling.
        dtype: of the vectors that come out; sums are float32 whatever it is.
        chunk: characters of text, roughly four times its tokens, that are tensorised together;
            0 chooses by device.
        total: number of texts, for the progress; 0 if it is not known.
        tick: called with the texts done, stage "embed".

    Raises:
        ModelError: a vector is not finite.
    """
    choice.check(backbone)
    most = chunk or (_GPU_CHUNK if backbone.device.type == "cuda" else _CPU_CHUNK)
    done = 0
    for held in gather(texts, lambda text: len(text.text) + 1, most):
        made = _embed(backbone, held, choice, dtype)
        done += len(held)
        tick("embed", done, max(total, done), "texts")
        yield made


def _embed(
    backbone: LanguageModel, texts: list[Text], choice: Choice, dtype: npt.DTypeLike
) -> WordVectors:
    if choice.of_texts:
        texts = [text.whole() for text in texts]
    tokens = list(tokenise(backbone.vocabulary, texts))
    plan = _Plan.make(backbone, tokens, choice)
    width = backbone.model.config.get_text_config().hidden_size
    words = len(plan.first)
    shape = (words, layer_count(backbone) + 1, width) if choice.layers == "all" else (words, width)
    vectors = np.zeros(shape, dtype=np.float32 if choice.of_texts else dtype)
    most = choice.max_tokens or (_GPU_TOKENS if backbone.device.type == "cuda" else _CPU_TOKENS)
    waiting: tuple[Ints, Tensor] | None = None
    with torch.inference_mode():
        for batch in (*plan.batches(most), None):
            found = None if batch is None else _run(backbone, plan, batch, choice)
            # Fetched one batch late, so that a GPU has the next one to work on meanwhile.
            if waiting is not None:
                rows, values = waiting
                with np.errstate(over="ignore"):
                    vectors[rows] = values.cpu().numpy().astype(vectors.dtype, copy=False)
            waiting = found
    counts = np.concatenate([entry.last - entry.first for entry in tokens])
    if choice.of_texts:
        counts = np.array([len(entry.ids) for entry in tokens])
        each = np.bincount(plan.texts).reshape(-1, *(1,) * (vectors.ndim - 1))
        totals = np.add.reduceat(vectors, np.searchsorted(plan.texts, np.arange(len(texts))))
        with np.errstate(over="ignore"):
            vectors = (totals / each).astype(dtype)
    made = WordVectors(tuple(texts), vectors, counts)
    finite = np.isfinite(vectors).reshape(len(vectors), -1).all(axis=1)
    if not finite.all():
        word = made.words()[int(finite.argmin())]
        raise ModelError(
            f"{backbone.source} gives {shorten(word)} a vector that is not finite in "
            f"{vectors.dtype}; use --dtype float32, other --layers, or another model."
        )
    return made


@dataclass(frozen=True)
class _Plan:
    """Windows and words of some texts as flat arrays, so that batches need no loop over them.

    Attributes:
        ids: every text's tokens, one after the other.
        starts, sizes: [windows], where each begins in ids and how many tokens it has.
        first, last: [words], tokens of each word counted from its window's start; a whole text
            has as many words as windows.
        texts: [words], the text of each.
        order: [words], the words sorted by window.
        bounds: [windows + 1], where each window's words begin in order.
        frame: the special tokens before and after each window.
    """

    ids: Ints
    starts: Ints
    sizes: Ints
    first: Ints
    last: Ints
    texts: Ints
    order: Ints
    bounds: Ints
    frame: tuple[Ints, Ints]
    pad: int

    @classmethod
    def make(cls, backbone: LanguageModel, tokens: Sequence[Tokens], choice: Choice) -> _Plan:
        vocabulary = backbone.vocabulary
        frame = [np.array(own, np.int64) for own in (vocabulary.prefix, vocabulary.suffix)]
        around = len(frame[0]) + len(frame[1])
        most = min(backbone.max_length, 1024 + around) - around
        if not 0 <= choice.window <= most:
            raise DataError(f"a window has {choice.window} tokens; allowed are 1 to {most}.")
        rows = []
        offset = windows = 0
        for entry in tokens:
            size = choice.window or most
            if choice.of_texts:
                opens, closes = _share(len(entry.ids), size)
                window = np.arange(len(opens))
                begin, end = _whole(closes - opens, choice, frame, causal=backbone.causal)
            else:
                opens, closes, window = make_windows(entry, size, causal=backbone.causal)
                begin = np.maximum(entry.first, opens[window]) - opens[window]
                end = np.minimum(entry.last, closes[window]) - opens[window]
            rows.append((entry.ids, opens + offset, closes - opens, begin, end, window + windows))
            offset += len(entry.ids)
            windows += len(opens)
        ids, starts, sizes, first, last, owner = map(np.concatenate, zip(*rows, strict=True))
        order = np.argsort(owner, kind="stable")
        return cls(
            ids,
            starts,
            sizes,
            first,
            last,
            np.repeat(np.arange(len(tokens)), [len(row[-1]) for row in rows]),
            order,
            np.searchsorted(owner[order], np.arange(windows + 1)),
            (frame[0], frame[1]),
            vocabulary.pad_id,
        )

    def batches(self, most: int) -> Iterator[Ints]:
        """Yield windows of about the same size, at most so many tokens with padding."""
        used = np.flatnonzero(np.diff(self.bounds))
        sizes = self.sizes[used] + len(self.frame[0]) + len(self.frame[1])
        for rows, _ in make_batches(sizes, most, width=lambda own: own, order="longest"):
            yield used[rows]

    def layout(self, windows: Ints) -> tuple[Ints, npt.NDArray[np.bool_]]:
        """Return ids and mask [b, t] of some windows, special tokens around each."""
        before, after = self.frame
        sizes = self.sizes[windows]
        places = np.arange(int(sizes.max()) + len(before) + len(after)) - len(before)
        index = np.clip(self.starts[windows, None] + places, 0, max(0, len(self.ids) - 1))
        ids = self.ids[index] if len(self.ids) else np.full(index.shape, self.pad)
        ids[:, : len(before)] = before
        rows = np.arange(len(windows))
        for number, token in enumerate(after):
            ids[rows, len(before) + sizes + number] = token
        mask = places < (sizes + len(after))[:, None]
        return np.where(mask, ids, self.pad), mask

    def words(self, windows: Ints) -> tuple[Ints, Ints]:
        """Return the words of some windows and the row of the batch each stands in."""
        counts = self.bounds[windows + 1] - self.bounds[windows]
        rows = np.repeat(np.arange(len(windows)), counts)
        return self.order[_ranges(self.bounds[windows], counts)], rows


def _share(count: int, size: int) -> tuple[Ints, Ints]:
    """Return the starts and ends of as few windows as hold all tokens once, alike in size."""
    parts = max(1, -(-count // size))
    bounds = np.arange(parts + 1, dtype=np.int64) * count // parts
    return bounds[:-1], bounds[1:]


def _whole(
    sizes: Ints, choice: Choice, frame: Sequence[Ints], *, causal: bool
) -> tuple[Ints, Ints]:
    """Return the first token of each window that its vector is made of, and the one after the last.

    A window without tokens has none.
    """
    before, after = len(frame[0]), len(frame[1])
    first, last = {
        "text-cls": (sizes * 0 - before, sizes * 0 - before + 1),
        "text-last": (sizes - 1, sizes),
        "text-mean": (sizes * 0, sizes) if causal else (sizes * 0 - before, sizes + after),
    }[choice.pool]
    return first, np.where(sizes > 0, last, first)


def _ranges(starts: Ints, counts: Ints) -> Ints:
    """Return start, start + 1, ... of every entry, one after the other."""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    found: Ints = np.arange(total) + np.repeat(starts - (ends - counts), counts)
    return found


def _run(
    backbone: LanguageModel, plan: _Plan, windows: Ints, choice: Choice
) -> tuple[Ints, Tensor]:
    """Return some words and their vectors, still on the device."""
    ids, mask = plan.layout(windows)
    words, rows = plan.words(windows)
    before = len(plan.frame[0])
    first = rows * ids.shape[1] + before + plan.first[words]
    counts = plan.last[words] - plan.first[words]
    # A word the tokenizer left out has no sub-token and keeps a vector of zeros.
    there = counts > 0
    words, first, counts = words[there], first[there], counts[there]
    device = backbone.device
    sent = send(ids, device)
    inputs = Inputs(backbone.embed(sent), None if mask.all() else send(mask, device))
    states = choice.combine(backbone.layer_states(inputs)).flatten(0, 1)
    shape = states.shape[1:]
    states = states.flatten(1)
    if choice.pool == "first":
        found = states.index_select(0, send(first, device))
    else:
        offsets = np.cumsum(counts) - counts
        found = functional.embedding_bag(
            send(_ranges(first, counts), device), states, send(offsets, device), mode="mean"
        )
    return words, found.view(len(words), *shape)


def embed(
    texts: Iterable[str | Sequence[str] | Text],
    *,
    model: str | LanguageModel = SHIPPED,
    layers: str = "last",
    pool: Pool = "mean",
    window: int = 0,
    device: str = "auto",
    tick: Tick = silent,
) -> WordVectors:
    """Return a contextual embedding of every word of every text, or of every text, in memory.

    Texts longer than the model reads are cut into windows that overlap by half; each word is taken
    from the window in which it has most context. A whole text is cut into windows without overlap,
    and its vector is their mean. For more than memory holds, ``write_embeddings``.

    Args:
        texts: strings, whose words are found, or lists of words.
        model: a folder, hub name or "shipped", masked or causal; or a loaded backbone.
        layers: last, mean-last-4, sum-last-4 (or another number), a layer's number, or all.
        pool: a word's first sub-token (first) or the mean of all of them (mean); of a whole text
            text-mean, text-cls (masked models) or text-last (causal ones).
        window: tokens of a window; 0 takes as many as the model reads.
        device: auto, cpu, cuda, cuda:N or mps.
        tick: called with the texts done, stage "embed", and a line about what of the model was not
            trained.

    Raises:
        DataError: there is no text, or one is not text.

    Example:
        >>> found = embed(["The die is cast ."], layers="last")
        >>> found.words()[1], len(found.vectors)
        ('die', 5)
    """
    if isinstance(texts, str):
        raise DataError("texts is one string; give a list of texts, such as [text].")
    given = []
    for text in texts:
        if isinstance(text, str):
            text = Text.running(text)
        elif isinstance(text, Sequence) and all(isinstance(word, str) for word in text):
            text = Text.of_words(text)
        if not isinstance(text, Text):
            raise DataError(f"a text is a {type(text).__name__}; give strings, or lists of words.")
        given.append(text)
    if not given:
        raise DataError("there is no text to embed; give at least one.")
    backbone = model
    if not isinstance(backbone, LanguageModel):
        backbone = LanguageModel.load(backbone, device=device, head=False, tick=tick)
    choice = Choice(layers, pool, window)
    parts = list(embed_chunks(backbone, given, choice, total=len(given), tick=tick))
    return WordVectors(
        tuple(text for part in parts for text in part.texts),
        np.concatenate([part.vectors for part in parts]),
        np.concatenate([part.tokens for part in parts]),
    )


def read_corpus(
    sources: Sequence[str | Path], by: By = "document", *, holding: Sequence[str] = ()
) -> Iterator[Text]:
    """Yield the texts of files or folders: documents, or each of their lines by itself.

    A source may carry its language in front (``de=FILE``), which becomes the texts' label.

    Args:
        sources: files and folders.
        by: document or line.
        holding: only texts with one of these in them, in upper or lower case; empty takes all.

    Raises:
        DataError: a source is missing, empty or not text.
    """
    wanted = [word.casefold() for word in holding]
    for document in read_documents(sources):
        for part in document.lines if by == "line" else ("\n".join(document.lines),):
            if not wanted or any(word in part.casefold() for word in wanted):
                yield Text.running(part, document.language)


def describe_corpus(sources: Sequence[str | Path], by: By = "document") -> dict[str, Any]:
    """Return what identifies a corpus: its files, their content, how it is cut into texts."""
    files = find_files(sources)
    digests = [file_digest(file.path) for file in files]
    return {"files": [file.label for file in files], "sha256": digests, "by": by}
