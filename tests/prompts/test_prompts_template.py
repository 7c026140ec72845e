"""Reading and writing templates."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from symprompt.errors import TemplateError
from symprompt.prompts import Template

# Words that could be taken for blanks or vectors, marks, other scripts, odd white space.
words = st.one_of(
    st.sampled_from(["is", "the capital", ".", "'s city", "[Z]", "<x>", "<", "[", "3", "<3", "X]"]),
    st.text(min_size=1, max_size=6).filter(
        lambda text: text.strip() and not any(mark in text for mark in ("[X]", "[Y]"))
    ),
)
vectors = st.integers(1, 12).map(lambda count: f"<{count}>")
space = st.sampled_from([" ", "  ", "\t", "\n ", "\u00a0"])


@st.composite
def template_texts(draw: st.DrawFn) -> str:
    parts = draw(st.lists(st.one_of(words, vectors), max_size=6))
    for blank in ("[X]", "[Y]"):
        parts.insert(draw(st.integers(0, len(parts))), blank)
    text = parts[0]
    for part in parts[1:]:
        text += draw(space) + part
    return text


@given(template_texts())
def test_text_of_a_template_reads_back_as_the_same_template(text: str) -> None:
    template = Template.parse(text)
    assert Template.parse(str(template)) == template
    assert str(template) == " ".join(text.split())


@given(template_texts())
def test_swapping_twice_changes_nothing_and_keeps_every_vector(text: str) -> None:
    template = Template.parse(text)
    swapped = template.swapped()
    assert swapped.swapped() == template
    assert swapped != template
    assert swapped.vectors == template.vectors
    # Only the two blanks change places; what stands around them does not move.
    other = {"[X]": "[Y]", "[Y]": "[X]"}
    assert str(swapped).split(" ") == [other.get(part, part) for part in str(template).split(" ")]
    assert swapped.space_before("object") == template.space_before("subject")
    assert swapped.space_before("subject") == template.space_before("object")


def test_vectors_are_counted() -> None:
    assert Template.parse("<3> [X] <3> [Y] <3>").vectors == 9
    assert Template.parse("[X] is in [Y] .").vectors == 0
    assert Template.parse("<2><11> [X] [Y]").vectors == 13


@pytest.mark.parametrize(
    ("text", "subject", "answer"),
    [
        ("[X] is in [Y] .", False, True),
        ("  [X] [Y]", False, True),
        # The bracket stands between the space and the blank.
        ("<1>[Y] ([X])", False, False),
        ("the city ([X]), [Y].", False, True),
    ],
)
def test_space_before_a_blank_is_known(text: str, subject: bool, answer: bool) -> None:
    template = Template.parse(text)
    assert template.space_before("subject") == subject
    assert template.space_before("object") == answer


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"has 0 \[X\]"),
        ("[X] is", r"has 0 \[Y\]"),
        ("is [Y]", r"has 0 \[X\]"),
        ("[X] [X] [Y]", r"has 2 \[X\]"),
        ("[X] [Y] [Y]", r"has 2 \[Y\]"),
        ("<0> [X] [Y]", "<0> asks for 0 vectors"),
        ("<99999999999999999999> [X] [Y]", "write <1> to <1000>"),
        ("[X]is in [Y]", "run together"),
        ("[X] in[Y]", "run together"),
        ("a<3> [X] [Y]", "run together"),
        ("[X] [Y]5", "run together"),
    ],
)
def test_unreadable_templates_are_refused(text: str, message: str) -> None:
    with pytest.raises(TemplateError, match=message):
        Template.parse(text)


def test_marks_may_touch_blanks() -> None:
    text = "[X]'s capital is [Y]."
    assert str(Template.parse(text)) == text
