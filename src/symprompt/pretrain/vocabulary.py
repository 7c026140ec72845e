"""Learn a tokenizer from text: WordPiece, byte-level BPE or Unigram, as a transformers folder."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from tokenizers import AddedToken, Encoding, Tokenizer, processors
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from symprompt.errors import ModelError
from symprompt.facts.reading import load_text
from symprompt.pretrain.kinds import KINDS, Kind, Letters
from symprompt.pretrain.sampling import (
    LanguageShare,
    plan_sampling,
    repeats_at,
    sampling_start,
)
from symprompt.pretrain.settings import VocabularyConfig
from symprompt.pretrain.text import Document, split_sentences
from symprompt.runtime import Tick, silent

Documents = Callable[[], Iterable[Document]]
"""Gives the documents anew at every call: learning reads them more than once."""

# Characters that are kept make up this share of the text, most frequent first: in English
# Wikipedia 600 of 6,200, down to those seen once in five million.
_COVERAGE = 0.9999
_WORDS_HELD = 1 << 20


@dataclass(frozen=True)
class Specials:
    """The ids of a tokenizer's special tokens, whatever the tokenizer calls them."""

    cls: int
    sep: int
    pad: int
    mask: int


@dataclass(frozen=True)
class LearnedTokenizer:
    """A tokenizer and how it came about.

    Attributes:
        tokenizer: a transformers tokenizer.
        languages: sentences of each language before and after sampling; empty for one language.
        whole: listed words that are one token each.
        broken: listed words that cannot be one token, because the tokenizer cuts inside them.
    """

    tokenizer: PreTrainedTokenizerFast
    languages: tuple[LanguageShare, ...]
    whole: tuple[str, ...]
    broken: tuple[str, ...]


def learn_tokenizer(
    documents: Documents,
    config: VocabularyConfig,
    *,
    length: int,
    seed: int = 0,
    tick: Tick = silent,
) -> LearnedTokenizer:
    """Learn a tokenizer of exactly ``config.size`` tokens from text that is streamed, never held.

    With more than one language, sentences are sampled by equation 11.7 first. Characters outside
    the most frequent, which make up 99.99 % of the text, are unknown to WordPiece and Unigram;
    byte-level BPE knows every character. A text starts with a word whether or not a space stands
    before it, and text right after the mask token is glued to it, so words are the same tokens
    wherever they stand. Words of ``config.whole_words`` are entries of the model itself: WordPiece
    takes the longest entry that fits; BPE looks a word up before it merges (``ignore_merges``);
    Unigram entries get a score just above that of their best parts. The least useful learned
    tokens make room for them.

    Args:
        documents: gives the documents anew at every call.
        config: kind, size, case, whole words and alpha.
        length: the longest sequence, special tokens included, written into the tokenizer.
        seed: of the sampling of languages.
        tick: told of the start and the end, stage "vocabulary".

    Raises:
        ConfigError: the size is more than the text can give, or too small for the characters.
        DataError: the text or the file of whole words is missing, empty or garbled.
    """
    kind = KINDS[config.kind](config)
    words = _load_words(config.whole_words)
    tick("vocabulary", 0, config.size, config.kind)
    survey = _survey(documents, count_characters=config.kind != "bpe")
    alphabet = _choose_alphabet(survey.characters, "".join(words), config.size)
    languages = _plan_languages(documents, survey.languages, config.alpha)
    texts = _feed(documents, languages, seed, set(survey.characters) - alphabet)
    pieces = {word: kind.piece(word) for word in words}
    wanted = list(dict.fromkeys(piece for piece in pieces.values() if piece is not None))
    backend = kind.learn(texts, wanted, Letters(alphabet, survey.inner))
    tick("vocabulary", config.size, config.size, config.kind)
    whole = tuple(word for word in words if _is_one(backend, word, kind.unknown))
    return LearnedTokenizer(
        tokenizer=_wrap(backend, kind, length),
        languages=languages,
        whole=whole,
        broken=tuple(word for word in words if word not in set(whole)),
    )


def save_tokenizer(tokenizer: PreTrainedTokenizerFast, folder: str | Path) -> None:
    """Write a tokenizer so that ``AutoTokenizer.from_pretrained(folder)`` loads it."""
    tokenizer.save_pretrained(str(folder))


def load_tokenizer(folder: str | Path) -> PreTrainedTokenizerFast:
    """Return the tokenizer in a folder, fast and with the special tokens that training needs.

    Raises:
        ModelError: there is none, it is damaged, slow, or lacks a special token.
    """
    if not Path(folder).is_dir():
        raise ModelError(f"{folder} is not a folder; give a folder with a tokenizer.json.")
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    except Exception as error:  # The library raises errors of many kinds, some of them bare.
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise ModelError(
            f"the tokenizer in {folder} cannot be loaded ({reason}); give a folder that "
            "AutoTokenizer.from_pretrained loads."
        ) from None
    find_specials(tokenizer)
    return cast(PreTrainedTokenizerFast, tokenizer)


def find_specials(tokenizer: Any) -> Specials:
    """Return the special ids of any fast tokenizer; bos and eos stand in for cls and sep.

    Raises:
        ModelError: the tokenizer is not a fast one, or lacks one of them.
    """
    name = getattr(tokenizer, "name_or_path", "") or "given"
    if not getattr(tokenizer, "is_fast", False):
        raise ModelError(
            f"the tokenizer {name} is a {type(tokenizer).__name__}, which is not a fast one, so "
            "words cannot be told apart; give one with a tokenizer.json."
        )
    found = {
        "cls": _first(tokenizer.cls_token_id, tokenizer.bos_token_id),
        "sep": _first(tokenizer.sep_token_id, tokenizer.eos_token_id),
        "pad": tokenizer.pad_token_id,
        "mask": tokenizer.mask_token_id,
    }
    missing = [key for key, value in found.items() if value is None]
    if missing:
        raise ModelError(
            f"the tokenizer {name} has no {', '.join(missing)} token; pretraining needs cls (or "
            "bos), sep (or eos), pad and mask. Give a masked language model's tokenizer."
        )
    return Specials(**{key: int(value) for key, value in found.items()})


def word_starts(encoding: Encoding) -> np.ndarray:
    """Return which tokens start a word of the pre-tokenizer [t] bool; special tokens do not."""
    words = np.array([-1 if word is None else word for word in encoding.word_ids], dtype=np.int64)
    starts: np.ndarray = (words != np.concatenate([[-1], words[:-1]])) & (words >= 0)
    return starts


# -- text -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Survey:
    languages: frozenset[str]
    characters: Counter[str]
    inner: frozenset[str]


def _survey(documents: Documents, *, count_characters: bool) -> _Survey:
    """Read the text once: which languages there are, and how often each character stands."""
    languages: set[str] = set()
    words: Counter[str] = Counter()
    characters: Counter[str] = Counter()
    inner: set[str] = set()

    def settle() -> None:
        for word, count in words.items():
            for letter in word:
                characters[letter] += count
            inner.update(word[1:])
        words.clear()

    for document in documents():
        languages.add(document.language)
        if count_characters:
            for line in document.lines:
                words.update(line.split())
            if len(words) > _WORDS_HELD:
                settle()
    settle()
    return _Survey(frozenset(languages), characters, frozenset(inner))


def _choose_alphabet(characters: Counter[str], always: str, size: int) -> frozenset[str]:
    """Return the characters that are kept: the most frequent, ASCII, and those of whole words."""
    limit = min(size // 4, max(1000, size // 16))
    ordered = sorted(characters, key=lambda letter: (-characters[letter], letter))
    always += "".join(letter for letter in characters if letter.isascii())
    total = characters.total()
    seen = 0
    for kept, letter in enumerate(ordered):
        if kept >= limit or seen >= total * _COVERAGE:
            return frozenset(ordered[:kept]) | frozenset(always)
        seen += characters[letter]
    return frozenset(ordered) | frozenset(always)


def _plan_languages(
    documents: Documents, languages: frozenset[str], alpha: float
) -> tuple[LanguageShare, ...]:
    if len(languages) < 2:
        return ()
    counts: Counter[str] = Counter()
    for document in documents():
        counts[document.language] += sum(len(split_sentences(line)) for line in document.lines)
    return plan_sampling(counts, alpha)


def _feed(
    documents: Documents,
    languages: Sequence[LanguageShare],
    seed: int,
    dropped: set[str],
) -> Iterator[str]:
    """Yield lines, or with several languages sampled sentences, rare characters made blanks."""
    rare = re.compile(f"[{re.escape(''.join(sorted(dropped)))}]") if dropped else None
    shares = {share.language: share for share in languages}
    starts = {name: sampling_start(seed, name) for name in shares}
    passed: Counter[str] = Counter()
    for document in documents():
        share = shares.get(document.language)
        for line in document.lines:
            text = rare.sub(" ", line) if rare and not line.isascii() else line
            if share is None:
                yield text
                continue
            for sentence in split_sentences(line):
                times = repeats_at(
                    passed[share.language], share.before, share.after, starts[share.language]
                )
                passed[share.language] += 1
                for _ in range(times):
                    yield rare.sub(" ", sentence) if rare else sentence


def _load_words(path: str) -> tuple[str, ...]:
    if not path:
        return ()
    lines = (line.strip() for line in load_text(Path(path)).split("\n"))
    return tuple(dict.fromkeys(line for line in lines if line))


# -- small parts ----------------------------------------------------------------------------------


def _first(*values: int | None) -> int | None:
    return next((value for value in values if value is not None), None)


def _is_one(tokenizer: Tokenizer, word: str, unknown: str) -> bool:
    tokens = tokenizer.encode(word, add_special_tokens=False).tokens
    return len(tokens) == 1 and tokens[0] != unknown


def _wrap(backend: Tokenizer, kind: Kind, length: int) -> PreTrainedTokenizerFast:
    """Return the learned model as a transformers tokenizer, special tokens and frame in place."""
    ids = backend.get_vocab()
    backend.post_processor = processors.TemplateProcessing(
        single=f"{kind.cls} $A {kind.sep}",
        pair=f"{kind.cls} $A {kind.sep} $B:1 {kind.sep}:1",
        special_tokens=[(kind.cls, ids[kind.cls]), (kind.sep, ids[kind.sep])],
    )
    # The space before a mask belongs to it, as RoBERTa has it, where spaces are part of tokens.
    mask = AddedToken(kind.mask, lstrip=kind.mask_strips, special=True, normalized=False)
    backend.add_special_tokens([*(token for token in kind.specials if token != kind.mask), mask])
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=backend,
        cls_token=kind.cls,
        sep_token=kind.sep,
        pad_token=kind.pad,
        unk_token=kind.unknown,
        mask_token=mask,
        model_max_length=length,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )
