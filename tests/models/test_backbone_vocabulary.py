"""The tokenizer as a function, for every family."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tokenizers import AddedToken

from symprompt.errors import ModelError
from symprompt.models import LanguageModel, Vocabulary
from tiny.models import CITIES, COUNTRIES, make_wordpiece


def test_frame_is_what_the_tokenizer_puts_around_a_sentence(backbone: LanguageModel) -> None:
    vocabulary = backbone.vocabulary
    tokenizer = vocabulary.tokenizer
    assert vocabulary.prefix == [tokenizer.cls_token_id]
    assert vocabulary.suffix == [tokenizer.sep_token_id]
    assert vocabulary.mask_id == tokenizer.mask_token_id
    assert vocabulary.pad_id == tokenizer.pad_token_id


def test_known_names_are_one_token_and_others_are_not(backbone: LanguageModel) -> None:
    vocabulary = backbone.vocabulary
    found = vocabulary.single_tokens([*COUNTRIES, *CITIES])
    assert None not in found
    assert len(set(found)) == len(COUNTRIES) + len(CITIES)
    assert vocabulary.single_tokens(["Oslo", "New York", ""]) == [None, None, None]


def test_unknown_word_is_no_answer(backbone: LanguageModel) -> None:
    # One [UNK] would be a single token, yet it stands for any word at all.
    assert backbone.vocabulary.single_tokens(["鿿"]) == [None]


def test_words_are_read_as_inside_a_sentence(backbone: LanguageModel) -> None:
    vocabulary = backbone.vocabulary
    (host, word, whole) = (
        vocabulary.encode(["city"])[0],
        vocabulary.encode_words(["Paris"])[0],
        vocabulary.encode(["city Paris"])[0],
    )
    assert host + word == whole


def test_byte_level_tokens_know_whether_a_space_stands_before(
    load_family: Callable[..., LanguageModel],
) -> None:
    vocabulary = load_family("roberta").vocabulary
    after, start = (
        vocabulary.single_tokens(["Paris"], after_space=flag)[0] for flag in (True, False)
    )
    assert after is not None
    assert start is not None
    assert after != start
    assert vocabulary.text(after) == vocabulary.text(start) == "Paris"


@pytest.mark.parametrize("text", ["'s capital", ".", ", the city", "-", "'s"])
def test_glued_text_is_read_as_after_a_word(backbone: LanguageModel, text: str) -> None:
    vocabulary = backbone.vocabulary
    whole = vocabulary.encode(["Paris" + text])[0]
    name = vocabulary.encode(["Paris"])[0]
    assert name + vocabulary.encode_glued(text) == whole


def test_text_reads_as_a_person_writes_it(backbone: LanguageModel) -> None:
    (token,) = backbone.vocabulary.single_tokens(["Paris"])
    assert token is not None
    assert backbone.vocabulary.text(token) == "Paris"


def test_encode_of_nothing_is_nothing(bert: LanguageModel) -> None:
    assert bert.vocabulary.encode([]) == []
    assert bert.vocabulary.encode_words([]) == []


def test_tokenizer_without_mask_token_is_refused_by_name() -> None:
    tokenizer = make_wordpiece()
    tokenizer.mask_token = None
    with pytest.raises(ModelError, match="my-model has no mask token"):
        Vocabulary(tokenizer, name="my-model")


def test_tokenizer_without_padding_still_pads() -> None:
    tokenizer = make_wordpiece()
    tokenizer.pad_token = None
    vocabulary = Vocabulary(tokenizer, name="any")
    # Padding is masked out of attention, so any id of the vocabulary will do.
    assert 0 <= vocabulary.pad_id < len(vocabulary)


def test_length_limit_of_the_tokenizer_is_kept() -> None:
    tokenizer = make_wordpiece()
    assert Vocabulary(tokenizer, name="any").max_length >= 1 << 30
    tokenizer.model_max_length = 77
    assert Vocabulary(tokenizer, name="any").max_length == 77


def test_special_ids_are_what_is_no_text(backbone: LanguageModel) -> None:
    vocabulary = backbone.vocabulary
    assert {*vocabulary.prefix, *vocabulary.suffix, vocabulary.mask_id} <= {*vocabulary.special_ids}
    words = vocabulary.encode_words(["France lies in the old city ."])[0]
    assert not {*words} & {*vocabulary.special_ids}


def test_reserved_tokens_are_special() -> None:
    tokenizer = make_wordpiece()
    tokenizer.add_tokens([AddedToken("<reserved>", special=True), AddedToken("plain")])
    reserved, plain = tokenizer.convert_tokens_to_ids(["<reserved>", "plain"])
    special = Vocabulary(tokenizer, name="tiny").special_ids
    assert reserved in special
    assert plain not in special


def test_tokens_are_written_with_their_marks(bert: LanguageModel) -> None:
    (ids,) = bert.vocabulary.encode_words(["city of Oslo"])
    assert bert.vocabulary.written(ids) == ["city", "of", "O", "##s", "##l", "##o"]
