"""The tokenizer as a function: texts to token ids, as they stand in a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from tokenizers import Tokenizer

from symprompt.errors import ModelError

_NO_LIMIT = 1 << 30
_MOST_READ = 1 << 18
"""So many texts are remembered."""
_AT_ONCE = 1 << 14
"""So many texts are read in one call of the tokenizer."""
_OTHER_ROLES = ("pad", "unk", "cls", "sep", "bos", "eos")


def refuse_shared_mask(tokenizer: Any, name: str) -> None:
    """Refuse a tokenizer whose mask token has another role too: no sentence would be read right.

    Raises:
        ModelError: naming the token and its other role.
    """
    mask = tokenizer.mask_token_id
    for role in _OTHER_ROLES:
        if getattr(tokenizer, f"{role}_token_id") == mask:
            raise ModelError(
                f"the tokenizer of {name} has one token, {tokenizer.mask_token!r}, as its mask and "
                f"its {role} token; give the model's own tokenizer (tokenizer_config.json)."
            )


class Vocabulary:
    """A tokenizer, of a masked language model or of a causal one; final.

    Attributes:
        causal: whether it is a causal model's; such a model reads left to right, nothing is masked.
        mask_id: the mask token; None for a causal model.
        pad_id: what fills short sentences up; it is masked out of attention, so a tokenizer that
            has no such token takes another.
        prefix, suffix: the special ids around a sentence; a causal model has no suffix, as nothing
            after the answer can help to find it.

    Args:
        tokenizer: any tokenizer of transformers.
        name: what to call the model in errors.
        causal: see above.
    """

    def __init__(self, tokenizer: Any, *, name: str, causal: bool = False) -> None:
        if not causal and tokenizer.mask_token_id is None:
            raise ModelError(
                f"the tokenizer of {name} has no mask token, so nothing can be asked; "
                "give a masked language model with its own tokenizer."
            )
        if not causal:
            refuse_shared_mask(tokenizer, name)
        self.tokenizer = tokenizer
        self.causal = causal
        self.mask_id: int | None = None if causal else int(tokenizer.mask_token_id)
        others = (tokenizer.pad_token_id, self.mask_id, tokenizer.eos_token_id)
        self.pad_id = int(next((token for token in others if token is not None), 0))
        self.unknown_id = tokenizer.unk_token_id
        self._read: dict[str, list[int]] = {}
        self._words: dict[bool, list[int]] = {}
        self._texts: dict[int, str] = {}
        self.prefix, self.suffix = self._frame()

    def __len__(self) -> int:
        return len(self.tokenizer)

    @property
    def max_length(self) -> int:
        """The longest sequence the model takes by its tokenizer's config."""
        limit = self.tokenizer.model_max_length
        return int(limit) if limit and limit < _NO_LIMIT else _NO_LIMIT

    @property
    def special_ids(self) -> list[int]:
        """The tokens that are no text: masks, frames, padding, reserved ones."""
        added = self.tokenizer.added_tokens_decoder.items()
        reserved = {int(token) for token, entry in added if entry.special}
        return sorted(reserved | set(self.tokenizer.all_special_ids))

    def _frame(self) -> tuple[list[int], list[int]]:
        """Return the special ids put before and after one sequence."""
        if self.causal:
            (plain,) = self.encode(["x"])
            framed: list[int] = self.tokenizer("x")["input_ids"]
            starts = range(len(framed) - len(plain) + 1)
            found = (at for at in starts if framed[at : at + len(plain)] == plain)
            return framed[: next(found, 0)], []
        special = set(self.tokenizer.all_special_ids)
        ids = self.tokenizer(self.tokenizer.mask_token)["input_ids"]
        at = ids.index(self.mask_id)
        before = [token for token in ids[:at] if token in special]
        after = [token for token in ids[at + 1 :] if token in special]
        return before, after

    @property
    def beginning(self) -> list[int]:
        """The special ids that a text begins with, so that its first token follows something.

        Of causal models whose tokenizers put none, the one that begins texts, if there is any.
        """
        start = self.tokenizer.bos_token_id
        return self.prefix or ([int(start)] if self.causal and start is not None else [])

    @cached_property
    def space(self) -> str:
        """Return what makes a text read as after a space: a space, or nothing.

        Nothing where a text reads so by itself: BERT's kind tells no spaces apart, Llama 2's puts
        its mark of a space before every text.
        """
        host, whole, bare = self.encode(["x", "x y", "y"])
        return "" if whole[len(host) :] == bare else " "

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return each text's ids as it stands, without special tokens."""
        ids: list[list[int]] = []
        # What a tokenizer gives beside ids takes a hundred times their memory, so a few at a time.
        for start in range(0, len(texts), _AT_ONCE):
            some, plain = list(texts[start : start + _AT_ONCE]), self._plain()
            if plain is not None:
                # Offsets in the text, which take a tenth of the time, are not wanted.
                read = plain.encode_batch_fast(some, add_special_tokens=False)
                ids += [encoding.ids for encoding in read]
                continue
            # Texts longer than the model takes are no news here: whoever asks cuts or counts them.
            ids += self.tokenizer(some, add_special_tokens=False, verbose=False)["input_ids"]
        return ids

    def _plain(self) -> Any:
        """Return what the tokenizer is a wrapper of, four times as fast; None if it does more."""
        inner = getattr(self.tokenizer, "backend_tokenizer", None)
        if not isinstance(inner, Tokenizer) or inner.truncation or inner.padding:
            return None
        return inner

    def encode_sentences(
        self, texts: Sequence[str]
    ) -> list[tuple[list[int], list[int], list[int]]]:
        """Return each text's ids as ``encode`` does, the word each token is of and where it ends.

        Words are what the tokenizer cuts a text into before it finds tokens; punctuation is apart.

        Raises:
            ModelError: the tokenizer does not tell.
        """
        read = self.tokenizer(list(texts), add_special_tokens=False, verbose=False)
        if read.encodings is None:
            raise ModelError(
                "the tokenizer does not tell words apart (it has no tokenizer.json), so whole "
                "sentences cannot be scored; take a model with a fast tokenizer."
            )
        found = []
        for own in read.encodings:
            # A token of no word is one by itself.
            words = [
                -2 - place if word is None else word for place, word in enumerate(own.word_ids)
            ]
            found.append((own.ids, words, [end for _, end in own.offsets]))
        return found

    def encode_words(self, texts: Sequence[str]) -> list[list[int]]:
        """Return each text's ids as it reads after a space (RoBERTa's kind marks word starts)."""
        return self._encode_once([self.space + text for text in texts])

    def encode_names(self, names: Sequence[str], after_space: Sequence[bool]) -> list[list[int]]:
        """Return each name's ids as it reads after a space, or at the start of a sentence."""
        if not self.space:
            return self._encode_once(names)
        pairs = zip(names, after_space, strict=True)
        return self._encode_once([self.space * spaced + name for name, spaced in pairs])

    def _encode_once(self, texts: Sequence[str]) -> list[list[int]]:
        """Return each text's ids, not to be changed; what facts name again is read once."""
        if len(self._read) > _MOST_READ:
            self._read.clear()
        new = list({*texts}.difference(self._read))
        self._read |= zip(new, self.encode(new), strict=True)
        return [*map(self._read.__getitem__, texts)]

    def encode_glued(self, text: str) -> list[int]:
        """Return the ids of a text that follows a word with no space between ("'s capital")."""
        host, whole = self.encode(["x", "x" + text])
        return whole[len(host) :] if whole[: len(host)] == host else self.encode([text])[0]

    def single_tokens(self, words: Sequence[str], *, after_space: bool = True) -> list[int | None]:
        """Return each word's id where it is one known token, else None."""
        encoded = self.encode_words(words) if after_space else self.encode(words)
        return [
            ids[0] if word.strip() and len(ids) == 1 and ids[0] != self.unknown_id else None
            for word, ids in zip(words, encoded, strict=True)
        ]

    def written(self, tokens: Sequence[int]) -> list[str]:
        """Return tokens as the vocabulary has them, word-start and continuation marks included."""
        entries: list[str] = self.tokenizer.convert_ids_to_tokens(list(tokens))
        return entries

    @cached_property
    def twins(self) -> list[int]:
        """For each token the one of the same word with no space before it.

        A token that is no word after a space, or whose word is several tokens without one, is its
        own twin; so are all where spaces make no difference.
        """
        texts = [self.text(token) for token in range(len(self))]
        spaced, bare = self.single_tokens(texts), self.single_tokens(texts, after_space=False)
        return [
            twin if own == token and twin is not None else token
            for token, (own, twin) in enumerate(zip(spaced, bare, strict=True))
        ]

    def words(self, *, after_space: bool = True) -> list[int]:
        """Return the tokens that are whole words in such a place.

        A whole word reads as its one token and has a letter or a digit. So no words are pieces that
        go on a word, bytes, special and unused tokens, and punctuation.
        """
        if after_space not in self._words:
            texts = [self.text(token) for token in range(len(self))]
            special, read = (
                set(self.special_ids),
                self.single_tokens(texts, after_space=after_space),
            )
            self._words[after_space] = [
                token
                for token, (text, found) in enumerate(zip(texts, read, strict=True))
                if found == token and token not in special and any(map(str.isalnum, text))
            ]
        return self._words[after_space]

    def text(self, token: int) -> str:
        """Return a token as a person reads it, word-start marks removed."""
        if token not in self._texts:
            shown: str = self.tokenizer.decode([token], skip_special_tokens=False)
            self._texts[token] = shown.strip()
        return self._texts[token]
