"""The tokenizer as a function: texts to token ids, as they stand in a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from symprompt.errors import ModelError

_NO_LIMIT = 1 << 30


class Vocabulary:
    """A tokenizer with a mask token; final.

    Args:
        tokenizer: any tokenizer of transformers.
        name: what to call the model in errors.
    """

    def __init__(self, tokenizer: Any, *, name: str) -> None:
        if tokenizer.mask_token_id is None:
            raise ModelError(
                f"the tokenizer of {name} has no mask token, so nothing can be asked; "
                "give a masked language model with its own tokenizer."
            )
        self.tokenizer = tokenizer
        self.mask_id = int(tokenizer.mask_token_id)
        pad = tokenizer.pad_token_id
        self.pad_id = int(pad) if pad is not None else self.mask_id
        self.unknown_id = tokenizer.unk_token_id
        self.prefix, self.suffix = self._frame()

    def __len__(self) -> int:
        return len(self.tokenizer)

    @property
    def max_length(self) -> int:
        """The longest sequence the tokenizer says its model takes."""
        limit = self.tokenizer.model_max_length
        return int(limit) if limit and limit < _NO_LIMIT else _NO_LIMIT

    def _frame(self) -> tuple[list[int], list[int]]:
        """Return the special ids put before and after one sequence."""
        special = set(self.tokenizer.all_special_ids)
        ids = self.tokenizer(self.tokenizer.mask_token)["input_ids"]
        at = ids.index(self.mask_id)
        before = [token for token in ids[:at] if token in special]
        after = [token for token in ids[at + 1 :] if token in special]
        return before, after

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return each text's ids as it stands, without special tokens."""
        if not texts:
            return []
        ids: list[list[int]] = self.tokenizer(list(texts), add_special_tokens=False)["input_ids"]
        return ids

    def encode_words(self, texts: Sequence[str]) -> list[list[int]]:
        """Return each text's ids as it reads after a space (RoBERTa's kind marks word starts)."""
        return self.encode([" " + text for text in texts])

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

    def text(self, token: int) -> str:
        """Return a token as a person reads it, word-start marks removed."""
        shown: str = self.tokenizer.decode([token], skip_special_tokens=False)
        return shown.strip()
