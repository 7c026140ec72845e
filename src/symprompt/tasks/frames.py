"""The special tokens around one text or two, as a model's tokenizer puts them."""

from __future__ import annotations

from dataclasses import dataclass

from symprompt.backbone import Backbone
from symprompt.backbone.vocabulary import Vocabulary


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


def takes_types(backbone: Backbone) -> bool:
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
