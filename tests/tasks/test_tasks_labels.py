"""Tags and label sets: IOB1 to IOB2, spans as conlleval reads them, labels of train alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from symprompt.errors import DataError
from symprompt.tasks.data.examples import (
    LabelSet,
    QuestionExample,
    TaggedExample,
    TaskData,
    TextExample,
    hold_out,
    spans_of,
    to_iob2,
)

TAGS = st.lists(st.sampled_from(["O", "B-A", "I-A", "B-B", "I-B", "B-C-A", "I-C-A"]), max_size=12)


def slow_spans(tags: list[str]) -> list[tuple[str, int, int]]:
    """Phrases by conlleval's two questions, asked at every word."""
    found, start = [], None
    for place in range(len(tags) + 1):
        before = tags[place - 1] if place else "O"
        here = tags[place] if place < len(tags) else "O"
        ends = before != "O" and (here == "O" or here[0] == "B" or here[2:] != before[2:])
        begins = here != "O" and (here[0] == "B" or before == "O" or here[2:] != before[2:])
        if ends and start is not None:
            found.append((before[2:], start, place))
            start = None
        if begins:
            start = place
    return found


@given(TAGS)
def test_spans_are_those_of_conlleval(tags: list[str]) -> None:
    assert spans_of(tags) == slow_spans(tags)


@given(TAGS)
def test_iob2_has_the_same_spans_and_is_left_as_it_is(tags: list[str]) -> None:
    converted = to_iob2(tags)
    assert spans_of(converted) == slow_spans(tags)
    assert to_iob2(converted) == converted
    for before, here in zip(("O", *converted), converted, strict=False):
        assert here[:2] != "I-" or before[2:] == here[2:]


def test_a_type_has_both_of_its_tags() -> None:
    labels = LabelSet.of_tags(["I-Z", "O", "B-C-A", "B-Z"])
    assert labels.names == ("O", "B-C-A", "I-C-A", "B-Z", "I-Z")
    assert labels.index["I-C-A"] == 2
    assert "B-X" not in labels


def test_what_is_held_out_is_drawn_by_the_seed_and_in_groups() -> None:
    questions = [QuestionExample(str(n), "q", f"context {n // 5}") for n in range(100)]
    data = TaskData("question", "q", {"train": questions}, LabelSet(()))
    parted = hold_out(data, 0.2, seed=1)
    assert parted.counts() == {"train": 80, "dev": 20}
    assert parted == hold_out(data, 0.2, seed=1)
    assert parted != hold_out(data, 0.2, seed=2)
    contexts = {
        name: {example.context for example in part if isinstance(example, QuestionExample)}
        for name, part in parted.splits.items()
    }
    assert not contexts["train"] & contexts["dev"]
    roles = [TaggedExample(str(n), ("a",), None, 0) for n in range(4)]
    one_sentence = TaskData("roles", "r", {"train": roles}, LabelSet(("O",)))
    assert hold_out(one_sentence, 0.5).counts() == {"train": 2, "dev": 2}


def test_holding_out_says_what_is_wrong() -> None:
    data = TaskData("sequence", "s", {"train": [TextExample("0", ("x",), "a")]}, LabelSet(("a",)))
    with pytest.raises(DataError, match="at least two"):
        hold_out(data, 0.5)
    with pytest.raises(DataError, match="no split 'dev'; it has train"):
        data.split("dev")
