"""Laid-out splits: tokens, labels and offsets line up for every family's tokenizer."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from symprompt.errors import ConfigError, DataError, ModelError
from symprompt.models import LanguageModel
from symprompt.models.vocabulary import Vocabulary
from symprompt.tasks.data.examples import (
    Answer,
    Example,
    LabelSet,
    PairExample,
    QuestionExample,
    RolesExample,
    TaggedExample,
    TaskData,
    TextExample,
)
from symprompt.tasks.rows import Frame, takes_types
from symprompt.tasks.tensorise import Features, lay_out, make_features
from tiny.causal import CAUSAL_FAMILIES
from tiny.models import FAMILIES

WORDS = ("The", "city", "of", "Paris", "lies", "in", "San-Marino", ",", "Rome", "Xqz.")
CONTEXT = (
    "The old city of Rome lies in Italy. Paris, the capital of France, is located in New York."
)


@pytest.fixture(params=[*FAMILIES, *CAUSAL_FAMILIES])
def vocabulary(
    request: pytest.FixtureRequest, load_family: Callable[..., LanguageModel]
) -> Vocabulary:
    """Every family's tokenizer, masked and causal, in turn."""
    return load_family(str(request.param)).vocabulary


@pytest.fixture
def plain(load_family: Callable[..., LanguageModel]) -> Vocabulary:
    return load_family("bert").vocabulary


def real(features: Features, row: int) -> list[int]:
    assert features.ids.dtype == np.int32
    return features.ids[row, : features.lengths[row]].tolist()


def check_padding(features: Features, vocabulary: Vocabulary) -> None:
    """Nothing stands after a row's real tokens, and the width is the longest row's."""
    after = np.arange(features.ids.shape[1]) >= features.lengths[:, None]
    assert (features.ids[after] == vocabulary.pad_id).all()
    assert features.ids.shape[1] == features.lengths.max()
    if features.types is not None:
        assert (features.types[after] == 0).all()


# ------------------------------------------------------------------------------ texts and pairs


def test_texts_and_pairs_are_framed(vocabulary: Vocabulary) -> None:
    frame = Frame.of(vocabulary)
    texts = [TextExample("0", "Paris is in France", "a"), TextExample("1", "Rome", None)]
    features = lay_out("sequence", texts, LabelSet(("a", "b")), vocabulary, max_length=40)
    for row, example in enumerate(texts):
        (ids,) = vocabulary.encode([example.text])
        assert real(features, row) == [*frame.before, *ids, *frame.after]
        if not vocabulary.causal:
            assert real(features, row) == vocabulary.tokenizer(example.text)["input_ids"]
    assert features.labels is not None
    assert features.labels.tolist() == [0, -100]
    check_padding(features, vocabulary)
    pairs = [PairExample("0", "Paris is in", "Rome", "b"), PairExample("1", "Lima", "Oslo x", "c")]
    features = lay_out(
        "pair", pairs, LabelSet(("a", "b")), vocabulary, max_length=40, token_types=True
    )
    for row, pair in enumerate(pairs):
        first, second = vocabulary.encode([pair.first, pair.second])
        head = [*frame.before, *first, *frame.between]
        assert real(features, row) == [*head, *second, *frame.after]
        if features.types is not None:
            kinds = features.types[row, : features.lengths[row]].tolist()
            assert kinds == [0] * len(head) + [1] * (len(second) + len(frame.after))
    assert (features.types is None) == vocabulary.causal
    assert frame.between
    assert features.labels is not None
    assert features.labels.tolist() == [1, -100]
    check_padding(features, vocabulary)


def test_a_tokenizer_that_frames_pairs_is_followed() -> None:
    vocabulary = Vocabulary(load_shipped(), name="shipped")
    pair = PairExample("0", "Paris is old.", "Rome too", "a")
    features = lay_out(
        "pair", [pair], LabelSet(("a",)), vocabulary, max_length=40, token_types=True
    )
    wanted = vocabulary.tokenizer(pair.first, pair.second, return_token_type_ids=True)
    assert real(features, 0) == wanted["input_ids"]
    assert features.types is not None
    assert features.types[0].tolist() == wanted["token_type_ids"]


def load_shipped() -> object:
    from transformers import AutoTokenizer

    from symprompt.models.loading import locate_model

    return AutoTokenizer.from_pretrained(locate_model("shipped"))


def test_long_texts_become_windows_that_hold_everything(vocabulary: Vocabulary) -> None:
    text = " ".join(["Paris", "Rome", "Lima", "Tokyo", "Madrid"] * 6)
    examples = [TextExample("0", "Rome", "a"), TextExample("1", text, "b")]
    features = lay_out(
        "sequence", examples, LabelSet(("a", "b")), vocabulary, max_length=14, stride=4
    )
    assert (features.lengths <= 14).all()
    assert features.example.tolist()[:2] == [0, 1]
    assert features.labels is not None
    assert features.labels.tolist() == [0] + [1] * (len(features) - 1)
    assert features.cut == 0
    frame = Frame.of(vocabulary)
    (ids,) = vocabulary.encode([text])
    joined: list[int] = []
    for row in range(1, len(features)):
        shown = real(features, row)[len(frame.before) :]
        shown = shown[: len(shown) - len(frame.after)]
        joined += shown if not joined else shown[4:]
    assert joined == ids


def test_a_text_that_is_nothing_keeps_its_row(vocabulary: Vocabulary) -> None:
    examples = [TextExample("0", "\x07", "a"), TextExample("1", "\u200b", "a")]
    features = lay_out("sequence", examples, LabelSet(("a",)), vocabulary, max_length=20)
    assert features.example.tolist() == [0, 1]
    assert (features.lengths > len(vocabulary.prefix) + len(vocabulary.suffix)).all()


def test_the_longer_text_of_a_pair_is_split(plain: Vocabulary) -> None:
    long = " ".join(["Paris"] * 20)
    pairs = [PairExample("0", long, "Rome is", "a"), PairExample("1", "Rome is", long, "a")]
    features = lay_out("pair", pairs, LabelSet(("a",)), plain, max_length=15, stride=2)
    rome, is_ = plain.encode(["Rome is"])[0]
    for row in range(len(features)):
        ids = real(features, row)
        assert len(ids) <= 15
        assert ids[0] == plain.prefix[0]
        inside = ids[1:-1]
        assert (
            inside[-2:] == [rome, is_] if features.example[row] == 0 else inside[:2] == [rome, is_]
        )
    assert np.bincount(features.example).tolist() == [3, 3]


@pytest.mark.parametrize(("first", "second", "kept"), [(30, 3, (9, 3)), (3, 30, (3, 9)), (9, 9, 6)])
def test_cutting_is_counted(plain: Vocabulary, first: int, second: int, kept: object) -> None:
    pairs = [
        PairExample("0", "Paris " * first, "Rome " * second, "a"),
        PairExample("1", "Paris", "Rome", "a"),
    ]
    features = lay_out(
        "pair", pairs, LabelSet(("a",)), plain, max_length=15, stride=2, long_texts="cut"
    )
    assert features.cut == 1
    assert len(features) == 2
    paris, rome = (ids[0] for ids in plain.encode(["Paris", "Rome"]))
    counts = tuple(int((features.ids[0] == token).sum()) for token in (paris, rome))
    assert counts == (kept if isinstance(kept, tuple) else (kept, kept))
    assert features.lengths[0] == 15


# -------------------------------------------------------------------------------------- words


def tagged_examples() -> list[Example]:
    tags = ("O", "O", "O", "B-LOC", "O", "O", "B-LOC", "O", "B-LOC", "I-LOC")
    return [
        TaggedExample("0", WORDS, tags),
        TaggedExample("1", ("Lima",), ("B-PER",)),
        TaggedExample("2", WORDS * 3, tags * 3),
        TaggedExample("3", ("Rome", "Oslo"), None),
    ]


LOC = LabelSet.of_tags(["B-LOC"])


@pytest.mark.parametrize("label_all_tokens", [False, True])
def test_words_keep_their_tags(vocabulary: Vocabulary, label_all_tokens: bool) -> None:
    examples = tagged_examples()
    features = lay_out(
        "tagging",
        examples,
        LOC,
        vocabulary,
        max_length=32,
        stride=8,
        label_all_tokens=label_all_tokens,
    )
    check_padding(features, vocabulary)
    words, first, own = features.words, features.first, features.own
    assert words is not None
    assert first is not None
    assert own is not None
    assert features.labels is not None
    seen: dict[tuple[int, int], list[int]] = {}
    for row in range(len(features)):
        example = examples[features.example[row]]
        assert isinstance(example, TaggedExample)
        for word in sorted(set(words[row].tolist()) - {-1}):
            places = np.flatnonzero(words[row] == word)
            # All tokens of the word, one after the other, as it reads after a space.
            assert (np.diff(places) == 1).all()
            (ids,) = vocabulary.encode_words([example.words[word]])
            assert features.ids[row, places].tolist() == ids
            assert first[row, places].tolist() == [True] + [False] * (len(places) - 1)
            assert len(set(own[row, places].tolist())) == 1
            labels = features.labels[row, places].tolist()
            if own[row, places[0]]:
                seen[int(features.example[row]), word] = labels
            else:
                assert set(labels) == {-100}
    assert (features.labels[words < 0] == -100).all()
    assert (~own[words < 0]).all()
    for number, example in enumerate(examples):
        assert isinstance(example, TaggedExample)
        tags = example.tags or ("?",) * len(example.words)
        for word, tag in enumerate(tags):
            labels = seen.pop((number, word))
            here = LOC.index.get(tag, -100)
            later = {"B-LOC": LOC.index["I-LOC"]}.get(tag, here) if label_all_tokens else -100
            assert labels == [here] + [later] * (len(labels) - 1)
    assert not seen


def test_a_sentence_longer_than_the_model_is_split(plain: Vocabulary) -> None:
    features = lay_out("tagging", tagged_examples(), LOC, plain, max_length=32, stride=8)
    assert np.bincount(features.example)[2] > 1
    assert (features.lengths <= 32).all()
    assert features.labels is not None
    # Every tag of the training set is there once, however many windows show it.
    assert int((features.labels >= 0).sum()) == len(WORDS) * 4


def test_a_word_that_is_nothing_and_one_that_is_endless(vocabulary: Vocabulary) -> None:
    words = ("Rome", "\u200b", "\x07", "x" * 300, "Lima")
    example = TaggedExample("0", words, ("O",) * 5)
    features = lay_out("tagging", [example], LOC, vocabulary, max_length=24, stride=6)
    assert features.words is not None
    assert features.labels is not None
    assert set(features.words[features.words >= 0].tolist()) == set(range(5))
    assert int((features.labels >= 0).sum()) == 5
    assert (features.lengths <= 24).all()
    (ids,) = vocabulary.encode_words(["x" * 300])
    assert features.cut == int(len(ids) > 11)


def test_a_predicate_follows_the_sentence_or_leads_it(vocabulary: Vocabulary) -> None:
    tags = ("O",) * 3 + ("B-LOC",) + ("O",) * 6
    examples = [RolesExample("0", WORDS, 4, tags), RolesExample("1", WORDS, 6, tags)]
    features = lay_out("roles", examples, LOC, vocabulary, max_length=48, token_types=True)
    frame = Frame.of(vocabulary)
    sentence = [token for ids in vocabulary.encode_words(WORDS) for token in ids]
    for row, example in enumerate(examples):
        (predicate,) = vocabulary.encode_words([WORDS[example.predicate_index]])
        ordered = [predicate, sentence] if vocabulary.causal else [sentence, predicate]
        wanted = [*frame.before, *ordered[0], *frame.between, *ordered[1], *frame.after]
        assert real(features, row) == wanted
        assert features.words is not None
        assert features.labels is not None
        shown = features.words[row] >= 0
        assert features.ids[row][shown].tolist() == sentence
        assert int((features.labels[row] >= 0).sum()) == len(WORDS)


# ---------------------------------------------------------------------------------- questions


def ask(name: str, answer: str | None, context: str = CONTEXT) -> QuestionExample:
    if answer is None:
        return QuestionExample(name, "The capital of Cuba is", context, (), impossible=True)
    found = (Answer(context.index(answer), answer),)
    return QuestionExample(name, " The capital of France", context, found)


ANSWERS = ("Italy", "The old", "France", "New York", "capital of", "York.")


@pytest.mark.parametrize("max_length", [44, 120])
def test_answers_are_found_again(vocabulary: Vocabulary, max_length: int) -> None:
    context = "old river, " * 3 + CONTEXT if max_length == 44 else CONTEXT
    examples = [ask(str(place), answer, context) for place, answer in enumerate(ANSWERS)]
    examples += [ask("none", None, context), QuestionExample("?", "in", context)]
    features = lay_out(
        "question", examples, LabelSet(()), vocabulary, max_length=max_length, stride=12
    )
    check_padding(features, vocabulary)
    assert (features.lengths <= max_length).all()
    starts, ends, null, offsets = features.starts, features.ends, features.null, features.offsets
    assert starts is not None
    assert ends is not None
    assert null is not None
    assert offsets is not None
    found: set[int] = set()
    for row in range(len(features)):
        example = examples[features.example[row]]
        if example.id == "?":
            assert starts[row] == ends[row] == -100
            continue
        if starts[row] == null[row]:
            assert ends[row] == null[row]
            assert offsets[row, null[row]].tolist() == [-1, -1]
            continue
        text = context[offsets[row, starts[row], 0] : offsets[row, ends[row], 1]]
        # A token may be more than the answer ("York." is one token somewhere), never less.
        assert example.answers[0].text in text
        assert len(text.strip()) <= len(example.answers[0].text) + 1
        found.add(int(features.example[row]))
    assert found == set(range(len(ANSWERS)))
    wanted = features.lengths - 1 if vocabulary.causal else 0 * features.lengths
    assert null.tolist() == wanted.tolist()
    batch = features.batch()
    allowed = batch.need("allowed")
    assert int(allowed.sum()) == int((offsets[..., 0] >= 0).sum()) + len(features)


def test_every_window_covers_its_part_of_the_context(vocabulary: Vocabulary) -> None:
    features = lay_out(
        "question", [ask("0", None)], LabelSet(()), vocabulary, max_length=40, stride=9
    )
    assert features.offsets is not None
    if len(vocabulary.encode([CONTEXT])[0]) > 40:
        assert len(features) > 1
    covered = np.zeros(len(CONTEXT), bool)
    for begin, end in features.offsets.reshape(-1, 2).tolist():
        covered[max(0, begin) : max(0, end)] = True
    assert covered[[place for place, letter in enumerate(CONTEXT) if letter != " "]].all()


def test_a_question_that_leaves_no_room_is_refused(plain: Vocabulary) -> None:
    example = QuestionExample("long-one", "Paris " * 50, CONTEXT)
    with pytest.raises(DataError, match="'long-one' is longer than 40 tokens and its question"):
        lay_out("question", [example], LabelSet(()), plain, max_length=40, stride=8)
    pair = PairExample("both", "Paris " * 50, "Rome " * 60, "a")
    with pytest.raises(DataError, match="'both' is longer than 40 tokens and its shorter text"):
        lay_out("pair", [pair], LabelSet(("a",)), plain, max_length=40, stride=8)


def test_a_tokenizer_without_offsets_is_refused(plain: Vocabulary) -> None:
    class Slow:
        is_fast = False

        def __getattr__(self, name: str) -> object:
            return getattr(plain.tokenizer, name)

        def __call__(self, *texts: object, **settings: object) -> object:
            return plain.tokenizer(*texts, **settings)

    with pytest.raises(ModelError, match="fast tokenizer"):
        lay_out(
            "question",
            [ask("0", "Italy")],
            LabelSet(()),
            Vocabulary(Slow(), name="x"),
            max_length=90,
        )


# ------------------------------------------------------------------------------------ the rest


def test_settings_that_leave_no_room_are_refused(plain: Vocabulary) -> None:
    data = TaskData("sequence", "s", {"train": [TextExample("0", "x", "a")]}, LabelSet(("a",)))
    with pytest.raises(ConfigError, match="max_length is 5"):
        make_features(data, "train", plain, max_length=5, stride=1)
    with pytest.raises(ConfigError, match="stride is -1"):
        make_features(data, "train", plain, max_length=40, stride=-1)
    with pytest.raises(DataError, match="no split 'dev'"):
        make_features(data, "dev", plain, max_length=40, stride=4)


def test_batches_are_cut_to_their_longest_row(plain: Vocabulary) -> None:
    features = lay_out("tagging", tagged_examples(), LOC, plain, max_length=40, stride=8)
    batch = features.batch(np.array([1]))
    assert batch.ids.shape == (1, features.lengths[1])
    assert batch.need("labels").shape == batch.ids.shape
    assert batch.mask.all()
    whole = features.batch()
    assert len(whole) == len(features)
    again = whole.select(batch.lengths * 0 + 1, int(features.lengths[1]))
    assert again.ids.equal(batch.ids)
    assert again.need("labels").equal(batch.need("labels"))


def test_no_examples_give_no_rows(plain: Vocabulary) -> None:
    for kind in ("sequence", "pair", "tagging", "roles", "question"):
        features = lay_out(kind, [], LOC, plain, max_length=40, stride=8)  # type: ignore[arg-type]
        assert len(features) == 0


def test_which_models_take_segments(load_family: Callable[..., LanguageModel]) -> None:
    found = {name: takes_types(load_family(name)) for name in ("bert", "distilbert", "gpt2")}
    assert found == {"bert": True, "distilbert": False, "gpt2": False}
