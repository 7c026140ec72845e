"""The tokenizer as a function, for every family."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from tokenizers import AddedToken

from symprompt.models import LanguageModel, Vocabulary
from symprompt.models import vocabulary as vocabulary_module
from tiny.models import CAUSAL_FAMILIES, CITIES, COUNTRIES, FAMILIES, make_wordpiece


@pytest.fixture(params=[*FAMILIES, *CAUSAL_FAMILIES])
def vocabulary(
    request: pytest.FixtureRequest, load_family: Callable[..., LanguageModel]
) -> Vocabulary:
    """Every family's vocabulary in turn, masked and causal."""
    return load_family(request.param).vocabulary


def test_frame_is_what_the_tokenizer_puts_around_a_sentence(vocabulary: Vocabulary) -> None:
    tokenizer = vocabulary.tokenizer
    if vocabulary.causal:
        start = tokenizer.bos_token_id
        assert vocabulary.prefix == ([] if start is None else [start])
        assert (vocabulary.suffix, vocabulary.mask_id) == ([], None)
        pad = tokenizer.pad_token_id
        assert vocabulary.pad_id == (tokenizer.eos_token_id if pad is None else pad)
        return
    assert vocabulary.prefix == [tokenizer.cls_token_id]
    assert vocabulary.suffix == [tokenizer.sep_token_id]
    assert vocabulary.mask_id == tokenizer.mask_token_id
    assert vocabulary.pad_id == tokenizer.pad_token_id


def test_known_names_are_one_token_and_others_are_not(vocabulary: Vocabulary) -> None:
    found = vocabulary.single_tokens([*COUNTRIES, *CITIES])
    assert None not in found
    assert len(set(found)) == len(COUNTRIES) + len(CITIES)
    assert vocabulary.single_tokens(["Oslo", "New York", ""]) == [None, None, None]
    (token,) = vocabulary.single_tokens(["Paris"])
    assert token is not None
    assert vocabulary.text(token) == "Paris"


def test_unknown_word_is_no_answer(backbone: LanguageModel) -> None:
    # One [UNK] would be a single token, yet it stands for any word at all.
    assert backbone.vocabulary.single_tokens(["鿿"]) == [None]


def test_words_are_read_as_inside_a_sentence(vocabulary: Vocabulary) -> None:
    (host, whole) = vocabulary.encode(["city", "city Paris"])
    assert host + vocabulary.encode_words(["Paris"])[0] == whole
    assert vocabulary.encode_names(["Paris"], [True]) == vocabulary.encode_words(["Paris"])
    assert vocabulary.encode_names(["Paris"], [False]) == vocabulary.encode(["Paris"])
    assert vocabulary.encode([]) == vocabulary.encode_words([]) == []


def test_texts_are_read_a_few_at_a_time(
    vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [*COUNTRIES, "", *CITIES]
    wanted = vocabulary.tokenizer(texts, add_special_tokens=False)["input_ids"]
    assert vocabulary._plain() is not None
    assert vocabulary.encode(texts) == wanted
    monkeypatch.setattr(vocabulary_module, "_AT_ONCE", 3)
    assert vocabulary.encode(texts) == wanted == [vocabulary.encode([one])[0] for one in texts]


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
    whole, name = backbone.vocabulary.encode(["Paris" + text, "Paris"])
    assert name + backbone.vocabulary.encode_glued(text) == whole


def test_tokenizer_without_padding_or_a_limit_will_do() -> None:
    tokenizer = make_wordpiece()
    tokenizer.pad_token = None
    vocabulary = Vocabulary(tokenizer, name="any")
    # Padding is masked out of attention, so any id of the vocabulary will do.
    assert 0 <= vocabulary.pad_id < len(vocabulary)
    assert vocabulary.max_length >= 1 << 30
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


@pytest.mark.parametrize("after_space", [True, False])
def test_words_are_the_tokens_that_a_name_of_letters_reads_as(
    vocabulary: Vocabulary, after_space: bool
) -> None:
    words = vocabulary.words(after_space=after_space)
    names = vocabulary.single_tokens([*COUNTRIES, *CITIES, "river"], after_space=after_space)
    assert {token for token in names if token is not None} <= set(words)
    assert not set(words) & {*vocabulary.special_ids, vocabulary.mask_id, vocabulary.pad_id}
    for token in range(len(vocabulary)):
        (written,), text = vocabulary.written([token]), vocabulary.text(token)
        reads = vocabulary.single_tokens([text], after_space=after_space) == [token]
        letters = re.search(r"[^\W_]", text) is not None
        if written.startswith("##") or not letters or token in vocabulary.special_ids:
            assert token not in words
        else:
            assert (token in words) == reads
    assert vocabulary.words(after_space=after_space) is words


def test_a_piece_that_goes_on_a_word_is_no_word(load_family: Callable[..., LanguageModel]) -> None:
    for name, mark in (("roberta", "\u0120"), ("gpt2", "\u0120"), ("xlm-roberta", "\u2581")):
        vocabulary = load_family(name).vocabulary
        words = vocabulary.words()
        assert words
        assert all(entry.startswith(mark) for entry in vocabulary.written(words))
