"""The words that are one token of several models: what they can fairly be compared on.

P-tuning (Liu et al., 2021, section 4.1) compares BERT and GPT on the facts whose objects are one
token of both, LAMA-29k. Such a list, as ``facts.vocabulary``, restricts the facts and the answers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from symprompt.errors import ConfigError, DataError
from symprompt.facts import SPLITS, FactSet, Split, in_word_list
from symprompt.models import Vocabulary

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


@dataclass(frozen=True)
class ModelWords:
    """What one model's vocabulary holds.

    Attributes:
        tokens: its size.
        words: how many of all models' words are one token of it.
        facts: per split, facts whose object is one token of it; empty without facts.
    """

    tokens: int
    words: int
    facts: Mapping[Split, int]


@dataclass(frozen=True)
class SharedVocabulary:
    """The words that are one token of every model, sorted, and what was counted on the way.

    Attributes:
        models: by name, what each model's vocabulary holds.
        facts: per split, facts whose object is among the words; empty without facts.
        total: per split, all facts.
    """

    words: tuple[str, ...]
    models: Mapping[str, ModelWords]
    facts: Mapping[Split, int]
    total: Mapping[Split, int]


def share_vocabulary(
    vocabularies: Mapping[str, Vocabulary], facts: FactSet | None = None
) -> SharedVocabulary:
    """Return the words that are one token of every vocabulary, as they stand after a space.

    Looked at are the whole words among the tokens of every vocabulary (no pieces of words, special
    tokens, bytes or white space) and the facts' objects, which a vocabulary without capitals
    does not list as they are written.

    Raises:
        ConfigError: fewer than two vocabularies.
        DataError: no word is shared.
    """
    require_several(vocabularies)
    objects = {fact.object for split in SPLITS for fact in facts.facts(split)} if facts else set()
    looked_at = sorted(objects.union(*map(whole_words, vocabularies.values())))
    known = {name: single_words(vocabulary, looked_at) for name, vocabulary in vocabularies.items()}
    shared = set.intersection(*known.values())
    if not shared:
        raise DataError(f"no word is one token of all of these: {', '.join(vocabularies)}.")
    return SharedVocabulary(
        tuple(sorted(shared)),
        {
            name: ModelWords(len(vocabularies[name]), len(words), _left(facts, words))
            for name, words in known.items()
        },
        _left(facts, shared),
        {split: len(facts.facts(split)) for split in SPLITS} if facts else {},
    )


def whole_words(vocabulary: Vocabulary) -> set[str]:
    """Return the texts of a vocabulary's tokens that read as that one token after a space."""
    special = set(vocabulary.tokenizer.all_special_ids)
    texts = {vocabulary.text(token) for token in range(len(vocabulary)) if token not in special}
    return single_words(vocabulary, sorted(text for text in texts if _is_word(text)))


def single_words(vocabulary: Vocabulary, words: Sequence[str]) -> set[str]:
    """Return those words that are one token after a space."""
    found = vocabulary.single_tokens(words)
    special = set(vocabulary.tokenizer.all_special_ids)
    return {
        word
        for word, token in zip(words, found, strict=True)
        if token is not None and token not in special
    }


def _is_word(text: str) -> bool:
    """Say whether a text can stand on a line of a word list and be read back."""
    return text.isprintable() and _REPLACEMENT not in text and len(text.split()) == 1


def _left(facts: FactSet | None, words: set[str]) -> dict[Split, int]:
    if facts is None:
        return {}
    kept = in_word_list(facts, words)
    return {split: len(kept.facts(split)) for split in SPLITS}


def require_several(names: Collection[str]) -> None:
    """Refuse a single model, before any is loaded.

    Raises:
        ConfigError: fewer than two names.
    """
    if len(names) < 2:
        count = "no model was" if not names else "1 model was"
        raise ConfigError(f"{count} named; a shared vocabulary needs at least two.")
