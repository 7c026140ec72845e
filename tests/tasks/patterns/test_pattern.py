"""Patterns read and written out: what is refused, what is cut, and the published ones."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from symprompt.errors import TemplateError
from symprompt.models import LanguageModel
from symprompt.tasks.patterns.data import VerbalExample
from symprompt.tasks.patterns.layout import VECTOR, Writer, fit
from symprompt.tasks.patterns.pattern import (
    MANUAL,
    PAIRS,
    PTUNING,
    TASKS,
    Pattern,
    change,
    manual_patterns,
    reference_pattern,
)

PAIR = VerbalExample("0", {"premise": "Rome is old .", "hypothesis": "Paris lies in Italy."}, 0)


def test_a_pattern_is_read_and_written_back() -> None:
    text = '<2> "{premise:bare,small}" ? [SEP] [MASK:bare], {hypothesis} <1>'
    pattern = Pattern.parse(text)
    assert str(pattern) == text
    assert (pattern.vectors, pattern.fields) == (3, ("premise", "hypothesis"))
    assert not pattern.answer_last
    kinds = [piece.kind for piece in pattern.pieces]
    assert kinds == [
        *("vectors", "words", "field", "words", "break", "answer", "words", "field", "vectors")
    ]
    assert [piece.space for piece in pattern.pieces] == [
        *(False, True, False, False, True, True, False, True, True)
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{premise}", "has 0 \\[MASK\\]"),
        ("[MASK] [MASK]", "has 2 \\[MASK\\]"),
        ("<0> [MASK]", "number of vectors"),
        ("{premise:loud} [MASK]", "bare, small"),
        ("{a b} [MASK]", "write a field"),
    ],
)
def test_a_pattern_that_cannot_be_read_is_refused(text: str, message: str) -> None:
    with pytest.raises(TemplateError, match=message):
        Pattern.parse(text)


def test_a_field_of_another_task_is_refused() -> None:
    with pytest.raises(TemplateError, match="rte has: premise, hypothesis"):
        Pattern.parse("{passage} [MASK]").check(TASKS["rte"])


def test_causal_models_read_up_to_the_answer() -> None:
    assert str(Pattern.parse("{a} <1> [MASK].").up_to_answer()) == "{a} <1> [MASK]"
    with pytest.raises(TemplateError, match="ends with"):
        Pattern.parse("[MASK], {a}").up_to_answer()


def test_texts_are_changed_as_a_pattern_asks() -> None:
    assert change("The end. ", ("bare", "small")) == "the end"
    assert change("?!", ("bare",)) == "?!"
    assert change("The end.", ()) == "The end."


@pytest.mark.parametrize("task", list(TASKS))
def test_published_patterns_serve_their_task_and_both_kinds_of_model(task: str) -> None:
    spec = TASKS[task]
    assert len({one.name for one in MANUAL[task]}) == len(MANUAL[task]) >= 3
    for one in (*MANUAL[task], PTUNING[task]):
        one.pattern.check(spec)
        assert len(one.words) == (len(spec.labels) if spec.kind == "labels" else 0)
        assert bool(one.pattern.vectors) == (one is PTUNING[task])
    assert len(manual_patterns(spec, causal=True)) >= 2
    assert PTUNING[task].pattern.answer_last
    assert reference_pattern(spec).pattern.answer_last
    for text in PAIRS[task]:
        Pattern.parse(text).check(spec)


@pytest.mark.parametrize(
    ("pattern", "before"),
    [
        ("{premise:bare} is {hypothesis:bare}? The city [MASK] .", "Paris is old? The city "),
        # A word after a mark is a word.
        ("city '{premise:bare}' , -[MASK] .", "city 'Paris' , -"),
    ],
)
@pytest.mark.parametrize("family", ["bert", "roberta", "gpt2", "llama"])
def test_an_example_reads_as_its_text_does(
    family: str, pattern: str, before: str, load_family: Callable[..., LanguageModel]
) -> None:
    vocabulary = load_family(family).vocabulary
    writer = Writer(Pattern.parse(pattern), vocabulary, ("Rome", "Lima"), max_length=48)
    written = writer.write(VerbalExample("0", {"premise": "Paris.", "hypothesis": "old"}, 0))
    first, named = vocabulary.encode([before.rstrip(), before + "Rome"])
    assert written.before == [*vocabulary.prefix, *first]
    assert [*first, *written.answers[0]] == named
    after = [] if vocabulary.causal else [*vocabulary.encode_words(["."])[0], *vocabulary.suffix]
    assert written.after == after


def test_vectors_and_separators_stand_in_their_places(bert: LanguageModel) -> None:
    writer = Writer(
        Pattern.parse("<2> {premise} [SEP] <1> [MASK]"), bert.vocabulary, ("Rome",), max_length=48
    )
    written = writer.write(PAIR)
    separator = bert.vocabulary.tokenizer.sep_token_id
    (premise,) = bert.vocabulary.encode(["Rome is old ."])
    first = bert.vocabulary.prefix
    assert written.before == [*first, VECTOR, VECTOR, *premise, separator, VECTOR]


def test_a_long_example_is_cut_and_counted(bert: LanguageModel) -> None:
    pattern = Pattern.parse("{premise} is {hypothesis} [MASK]")
    fields = {"premise": "Rome " * 30, "hypothesis": "Lima " * 9}
    writer = Writer(pattern, bert.vocabulary, ("Rome", "Paris"), max_length=24)
    written = writer.write(VerbalExample("0", fields, 0))
    length = len(written.before) + 1 + len(written.after)
    assert length == 24
    rome, lima = bert.vocabulary.encode(["Rome", "Lima"])
    assert written.before.count(rome[0]) == 11
    assert written.before.count(lima[0]) == 9
    assert written.cut == 19


def test_a_pattern_longer_than_the_model_is_refused(bert: LanguageModel) -> None:
    writer = Writer(Pattern.parse("<9> {premise} [MASK]"), bert.vocabulary, ("Rome",), max_length=8)
    with pytest.raises(TemplateError, match="takes 12 tokens without any field"):
        writer.write(PAIR)


def test_a_word_that_the_model_does_not_know_is_refused(bert: LanguageModel) -> None:
    with pytest.raises(TemplateError, match="unknown to the model"):
        Writer(Pattern.parse("{premise} [MASK]"), bert.vocabulary, ("日",), max_length=48)


@given(st.lists(st.integers(0, 40), min_size=1, max_size=4), st.integers(0, 100))
def test_fitting_is_taking_one_from_the_longest_again_and_again(
    lengths: list[int], room: int
) -> None:
    slow = list(lengths)
    while sum(slow) > room:
        slow[slow.index(max(slow))] -= 1
    assert list(fit(dict(enumerate(lengths)), room).values()) == slow
