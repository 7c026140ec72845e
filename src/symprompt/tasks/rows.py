"""Parts of token sequences as rows, with a tokenizer's special tokens around them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from symprompt.errors import ConfigError, DataError
from symprompt.models import LanguageModel
from symprompt.models.vocabulary import Vocabulary
from symprompt.tasks.windows import Ints, fill


@dataclass(frozen=True)
class Frame:
    """What stands before, between and after texts; final.

    Attributes:
        before: the tokens before the first text.
        between: the tokens between two texts: [SEP], RoBERTa's two, or a causal model's new line.
        after: the tokens after the last text; a causal model has none.
        closing: one token that a causal model reads after a context, to say "no answer" there.
    """

    before: tuple[int, ...]
    between: tuple[int, ...]
    after: tuple[int, ...]
    closing: tuple[int, ...]

    @classmethod
    def of(cls, vocabulary: Vocabulary) -> Frame:
        """Ask a tokenizer how it frames texts; where it does not say, [SEP] stands between two."""
        before, after = tuple(vocabulary.prefix), tuple(vocabulary.suffix)
        if vocabulary.causal:
            between = _new_line(vocabulary)
            return cls(before, between, after, between[-1:])
        return cls(before, _between(vocabulary, before, after), after, ())


def takes_types(backbone: LanguageModel) -> bool:
    """Return whether a model tells a first segment from a second one."""
    config = backbone.model.config.get_text_config()
    return not backbone.causal and int(getattr(config, "type_vocab_size", 0) or 0) > 1


def _between(
    vocabulary: Vocabulary, before: tuple[int, ...], after: tuple[int, ...]
) -> tuple[int, ...]:
    first, second = vocabulary.encode(["x", "y"])
    ids = list(vocabulary.tokenizer("x", "y")["input_ids"])
    head, tail = [*before, *first], [*second, *after]
    middle = ids[len(head) : len(ids) - len(tail)]
    if middle and ids == [*head, *middle, *tail]:
        return tuple(middle)
    tokenizer = vocabulary.tokenizer
    others = (tokenizer.sep_token_id, tokenizer.eos_token_id, vocabulary.mask_id)
    return after or (int(next(token for token in others if token is not None)),)


def _new_line(vocabulary: Vocabulary) -> tuple[int, ...]:
    ids = vocabulary.encode_glued("\n")
    if ids and vocabulary.unknown_id not in ids:
        return tuple(ids)
    end = vocabulary.tokenizer.eos_token_id
    return (vocabulary.pad_id if end is None else int(end),)


@dataclass(frozen=True)
class Sheet:
    """What rows are like: the tokenizer, its special tokens, how long, with segments or not."""

    vocabulary: Vocabulary
    frame: Frame
    max_length: int
    stride: int
    types: bool

    @classmethod
    def make(
        cls,
        vocabulary: Vocabulary,
        *,
        max_length: int,
        stride: int = 128,
        token_types: bool | None = None,
    ) -> Sheet:
        """Check the settings and make a sheet of them.

        Args:
            max_length: the most tokens of a row, special tokens included.
            stride: tokens that two neighbouring windows of a long text share, as transformers
                counts it; never more than half of a window.
            token_types: whether to make segment types; without a word, if the tokenizer has them.

        Raises:
            ConfigError: the settings leave no room for any text.
        """
        frame = Frame.of(vocabulary)
        # Two words at least, or nothing can be split.
        least = len(frame.before) + len(frame.between) + len(frame.after) + len(frame.closing) + 4
        if max_length < least:
            raise ConfigError(
                f"max_length is {max_length}, but at least {least} is needed for special tokens "
                "and some text; raise it."
            )
        if stride < 0:
            raise ConfigError(f"stride is {stride}, but only 0 or more is allowed; raise it.")
        if token_types is None:
            token_types = "token_type_ids" in vocabulary.tokenizer.model_input_names
        return cls(vocabulary, frame, max_length, stride, token_types and not vocabulary.causal)

    def room(self, *, pair: bool, closing: bool = False) -> int:
        """Return how many tokens of text fit into a row."""
        frame = self.frame
        special = len(frame.before) + len(frame.after) + len(frame.between) * pair
        return self.max_length - special - len(frame.closing) * closing

    def check_room(
        self, room: NDArray[np.int64], fits: NDArray[np.bool_], ids: Sequence[str], kept: str
    ) -> None:
        """Refuse an example whose other parts leave too little room for the text that is split."""
        least = max(1, self.max_length // 8)
        short = np.flatnonzero(~fits & (room < least))
        if len(short):
            first = int(short[0])
            raise DataError(
                f"example {ids[first]!r} is longer than {self.max_length} tokens and its {kept} "
                f"leaves {max(0, int(room[first]))} of them for the rest, but at least {least} are "
                f"needed ({len(short)} such example(s)); raise max_length or shorten it."
            )


def encode(vocabulary: Vocabulary, texts: Sequence[str], *, offsets: bool = False) -> Any:
    """Return texts' ids without special tokens; long texts are expected and not complained of."""
    if not texts:
        return {"input_ids": [], "offset_mapping": []}
    return vocabulary.tokenizer(
        list(texts), add_special_tokens=False, return_offsets_mapping=offsets, verbose=False
    )


def something(ids: Sequence[Sequence[int]], vocabulary: Vocabulary) -> list[Sequence[int]]:
    """Return token lists with an unknown token in those that are empty.

    A tokenizer reads some texts as nothing (control characters, spaces of no width), but every
    text and word needs a place.
    """
    others = (vocabulary.unknown_id, vocabulary.mask_id, vocabulary.pad_id)
    unknown = int(next(token for token in others if token is not None))
    return [entry or [unknown] for entry in ids]


@dataclass(frozen=True)
class Part:
    """The piece of a flat array that each row shows."""

    values: Ints
    start: NDArray[np.int64]
    length: NDArray[np.int64]


@dataclass(frozen=True)
class Rows:
    """Rows put together, and the columns at which their parts begin."""

    ids: Ints
    lengths: Ints
    types: NDArray[np.uint8] | None
    first: NDArray[np.int64]
    second: NDArray[np.int64]

    def spread(self, part: Part, column: NDArray[np.int64], empty: int) -> Ints:
        """Return a table like ``ids`` with a part's values from a column on, else ``empty``."""
        table = np.full(self.ids.shape, empty, np.int32)
        fill(table, column, part.values, part.start, part.length)
        return table


def assemble(
    sheet: Sheet, first: Part, second: Part | None = None, *, closing: bool = False
) -> Rows:
    """Put the special tokens and one part or two into rows."""
    frame, count = sheet.frame, len(first.start)
    after = (*frame.after, *(frame.closing if closing else ()))
    begin = np.full(count, len(frame.before), np.int64)
    end = begin + first.length
    follow = end
    if second is not None:
        follow = end + len(frame.between)
        end = follow + second.length
    lengths = end + len(after)
    width = int(lengths.max(initial=1))
    ids = np.full((count, width), sheet.vocabulary.pad_id, np.int32)
    _put(ids, np.zeros(count, np.int64), frame.before)
    fill(ids, begin, first.values, first.start, first.length)
    if second is not None:
        _put(ids, begin + first.length, frame.between)
        fill(ids, follow, second.values, second.start, second.length)
    _put(ids, end, after)
    types = None
    if sheet.types:
        places = np.arange(width)
        later = (places >= follow[:, None]) & (places < lengths[:, None])
        types = (later & (second is not None)).astype(np.uint8)
    return Rows(ids, lengths.astype(np.int32), types, begin, follow)


def _put(table: Ints, column: NDArray[np.int64], tokens: Sequence[int]) -> None:
    """Write the same tokens into each row, from its column on."""
    count = len(table)
    values = np.array(tokens, np.int32)
    fill(table, column, values, np.zeros(count, np.int64), np.full(count, len(tokens), np.int64))
