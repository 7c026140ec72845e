"""Learn a tokenizer from text: WordPiece, byte-level BPE or Unigram, as a transformers folder.

With several languages, equation 11.7 of Jurafsky and Martin's chapter 11 decides how often each is
drawn, here and when a model is trained.
"""

from __future__ import annotations

import json
import re
import unicodedata
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, repeat
from pathlib import Path
from typing import Any, cast

import numpy as np
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import PreTrainedTokenizerFast

from symprompt.errors import ConfigError, ModelError
from symprompt.files.progress import Tick, silent
from symprompt.files.reading import load_text
from symprompt.files.text import Document, split_sentences
from symprompt.models import loading
from symprompt.models.vocabulary import refuse_shared_mask
from symprompt.pretraining.config import VocabularyConfig
from symprompt.runs.environment import derive_seed

# Unigram scores differ in the last digits from run to run (sums over threads); rounded they agree.
_DECIMALS = 6
_MARGIN = 0.01
# The library's own: between characters it must keep, and of an unknown one under the lowest score.
_STEP = 0.0001
_UNKNOWN_PENALTY = 10.0


@dataclass(frozen=True)
class LanguageShare:
    """One language before and after sampling.

    Attributes:
        language: its name; "" when none was given.
        before: sentences (or sequences) there are, n_i.
        prior: its share of them, p_i.
        share: its share after sampling, q_i.
        after: sentences (or sequences) it gives; above ``before`` means that some are repeated.
    """

    language: str
    before: int
    prior: float
    share: float
    after: int


def plan_sampling(counts: Mapping[str, int], alpha: float) -> tuple[LanguageShare, ...]:
    """Return how many sentences each language gives; together they are as many as there are.

    The shares are q_i = p_i^alpha / sum_j p_j^alpha with p_i = n_i / sum_k n_k (equation 11.7).
    Numbers are rounded by largest remainder, so the total is kept.

    Args:
        counts: sentences of each language, n_i; a language without any gets none.
        alpha: 1 leaves the languages as they are; 0 makes them equal.
    """
    total = sum(counts.values())
    raised = {name: (count / total) ** alpha if count else 0.0 for name, count in counts.items()}
    whole = sum(raised.values())
    shares = {name: value / whole for name, value in raised.items()}
    exact = {name: share * total for name, share in shares.items()}
    after = {name: int(value) for name, value in exact.items()}
    # A remainder is given to the largest fraction first; names settle ties.
    present = (name for name in exact if counts[name])
    order = sorted(present, key=lambda name: (after[name] - exact[name], name))
    for name in order[: total - sum(after.values())]:
        after[name] += 1
    return tuple(
        LanguageShare(name, counts[name], counts[name] / total, shares[name], after[name])
        for name in sorted(counts)
    )


def repeats_at(index: int, before: int, after: int, start: int) -> int:
    """Return how often item ``index`` of ``before`` is taken, so that all give ``after`` exactly.

    Systematic sampling: the taken ones are evenly spread, and no list of choices is kept, so a
    stream of any length can be sampled as it passes.

    Args:
        index: the item's position, from 0.
        before: items there are.
        after: items wanted; more than ``before`` repeats, fewer leaves out.
        start: where the even spacing begins; from the seed.
    """
    phase = start % before
    return ((index + 1) * after + phase) // before - (index * after + phase) // before


def draw_repeated(before: int, after: int, generator: np.random.Generator) -> np.ndarray:
    """Return ``after`` indices below ``before``: each as often as the others, give or take one."""
    times, rest = divmod(after, before)
    whole = np.tile(np.arange(before, dtype=np.int64), times)
    extra = generator.choice(before, size=rest, replace=False) if rest else np.empty(0, np.int64)
    return np.concatenate([whole, extra.astype(np.int64, copy=False)])


class Kind(ABC):
    """Abstract: one kind of tokenizer: how text is cut before learning, and the learning itself."""

    specials: tuple[str, ...] = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
    cls, pad, sep, unknown, mask = specials
    mask_strips = True

    def __init__(self, config: VocabularyConfig) -> None:
        self.config = config

    @abstractmethod
    def untrained(self, model: models.Model | None = None) -> Tokenizer:
        """Return a tokenizer with normalizer and pre-tokenizer, and a model or nothing learned."""

    @abstractmethod
    def learn(self, texts: Iterable[str], wanted: Sequence[str], inner: Iterable[str]) -> Tokenizer:
        """Return a tokenizer learned from texts with the wanted pieces in its vocabulary.

        Args:
            inner: the characters that are kept and stand inside words.
        """

    def piece(self, word: str) -> str | None:
        """Return the vocabulary entry a word would be, or None where it is cut."""
        blank = self.untrained()
        text = blank.normalizer.normalize_str(word) if blank.normalizer else word
        pieces = blank.pre_tokenizer.pre_tokenize_str(text)
        return str(pieces[0][0]) if len(pieces) == 1 and len(word) <= 100 else None

    def room(self, learned: Sequence[str], wanted: Sequence[str], fixed: int) -> list[str]:
        """Return ``config.size`` tokens: the first learned ones, then wanted ones not among them.

        Args:
            learned: tokens, the most useful first.
            wanted: tokens that must be there.
            fixed: how many of the learned, from the first, may not be dropped.
        """
        size = self.config.size
        needed = frozenset(wanted)
        missing = set(needed.difference(learned))
        if len(learned) + len(missing) < size:
            raise ConfigError(
                f"vocabulary.size is {size}, but the text gives only "
                f"{len(learned) + len(missing)} tokens; set it to that at most, or give more text."
            )
        kept = len(learned)
        while kept + len(missing) > size and kept > fixed:
            kept -= 1
            if learned[kept] in needed:
                missing.add(learned[kept])
        if kept + len(missing) > size:
            raise ConfigError(
                f"vocabulary.size is {size}, but special tokens and characters are {fixed} and "
                f"whole words {len(missing)} more; set it to at least {fixed + len(missing)}."
            )
        return [*learned[:kept], *(piece for piece in wanted if piece in missing)]


class WordPiece(Kind):
    """Words cut into pieces, "##" before those within a word; final."""

    specials = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    pad, unknown, cls, sep, mask = specials
    mask_strips = False

    def untrained(self, model: models.Model | None = None) -> Tokenizer:
        tokenizer = Tokenizer(model or models.WordPiece(unk_token=self.unknown))
        tokenizer.normalizer = normalizers.BertNormalizer(
            strip_accents=not self.config.cased, lowercase=not self.config.cased
        )
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = decoders.WordPiece(prefix="##")
        return tokenizer

    def learn(self, texts: Iterable[str], wanted: Sequence[str], inner: Iterable[str]) -> Tokenizer:
        tokenizer = self.untrained()
        # The trainer numbers inner characters in an order of its own that changes from run to
        # run, and ties between merges hang on it; naming them beforehand fixes the order.
        normalise = tokenizer.normalizer.normalize_str
        parts = set("".join(str(normalise(letter)).strip() for letter in inner))
        named = [f"##{part}" for part in sorted(parts) if not _stands_alone(part)]
        trainer = trainers.WordPieceTrainer(
            vocab_size=self.config.size,
            min_frequency=2,
            special_tokens=[*self.specials, *named],
            limit_alphabet=1 << 20,
            show_progress=False,
        )
        tokenizer.train_from_iterator(texts, trainer)
        learned = _by_id(tokenizer)
        fixed = sum(token in self.specials or len(token) == 1 for token in learned)
        fixed += sum(token.startswith("##") and len(token) == 3 for token in learned)
        learned.sort(key=lambda token: token not in self.specials)
        tokens = self.room(learned, wanted, fixed)
        ids = {token: index for index, token in enumerate(tokens)}
        return self.untrained(models.WordPiece(ids, unk_token=self.unknown))


class BytePair(Kind):
    """Bytes joined by the most frequent pairs; final."""

    def untrained(self, model: models.Model | None = None) -> Tokenizer:
        tokenizer = Tokenizer(model or models.BPE(ignore_merges=True))
        if not self.config.cased:
            tokenizer.normalizer = _fold_case("NFD", "NFC")
        # A space is put before the first word only: ByteLevel's own add_prefix_space would also
        # put one before what is glued to a mask token.
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Metaspace(replacement=" ", prepend_scheme="first", split=False),
                pre_tokenizers.ByteLevel(add_prefix_space=False),
            ]
        )
        tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
        return tokenizer

    def learn(self, texts: Iterable[str], wanted: Sequence[str], inner: Iterable[str]) -> Tokenizer:
        tokenizer = self.untrained()
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        trainer = trainers.BpeTrainer(
            vocab_size=self.config.size,
            min_frequency=2,
            special_tokens=list(self.specials),
            initial_alphabet=alphabet,
            show_progress=False,
        )
        tokenizer.train_from_iterator(texts, trainer)
        tokens = self.room(_by_id(tokenizer), wanted, len(self.specials) + len(alphabet))
        ids = {token: index for index, token in enumerate(tokens)}
        merges = [
            (left, right)
            for left, right in _state(tokenizer)["merges"]
            if left in ids and right in ids and left + right in ids
        ]
        return self.untrained(models.BPE(ids, merges, ignore_merges=True))


class Unigram(Kind):
    """Pieces of a unigram language model; final."""

    def untrained(self, model: models.Model | None = None) -> Tokenizer:
        tokenizer = Tokenizer(model or models.Unigram())
        folding = normalizers.NFKC() if self.config.cased else _fold_case("NFKD", "NFKC")
        spaces = normalizers.Replace(Regex(r"\s+"), " ")
        tokenizer.normalizer = normalizers.Sequence(
            [folding, spaces, normalizers.Strip(left=False, right=True)]
        )
        # Punctuation is cut off, so that a word is the same pieces before a comma.
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Metaspace(prepend_scheme="first"), pre_tokenizers.Punctuation()]
        )
        tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
        return tokenizer

    def learn(self, texts: Iterable[str], wanted: Sequence[str], inner: Iterable[str]) -> Tokenizer:
        tokenizer = self.untrained()
        trainer = trainers.UnigramTrainer(
            vocab_size=self.config.size - len(self.specials) + 1,
            special_tokens=[self.unknown],
            unk_token=self.unknown,
            show_progress=False,
        )
        tokenizer.train_from_iterator(texts, trainer)
        scores = _settled(dict(_state(tokenizer)["vocab"]), self.unknown)
        # Single characters come first: without them a text would be unknown.
        learned = sorted(scores, key=lambda piece: (len(piece) > 1, -scores[piece], piece))
        fixed = len(self.specials) + sum(len(piece) == 1 for piece in learned)
        tokens = self.room([*self.specials, *learned], wanted, fixed)
        kept = {token: scores.get(token, -np.inf) for token in tokens[len(self.specials) :]}
        _raise_scores(kept, wanted)
        pieces = sorted(kept.items(), key=lambda entry: (-entry[1], entry[0]))
        specials = [(token, 0.0) for token in self.specials]
        unknown = self.specials.index(self.unknown)
        return self.untrained(models.Unigram([*specials, *pieces], unknown))


KINDS: dict[str, type[Kind]] = {"wordpiece": WordPiece, "bpe": BytePair, "unigram": Unigram}


def _fold_case(apart: str, together: str) -> normalizers.Sequence:
    steps = [getattr(normalizers, apart)(), normalizers.StripAccents(), normalizers.Lowercase()]
    return normalizers.Sequence([*steps, getattr(normalizers, together)()])


def _settled(learned: Mapping[str, float], unknown: str) -> dict[str, float]:
    """Return scores that are the same from run to run, the unknown token's left out."""
    scores = {piece: round(score, _DECIMALS) for piece, score in learned.items()}
    del scores[unknown]
    single = [piece for piece in scores if len(piece) == 1]
    lowest = min(scores.values())
    # Characters that no longer pay for themselves get the lowest score and small steps upwards,
    # in an order that changes from run to run: all get the lowest.
    for piece in single:
        if scores[piece] <= lowest + _STEP * (len(single) + 1):
            scores[piece] = lowest
    return scores


def _raise_scores(scores: dict[str, float], wanted: Sequence[str]) -> None:
    """Give every wanted piece a score above that of its best parts, the shortest pieces first."""
    lowest = min((score for score in scores.values() if score > -np.inf), default=-1.0)
    # Parts are shorter than the whole, so by length no later change can touch an earlier piece.
    for piece in sorted(wanted, key=lambda piece: (len(piece), piece)):
        parts = _best_parts(piece, scores, lowest - _UNKNOWN_PENALTY)
        if scores[piece] <= parts:
            scores[piece] = round(max(parts + _MARGIN, lowest), _DECIMALS)


def _best_parts(piece: str, scores: Mapping[str, float], unknown: float) -> float:
    """Return the best score of a piece cut into at least two parts; -inf for one character."""
    best = [0.0] + [-np.inf] * len(piece)
    for end in range(1, len(piece) + 1):
        for begin in range(end):
            if end - begin < len(piece):
                score = scores.get(piece[begin:end], -np.inf)
                if end - begin == 1 and score == -np.inf:
                    score = unknown
                best[end] = max(best[end], best[begin] + score)
    return float(best[-1])


def _stands_alone(letter: str) -> bool:
    """Return whether BERT's pre-tokenizer makes a character a word of its own."""
    ascii_mark = letter.isascii() and not letter.isalnum()
    ideograph = unicodedata.name(letter, "").startswith("CJK")
    return ascii_mark or ideograph or unicodedata.category(letter)[0] in "PZ"


def _by_id(tokenizer: Tokenizer) -> list[str]:
    vocabulary = tokenizer.get_vocab()
    return sorted(vocabulary, key=vocabulary.__getitem__)


def _state(tokenizer: Tokenizer) -> dict[str, Any]:
    state: dict[str, Any] = json.loads(tokenizer.to_str())["model"]
    return state


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
    """A tokenizer and how it came about; one that was given has a tokenizer alone.

    Attributes:
        tokenizer: a transformers tokenizer.
        languages: sentences of each language before and after sampling; empty for one language.
        whole: listed words that are one token each.
        broken: listed words that cannot be one token, because the tokenizer cuts inside them.
    """

    tokenizer: PreTrainedTokenizerFast
    languages: tuple[LanguageShare, ...] = ()
    whole: tuple[str, ...] = ()
    broken: tuple[str, ...] = ()


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
        tick: called at the start and the end, stage "vocabulary".

    Raises:
        ConfigError: the size is more than the text can give, or too small for the characters.
        DataError: the text or the file of whole words is missing, empty or garbled.
    """
    kind = KINDS[config.kind](config)
    listed = load_text(Path(config.whole_words)).split("\n") if config.whole_words else []
    words = tuple(dict.fromkeys(word for word in map(str.strip, listed) if word))
    tick("vocabulary", 0, config.size, config.kind)
    counts, characters, inner = _survey(documents, count_characters=config.kind != "bpe")
    alphabet = _choose_alphabet(characters, "".join(words), config.size)
    languages: tuple[LanguageShare, ...] = ()
    if len(counts) > 1:
        for document in documents():
            counts[document.language] += sum(len(split_sentences(line)) for line in document.lines)
        languages = plan_sampling(counts, config.alpha)
    texts = _feed(documents, languages, seed, set(characters) - alphabet)
    wanted = list(dict.fromkeys(filter(None, map(kind.piece, words))))
    backend = kind.learn(texts, wanted, inner & alphabet)
    tick("vocabulary", config.size, config.size, config.kind)
    cuts = {word: backend.encode(word, add_special_tokens=False).tokens for word in words}
    is_one = {word: len(cut) == 1 and cut[0] != kind.unknown for word, cut in cuts.items()}
    return LearnedTokenizer(
        tokenizer=_wrap(backend, kind, length),
        languages=languages,
        whole=tuple(word for word in words if is_one[word]),
        broken=tuple(word for word in words if not is_one[word]),
    )


def load_tokenizer(folder: str | Path) -> PreTrainedTokenizerFast:
    """Return the tokenizer in a folder, fast and with the special tokens that training needs.

    "shipped" is that of the packaged model.

    Raises:
        ModelError: there is none, it is damaged, slow, or lacks a special token.
    """
    folder = loading.locate_model(str(folder))
    if not Path(folder).is_dir():
        raise ModelError(f"{folder} is not a folder; give a folder with a tokenizer.json.")
    tokenizer = loading.load_tokenizer(folder, f"in {folder}", local_files_only=True)
    find_specials(tokenizer)
    return cast(PreTrainedTokenizerFast, tokenizer)


def find_specials(tokenizer: Any) -> Specials:
    """Return the special ids of any fast tokenizer; bos and eos stand in for cls and sep.

    Raises:
        ModelError: the tokenizer is not a fast one, lacks one of them, or masks with another one.
    """
    name = getattr(tokenizer, "name_or_path", "") or "given"
    if not getattr(tokenizer, "is_fast", False):
        raise ModelError(
            f"the tokenizer {name} is a {type(tokenizer).__name__}, which is not a fast one, so "
            "words cannot be found; give one with a tokenizer.json."
        )
    cls, sep = tokenizer.cls_token_id, tokenizer.sep_token_id
    found = {
        "cls": tokenizer.bos_token_id if cls is None else cls,
        "sep": tokenizer.eos_token_id if sep is None else sep,
        "pad": tokenizer.pad_token_id,
        "mask": tokenizer.mask_token_id,
    }
    missing = [key for key, value in found.items() if value is None]
    if missing:
        raise ModelError(
            f"the tokenizer {name} has no {', '.join(missing)} token; pretraining needs cls (or "
            "bos), sep (or eos), pad and mask. Give a masked language model's tokenizer."
        )
    refuse_shared_mask(tokenizer, name)
    return Specials(**{key: int(value) for key, value in found.items()})


# -- text -----------------------------------------------------------------------------------------


def _survey(
    documents: Documents, *, count_characters: bool
) -> tuple[Counter[str], Counter[str], set[str]]:
    """Read the text once.

    Returns:
        The languages there are, all counted 0; how often each character stands; and those that
        stand inside words.
    """
    languages: Counter[str] = Counter()
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
        languages[document.language] = 0
        if count_characters:
            for line in document.lines:
                words.update(line.split())
            if len(words) > _WORDS_HELD:
                settle()
    settle()
    return languages, characters, inner


def _choose_alphabet(characters: Counter[str], always: str, size: int) -> frozenset[str]:
    """Return the characters that are kept: the most frequent, ASCII, and those of whole words."""
    limit = min(size // 4, max(1000, size // 16))
    ordered = sorted(characters, key=lambda letter: (-characters[letter], letter))
    always += "".join(letter for letter in characters if letter.isascii())
    sums = list(accumulate(characters[letter] for letter in ordered))
    kept = min(limit, bisect_left(sums, characters.total() * _COVERAGE) + 1)
    return frozenset(ordered[:kept]) | frozenset(always)


def _feed(
    documents: Documents,
    languages: Sequence[LanguageShare],
    seed: int,
    dropped: set[str],
) -> Iterator[str]:
    """Yield lines, or with several languages sampled sentences, rare characters made blanks."""
    rare = re.compile(f"[{re.escape(''.join(sorted(dropped)))}]") if dropped else None
    shares = {share.language: share for share in languages}
    starts = {name: derive_seed("sampling", seed, name) for name in shares}
    passed: Counter[str] = Counter()
    for document in documents():
        share = shares.get(document.language)
        for line in document.lines:
            for text in (line,) if share is None else split_sentences(line):
                times = 1
                if share is not None:
                    name = share.language
                    times = repeats_at(passed[name], share.before, share.after, starts[name])
                    passed[name] += 1
                clean = rare.sub(" ", text) if rare and not text.isascii() else text
                yield from repeat(clean, times)


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
