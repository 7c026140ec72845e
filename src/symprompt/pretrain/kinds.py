"""The three kinds of tokenizer: how each cuts text into words, and learns its tokens."""

from __future__ import annotations

import json
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from symprompt.errors import ConfigError
from symprompt.pretrain.settings import VocabularyConfig

# Unigram scores differ in the last digits from run to run (sums over threads); rounded they agree.
_DECIMALS = 6
_MARGIN = 0.01
# The library's own: between characters it must keep, and of an unknown one under the lowest score.
_STEP = 0.0001
_UNKNOWN_PENALTY = 10.0


@dataclass(frozen=True)
class Letters:
    """The characters that are kept, and which of the text's stand inside words."""

    kept: frozenset[str]
    inner: frozenset[str]


class Kind(ABC):
    """Abstract: one kind of tokenizer: how text is cut before learning, and the learning itself."""

    specials: tuple[str, ...] = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
    cls, pad, sep, unknown, mask = specials
    mask_strips = True

    def __init__(self, config: VocabularyConfig) -> None:
        self.config = config

    @abstractmethod
    def untrained(self) -> Tokenizer:
        """Return a tokenizer with normalizer and pre-tokenizer, and nothing learned."""

    @abstractmethod
    def learn(self, texts: Iterable[str], wanted: Sequence[str], letters: Letters) -> Tokenizer:
        """Return a tokenizer learned from texts with the wanted pieces in its vocabulary."""

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
    specials = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    pad, unknown, cls, sep, mask = specials
    mask_strips = False

    def untrained(self) -> Tokenizer:
        tokenizer = Tokenizer(models.WordPiece(unk_token=self.unknown))
        tokenizer.normalizer = normalizers.BertNormalizer(
            strip_accents=not self.config.cased, lowercase=not self.config.cased
        )
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = decoders.WordPiece(prefix="##")
        return tokenizer

    def learn(self, texts: Iterable[str], wanted: Sequence[str], letters: Letters) -> Tokenizer:
        tokenizer = self.untrained()
        # The trainer numbers inner characters in an order of its own that changes from run to
        # run, and ties between merges hang on it; naming them beforehand fixes the order.
        inner = {self._normal(letter) for letter in letters.inner & letters.kept}
        named = [f"##{part}" for part in sorted(set("".join(inner))) if not _stands_alone(part)]
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
        blank = self.untrained()
        blank.model = models.WordPiece(
            {token: index for index, token in enumerate(tokens)}, unk_token=self.unknown
        )
        return blank

    def _normal(self, letter: str) -> str:
        return str(self.untrained().normalizer.normalize_str(letter)).strip()


class BytePair(Kind):
    def untrained(self) -> Tokenizer:
        tokenizer = Tokenizer(models.BPE(ignore_merges=True))
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

    def learn(self, texts: Iterable[str], wanted: Sequence[str], letters: Letters) -> Tokenizer:
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
        blank = self.untrained()
        blank.model = models.BPE(ids, merges, ignore_merges=True)
        return blank


class Unigram(Kind):
    def untrained(self) -> Tokenizer:
        tokenizer = Tokenizer(models.Unigram())
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

    def learn(self, texts: Iterable[str], wanted: Sequence[str], letters: Letters) -> Tokenizer:
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
        blank = self.untrained()
        blank.model = models.Unigram([*specials, *pieces], self.specials.index(self.unknown))
        return blank


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
    """Say whether BERT's pre-tokenizer makes a character a word of its own."""
    ascii_mark = letter.isascii() and not letter.isalnum()
    ideograph = unicodedata.name(letter, "").startswith("CJK")
    return ascii_mark or ideograph or unicodedata.category(letter)[0] in "PZ"


def _by_id(tokenizer: Tokenizer) -> list[str]:
    vocabulary = tokenizer.get_vocab()
    return sorted(vocabulary, key=vocabulary.__getitem__)


def _state(tokenizer: Tokenizer) -> dict[str, Any]:
    state: dict[str, Any] = json.loads(tokenizer.to_str())["model"]
    return state
