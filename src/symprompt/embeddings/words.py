"""Texts as words with positions, the tokens each word is made of, and windows of long texts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from symprompt.errors import DataError, ModelError
from symprompt.models import LanguageModel, Vocabulary

Ints = npt.NDArray[np.int64]

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


@dataclass(frozen=True)
class Windows:
    """The stretches of a text's tokens that the model reads, and the one each word is taken from.

    Attributes:
        starts: [windows], the first token of each.
        ends: [windows], the token after each.
        of_word: [words], the window in which a word has most context.
    """

    starts: Ints
    ends: Ints
    of_word: Ints


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


def make_windows(tokens: Tokens, size: int, *, causal: bool = False) -> Windows:
    """Cut tokens into windows of at most ``size`` that overlap by half.

    A word is taken from the window in which the nearer of its two edges is farthest; an edge at
    which the text itself begins or ends cuts nothing off. A causal model sees the left side alone.

    Args:
        tokens: of one text.
        size: most tokens of a window.
        causal: whether only what comes before a word is its context.
    """
    count = len(tokens.ids)
    if count <= size:
        whole = np.zeros(1, dtype=np.int64)
        return Windows(whole, whole + count, np.zeros(len(tokens.first), dtype=np.int64))
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
    return Windows(starts, ends, context.argmax(axis=1))


def window_size(backbone: LanguageModel, wanted: int = 0) -> int:
    """Return how many tokens of text one window holds.

    Args:
        backbone: the model, whose longest sequence and special tokens are the bound.
        wanted: a smaller size, special tokens not counted; 0 takes the largest (at most 1,024).

    Raises:
        DataError: the size is not possible.
    """
    frame = len(backbone.vocabulary.prefix) + len(backbone.vocabulary.suffix)
    most = min(backbone.max_length, 1024 + frame) - frame
    if not 0 <= wanted <= most:
        raise DataError(f"a window has {wanted} tokens; allowed are 1 to {most}.")
    return wanted or most


def as_texts(texts: Iterable[str | Sequence[str] | Text]) -> Iterator[Text]:
    """Yield strings, lists of words and texts alike as texts.

    Raises:
        DataError: an entry is none of them.
    """
    for text in texts:
        if isinstance(text, Text):
            yield text
        elif isinstance(text, str):
            yield Text.running(text)
        elif isinstance(text, Sequence) and all(isinstance(word, str) for word in text):
            yield Text.of_words(text)
        else:
            raise DataError(f"a text is a {type(text).__name__}; give strings, or lists of words.")
