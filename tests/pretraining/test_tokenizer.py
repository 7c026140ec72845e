"""Tokenizers learned from a small text: all three kinds, whole words, languages, refusals.

How often each language is drawn: equation 11.7 against values worked out by hand.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from symprompt.errors import ConfigError, DataError, ModelError
from symprompt.files.text import Document
from symprompt.pretraining.config import VocabularyConfig
from symprompt.pretraining.tokenizer import (
    LearnedTokenizer,
    draw_repeated,
    find_specials,
    learn_tokenizer,
    load_tokenizer,
    plan_sampling,
    repeats_at,
)

KINDS = ("wordpiece", "bpe", "unigram")
SIZES = {"wordpiece": 300, "bpe": 420, "unigram": 200}
WORDS = ("Reykjavik", "Paris", "Parisville", "New York", "co-op", "Malmö", "paris")
SYLLABLES = tuple(first + second for first in "bdfgklmnrstvz" for second in "aeiou")


def make_documents(count: int = 120, language: str = "") -> list[Document]:
    """Return made-up text with enough different words to learn from."""
    generator = np.random.default_rng(5)
    known = ["".join(generator.choice(SYLLABLES, size=size)) for size in (1, 2, 3, 4) * 100]
    documents = []
    for _ in range(count):
        words = list(generator.choice(known, size=30))
        lines = (" ".join(words[:15]).capitalize() + ".", "The " + ", the ".join(words[15:]) + ".")
        documents.append(Document(language, lines))
    return documents


@pytest.fixture(scope="module")
def word_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("words") / "words.txt"
    path.write_text("\n".join(WORDS) + "\n\nParis\n", encoding="utf-8")
    return str(path)


@pytest.fixture(scope="module")
def learned(word_file: str) -> Callable[[str], LearnedTokenizer]:
    """A function that learns each kind once."""
    made: dict[str, LearnedTokenizer] = {}

    def learn(kind: str) -> LearnedTokenizer:
        if kind not in made:
            config = VocabularyConfig(kind=kind, size=SIZES[kind], whole_words=word_file)  # type: ignore[arg-type]
            made[kind] = learn_tokenizer(make_documents, config, length=128)
        return made[kind]

    return learn


@pytest.fixture(params=KINDS)
def result(
    request: pytest.FixtureRequest, learned: Callable[[str], LearnedTokenizer]
) -> LearnedTokenizer:
    """Each kind's result in turn."""
    return learned(str(request.param))


def test_size_is_exactly_what_was_asked(learned: Callable[[str], LearnedTokenizer]) -> None:
    for kind in KINDS:
        tokenizer = learned(kind).tokenizer
        assert len(tokenizer) == SIZES[kind]
        assert sorted(tokenizer.get_vocab().values()) == list(range(SIZES[kind]))


def test_whole_words_are_one_token_wherever_they_stand(result: LearnedTokenizer) -> None:
    tokenizer = result.tokenizer
    assert result.whole == ("Reykjavik", "Paris", "Parisville", "Malmö", "paris")
    assert result.broken == ("New York", "co-op")
    for word in result.whole:
        for text in (word, f"{word}, the", f"the {word}.", f"(the {word})"):
            ids = tokenizer(text, add_special_tokens=False)["input_ids"]
            assert word in [tokenizer.decode([token]).strip() for token in ids], (word, text)


def test_saved_folder_loads_with_auto_tokenizer(result: LearnedTokenizer, tmp_path: Path) -> None:
    result.tokenizer.save_pretrained(str(tmp_path))
    # The folder of a finished model holds its config too, and that must not change the class.
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    again = AutoTokenizer.from_pretrained(str(tmp_path))
    text = f"The {result.tokenizer.mask_token}. Parisville, bake!"
    assert again(text, "Paris").data == result.tokenizer(text, "Paris").data
    assert again.model_max_length == 128
    assert find_specials(again) == find_specials(result.tokenizer)
    assert load_tokenizer(tmp_path)(text).data == result.tokenizer(text).data


def test_frame_and_segments(result: LearnedTokenizer) -> None:
    tokenizer, specials = result.tokenizer, find_specials(result.tokenizer)
    pair = tokenizer("Paris", "Reykjavik")
    (a,), (b,) = (
        tokenizer(w, add_special_tokens=False)["input_ids"] for w in ("Paris", "Reykjavik")
    )
    assert pair["input_ids"] == [specials.cls, a, specials.sep, b, specials.sep]
    assert pair["token_type_ids"] == [0, 0, 0, 1, 1]
    assert tokenizer("Paris")["input_ids"] == [specials.cls, a, specials.sep]


def test_what_is_glued_to_the_mask_stays_glued_and_text_decodes(result: LearnedTokenizer) -> None:
    tokenizer = result.tokenizer
    with_mask = tokenizer(f"Malmö {tokenizer.mask_token}.", add_special_tokens=False)["input_ids"]
    with_word = tokenizer("Malmö Paris.", add_special_tokens=False)["input_ids"]
    assert with_mask[0] == with_word[0]
    assert with_mask[1] == tokenizer.mask_token_id
    assert with_mask[2:] == with_word[2:]
    text = make_documents(1)[0].lines[1]
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert tokenizer.decode(ids).replace(" ", "") == text.replace(" ", "")


def test_uncased_drops_case_and_accents(word_file: str) -> None:
    for kind in ("wordpiece", "bpe"):
        config = VocabularyConfig(kind=kind, size=SIZES[kind], cased=False, whole_words=word_file)
        made = learn_tokenizer(make_documents, config, length=64)
        assert made.whole == ("Reykjavik", "Paris", "Parisville", "Malmö", "paris")
        same = [made.tokenizer(word)["input_ids"] for word in ("MALMÖ", "malmo", "Malmö")]
        assert same[0] == same[1] == same[2]


@pytest.mark.parametrize("kind", KINDS)
def test_learning_twice_gives_the_same(
    kind: str, learned: Callable[[str], LearnedTokenizer], word_file: str
) -> None:
    config = VocabularyConfig(kind=kind, size=SIZES[kind], whole_words=word_file)  # type: ignore[arg-type]
    again = learn_tokenizer(make_documents, config, length=128).tokenizer
    first = learned(kind).tokenizer
    assert again.backend_tokenizer.to_str() == first.backend_tokenizer.to_str()


def test_rare_characters_are_unknown_rather_than_filling_the_vocabulary() -> None:
    rare = "".join(chr(0x4E00 + number) for number in range(500))
    documents = [*make_documents(), Document("", (rare,))]
    config = VocabularyConfig(kind="unigram", size=200)
    tokenizer = learn_tokenizer(lambda: documents, config, length=128).tokenizer
    assert len(tokenizer) == 200
    assert tokenizer.unk_token_id in tokenizer(rare)["input_ids"]


def test_small_language_is_sampled_up_and_gets_more_tokens() -> None:
    letters = str.maketrans("abdefgiklmnorstuvz", "αβδεφγικλμνορστυωζ")
    small = [
        Document("el", tuple(line.translate(letters) for line in document.lines))
        for document in make_documents(6)
    ]
    documents = [Document("en", d.lines) for d in make_documents(200)] + small

    def greek(alpha: float) -> tuple[int, LearnedTokenizer]:
        config = VocabularyConfig(size=260, alpha=alpha)
        made = learn_tokenizer(lambda: iter(documents), config, length=128, seed=3)
        count = sum(any("α" <= letter <= "ω" for letter in t) for t in made.tokenizer.get_vocab())
        return count, made

    (plain, _), (raised, made) = greek(1.0), greek(0.3)
    assert raised > plain
    greek_share, english_share = made.languages
    assert (greek_share.language, greek_share.before) == ("el", 12)
    assert greek_share.after > greek_share.before
    assert english_share.after < english_share.before


def test_text_is_streamed_not_held() -> None:
    alive = 0

    class Counted(str):
        __slots__ = ()

        def __del__(self) -> None:
            nonlocal alive
            alive -= 1

    most = 0

    def documents() -> Iterator[Document]:
        nonlocal alive, most
        for document in make_documents(1500):
            lines = tuple(Counted(line) for line in document.lines)
            alive += len(lines)
            most = max(most, alive)
            yield Document("", lines)

    learn_tokenizer(documents, VocabularyConfig(kind="bpe", size=300), length=128)
    assert most < 1500, f"{most} of 3000 lines were alive at once"


def make_bare(**tokens: str) -> PreTrainedTokenizerFast:
    vocabulary = {token: index for index, token in enumerate(["a", "<s>", "</s>", "<p>", "<m>"])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="a"))
    return PreTrainedTokenizerFast(tokenizer_object=backend, **tokens)


def test_bos_and_eos_stand_in_and_missing_ones_are_named() -> None:
    tokens = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<p>", "mask_token": "<m>"}
    specials = find_specials(make_bare(**tokens))
    assert (specials.cls, specials.sep, specials.pad, specials.mask) == (1, 2, 3, 4)
    with pytest.raises(ModelError, match="not a fast one"):
        find_specials(object())
    with pytest.raises(ModelError, match="has no pad, mask token"):
        find_specials(make_bare(bos_token="<s>", eos_token="</s>"))


@pytest.mark.parametrize(
    ("settings", "words", "error", "message"),
    [
        *(
            ({"kind": kind, "size": 20_000}, None, ConfigError, r"text gives only \d+ tokens")
            for kind in KINDS
        ),
        (
            {"kind": "bpe", "size": 420},
            [f"xy{a}{b}" for a in SYLLABLES[:20] for b in SYLLABLES[:15]],
            ConfigError,
            "size is 420, but special tokens and characters are 261",
        ),
        ({"size": 300, "whole_words": "none.txt"}, None, DataError, "does not exist"),
    ],
)
def test_what_cannot_be_learned_is_refused(
    settings: dict[str, Any],
    words: list[str] | None,
    error: type[Exception],
    message: str,
    tmp_path: Path,
) -> None:
    if words:
        (tmp_path / "words.txt").write_text("\n".join(words))
        settings = {**settings, "whole_words": str(tmp_path / "words.txt")}
    with pytest.raises(error, match=message):
        learn_tokenizer(make_documents, VocabularyConfig(**settings), length=128)


@pytest.mark.parametrize(
    ("content", "message"), [(None, "is not a folder"), ("{", "cannot load the tokenizer in")]
)
def test_missing_and_damaged_tokenizers_are_refused(
    content: str | None, message: str, tmp_path: Path
) -> None:
    folder = tmp_path / "tokenizer"
    if content:
        folder.mkdir()
        (folder / "tokenizer.json").write_text(content)
    with pytest.raises(ModelError, match=message):
        load_tokenizer(folder)


# ------------------------------------------------------------------------------------- languages


@pytest.mark.parametrize(
    ("counts", "alpha", "expected"),
    [
        # p = 0.99, 0.01; 0.99^0.3 = 0.996989, 0.01^0.3 = 0.251189; their sum is 1.248178.
        ((990, 10), 0.3, (0.798756, 0.201244)),
        # p = 16/25, 9/25; with alpha 0.5 they become 0.8 and 0.6.
        ((16, 9), 0.5, (4 / 7, 3 / 7)),
        ((6, 3, 1, 0), 1.0, (0.6, 0.3, 0.1, 0.0)),
        ((6, 3, 1, 0), 0.0, (1 / 3, 1 / 3, 1 / 3, 0)),
    ],
)
def test_shares_are_those_of_the_equation(
    counts: tuple[int, ...], alpha: float, expected: tuple[float, ...]
) -> None:
    plan = plan_sampling(dict(zip("abcd", counts, strict=False)), alpha)
    assert tuple(share.share for share in plan) == pytest.approx(expected, abs=1e-6)


@given(
    counts=st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 10_000), min_size=1),
    alpha=st.floats(0, 1),
)
def test_plan_keeps_the_number_of_sentences(counts: dict[str, int], alpha: float) -> None:
    counts["a"] = counts.get("a", 0) + 1
    plan = plan_sampling(counts, alpha)
    assert sum(share.after for share in plan) == sum(counts.values())
    assert sum(share.share for share in plan) == pytest.approx(1)
    assert all(share.after == 0 for share in plan if share.before == 0)


@given(before=st.integers(1, 300), after=st.integers(0, 900), seed=st.integers(0, 99))
def test_repeats_add_up_and_are_even(before: int, after: int, seed: int) -> None:
    times = [repeats_at(index, before, after, seed * 7919) for index in range(before)]
    drawn = draw_repeated(before, after, np.random.default_rng(seed))
    for found in (times, np.bincount(drawn, minlength=before).tolist()):
        assert (len(found), sum(found)) == (before, after)
        assert max(found) - min(found) <= 1
